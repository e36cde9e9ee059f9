//! What tracing costs the target, in CPU time, and how much of it is recorded so that it costs no more than was
//! allowed. Pure: numbers in, numbers out; `session` reads the kernel and the clock.
//!
//! Each hit of a probe costs a trap, and the run of a program. What a trap takes is measured once, on this program
//! itself ([`Traps`]). What programs take, and how often they run, is known from short [`Window`]s of the kernel's own
//! statistics; in between, allocations are known by a count that programs keep anyway, and everything else is taken
//! to be as often and as long as in the window.

mod account;
mod governor;

pub use account::{Account, ProgramTime, SlowShares, Spent, Window};
pub use governor::{Decision, Governor, Look};

use crate::bpf::Traps;

/// What a report says of the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overhead {
    /// Since the attach.
    pub spent: Spent,
    /// The share of one CPU in about the last second.
    pub lately: f64,
    /// Nanoseconds of each trap.
    pub traps: Traps,
    /// The kernel's statistics could be read; else programs are taken to run as long as they do on other machines.
    pub measured: bool,
    /// With `--max-overhead`.
    pub governed: Option<Governed>,
}

/// How the distance between chosen bytes went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Governed {
    /// What was allowed, as a share of one CPU.
    pub limit: f64,
    /// Now; 1 is all allocations.
    pub now: u64,
    /// The least that it was.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// How often it changed.
    pub changes: u64,
    /// What probes alone cost, where that is more than the limit.
    pub floor: Option<f64>,
}

/// A count to reckon with: exact below 2^53.
#[allow(
    clippy::cast_precision_loss,
    reason = "counts and distances are far below 2^53"
)]
fn real(count: u64) -> f64 {
    count as f64
}

/// The nearest count.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}
