//! Requests of the user to a running trace, made by signals. The owner of the signal handlers sets the flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::launch::Relay;

/// Requests that are made from outside while a trace runs.
#[derive(Debug, Default)]
pub struct Signals {
    /// True if the end is requested; the last report is still made.
    pub stop: Arc<AtomicBool>,
    /// True if the blocks that are outstanding now shall become the baseline of growth. The session then
    /// clears it.
    pub mark: Arc<AtomicBool>,
    /// True if each report shall have a verdict, as if requested at the start. The session clears it if there
    /// can be none.
    pub verdict: Arc<AtomicBool>,
    /// Forwards signals to the program that is started.
    pub relay: Arc<Relay>,
}

impl Signals {
    pub(crate) fn wants_end(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn want_verdicts(&self) -> bool {
        self.verdict.load(Ordering::Relaxed)
    }

    pub(super) fn refuse_verdicts(&self) {
        self.verdict.store(false, Ordering::Relaxed);
    }

    /// Returns whether a mark was requested since the last call.
    pub(super) fn take_mark(&self) -> bool {
        self.mark.swap(false, Ordering::Relaxed)
    }
}
