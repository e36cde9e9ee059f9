//! Sampling interval that changes during the trace. Probes read it at each allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::SharedWords;
use leak_report::model::Sampling;

/// `struct distance` in shared memory.
#[derive(Debug)]
pub struct Distance(SharedWords<AtomicU64>);

impl Distance {
    pub(super) fn new(words: SharedWords<AtomicU64>) -> Self {
        Self(words)
    }

    /// Sets the mean number of bytes between chosen ones; 1 records every allocation. Blocks recorded before
    /// keep their weight.
    pub fn set(&self, mean: u64) {
        let mean = mean.clamp(1, Sampling::MAX_BYTES);
        if let [mean_word, has_risen, ..] = self.0.words() {
            // In this order: once blocks go unrecorded, their frees must not count as unknown frees.
            if mean > 1 {
                has_risen.store(1, Ordering::SeqCst);
            }
            mean_word.store(mean, Ordering::SeqCst);
        }
    }

    /// Current sampling: exact as long as the interval has never exceeded 1.
    pub fn sampling(&self) -> Sampling {
        match self.0.words() {
            [mean, has_risen, ..] if has_risen.load(Ordering::SeqCst) != 0 => {
                Sampling::Governed(mean.load(Ordering::SeqCst).max(1))
            }
            _ => Sampling::All,
        }
    }
}
