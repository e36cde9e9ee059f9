//! Result of a diagnosis.

use std::time::Duration;

use crate::process::Target;
use memleak_why::{Answer, Observed};

/// A diagnosis, and facts about how it was made.
pub(super) struct Diagnosis<'a> {
    pub(super) target: &'a Target,
    pub(super) observed: &'a Observed,
    pub(super) answer: Answer,
    pub(super) took: Duration,
    pub(super) steps: Vec<Step>,
}

/// Part of the work for a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) what: &'static str,
    pub(super) took: Duration,
    /// CPU time that it took from the process, as a share of one CPU; `None` if it took none.
    pub(super) cost: Option<f64>,
    /// True if it was given up because of its cost.
    pub(super) is_given_up: bool,
}

impl Step {
    /// A step that cost the process nothing.
    pub(super) fn of(what: &'static str, took: Duration) -> Self {
        Self {
            what,
            took,
            cost: None,
            is_given_up: false,
        }
    }
}
