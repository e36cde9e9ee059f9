//! Code mappings of a process at past moments, from readings of `/proc/PID/maps` and from changes that the
//! kernel has logged since.
//!
//! Pure. Moments are in nanoseconds of one clock. Changes older than any moment that may still be queried are
//! merged.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mappings::{CodeMapping, Mappings};

/// A process's code mappings over time. They are unknown before the first reading, and after the log has lost
/// a change.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Mappings before the first of `changes`; `None` if not known.
    before: Option<Arc<Mappings>>,
    /// Moment of the last change that is merged into `before`. Mappings at earlier moments are unknown.
    since: u64,
    /// Changes, in the order of time.
    changes: VecDeque<(u64, Change)>,
    /// Result of the last query: the number of changes up to its moment, and the mappings after them.
    last: Option<(usize, Option<Arc<Mappings>>)>,
}

#[derive(Clone, Debug)]
enum Change {
    /// Code was mapped.
    Mapped(CodeMapping),
    /// Another program was executed: nothing is mapped.
    Executed,
    /// The mappings were read, in the time since `began`.
    Read { began: u64, mappings: Arc<Mappings> },
    /// Mappings may have been made that are unknown.
    Lost,
}

/// Maximum number of changes that are kept. A program that loads and unloads libraries without end makes some
/// ten thousand a second.
const MAX_CHANGES: usize = 1 << 15;

impl Timeline {
    /// The timeline of a process that was forked with these mappings; `None` if they are not known.
    pub fn forked(mappings: Option<Arc<Mappings>>) -> Self {
        Self {
            before: mappings,
            ..Self::default()
        }
    }

    /// Notes that code was mapped at a moment.
    pub fn mapped(&mut self, at: u64, code: CodeMapping) {
        self.change(at, Change::Mapped(code));
    }

    /// Notes that another program was executed.
    pub fn executed(&mut self, at: u64) {
        self.change(at, Change::Executed);
    }

    /// Notes that the mappings were read between two moments. Code that was mapped after the first one may be
    /// missing in them.
    pub fn read(&mut self, began: u64, ended: u64, mappings: Arc<Mappings>) {
        self.change(ended, Change::Read { began, mappings });
    }

    /// Notes that changes until this moment may be unknown.
    pub fn lost(&mut self, at: u64) {
        self.change(at, Change::Lost);
    }

    fn change(&mut self, at: u64, change: Change) {
        let place = self.changes.partition_point(|&(other, _)| other <= at);
        if self.last.as_ref().is_some_and(|&(until, _)| until > place) {
            self.last = None;
        }
        self.changes.insert(place, (at, change));
        if self.changes.len() > MAX_CHANGES {
            self.forget_half();
        }
    }

    /// Mappings at a moment; `None` if they are not known.
    pub fn at(&mut self, moment: u64) -> Option<Arc<Mappings>> {
        if moment < self.since {
            return None;
        }
        let until = self.changes.partition_point(|&(at, _)| at <= moment);
        let known = self.last.take().filter(|&(count, _)| count <= until);
        let (first, start) = known.unwrap_or_else(|| (0, self.before.clone()));
        let mappings = (first..until).fold(start, |mappings, number| self.after(mappings, number));
        self.last = Some((until, mappings.clone()));
        mappings
    }

    /// Mappings after the change with this number, by those before it.
    fn after(&self, mappings: Option<Arc<Mappings>>, number: usize) -> Option<Arc<Mappings>> {
        match &self.changes.get(number)?.1 {
            Change::Executed => Some(Arc::default()),
            Change::Lost => None,
            Change::Mapped(code) => mappings.map(|mappings| Arc::new(mappings.with(code))),
            Change::Read { began, mappings } => {
                let since = self.changes.partition_point(|&(at, _)| at < *began);
                let meanwhile = self.changes.range(since..number).map(|(_, change)| change);
                Some(
                    meanwhile.fold(Arc::clone(mappings), |mappings, change| match change {
                        Change::Mapped(code) if !mappings.has(code) => Arc::new(mappings.with(code)),
                        Change::Mapped(_) | Change::Executed | Change::Read { .. } | Change::Lost => mappings,
                    }),
                )
            }
        }
    }

    /// Merges the changes before a moment; earlier moments can no longer be queried.
    pub fn forget_before(&mut self, moment: u64) {
        let count = self.changes.partition_point(|&(at, _)| at < moment);
        self.forget(count);
    }

    fn forget_half(&mut self) {
        self.forget(self.changes.len() / 2);
    }

