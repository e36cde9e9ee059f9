//! Pages that hold memory of a process, so that nothing is read where nothing is: a read of an untouched page would give it one.

use std::io;
use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::base::pages;
use crate::process::maps::{MapsEntry, MapsName};
use crate::process::touched::ResidentPages;

/// Pages whose states are read at once.
const PAGES_AT_ONCE: u64 = 1 << 17;

/// Mappings of the kernel's own, which hold no pointers of the program.
const OF_KERNEL: [&str; 5] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];

/// Runs of pages, ascending.
#[derive(Debug, Default)]
pub struct Pages {
    runs: Vec<Range<Avma>>,
}

impl Pages {
    /// Reads which pages of `mappings`, which ascend, hold what the process can have written: of private mappings those that are
    /// its own, resident or swapped out, of shared ones those that it has touched.
    ///
    /// # Errors
    ///
    /// The process has no memory any more, or the kernel's error.
    pub fn read(resident: &ResidentPages, mappings: &[MapsEntry]) -> io::Result<Self> {
        let mut found = Self::default();
        for mapping in mappings.iter().filter(|mapping| can_hold(mapping)) {
            let number = |address: Avma| address.get() / pages::bytes();
            let (mut next, end) = (number(mapping.range.start), number(mapping.range.end));
            while next < end {
                let some = next..end.min(next + PAGES_AT_ONCE);
                let states = resident.read(&some)?;
                for (page, state) in some.clone().zip(states) {
                    let holds = match mapping.shared {
                        true => state.is_there(),
                        false => state.is_own(None),
                    };
                    if holds {
                        found.add(page);
                    }
                }
                next = some.end;
            }
        }
        Ok(found)
    }

    fn add(&mut self, page: u64) {
        let at = |page: u64| Avma::new(page.saturating_mul(pages::bytes()));
        let (start, end) = (at(page), at(page + 1));
        match self.runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            Some(_) | None => self.runs.push(start..end),
        }
    }

    /// Pages that are known by other ways.
    #[cfg(test)]
    pub(super) fn of(runs: Vec<Range<Avma>>) -> Self {
        Self { runs }
    }

    /// All runs.
    pub fn runs(&self) -> &[Range<Avma>] {
        &self.runs
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.end.offset_from(run.start)).sum()
    }
}

/// Returns whether pointers can be in the mapping.
fn can_hold(mapping: &MapsEntry) -> bool {
    match &mapping.name {
        MapsName::Special(name) => !OF_KERNEL.contains(&name.as_str()),
        MapsName::Anonymous | MapsName::File { .. } => true,
    }
}
