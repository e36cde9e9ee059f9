//! Probes on [`NOP10`]: on some kernels, a hit is a call and not a trap. Finds out whether this kernel does
//! that without harm to the program.
//!
//! Linux 6.18 on x86-64 began to replace a probed `nop` by a call into a page that it maps for that, which
//! costs half of what a trap does. At first that call overwrote the red zone, and forked children lacked the
//! page (`docs/decisions/0016-probes-on-long-nops.md`). Version numbers do not tell whether both are
//! corrected, so it is tried: a helper process probes code that no other process has mapped.

use std::sync::OnceLock;

use crate::allocator::NOP10;

/// Effect of a probe on an instruction that does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There is no such optimization, or it could not be tried.
    Trap,
    /// A hit is a call, and it or what comes after it harms the program.
    Harmful,
    /// A hit is a call, and nothing else in the program changes.
    Call,
}

/// Effect of a probe on [`NOP10`] on this kernel. Tried once.
pub fn outcome() -> Outcome {
    static OUTCOME: OnceLock<Outcome> = OnceLock::new();
    *OUTCOME.get_or_init(|| trial::of(&NOP10))
}

#[cfg(target_arch = "x86_64")]
mod trial;

#[cfg(not(target_arch = "x86_64"))]
mod trial {
    use super::Outcome;

    /// Other architectures have no such optimization.
    pub(super) fn of(_: &[u8]) -> Outcome {
        Outcome::Trap
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
