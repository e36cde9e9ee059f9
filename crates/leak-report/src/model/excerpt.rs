//! Lines of source around places of code, for people.

use std::collections::{BTreeMap, BTreeSet};

use super::owner::owner;
use super::{Report, StackRef};

/// Line of a source file, as debug information names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePlace {
    /// Path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
    /// Path of the module whose code it is.
    pub module: Option<String>,
}

impl SourcePlace {
    /// Line at which the responsible function of a stack allocates; `None` if it is not known.
    pub fn of(stack: StackRef<'_>) -> Option<Self> {
        let owner = owner(stack)?;
        let (file, line) = match owner.frame.inlined().nth(owner.at.1) {
            Some(inlined) => (inlined.file, inlined.line),
            None => (owner.frame.file(), owner.frame.line()),
        };
        Some(Self {
            file: file?.to_owned(),
            line: line?,
            module: owner.frame.module().map(|module| module.path().to_owned()),
        })
    }

    /// Distinct places of the stacks with outstanding blocks, those of the first stacks if there are more
    /// than `max`; and true if there are more.
    pub fn all(report: &Report, max: usize) -> (BTreeSet<Self>, bool) {
        let mut places = BTreeSet::new();
        for place in report.outstanding_suspects().filter_map(Self::of) {
            if places.len() == max && !places.contains(&place) {
                return (places, true);
            }
            places.insert(place);
        }
        (places, false)
    }
}

/// Lines around a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Number of the first line.
    pub first: u32,
    /// Text of the lines, without line ends; tabs are replaced by blanks.
    pub lines: Vec<String>,
    /// True if the file is newer than the module, so that it may differ from what was compiled.
    pub is_newer: bool,
}

/// Excerpts of a report, and reasons why others are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpts {
    /// Excerpts by file and line.
    pub known: BTreeMap<(String, u32), Excerpt>,
    /// Number of places without an excerpt, by reason.
    pub missing: BTreeMap<&'static str, u64>,
    /// True if there were more places than were looked up.
    pub is_cut: bool,
}

impl Excerpts {
    /// The excerpt around a line.
    pub fn get(&self, file: Option<&str>, line: Option<u32>) -> Option<&Excerpt> {
        self.known.get(&(file?.to_owned(), line?))
    }

    /// Returns whether there is an excerpt for each place, of a file that is older than the code.
    pub fn are_whole(&self) -> bool {
        self.missing.is_empty() && !self.is_cut && self.known.values().all(|excerpt| !excerpt.is_newer)
    }

    /// Numbers of places that are shown, and of those that are not, in words.
    pub fn in_words(&self) -> String {
        let newer = self.known.values().filter(|excerpt| excerpt.is_newer).count();
        let mut parts = vec![format!("lines of {} places are shown", self.known.len())];
        if newer > 0 {
            parts.push(format!("{newer} of them from files newer than the code"));
        }
        parts.extend(
            self.missing
                .iter()
                .map(|(reason, places)| format!("{places} {reason}")),
        );
        if self.is_cut {
            parts.push("lines of further stacks were not looked up".to_owned());
        }
        parts.join(", ")
    }
}
