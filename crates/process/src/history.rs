//! The meaning of addresses over the time of a trace.
//!
//! A stack is recorded as addresses and reported later, when the code may be gone. Time is divided into
//! epochs, within each of which an address means at most one thing; a new epoch begins when an address gets
//! another meaning. The history is bounded: for a process that keeps mapping other code, the oldest epochs
//! are discarded, and their addresses have no names then.

use std::sync::Arc;

use leak_report::model::leak::Resolver;
use unwind_tables::addr::{Avma, Svma, contains};

use super::mappings::{CodeMapping, MappedCode, Mappings};
use super::modules::ModuleId;

/// All code mappings of a process, by epoch.
#[derive(Clone, Debug)]
pub struct History {
    // Shared with the processes that were forked in an epoch, until a mapping is added to it.
    epochs: Vec<Arc<Mappings>>,
    /// Index of the oldest epoch that is kept.
    first: usize,
    /// Number of mappings in all epochs that are kept.
    entries: usize,
}

/// Maximum number of mappings in all epochs that are kept, some hundred bytes each. A program that loads a
/// hundred libraries can replace one of them five thousand times.
const MAX_ENTRIES: usize = 1 << 19;
/// Maximum number of mappings of one epoch that are gone by now.
const MAX_PAST: usize = 1 << 14;
/// Maximum number of epochs in which an address is looked up.
const MAX_LATER: usize = 1 << 10;

/// Result of [`History::add`]: whether an epoch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    /// No address has changed its meaning; some may have got or lost one.
    Same,
    /// Some address has another meaning than before.
    New,
}

impl Default for History {
    fn default() -> Self {
        Self {
            epochs: vec![Arc::default()],
            first: 0,
            entries: 0,
        }
    }
}

impl History {
    /// Adds the current mappings. Begins an epoch if they conflict with the last one, or if it has too many
    /// mappings that are gone.
    pub fn add(&mut self, now: &Mappings) -> Epoch {
        let is_full = |current: &Mappings| current.entries().len() > now.entries().len() + MAX_PAST;
        let last = self.epochs.last();
        if last.is_none_or(|current| conflicts(current, now) || is_full(current)) {
            self.epochs.push(Arc::new(now.clone()));
            self.entries += now.entries().len();
            self.forget();
            return Epoch::New;
        }
        if let Some(current) = self.epochs.last_mut() {
            let all: Mappings = current.entries().iter().chain(now.entries()).cloned().collect();
            if all.entries() != current.entries() {
                self.entries += all.entries().len();
                self.entries -= current.entries().len();
                *current = Arc::new(all);
            }
        }
        Epoch::Same
    }

    /// Discards the oldest epochs, but never the current one, until at most [`MAX_ENTRIES`] mappings are
    /// left.
    fn forget(&mut self) {
        while self.entries > MAX_ENTRIES && self.first + 1 < self.epochs.len() {
            let forgotten = std::mem::take(&mut self.epochs[self.first]);
            self.entries -= forgotten.entries().len();
            self.first += 1;
        }
    }

    /// Newest epoch, among the last 1024, in which all of these addresses have the same meaning as in
    /// `mappings`.
    pub fn epoch_with(&self, mappings: &Mappings, addresses: &[Avma]) -> Option<u32> {
        let code = |mappings: &Mappings, address| mappings.find(address).map(|entry| entry.code.clone());
        let agrees = |epoch: &Mappings| {
            addresses
                .iter()
                .all(|&address| code(epoch, address) == code(mappings, address))
        };
        let kept = self
            .epochs
            .iter()
            .enumerate()
            .skip(self.first)
            .rev()
            .take(MAX_LATER);
        let found = kept.into_iter().find(|(_, epoch)| agrees(epoch))?;
        u32::try_from(found.0).ok()
    }