    fn forget(&mut self, count: usize) {
        let start = self.before.clone();
        self.before = (0..count).fold(start, |mappings, number| self.after(mappings, number));
        self.since = self
            .changes
            .drain(..count)
            .next_back()
            .map_or(self.since, |(at, _)| at);
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use unwind_tables::addr::{Avma, Bias};

    use super::*;
    use crate::mappings::MappedCode;
    use crate::modules::ModuleId;

    fn code(range: Range<u64>, module: u32) -> CodeMapping {
        CodeMapping {
            range: Avma::new(range.start)..Avma::new(range.end),
            code: MappedCode::Module {
                module: ModuleId::new(module),
                bias: Bias::from_raw(0),
            },
        }
    }

    fn mappings(entries: &[CodeMapping]) -> Arc<Mappings> {
        Arc::new(entries.iter().cloned().collect())
    }

    /// Start of each mapping and its module.
    fn known(timeline: &mut Timeline, moment: u64) -> Option<Vec<(u64, u32)>> {
        let mappings = timeline.at(moment)?;
        let module = |entry: &CodeMapping| match entry.code {
            MappedCode::Module { module, .. } => module.index(),
            MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => 0,
        };
        let entries = mappings.entries().iter();
        Some(
            entries
                .map(|entry| (entry.range.start.get(), module(entry)))
                .collect(),
        )
    }

    /// Two libraries that take turns at one address are told apart at each moment, whatever the order of
    /// queries.
    #[test]
    fn objects_that_take_turns() {
        let mut timeline = Timeline::default();
        timeline.read(0, 10, mappings(&[code(0x1000..0x2000, 1)]));
        for turn in 0..100 {
            timeline.mapped(
                100 + 10 * turn,
                code(0x5000..0x6000, 2 + u32::try_from(turn % 2).unwrap()),
            );
        }
        assert_eq!(known(&mut timeline, 9), None);
        assert_eq!(known(&mut timeline, 99), Some(vec![(0x1000, 1)]));
        for turn in (0..100).rev().chain(0..100) {
            let module = 2 + u32::try_from(turn % 2).unwrap();
            let expected = Some(vec![(0x1000, 1), (0x5000, module)]);
            assert_eq!(known(&mut timeline, 100 + 10 * turn), expected, "{turn}");
            assert_eq!(known(&mut timeline, 109 + 10 * turn), expected, "{turn}");
        }
        timeline.forget_before(600);
        assert_eq!(known(&mut timeline, 589), None, "it was summed up");
        assert_eq!(known(&mut timeline, 600), Some(vec![(0x1000, 1), (0x5000, 2)]));
        assert_eq!(known(&mut timeline, 1090), Some(vec![(0x1000, 1), (0x5000, 3)]));
    }

    /// A reading replaces all mappings known before it, except those made while it was read: code that is
    /// missing in it was unmapped. Changes can be noted late.
    #[test]
    fn readings_and_what_is_mapped_meanwhile() {
        let mut timeline = Timeline::default();
        timeline.read(
            0,
            10,
            mappings(&[code(0x1000..0x2000, 1), code(0x7000..0x8000, 7)]),
        );
        timeline.read(50, 60, mappings(&[code(0x1000..0x2000, 1)]));
        timeline.mapped(20, code(0x3000..0x4000, 3));
        timeline.mapped(55, code(0x5000..0x6000, 5));
        assert_eq!(
            known(&mut timeline, 25),
            Some(vec![(0x1000, 1), (0x3000, 3), (0x7000, 7)])
        );
        assert_eq!(known(&mut timeline, 60), Some(vec![(0x1000, 1), (0x5000, 5)]));
        // Over parts of others, whose rest stays.
        timeline.mapped(70, code(0x1800..0x5800, 9));
        assert_eq!(
            known(&mut timeline, 70),
            Some(vec![(0x1000, 1), (0x1800, 9), (0x5800, 5)])
        );
    }

    /// After an exec, only code mapped since is there; after a loss, nothing is known until the next reading;
    /// a child begins with its parent's mappings.
    #[test]
    fn beginnings_and_gaps() {
        let mut timeline = Timeline::default();
        timeline.read(0, 10, mappings(&[code(0x1000..0x2000, 1)]));
        let mut child = Timeline::forked(timeline.at(15));
        timeline.executed(20);
        timeline.mapped(21, code(0x3000..0x4000, 3));
        timeline.lost(30);
        timeline.mapped(31, code(0x5000..0x6000, 5));
        timeline.read(40, 50, mappings(&[code(0x5000..0x6000, 5)]));
        assert_eq!(known(&mut timeline, 20), Some(vec![]));
        assert_eq!(known(&mut timeline, 21), Some(vec![(0x3000, 3)]));
        assert_eq!(known(&mut timeline, 31), None);
        assert_eq!(known(&mut timeline, 50), Some(vec![(0x5000, 5)]));
        child.mapped(16, code(0x7000..0x8000, 7));
        assert_eq!(known(&mut child, 0), Some(vec![(0x1000, 1)]));
        assert_eq!(known(&mut child, 16), Some(vec![(0x1000, 1), (0x7000, 7)]));
    }
}
