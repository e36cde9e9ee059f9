//! Mappings of a process's code, and the modules that they belong to. Changes over time are in `history`.
//!
//! Pure, apart from looking up modules and comparing text that was moved (`moved`). Only executable mappings
//! are kept: a return address points to nothing else.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use unwind_tables::addr::{Avma, Bias, contains};
use unwind_tables::error::TableError;

use super::jvm_code::JvmCode;
use super::maps::{MapsEntry, MapsError, MapsName};
use super::modules::{Module, ModuleId, Modules, Unreadable};
use super::moved::Moved;
use super::placement::{Layout, Others, Part, Seen};
use super::settled::Settled;

/// Content of an executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappedCode {
    /// Part of an ELF file.
    Module { module: ModuleId, bias: Bias },
    /// Code that the program has written itself, as JIT compilers do: in memory, or in a file that is not an
    /// ELF file (a memfd that is mapped twice, once to write and once to execute; an image of a Lisp).
    Generated { file: Option<PathBuf> },
    /// The kernel's trampoline for return probes (`[uprobes]`).
    Trampoline,
    /// A named mapping without an ELF file that can be read.
    Unreadable { path: PathBuf, why: Unreadable },
}

impl MappedCode {
    /// Generated code in memory without a file.
    pub const MEMORY: Self = Self::Generated { file: None };

    /// True for [`Self::Generated`].
    pub fn is_generated(&self) -> bool {
        matches!(self, Self::Generated { .. })
    }
}

/// An executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeMapping {
    pub range: Range<Avma>,
    pub code: MappedCode,
}

/// The executable mappings of a process at one moment, ascending, without overlap.
///
/// Adjacent mappings with the same code are one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mappings {
    entries: Vec<CodeMapping>,
    settled: Settled,
    malformed_lines: usize,
}

impl Mappings {
    /// Resolves the executable entries of `maps`, looking up the files of process `pid` in `modules`.
    pub(super) fn resolve(
        pid: u32,
        maps: impl Iterator<Item = Result<MapsEntry, MapsError>>,
        modules: &mut Modules,
    ) -> Self {
        let mut malformed_lines = 0;
        let readable = maps.filter_map(|line| line.inspect_err(|_| malformed_lines += 1).ok());
        let entries: Vec<_> = readable.collect();
        let (mut seen, mut moved) = (SeenFiles::of(&entries), Moved::new(pid, &entries));
        let executable = entries.iter().enumerate().filter(|(_, entry)| entry.executable);
        let placed = executable.flat_map(|(number, entry)| {
            let code = match find_of(entry, |entry| modules.of_entry(pid, entry)) {
                Found::Code(MappedCode::MEMORY) => return moved.tell_apart(number, &mut seen, modules),
                Found::Code(code) => code,
                Found::Module(module) => seen.place(entry, module, modules),
            };
            let range = entry.range.clone();
            vec![CodeMapping { range, code }]
        });
        let mappings: Self = placed.collect();
        Self {
            malformed_lines,
            ..mappings
        }
    }

    /// Sets the modules that cannot be unloaded.
    pub(super) fn with_settled(self, settled: Settled) -> Self {
        Self { settled, ..self }
    }

    /// True if a module stays mapped where it is for as long as the program runs.
    pub fn is_settled(&self, module: ModuleId) -> bool {
        self.settled.modules.contains(&module)
    }

    /// True if a module is mapped at `bias` as loaders map it, from the start of its code. A part that the
    /// program mapped elsewhere by itself, as V8 does with its builtins, is mapped without the rest of the
    /// module.
    pub fn is_loaded(&self, module: &Module, bias: Bias) -> bool {
        let code = MappedCode::Module {
            module: module.id,
            bias,
        };
        let mut segments = module.segments().iter().filter(|segment| segment.executable);
        segments.any(|segment| {
            let start = bias.to_avma(segment.svma.start);
            self.find(start).is_some_and(|entry| entry.code == code)
        })
    }

    /// True if a module's memory differed from its file when the mappings were read.
    pub fn is_different(&self, module: ModuleId) -> bool {
        self.settled.different.contains(&module)
    }

    /// Code that a JVM generated, as far as it was known when the mappings were read.
    pub fn jvm(&self) -> &JvmCode {
        &self.settled.jvm
    }

    /// The dynamic loader, if the program has one.
    pub fn loader(&self) -> Option<ModuleId> {
        self.settled.loader
    }

    /// Number of lines of the maps file that could not be parsed, whose code is therefore unknown.
    pub fn malformed_lines(&self) -> usize {
        self.malformed_lines
    }

