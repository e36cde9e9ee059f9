//! CPU time that tracing costs the target, and the sampling interval that keeps it below a limit. Pure:
//! `session` reads the kernel and the clock.
//!
//! Each probe hit costs a trap and a run of a program. The cost of a trap is measured once, on this process
//! ([`Traps`](leak_report::model::Traps)). The cost and frequency of runs are known from short [`Window`]s of
//! the kernel's statistics; in between, allocations come from a count that programs keep anyway, and
//! everything else is taken to be as frequent and as expensive as in the window.

mod account;
mod governor;
mod ladder;

pub use account::{Account, SlowShares, Window};
pub use governor::{Decision, Governor, Measurement};
pub use ladder::Ladder;

/// Converts a count, exactly below 2^53.
#[allow(
    clippy::cast_precision_loss,
    reason = "counts and distances are far below 2^53"
)]
fn real(count: u64) -> f64 {
    count as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}
