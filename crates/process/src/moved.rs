//! Code of an object that its program has moved to memory without a file, at the same addresses: to have it
//! on huge pages, as Node.js, HHVM, ClickHouse and BOLT's runtime do.
//!
//! Such memory lies beside other mappings of the object's file, inside one of its executable segments, and
//! has the same content as the file there. All three are required, so that code that a JIT compiler has put
//! into a gap is not taken for an object's.

use std::collections::HashMap;
use std::ops::Range;

use unwind_tables::addr::{Avma, Bias};
use unwind_tables::elf::Segment;

use super::mappings::{CodeMapping, MappedCode, SeenFiles};
use super::maps::{MapsEntry, MapsName};
use super::modules::{Module, ModuleId, Modules};
use super::process_memory::ProcessMemory;
use memleak_base::pages;

/// Maximum number of words of a range that are compared, at equal distances.
const MAX_WORDS: u64 = 256;
/// Maximum number of words compared in one reading of the mappings. Code beyond it stays generated code.
const MAX_WORDS_IN_ALL: u64 = 1 << 16;
/// Minimum number of distinct words: memory of zeros, or of one repeated instruction, is no evidence.
const MIN_DISTINCT: usize = 8;
const WORD: u64 = 8;
/// The bytes of a word.
type Word = [u8; 8];
/// Maximum number of files looked up in one reading of the mappings.
const MAX_FILES: usize = 64;

/// Finds moved code, in one reading of a process's maps.
pub(super) struct Moved<'a> {
    pid: u32,
    entries: &'a [MapsEntry],
    /// For each entry, the nearest mapping of a file below it, and above it.
    beside: Vec<[Option<usize>; 2]>,
    /// Modules of files by device and inode; `None` for files that are no objects.
    files: HashMap<((u32, u32), u64), Option<ModuleId>>,
    memory: Option<ProcessMemory>,
    words_left: u64,
}

impl<'a> Moved<'a> {
    pub(super) fn new(pid: u32, entries: &'a [MapsEntry]) -> Self {
        Self {
            pid,
            entries,
            beside: files_beside(entries),
            files: HashMap::new(),
            memory: None,
            words_left: MAX_WORDS_IN_ALL,
        }
    }

    /// Splits entry `number`, of generated code, into an object's moved code and the rest.
    pub(super) fn tell_apart(
        &mut self,
        number: usize,
        seen: &mut SeenFiles<'_>,
        modules: &mut Modules,
    ) -> Vec<CodeMapping> {
        let Some(entry) = self.entries.get(number) else {
            return Vec::new();
        };
        let whole = |code| CodeMapping {
            range: entry.range.clone(),
            code,
        };
        // Writable memory may have other code a moment later.
        let beside = self.beside.get(number).copied().unwrap_or_default();
        let beside = beside
            .into_iter()
            .flatten()
            .filter(|_| entry.readable && !entry.writable);
        for file in beside.collect::<Vec<_>>() {
            let Some((module, bias)) = self.object_of(file, seen, modules) else {
                continue;
            };
            let Some(object) = modules.get(module) else {
                continue;
            };
            let mut parts: Vec<_> = object
                .code()
                .filter_map(|s| within(&entry.range, s, bias))
                .collect();
            parts.retain(|part| self.has_code_of(object, bias, part));
            if !parts.is_empty() {
                let code = MappedCode::Module { module, bias };
                return split(&entry.range, parts, &code);
            }
        }
        vec![whole(MappedCode::MEMORY)]
    }

    /// The object that entry `number` maps a part of, and its bias.
    fn object_of(
        &mut self,
        number: usize,
        seen: &mut SeenFiles<'_>,
        modules: &mut Modules,
    ) -> Option<(ModuleId, Bias)> {
        let entry = self.entries.get(number)?;
        let key = (entry.device, entry.inode);
        let module = match self.files.get(&key) {
            Some(known) => (*known)?,
            None if self.files.len() >= MAX_FILES => return None,
            None => {
                let module = modules.of_entry(self.pid, entry).ok();
                self.files.insert(key, module);
                module?
            }
        };
        match seen.place(entry, module, modules) {
            MappedCode::Module { module, bias } => Some((module, bias)),
            MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
        }
    }

