//! Cost of a trace, in JSON reports.

use serde::Deserialize;

/// Share of one CPU, and the times that it is made of.
#[derive(Debug, Deserialize)]
pub struct Overhead {
    pub percent: f64,
    pub lately_percent: f64,
    pub seconds: f64,
    pub allocations_per_second: f64,
    pub traps: Traps,
    pub programs: Vec<ProgramTime>,
    pub measured: bool,
    pub unmeasured_allocations: f64,
    pub governor: Option<Governor>,
}

#[derive(Debug, Deserialize)]
pub struct Traps {
    pub count: f64,
    pub seconds: f64,
    pub emulated_ns: f64,
    pub single_stepped_ns: Option<f64>,
    pub return_ns: f64,
}

#[derive(Debug, Deserialize)]
pub struct ProgramTime {
    pub name: String,
    pub runs: f64,
    pub ns_per_run: f64,
    pub seconds: f64,
}

#[derive(Debug, Deserialize)]
pub struct Governor {
    pub limit_percent: f64,
    pub interval: Interval,
    pub changes: u64,
    pub floor_percent: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct Interval {
    pub now: u64,
    pub least: u64,
    pub most: u64,
}