    /// Modules of the mappings, once per mapping.
    pub fn module_ids(&self) -> impl Iterator<Item = ModuleId> {
        self.entries.iter().filter_map(|entry| match entry.code {
            MappedCode::Module { module, .. } => Some(module),
            MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
        })
    }

    /// The mapping that contains an address.
    pub fn find(&self, address: Avma) -> Option<&CodeMapping> {
        let after = self.entries.partition_point(|entry| entry.range.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        contains(&entry.range, address).then_some(entry)
    }

    /// Returns true if the process has this mapping, possibly as part of a longer one.
    pub(super) fn has(&self, code: &CodeMapping) -> bool {
        self.find(code.range.start)
            .is_some_and(|entry| entry.code == code.code && entry.range.end >= code.range.end)
    }

    /// Returns the mappings after a new one was made, possibly over some of these.
    pub(super) fn with(&self, new: &CodeMapping) -> Self {
        let part = |entry: &CodeMapping, range: Range<Avma>| CodeMapping {
            range,
            code: entry.code.clone(),
        };
        let rests = self.entries.iter().flat_map(|entry| {
            let below = entry.range.start..entry.range.end.min(new.range.start);
            let above = entry.range.start.max(new.range.end)..entry.range.end;
            [part(entry, below), part(entry, above)]
        });
        let rests = rests.filter(|entry| entry.range.start < entry.range.end);
        Self {
            settled: self.settled.clone(),
            malformed_lines: self.malformed_lines,
            ..rests.chain([new.clone()]).collect()
        }
    }

    /// All mappings, ascending.
    pub fn entries(&self) -> &[CodeMapping] {
        &self.entries
    }
}

impl FromIterator<CodeMapping> for Mappings {
    /// Sorts, joins neighbours, and trims mappings that overlap a lower one (which the kernel never lists).
    fn from_iter<T: IntoIterator<Item = CodeMapping>>(entries: T) -> Self {
        let mut sorted: Vec<CodeMapping> = entries.into_iter().collect();
        sorted.sort_by_key(|entry| entry.range.start);
        let mut entries: Vec<CodeMapping> = Vec::with_capacity(sorted.len());
        for mut entry in sorted {
            if let Some(last) = entries.last_mut() {
                entry.range.start = entry.range.start.max(last.range.end);
                if entry.range.start == last.range.end && entry.code == last.code {
                    last.range.end = entry.range.end.max(last.range.end);
                    continue;
                }
            }
            if entry.range.start < entry.range.end {
                entries.push(entry);
            }
        }
        Self {
            entries,
            settled: Settled::default(),
            malformed_lines: 0,
        }
    }
}

/// Content of an executable entry. The place within a module is not known yet.
pub(super) enum Found {
    Code(MappedCode),
    Module(ModuleId),
}

/// Finds out what an executable entry maps; `find` finds the module of a file or of the vDSO.
pub(super) fn find_of(
    entry: &MapsEntry,
    find: impl FnOnce(&MapsEntry) -> Result<ModuleId, Unreadable>,
) -> Found {
    let module = match &entry.name {
        MapsName::Anonymous => return Found::Code(MappedCode::MEMORY),
        MapsName::File { .. } if entry.is_memory() => return Found::Code(MappedCode::MEMORY),
        MapsName::File { .. } => find(entry),
        MapsName::Special(name) => match name.as_str() {
            "[uprobes]" => return Found::Code(MappedCode::Trampoline),
            "[vsyscall]" => Err(Unreadable::KernelPage),
            "[vdso]" => find(entry),
            _ => return Found::Code(MappedCode::MEMORY),
        },
    };
    match module {
        Ok(module) => Found::Module(module),
        Err(Unreadable::NotElf(error)) if *error == TableError::NotElf => {
            let file = entry.name.path().map(Path::to_owned);
            Found::Code(MappedCode::Generated { file })
        }
        Err(why) => Found::Code(unreadable(entry, why)),
    }
}

/// Code of an entry that maps a module, given the module's other mappings as far as they are known.
pub(super) fn place(
    entry: &MapsEntry,
    module: ModuleId,
    modules: &Modules,
    others: Others<'_>,
) -> MappedCode {
    let layout = modules.get(module).map(Layout::of);
    let bias = layout.map_or(Err(Unreadable::NoSegment), |layout| {
        layout.bias(&Part::from(entry), others)
    });
    bias.map_or_else(
        |why| unreadable(entry, why),
        |bias| MappedCode::Module { module, bias },
    )
}

/// True if the bias is ambiguous, so that other mappings of the file may decide it.
pub(super) fn is_ambiguous(code: &MappedCode) -> bool {
    matches!(
        code,
        MappedCode::Unreadable {
            why: Unreadable::Ambiguous,
            ..
        }
    )
}

fn unreadable(entry: &MapsEntry, why: Unreadable) -> MappedCode {
    MappedCode::Unreadable {
        path: entry.name.path().map(Path::to_owned).unwrap_or_default(),
        why,
    }
}

/// Segments of each file that the entries map, computed when a file's bias is first ambiguous.
pub(super) struct SeenFiles<'a> {
    entries: &'a [MapsEntry],
    seen: HashMap<ModuleId, Seen>,
}