    /// True if memory has the same content as the file.
    fn has_code_of(&mut self, object: &Module, bias: Bias, range: &Range<Avma>) -> bool {
        if self.memory.is_none() {
            self.memory = ProcessMemory::open(self.pid).ok();
        }
        let words = range.end.offset_from(range.start) / WORD;
        let left = self.words_left.checked_sub(words.min(MAX_WORDS));
        let (Some(memory), Some(left)) = (&self.memory, left) else {
            return false;
        };
        self.words_left = left;
        let step = words.div_ceil(MAX_WORDS).max(1) * WORD;
        let mut found = Vec::new();
        let mut at = range.start;
        while at.wrapping_add(WORD) <= range.end {
            let mut bytes = Word::default();
            // Beyond the segment's end, the last page has whatever follows in the file.
            if let Some(expected) = word_of(object, bias, at) {
                if memory.read_exact_at(&mut bytes, at).is_err() || bytes != expected {
                    return false;
                }
                found.push(bytes);
            }
            at = at.wrapping_add(step);
        }
        found.sort_unstable();
        found.dedup();
        found.len() >= MIN_DISTINCT
    }
}

/// For each entry, the nearest mapping of a file below it, and above it.
fn files_beside(entries: &[MapsEntry]) -> Vec<[Option<usize>; 2]> {
    let is_file = |entry: &MapsEntry| matches!(entry.name, MapsName::File { .. }) && !entry.is_memory();
    let mut beside = vec![[None; 2]; entries.len()];
    let mut last = None;
    for (number, entry) in entries.iter().enumerate() {
        beside[number][0] = last;
        last = is_file(entry).then_some(number).or(last);
    }
    last = None;
    for (number, entry) in entries.iter().enumerate().rev() {
        beside[number][1] = last;
        last = is_file(entry).then_some(number).or(last);
    }
    beside
}

/// The part of a range that the pages of a segment cover.
fn within(range: &Range<Avma>, segment: &Segment, bias: Bias) -> Option<Range<Avma>> {
    let page = pages::bytes();
    let covered = segment.file_backed();
    let (start, end) = (bias.to_avma(covered.start).get(), bias.to_avma(covered.end).get());
    let (start, end) = (start - start % page, end.checked_next_multiple_of(page)?);
    let part = range.start.max(Avma::new(start))..range.end.min(Avma::new(end));
    (part.start < part.end).then_some(part)
}

/// The 8 bytes that an object's executable segments have for an address.
fn word_of(object: &Module, bias: Bias, at: Avma) -> Option<Word> {
    let svma = bias.to_svma(at);
    let holds = |segment: &&Segment| {
        let covered = segment.file_backed();
        covered.start <= svma && svma.wrapping_add(WORD) <= covered.end
    };
    let segment = object.code().find(holds)?;
    let offset = segment
        .offset
        .start
        .wrapping_add(svma.offset_from(segment.svma.start));
    let bytes = object.bytes().get(usize::try_from(offset.get()).ok()?..)?;
    bytes.first_chunk().copied()
}

/// Splits a range into the parts, as `code`, and the rest, as generated code.
fn split(range: &Range<Avma>, mut parts: Vec<Range<Avma>>, code: &MappedCode) -> Vec<CodeMapping> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut pieces = Vec::new();
    let mut at = range.start;
    let end = range.end..range.end;
    for part in parts.into_iter().chain([end]) {
        pieces.push((at..part.start, MappedCode::MEMORY));
        at = part.end.max(at);
        pieces.push((part, code.clone()));
    }
    pieces.retain(|(range, _)| range.start < range.end);
    let mapping = |(range, code)| CodeMapping { range, code };
    pieces.into_iter().map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use unwind_tables::addr::{FileOffset, Svma};

    use super::super::modules::ModuleId;
    use super::*;

    /// Memory before, between and after the parts of an object stays generated code, and nothing is lost.
    #[test]
    fn parts_and_the_rest() {
        let range = |start, end| Avma::new(start)..Avma::new(end);
        let code = MappedCode::Module {
            module: ModuleId::new(1),
            bias: Bias::default(),
        };
        let parts = vec![range(50, 60), range(20, 30)];
        let found = split(&range(10, 60), parts, &code);
        let found: Vec<_> = found
            .iter()
            .map(|part| {
                (
                    part.range.start.get(),
                    part.range.end.get(),
                    part.code.is_generated(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [(10, 20, true), (20, 30, false), (30, 50, true), (50, 60, false)]
        );
    }

    /// The part within a segment's pages counts, where the segment is mapped.
    #[test]
    fn pages_of_a_segment() {
        let page = pages::bytes();
        let segment = Segment {
            svma: Svma::new(page + 0x10)..Svma::new(3 * page),
            offset: FileOffset::new(0x10)..FileOffset::new(page + 0x20),
            executable: true,
            writable: false,
        };
        let bias = Bias::from_raw(0x70_0000_0000);
        let at = |pages: u64| Avma::new(bias.get() + pages * page);
        for (range, expected) in [
            (at(0)..at(9), Some(at(1)..at(3))),
            (at(2)..at(9), Some(at(2)..at(3))),
            (at(0)..at(1), None),
            (at(3)..at(4), None),
        ] {
            assert_eq!(within(&range, &segment, bias), expected, "{range:x?}");
        }
    }
}
