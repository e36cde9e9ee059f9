//! Where a process's code is mapped and which module it belongs to. Changes over time are in `history`.
//!
//! Pure, apart from looking up modules. Only executable mappings are kept: nothing else can hold a return address.

use std::ops::Range;
use std::path::PathBuf;

use unwind_tables::addr::{Avma, Bias, FileOffset, Svma, contains};
use unwind_tables::elf::Segment;

use super::hotspot::JvmCode;
use super::maps::{MapsEntry, MapsError, MapsName};
use super::modules::{Module, ModuleId, Modules, Unreadable};
use super::settled::Settled;

/// Content of an executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappedCode {
    /// Part of an ELF file.
    Module { module: ModuleId, bias: Bias },
    /// Code without a file, written by the program itself (a JIT compiler's).
    Anonymous,
    /// The kernel's trampoline for return probes (`[uprobes]`).
    Trampoline,
    /// A named mapping without an ELF file that can be read.
    Unreadable { path: PathBuf, why: Unreadable },
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
        let placed = readable.filter(|entry| entry.executable).map(|entry| {
            let code = code_of(&entry, modules, |modules| modules.of_entry(pid, &entry));
            CodeMapping {
                range: entry.range,
                code,
            }
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

    /// True if a module is mapped at `bias` as loaders map it, from the start of its code. A part that the program
    /// mapped elsewhere by itself, as V8 does with its builtins, is mapped without the rest of the module.
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
            MappedCode::Anonymous | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
        })
    }

    /// The mapping that contains an address.
    pub fn find(&self, address: Avma) -> Option<&CodeMapping> {
        let after = self.entries.partition_point(|entry| entry.range.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        contains(&entry.range, address).then_some(entry)
    }

    /// Returns whether this very mapping is among them, maybe as a part of a longer one.
    pub(super) fn has(&self, code: &CodeMapping) -> bool {
        self.find(code.range.start)
            .is_some_and(|entry| entry.code == code.code && entry.range.end >= code.range.end)
    }

    /// The mappings after another was made, maybe over some of these.
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

/// Code of an executable entry; `find` finds the module of a file or of the vDSO.
pub(super) fn code_of(
    entry: &MapsEntry,
    modules: &mut Modules,
    find: impl FnOnce(&mut Modules) -> Result<ModuleId, Unreadable>,
) -> MappedCode {
    let module = match &entry.name {
        MapsName::Anonymous => return MappedCode::Anonymous,
        MapsName::File { .. } => find(modules),
        MapsName::Special(name) => match name.as_str() {
            "[uprobes]" => return MappedCode::Trampoline,
            "[vsyscall]" => Err(Unreadable::KernelPage),
            "[vdso]" => find(modules),
            _ => return MappedCode::Anonymous,
        },
    };
    let placed = module.and_then(|module| {
        let segments = modules.get(module).map_or(&[][..], |module| module.segments());
        let svma = svma_at(segments, entry.offset).ok_or(Unreadable::NoSegment)?;
        Ok(MappedCode::Module {
            module,
            bias: Bias::between(entry.range.start, svma),
        })
    });
    placed.unwrap_or_else(|why| MappedCode::Unreadable {
        path: match &entry.name {
            MapsName::File { path, .. } => path.clone(),
            MapsName::Special(name) => PathBuf::from(name),
            MapsName::Anonymous => PathBuf::new(),
        },
        why,
    })
}

/// SVMA of a mapping that starts at `offset` in the file.
///
/// The loader maps whole pages, so that a mapping begins up to a page before its segment does. Such a page can belong
/// to two segments; the executable one is meant, since the mapping is executable.
fn svma_at(segments: &[Segment], offset: FileOffset) -> Option<Svma> {
    const PAGE: u64 = 4096;
    let holds = |segment: &&Segment| {
        let start = segment.offset.start.get();
        (start - start % PAGE..segment.offset.end.get()).contains(&offset.get())
    };
    let (executable, others): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| segment.executable);
    let segment = executable
        .into_iter()
        .find(|s| holds(s))
        .or_else(|| others.into_iter().find(|s| holds(s)))?;
    Some(
        segment
            .svma
            .start
            .wrapping_add(offset.offset_from(segment.offset.start)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(start: u64, end: u64) -> CodeMapping {
        CodeMapping {
            range: Avma::new(start)..Avma::new(end),
            code: MappedCode::Anonymous,
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

    fn segment(svma: u64, offset: Range<u64>, executable: bool) -> Segment {
        Segment {
            svma: Svma::new(svma)..Svma::new(svma + (offset.end - offset.start)),
            offset: FileOffset::new(offset.start)..FileOffset::new(offset.end),
            executable,
            writable: false,
        }
    }

    /// A line that cannot be parsed costs only its own mapping, and is counted.
    #[test]
    fn malformed_lines() {
        let text = b"1000-2000 rwxp 0 00:00 0\nnonsense\n3000-4000 rw-p 0 00:00 0\n5000-6000 r-xp 0 00:00 0 [uprobes]\n";
        let mappings = Mappings::resolve(1, crate::process::maps::parse(text), &mut Modules::new());
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

    /// A mapping starts on the page that holds its segment's start; the executable segment wins.
    #[test]
    fn placement() {
        // The layout of lld: code at file offset 0x1740 is mapped with its page at address 0x2740.
        let lld = [
            segment(0, 0..0x1740, false),
            segment(0x2740, 0x1740..0x5000, true),
        ];
        // The layout of ld: everything page-aligned; then a file that is not position independent.
        let ld = [segment(0, 0..0x600, false), segment(0x1000, 0x1000..0x2000, true)];
        let fixed = [segment(0x40_0000, 0..0x2000, true)];
        let cases: &[(&[Segment], u64, Option<u64>)] = &[
            (&lld, 0x1000, Some(0x2000)),
            (&lld, 0x4000, Some(0x5000)),
            (&lld, 0x0, Some(0x0)),
            (&lld, 0x5000, None),
            (&ld, 0x1000, Some(0x1000)),
            (&ld, 0x2000, None),
            (&fixed, 0x1000, Some(0x40_1000)),
        ];
        for (segments, offset, svma) in cases {
            assert_eq!(
                svma_at(segments, FileOffset::new(*offset)),
                svma.map(Svma::new),
                "{offset:#x}"
            );
        }
    }
}
