//! Pages that a process has touched. Only these are read, as a read of an untouched page would allocate it.

use std::io;
use std::ops::Range;

use unwind_tables::addr::Avma;

use memleak_process::maps::{MapsEntry, MapsName};
use memleak_process::touched::{Found, ResidentPages};

/// Mappings of the kernel, which hold no pointers of the program.
const OF_KERNEL: [&str; 5] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];

/// Runs of pages, ascending.
#[derive(Debug, Default)]
pub struct Pages {
    runs: Vec<Range<Avma>>,
    /// Guards inside mappings, ascending: an access ends the program, whatever the mapping allows.
    guards: Vec<Range<Avma>>,
}

impl Pages {
    /// Finds the pages of `mappings`, which ascend, that the process may have written to: in private mappings
    /// its own pages, resident or swapped out, in shared ones those that it has touched.
    ///
    /// # Errors
    ///
    /// The process's memory is gone (it has exited, or executed another program), or the kernel's error.
    pub fn read(resident: &ResidentPages, mappings: &[MapsEntry]) -> io::Result<Self> {
        let mut found = Self::default();
        for mapping in mappings.iter().filter(|mapping| can_hold(mapping)) {
            let addresses = mapping.range.start.get()..mapping.range.end.get();
            resident.find(&addresses, mapping.shared, &mut |pages| {
                let (to, Range { start, end }) = match pages {
                    Found::Held(run) => (&mut found.runs, run),
                    Found::Guard(guard) => (&mut found.guards, guard),
                };
                add(to, Avma::new(start)..Avma::new(end));
            })?;
        }
        Ok(found)
    }

    /// Splits mappings, which ascend, at the guards inside them. Each guard becomes an entry without access
    /// rights.
    pub fn with_guards(&self, mappings: &[MapsEntry]) -> Vec<MapsEntry> {
        let mut parts = Vec::with_capacity(mappings.len() + 2 * self.guards.len());
        for mapping in mappings {
            let mut rest = mapping.clone();
            let first = self.guards.partition_point(|guard| guard.end <= rest.range.start);
            for guard in &self.guards[first..] {
                let Range { start, end } = guard.start.max(rest.range.start)..guard.end.min(rest.range.end);
                if start >= end {
                    break;
                }
                if rest.range.start < start {
                    let range = rest.range.start..start;
                    parts.push(MapsEntry {
                        range,
                        ..rest.clone()
                    });
                }
                parts.push(MapsEntry {
                    range: start..end,
                    readable: false,
                    writable: false,
                    executable: false,
                    ..rest.clone()
                });
                rest.range.start = end;
            }
            if rest.range.start < rest.range.end {
                parts.push(rest);
            }
        }
        parts
    }

    /// Pages that are known otherwise.
    #[cfg(test)]
    pub(super) fn of(runs: Vec<Range<Avma>>) -> Self {
        let guards = Vec::new();
        Self { runs, guards }
    }

    /// All runs.
    pub fn runs(&self) -> &[Range<Avma>] {
        &self.runs
    }

    /// Size of all runs in bytes.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.end.offset_from(run.start)).sum()
    }
}

/// Appends a run, joined to the last one if they touch.
fn add(runs: &mut Vec<Range<Avma>>, run: Range<Avma>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        Some(_) | None => runs.push(run),
    }
}

/// Returns true if pointers can be in the mapping.
fn can_hold(mapping: &MapsEntry) -> bool {
    match &mapping.name {
        MapsName::Special(name) => !OF_KERNEL.contains(&name.as_str()),
        MapsName::Anonymous | MapsName::File { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memleak_process::maps;

    /// Guards divide their mappings, at either end and in the middle; other mappings stay as they are.
    #[test]
    fn guards_divide_mappings() {
        const MAPS: &[u8] = b"\
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000009000 rw-p 00000000 00:00 0
7f0000009000-7f000000c000 rw-p 00000000 00:00 0
";
        let mappings: Vec<_> = maps::parse(MAPS).filter_map(Result::ok).collect();
        let at = |page: u64| Avma::new(0x7f00_0000_0000 + page * 0x1000);
        let with = |guards: &[(u64, u64)]| -> Vec<_> {
            let guards = guards.iter().map(|&(start, end)| at(start)..at(end));
            let pages = Pages {
                guards: guards.collect(),
                ..Pages::default()
            };
            let page = |address: Avma| address.offset_from(at(0)) / 0x1000;
            let parts = pages.with_guards(&mappings);
            let parts = parts.iter().map(|part| {
                let Range { start, end } = part.range;
                (page(start), page(end), part.writable)
            });
            parts.collect()
        };
        let (none, heap) = ((0, 1, false), (9, 12, true));
        assert_eq!(with(&[]), [none, (1, 9, true), heap]);
        let guard_first = [none, (1, 2, false), (2, 9, true), heap];
        assert_eq!(with(&[(1, 2)]), guard_first);
        let two = [
            none,
            (1, 4, true),
            (4, 5, false),
            (5, 8, true),
            (8, 9, false),
            heap,
        ];
        assert_eq!(with(&[(4, 5), (8, 9)]), two);
        // Two mappings of which one ends with a guard, and the other begins with one.
        let over_both = [none, (1, 8, true), (8, 9, false), (9, 10, false), (10, 12, true)];
        assert_eq!(with(&[(8, 10)]), over_both);
    }
}
