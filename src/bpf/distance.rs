//! How far apart chosen bytes are, where that changes while the trace goes on. Probes read it at each allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::SharedWords;
use leak_report::model::Sampling;

/// `struct distance`, in place.
#[derive(Debug)]
pub struct Distance(SharedWords<AtomicU64>);

impl Distance {
    pub(super) fn new(words: SharedWords<AtomicU64>) -> Self {
        Self(words)
    }

    /// From now on, one byte of so many is chosen on average; 1 is for all allocations to be recorded. What is live
    /// keeps the weight that it was recorded with.
    pub fn set(&self, mean: u64) {
        let mean = mean.clamp(1, Sampling::MAX_BYTES);
        if let [mean_word, has_risen, ..] = self.0.words() {
            // In this order: a free of a block that was not recorded is not to be taken for one of an unknown block.
            if mean > 1 {
                has_risen.store(1, Ordering::SeqCst);
            }
            mean_word.store(mean, Ordering::SeqCst);
        }
    }

    /// What amounts are by now: exact for as long as the distance has never risen.
    pub fn sampling(&self) -> Sampling {
        match self.0.words() {
            [mean, has_risen, ..] if has_risen.load(Ordering::SeqCst) != 0 => {
                Sampling::Governed(mean.load(Ordering::SeqCst).max(1))
            }
            _ => Sampling::All,
        }
    }
}
