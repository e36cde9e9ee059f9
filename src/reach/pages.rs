//! Pages that hold memory of a process, so that nothing is read where nothing is: a read of an untouched page would give it one.

use std::io;
use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::process::maps::{MapsEntry, MapsName};
use crate::process::touched::ResidentPages;

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
            let addresses = mapping.range.start.get()..mapping.range.end.get();
            resident.find(&addresses, mapping.shared, &mut |run| {
                found.add(Avma::new(run.start)..Avma::new(run.end));
            })?;
        }
        Ok(found)
    }

    fn add(&mut self, run: Range<Avma>) {
        match self.runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            Some(_) | None => self.runs.push(run),
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