    /// Number of the current epoch.
    pub fn current(&self) -> u32 {
        u32::try_from(self.epochs.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The history of a process that was forked in `epoch` of this one: at first, its addresses have the same
    /// meaning.
    pub fn forked(&self, epoch: u32) -> Self {
        let then = usize::try_from(epoch)
            .ok()
            .and_then(|epoch| self.epochs.get(epoch));
        let then = then.cloned().unwrap_or_default();
        Self {
            first: 0,
            entries: then.entries().len(),
            epochs: vec![then],
        }
    }

    /// Module and SVMA of `address` in an epoch; `None` if it was in no module.
    pub fn resolve(&self, epoch: u32, address: Avma) -> Option<(ModuleId, Svma)> {
        let mappings = self.epochs.get(usize::try_from(epoch).ok()?)?;
        place(mappings.find(address)?, address)
    }

    /// Resolves `address`, which had no or another meaning as far as was known in `epoch`. Returns `None` if
    /// it still has none, and `Some(None)` for code that belongs to no module.
    ///
    /// Such code was mapped after that epoch's last reading, so the next later epoch that has the address
    /// decides, before the epoch itself.
    pub fn resolve_since(&self, epoch: u32, address: Avma) -> Option<Option<(ModuleId, Svma)>> {
        let known = usize::try_from(epoch).ok()?;
        let later = self.epochs.get(known + 1..).unwrap_or_default();
        let found = later
            .iter()
            .take(MAX_LATER)
            .chain(self.epochs.get(known))
            .find_map(|mappings| mappings.find(address))?;
        Some(place(found, address))
    }
}

impl Resolver<ModuleId> for History {
    fn resolve_at(&self, epoch: u32, address: Avma) -> Option<(ModuleId, Svma)> {
        self.resolve(epoch, address)
    }

    fn resolve_after(&self, epoch: u32, address: Avma) -> Option<Option<(ModuleId, Svma)>> {
        self.resolve_since(epoch, address)
    }
}

fn place(mapping: &CodeMapping, address: Avma) -> Option<(ModuleId, Svma)> {
    match mapping.code {
        MappedCode::Module { module, bias } => Some((module, bias.to_svma(address))),
        MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    }
}

/// Returns whether some address of `now` had another meaning in `before`.
fn conflicts(before: &Mappings, now: &Mappings) -> bool {
    let overlap = |a: &CodeMapping, b: &CodeMapping| {
        contains(&a.range, b.range.start) || contains(&b.range, a.range.start)
    };
    now.entries().iter().any(|entry| {
        // Entries do not overlap each other, so those that overlap `entry` are adjacent, and end at `after`.
        let after = before
            .entries()
            .partition_point(|other| other.range.start < entry.range.end);
        let overlapping = before.entries()[..after]
            .iter()
            .rev()
            .take_while(|other| overlap(entry, other));
        overlapping.into_iter().any(|other| other.code != entry.code)
    })
}

#[cfg(test)]
mod tests {
    use unwind_tables::addr::Bias;

    use super::*;

    fn module(start: u64, end: u64, module: u32) -> CodeMapping {
        let code = MappedCode::Module {
            module: ModuleId::new(module),
            bias: Bias::from_raw(start),
        };
        CodeMapping {
            range: Avma::new(start)..Avma::new(end),
            code,
        }
    }

    fn mappings(entries: &[CodeMapping]) -> Mappings {
        entries.iter().cloned().collect()
    }

    /// Added and removed code leaves the meaning of addresses as it was.
    #[test]
    fn additions_and_removals_keep_the_epoch() {
        let mut history = History::default();
        assert_eq!(history.add(&mappings(&[module(0x1000, 0x2000, 1)])), Epoch::Same);
        assert_eq!(history.add(&mappings(&[module(0x3000, 0x4000, 2)])), Epoch::Same);
        let found = |address| history.resolve(0, Avma::new(address));
        assert_eq!(found(0x1010), Some((ModuleId::new(1), Svma::new(0x10))));
        assert_eq!(found(0x3020), Some((ModuleId::new(2), Svma::new(0x20))));
        assert_eq!(found(0x2000), None);
    }

    /// A forked process begins with its parent's meaning of addresses in that epoch, whatever the parent maps
    /// later.
    #[test]
    fn forks_begin_with_their_parents_epoch() {
        let mut parent = History::default();
        parent.add(&mappings(&[module(0x1000, 0x2000, 1)]));
        parent.add(&mappings(&[module(0x1000, 0x2000, 2)]));
        assert_eq!(parent.current(), 1);
        let mut child = parent.forked(0);
        assert_eq!(child.add(&mappings(&[module(0x1000, 0x2000, 1)])), Epoch::Same);
        let module_at = |history: &History, epoch| {
            history
                .resolve(epoch, Avma::new(0x1000))
                .map(|(module, _)| module)
        };
        assert_eq!(module_at(&child, 0), Some(ModuleId::new(1)));
        assert_eq!(module_at(&parent, 1), Some(ModuleId::new(2)));
        assert_eq!(module_at(&parent.forked(7), 0), None);
    }

    /// Another module at a used address begins an epoch; the old epoch still resolves as before.
    #[test]
    fn reuse_begins_an_epoch() {
        let mut history = History::default();
        history.add(&mappings(&[module(0x1000, 0x2000, 1), module(0x8000, 0x9000, 3)]));
        assert_eq!(history.add(&mappings(&[module(0x1800, 0x2800, 2)])), Epoch::New);
        assert_eq!(
            history.resolve(0, Avma::new(0x1900)),
            Some((ModuleId::new(1), Svma::new(0x900)))
        );
        assert_eq!(
            history.resolve(1, Avma::new(0x1900)),
            Some((ModuleId::new(2), Svma::new(0x100)))
        );
        assert_eq!(history.resolve(2, Avma::new(0x1900)), None);
    }

    /// Code that is replaced or moved without end is kept up to a bound: the newest epochs resolve, the
    /// oldest do not.
    #[test]
    fn oldest_epochs_are_forgotten() {
        let many = |number: u32| -> Mappings {
            let entries = (0..10_000).map(|at| module(0x1000 * at, 0x1000 * at + 0x800, number));
            entries.collect()
        };
        let mut replaced = History::default();
        for number in 0..200 {
            replaced.add(&many(number));
            assert!(replaced.entries <= MAX_ENTRIES, "{number}");
        }
        let known = |history: &History, epoch| history.resolve(epoch, Avma::new(0x1000)).is_some();
        let last = replaced.current();
        assert_eq!(last, 199);
        assert_eq!(
            (
                known(&replaced, 0),
                known(&replaced, last),
                known(&replaced, last - 20)
            ),
            (false, true, true)
        );
        let mut moved = History::default();
        for round in 0..40 {
            let entries =
                (1000 * round..1000 * (round + 1)).map(|at| module(0x1000 * at, 0x1000 * at + 0x800, 1));
            moved.add(&entries.collect());
        }
        assert_eq!(moved.current(), 2);
        assert!(moved.resolve(2, Avma::new(0x1000 * 39_999)).is_some());
    }

    /// An address that was not known yet is resolved by the next reading that has it, not by an earlier one.
    #[test]
    fn later_readings() {
        let mut history = History::default();
        history.add(&mappings(&[module(0x1000, 0x2000, 1)]));
        history.add(&mappings(&[module(0x1000, 0x2000, 2)]));
        history.add(&mappings(&[module(0x1000, 0x2000, 3), module(0x5000, 0x6000, 4)]));
        let since = |epoch, address| history.resolve_since(epoch, Avma::new(address));
        let place = |number, svma| Some(Some((ModuleId::new(number), Svma::new(svma))));
        assert_eq!(since(0, 0x1010), place(2, 0x10));
        assert_eq!(since(1, 0x1010), place(3, 0x10));
        assert_eq!(since(0, 0x5010), place(4, 0x10));
        assert_eq!(since(2, 0x5010), place(4, 0x10));
        assert_eq!(since(0, 0x7000), None);
    }
}
