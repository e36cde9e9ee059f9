//! What the user asks of a running trace by signals. Setting the flags is the business of whoever has the signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::launch::Relay;

/// Set from outside while a trace goes on.
#[derive(Debug, Default)]
pub struct Signals {
    /// An end is wanted: the last report is still made.
    pub stop: Arc<AtomicBool>,
    /// What is outstanding now is to be the baseline of growth. Taken back when that is done.
    pub mark: Arc<AtomicBool>,
    /// The way to the program that is started, for signals that are meant for it.
    pub relay: Arc<Relay>,
}

impl Signals {
    pub(super) fn wants_end(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether a mark was asked for since this was last asked.
    pub(super) fn take_mark(&self) -> bool {
        self.mark.swap(false, Ordering::Relaxed)
    }
}
