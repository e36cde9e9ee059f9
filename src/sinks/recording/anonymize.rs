//! Replaces the names of functions, files, processes and hosts in reports by meaningless ones.
//!
//! A name is always replaced by the same one, also in other recordings from this machine, so that they can be
//! compared. Replacements are keyed by the machine ID (`/etc/machine-id`, which should be kept confidential),
//! so that others cannot confirm guessed names.
//!
//! Kept: amounts, times, process IDs, the shape and end of stacks, addresses, line numbers, well-known
//! allocators (`malloc`). Build IDs are replaced too: anyone who has the file could find its names by them.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::allocator::FUNCTIONS;
use leak_report::model::RegionCall;
use leak_report::model::diagnosis::Diagnosis;
use leak_report::model::dictionary::{Import, Renumbering};
use leak_report::model::leak::kernel_frames::Kind;
use leak_report::model::{Dictionary, MemoryLack, Report, Stack, Text, TextKind};

/// Sections that linkers make, whose names reveal nothing.
const USUAL_SECTIONS: [&str; 6] = [".data", ".bss", ".data.rel.ro", ".tdata", ".tbss", ".got"];

/// Replaces names by keyed hashes.
pub struct Anonymizer {
    key: [u8; 16],
}

impl Anonymizer {
    /// Creates an anonymizer with the machine ID as its key. Without one, the key is random, and names match
    /// no other recording's.
    pub fn of_this_machine() -> Self {
        let id = fs::read_to_string("/etc/machine-id").ok();
        let id = id.and_then(|id| u128::from_str_radix(id.trim(), 16).ok());
        let key = id.filter(|&id| id != 0).unwrap_or_else(|| {
            tracing::warn!("no /etc/machine-id: the names cannot be compared with those of other recordings");
            let random = || u128::from(RandomState::new().build_hasher().finish());
            random() << 64 | random()
        });
        Self {
            key: key.to_be_bytes(),
        }
    }

    /// Copies `report` with all names replaced.
    pub fn report(&self, report: &Report) -> Report {
        let mut dictionary = Dictionary::default();
        let rename = |text: &Text| self.text(text);
        let mut import = Import::new(
            &report.dictionary,
            &mut dictionary,
            Renumbering::default(),
            &rename,
        );
        let stacks = report.stacks.iter().map(|stack| Stack {
            // The rule is from the reader's suppression file, and contains names.
            suppressed_by: None,
            ..stack.renumbered(&mut import)
        });
        let stacks = stacks.collect();
        let heading = report.heading(&mut import);
        let mut anonymous = Report {
            stacks,
            dictionary: Arc::new(dictionary),
            ..heading
        };
        self.replace_names(&mut anonymous);
        anonymous
    }

    /// The replacement of a text; `None` if it is kept.
    fn text(&self, text: &Text) -> Option<Arc<str>> {
        let replaced = match text.kind {
            TextKind::Function => self.name("function", &text.text),
            TextKind::Source => self.name("source", &text.text),
            TextKind::File => self.path(&text.text)?,
            TextKind::BuildId => format!("{:016x}", self.hash("build", &text.text)),
            TextKind::Allocator => self.allocator(&text.text)?,
            TextKind::Variable => self.name("variable", &text.text),
            TextKind::Class => self.name("class", &text.text),
            TextKind::Section if USUAL_SECTIONS.contains(&&*text.text) => return None,
            TextKind::Section => self.name("section", &text.text),
            TextKind::Thread => self.name("thread", &text.text),
        };
        Some(replaced.into())
    }

    /// Replaces the names outside the dictionary.
    fn replace_names(&self, report: &mut Report) {
        for target in &mut report.targets {
            if let Some(MemoryLack::Cgroup(reached)) = &mut target.lack {
                reached.cgroup = self.name("cgroup", &reached.cgroup);
            }
            target.comm = self.name("process", &target.comm);
            if let Some(exe) = &mut target.exe
                && let Some(replaced) = self.path(exe)
            {
                *exe = replaced;
            }
        }
        if let Some(diagnosis) = &mut report.diagnosis {
            self.replace_names_of(diagnosis);
        }
        if let Some(kernel) = &mut report.kernel {
            kernel.release = self.name("kernel", &kernel.release);
            for kind in &mut kernel.kinds {
                if let Some(replaced) = self.allocator(&kind.allocator) {
                    kind.allocator = replaced.into();
                }
            }
        }
    }

    /// Replaces the names of a diagnosis. Its sentences can contain any of them, so they are left out.
    fn replace_names_of(&self, diagnosis: &mut Diagnosis) {
        let compared = diagnosis.among.iter_mut().flat_map(|among| &mut among.largest);
        for holding in diagnosis.process.iter_mut().chain(compared) {
            holding.comm = self.name("process", &holding.comm);
        }
        for cause in &mut diagnosis.causes {
            if let Some(site) = &mut cause.site {
                let path = |path: &mut Arc<str>| {
                    if let Some(replaced) = self.path(path) {
                        *path = replaced.into();
                    }
                };
                site.module.iter_mut().for_each(path);
                site.function = self.name("function", &site.function).into();
                if let Some(file) = &mut site.file {
                    *file = self.name("source", file).into();
                }
            }
            if let Some(holder) = &mut cause.holder {
                *holder = self.name("variable", holder);
            }
            cause.meaning.clear();
            cause.next.clear();
        }
    }

    /// Hashes `name` within its `sort`: equal names of different sorts get unrelated hashes.
    fn hash(&self, sort: &str, name: &str) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(b"memleak ");
        hasher.write(sort.as_bytes());
        hasher.write(b" ");
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    /// Uses 48 bits: among 100,000 names, a collision has a chance of 1 in 50,000.
    fn name(&self, sort: &str, name: &str) -> String {
        format!("{sort}_{:012x}", self.hash(sort, name) >> 16)
    }

    /// Replaces a path. Names in brackets are the kernel's for mappings without a file, and are kept.
    fn path(&self, path: &str) -> Option<String> {
        (!path.starts_with('[')).then(|| format!("/{}", self.name("file", path)))
    }

    /// Replaces an allocator's name, unless it is well known.
    fn allocator(&self, name: &str) -> Option<String> {
        let mut known = FUNCTIONS.iter().map(|function| function.name.as_ref());
        let mut calls = RegionCall::ALL.into_iter().map(RegionCall::name);
        let mut kinds = Kind::ALL.into_iter().map(Kind::name);
        let is_known = known.any(|known| known == name)
            || calls.any(|call| call == name)
            || kinds.any(|kind| kind == name)
            || name == "?";
        (!is_known).then(|| self.name("function", name))
    }
}
