//! Watches blocks that a verdict called lost: if one is freed after all, the verdict was false.

use std::collections::HashMap;

use super::finding::{Finding, Key};
use leak_report::model::Amount;

/// Blocks that were called lost and are outstanding, as far as known.
#[derive(Debug, Default)]
pub(in crate::session) struct Watch {
    lost: HashMap<Key, Watched>,
    freed: Amount,
}

#[derive(Debug)]
struct Watched {
    bytes: u64,
    is_outstanding: bool,
}

impl Watch {
    /// Watches the blocks that `finding` calls lost.
    pub(super) fn begin(&mut self, finding: &Finding) {
        for (key, bytes) in finding.lost() {
            self.lost.entry(key).or_insert(Watched {
                bytes,
                is_outstanding: false,
            });
        }
    }

    /// Notes that a block is outstanding.
    pub(super) fn see(&mut self, key: &Key) {
        if let Some(watched) = self.lost.get_mut(key) {
            watched.is_outstanding = true;
        }
    }

    /// Returns the amount that was freed since, after all outstanding blocks were seen. Blocks of instances
    /// that have ended are not counted.
    pub(super) fn freed(&mut self, is_live: impl Fn(u32) -> bool) -> Amount {
        let freed = &mut self.freed;
        self.lost.retain(|(instance, ..), watched| {
            if !watched.is_outstanding && is_live(*instance) {
                *freed = *freed
                    + Amount {
                        bytes: watched.bytes,
                        blocks: 1,
                    };
            }
            std::mem::take(&mut watched.is_outstanding)
        });
        self.freed
    }
}

#[cfg(test)]
mod tests {
    use unwind_tables::addr::Avma;

    use super::*;

    /// A block that is gone was freed, unless its process is gone; it is counted once. Each is looked for
    /// each time.
    #[test]
    fn freed_later() {
        let key = |instance, address| (instance, Avma::new(address), 7);
        let mut watch = Watch::default();
        for (key, bytes) in [(key(1, 0x10), 8), (key(1, 0x20), 16), (key(2, 0x10), 32)] {
            let is_outstanding = false;
            watch.lost.insert(
                key,
                Watched {
                    bytes,
                    is_outstanding,
                },
            );
        }
        let is_live = |instance| instance == 1;
        watch.see(&key(1, 0x20));
        watch.see(&(1, Avma::new(0x10), 9));
        let first = Amount { bytes: 8, blocks: 1 };
        assert_eq!(watch.freed(is_live), first);
        watch.see(&key(1, 0x20));
        assert_eq!(watch.freed(is_live), first);
        assert_eq!(watch.freed(is_live), Amount { bytes: 24, blocks: 2 });
        assert!(watch.lost.is_empty());
    }
}
