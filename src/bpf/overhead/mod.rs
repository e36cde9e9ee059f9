//! What tracing costs the target, in CPU time, and how much of it is recorded so that it costs no more than was
//! allowed. Pure: numbers in, numbers out; `session` reads the kernel and the clock.
//!
//! Each hit of a probe costs a trap, and the run of a program. What a trap takes is measured once, on this program
//! itself ([`Traps`](leak_report::model::Traps)). What programs take, and how often they run, is known from short [`Window`]s of
//! the kernel's own statistics; in between, allocations are known by a count that programs keep anyway, and everything
//! else is taken to be as often and as long as in the window.

mod account;
mod governor;

pub use account::{Account, SlowShares, Window};
pub use governor::{Decision, Governor, Look};

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