impl<'a> SeenFiles<'a> {
    pub(super) fn of(entries: &'a [MapsEntry]) -> Self {
        Self {
            entries,
            seen: HashMap::new(),
        }
    }

    /// Places one of the entries, which maps this module.
    pub(super) fn place(&mut self, entry: &MapsEntry, module: ModuleId, modules: &Modules) -> MappedCode {
        let code = place(entry, module, modules, Others::Unseen);
        if !is_ambiguous(&code) {
            return code;
        }
        place(
            entry,
            module,
            modules,
            Others::Seen(self.seen(entry, module, modules)),
        )
    }

    fn seen(&mut self, entry: &MapsEntry, module: ModuleId, modules: &Modules) -> &Seen {
        self.seen.entry(module).or_insert_with(|| {
            let is_same = |other: &&MapsEntry| (other.device, other.inode) == (entry.device, entry.inode);
            let parts = self.entries.iter().filter(is_same).map(Part::from);
            let layout = modules.get(module).map(Layout::of);
            layout.map_or_else(Seen::default, |layout| Seen::of(&layout, parts))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(start: u64, end: u64) -> CodeMapping {
        CodeMapping {
            range: Avma::new(start)..Avma::new(end),
            code: MappedCode::MEMORY,
        }
    }

    fn trampoline(start: u64, end: u64) -> CodeMapping {
        CodeMapping {
            range: Avma::new(start)..Avma::new(end),
            code: MappedCode::Trampoline,
        }
    }

    fn mappings(entries: &[CodeMapping]) -> Mappings {
        entries.iter().cloned().collect()
    }

    /// A line that cannot be parsed costs only its own mapping, and is counted.
    #[test]
    fn malformed_lines() {
        let text = b"1000-2000 rwxp 0 00:00 0\nnonsense\n3000-4000 rw-p 0 00:00 0\n5000-6000 r-xp 0 00:00 0 [uprobes]\n";
        let mappings = Mappings::resolve(1, crate::maps::parse(text), &mut Modules::new());
        assert_eq!(
            mappings.entries(),
            [anonymous(0x1000, 0x2000), trampoline(0x5000, 0x6000)]
        );
        assert_eq!(mappings.malformed_lines(), 1);
    }

    /// An address is found in its mapping and nowhere else.
    #[test]
    fn find() {
        let mappings = mappings(&[
            trampoline(0x5000, 0x6000),
            anonymous(0x1000, 0x3000),
            anonymous(0x6000, 0x7000),
        ]);
        let starts = [
            (0xfff, None),
            (0x1000, Some(0x1000)),
            (0x2fff, Some(0x1000)),
            (0x3000, None),
            (0x5fff, Some(0x5000)),
            (0x6000, Some(0x6000)),
            (0x7000, None),
        ];
        for (address, start) in starts {
            let found = mappings.find(Avma::new(address)).map(|entry| entry.range.start);
            assert_eq!(found, start.map(Avma::new), "{address:#x}");
        }
    }

    /// Adjacent mappings of the same code are one entry; others, and overlaps, stay separate.
    #[test]
    fn neighbours_join() {
        let joined = mappings(&[
            anonymous(0x1000, 0x2000),
            anonymous(0x2000, 0x3000),
            trampoline(0x3000, 0x4000),
        ]);
        assert_eq!(
            joined.entries(),
            [anonymous(0x1000, 0x3000), trampoline(0x3000, 0x4000)]
        );
        let cut = mappings(&[
            anonymous(0x1000, 0x3000),
            trampoline(0x2000, 0x4000),
            trampoline(0x1500, 0x2500),
        ]);
        assert_eq!(
            cut.entries(),
            [anonymous(0x1000, 0x3000), trampoline(0x3000, 0x4000)]
        );
    }
}
