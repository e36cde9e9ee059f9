//! Python frames on the kernel side (`bpf/python/`): where interpreters keep them, and the chains and code
//! objects that probes found.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leak_report::model::leak::{PythonChain, PythonFrame};
use unwind_tables::addr::Bias;

use super::memory::{SharedWords, shared_record};
use super::skeleton::types::{
    python_chain, python_code, python_code_number, python_end, python_entry, python_frame_layout,
    python_instruction, python_layout, python_limits, python_lines_at, python_noted, python_usage,
};
use crate::process::python::{EntryMark, Layout, Noted, PythonBuild, ThreadPlaces};

const WORD: usize = size_of::<u64>();
const LAYOUT_WORDS: usize = size_of::<python_layout>() / WORD;
const CODE_WORDS: usize = size_of::<python_code>() / WORD;
const CHAIN_WORDS: usize = size_of::<python_chain>() / WORD;

/// Bytes from one thread-specific key's value to the next one's: `struct pthread_key_data`.
const GLIBC_VALUE_BYTES: u32 = 16;
/// Number of keys with values in `struct pthread`; others have theirs elsewhere. Python makes its first key
/// as it starts.
const GLIBC_KEYS: u32 = 32;

/// Instruction of a frame that has not begun.
pub(crate) const NOT_BEGUN: u32 = python_instruction::PYTHON_NOT_BEGUN.0;

/// Places of an interpreter's frames: `struct python_layout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonLayout {
    words: [u64; LAYOUT_WORDS],
}

impl PythonLayout {
    /// Describes an interpreter whose file is mapped with `bias`, in a process whose C library keeps thread
    /// data at `threads`.
    pub(crate) fn of(build: &PythonBuild, bias: Bias, threads: ThreadPlaces) -> Self {
        let mut described = Self::default();
        let code_type = bias.to_avma(build.code_type);
        described.set_whole(
            offset_of!(python_layout, runtime),
            bias.to_avma(build.runtime).get(),
        );
        described.set_whole(offset_of!(python_layout, code_type), code_type.get());
        described.set_noted(build.noted, bias);
        let Layout { runtime, thread, .. } = &build.layout;
        let state = [Some(thread.id), Some(thread.frame), thread.chunk, thread.base];
        described.set_all(&[
            (offset_of!(python_layout, id_below), threads.id_below),
            (offset_of!(python_layout, values_at), threads.values),
            (offset_of!(python_layout, value_bytes), GLIBC_VALUE_BYTES),
            (offset_of!(python_layout, value_count), GLIBC_KEYS),
            (offset_of!(python_layout, objects), threads.objects),
            (offset_of!(python_layout, key), runtime.key.unwrap_or(0)),
            (offset_of!(python_layout, current), runtime.current.unwrap_or(0)),
            (
                offset_of!(python_layout, next_interpreter),
                runtime.next_interpreter.unwrap_or(0),
            ),
            (
                offset_of!(python_layout, state_bytes),
                behind(state.into_iter().flatten()),
            ),
            (offset_of!(python_layout, thread_id), thread.id),
            (offset_of!(python_layout, frame), thread.frame),
            (offset_of!(python_layout, chunk), thread.chunk.unwrap_or(0)),
            (offset_of!(python_layout, base), thread.base.unwrap_or(0)),
            (
                offset_of!(python_layout, is_indirect),
                u32::from(thread.cframe_frame.is_some()),
            ),
            (
                offset_of!(python_layout, indirect),
                thread.cframe_frame.unwrap_or(0),
            ),
        ]);
        described.set_frame(&build.layout);
        described.set_objects(&build.layout);
        described
    }

    fn set_noted(&mut self, noted: Noted, bias: Bias) {
        let (by, word, variable) = match noted {
            Noted::Key => (python_noted::PYTHON_NOTED_KEY, 0, 0),
            Noted::Fixed { distance } => (python_noted::PYTHON_NOTED_FIXED, distance.cast_unsigned(), 0),
            Noted::Distance { distance } => (
                python_noted::PYTHON_NOTED_DISTANCE,
                bias.to_avma(distance).get(),
                0,
            ),
            Noted::Object { object, offset } => (
                python_noted::PYTHON_NOTED_OBJECT,
                bias.to_avma(object).get(),
                offset,
            ),
            // The argument is behind the function.
            Noted::Descriptor { descriptor } => (
                python_noted::PYTHON_NOTED_DESCRIPTOR,
                bias.to_avma(descriptor.wrapping_add(8)).get(),
                0,
            ),
        };
        self.set_whole(offset_of!(python_layout, noted), word);
        self.set(offset_of!(python_layout, noted_by), by.0);
        self.set(offset_of!(python_layout, variable), variable);
    }

    fn set_frame(&mut self, Layout { frame, code, .. }: &Layout) {
        let entry = match frame.entry {
            EntryMark::Every => python_entry::PYTHON_ENTRY_EVERY,
            EntryMark::IsEntry => python_entry::PYTHON_ENTRY_FLAG,
            EntryMark::Shim => python_entry::PYTHON_ENTRY_SHIM,
        };
        self.set_all(&[
            (offset_of!(python_layout, frame_bytes), frame.bytes()),
            (offset_of!(python_layout, code), frame.code),
            (offset_of!(python_layout, back), frame.back),
            (offset_of!(python_layout, instruction), frame.instruction),
            (
                offset_of!(python_layout, is_address),
                u32::from(code.bytecode.is_some()),
            ),
            (offset_of!(python_layout, entry), entry.0),
            (offset_of!(python_layout, mark), frame.mark),
            (offset_of!(python_layout, copy), frame.copy.unwrap_or(0)),
            (offset_of!(python_layout, copies), code.copies.unwrap_or(0)),
            (offset_of!(python_layout, bytecode), code.bytecode.unwrap_or(0)),
        ]);
    }

    fn set_objects(&mut self, layout: &Layout) {
        let Layout {
            code, text, bytes, ..
        } = layout;
        let read = [
            code.name,
            code.file,
            code.first_line,
            code.line_table,
            layout.object_type,
        ];
        self.set_all(&[
            (offset_of!(python_layout, object_type), layout.object_type),
            (offset_of!(python_layout, code_bytes), behind(read.into_iter())),
            (offset_of!(python_layout, name), code.name),
            (offset_of!(python_layout, file), code.file),
            (offset_of!(python_layout, first_line), code.first_line),
            (offset_of!(python_layout, line_table), code.line_table),
            (offset_of!(python_layout, length), text.length),
            (offset_of!(python_layout, kind), text.state),
            (offset_of!(python_layout, kind_shift), text.state_shift),
            (offset_of!(python_layout, ascii_data), text.ascii_data),
            (offset_of!(python_layout, data), text.compact_data),
            (offset_of!(python_layout, bytes_length), bytes.length),
            (offset_of!(python_layout, bytes), bytes.data),
        ]);
    }

    /// Sets fields of 4 bytes at offsets.
    fn set_all(&mut self, fields: &[(usize, u32)]) {
        for &(offset, value) in fields {
            self.set(offset, value);
        }
    }

    /// Sets a field of 8 bytes at an offset.
    fn set_whole(&mut self, offset: usize, value: u64) {
        if let Some(word) = self.words.get_mut(offset / WORD) {
            *word = value;
        }
    }

    /// Sets a field of 4 bytes at an offset.
    fn set(&mut self, offset: usize, value: u32) {
        if let Some(word) = self.words.get_mut(offset / WORD) {
            let shift = 8 * (offset % WORD);
            *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
        }
    }
}

/// Number of bytes up to the end of the words at these offsets.
fn behind(fields: impl Iterator<Item = u32>) -> u32 {
    fields.max().unwrap_or(0) + 8
}

/// A code object of Python, as a probe has found it: bytes of the process, which are untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPythonCode {
    pub address: u64,
    pub instance: u32,
    pub first_line: u32,
    pub name: RawPythonText,
    pub file: RawPythonText,
    /// Table of lines; `None` if it was not kept.
    pub lines: Option<Vec<u8>>,
}

/// A Python string, cut to its first or last bytes if it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPythonText {
    /// Word of the object that has the size of its characters.
    pub kind: u32,
    /// Number of characters of the whole string.
    pub length: u32,
    pub bytes: Vec<u8>,
}

shared_record! {
    /// Numbers of records, frames and words of line tables in use.
    Usage = python_usage {
        codes: AtomicU64,
        chains: AtomicU64,
        frames: AtomicU64,
        lines: AtomicU64,
    }
}

/// The kernel side's arrays for Python.
#[derive(Debug)]
pub struct Pythons {
    pub(super) layouts: SharedWords<AtomicU64>,
    pub(super) codes: SharedWords<AtomicU64>,
    pub(super) chains: SharedWords<AtomicU64>,
    pub(super) frames: SharedWords<AtomicU64>,
    pub(super) lines: SharedWords<AtomicU64>,
    pub(super) usage: SharedWords<Usage>,
    /// Chains that were read, by number: they do not change.
    pub(super) known: Mutex<HashMap<u32, Arc<PythonChain>>>,
}

impl Pythons {
    /// Lets the kernel side use all records of code objects and chains but the first ones, since number 0
    /// stands for none.
    pub(super) fn reserve_none(&self) {
        if let Some(used) = self.used() {
            used.codes.store(1, Ordering::SeqCst);
            used.chains.store(1, Ordering::SeqCst);
        }
    }

    /// Tells the kernel side where the interpreter of the instance in a slot keeps its frames. From now on,
    /// stacks have Python frames.
    pub fn publish(&self, slot: u32, instance: u32, layout: &PythonLayout) {
        let [of_instance, rest @ ..] = self.layouts.record(LAYOUT_WORDS, slot) else {
            return;
        };
        of_instance.store(0, Ordering::SeqCst);
        for (word, value) in rest.iter().zip(layout.words.iter().skip(1)) {
            word.store(*value, Ordering::SeqCst);
        }
        of_instance.store(instance.into(), Ordering::SeqCst);
    }

    /// Instance of the layout in a slot; 0 if there is none.
    pub fn instance_in(&self, slot: u32) -> u32 {
        let layout = self.layouts.record(LAYOUT_WORDS, slot).first();
        layout.map_or(0, |instance| {
            u32::try_from(instance.load(Ordering::SeqCst)).unwrap_or_default()
        })
    }

    /// Kind of record without room for more, functions or stacks; `None` if there is room for all.
    pub fn exhausted(&self) -> Option<&'static str> {
        let room = |records: &SharedWords<AtomicU64>, words: usize| (records.words().len() / words) as u64;
        // Full once the longest chain may not fit. Behind its capacity, the array has room for one more
        // chain, since chains are written in one piece.
        let frames = room(&self.frames, 1).saturating_sub(2 * u64::from(python_limits::PYTHON_FRAMES.0));
        let used = self.used()?;
        let full = [
            ("functions", &used.codes, room(&self.codes, CODE_WORDS)),
            ("stacks", &used.chains, room(&self.chains, CHAIN_WORDS)),
            ("stacks", &used.frames, frames),
        ];
        let mut full = full.into_iter();
        let full = full.find(|(_, used, room)| used.load(Ordering::Acquire) >= *room);
        full.map(|(name, ..)| name)
    }

    /// Numbers of records and frames in use.
    fn used(&self) -> Option<&Usage> {
        self.usage.words().first()
    }

    /// Chain by its number in a stack record; `None` if there is none.
    pub fn chain(&self, number: u32) -> Option<Arc<PythonChain>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chain) = known.get(&number) {
            return Some(Arc::clone(chain));
        }
        let chain = Arc::new(self.read_chain(number)?);
        known.insert(number, Arc::clone(&chain));
        Some(chain)
    }

    fn read_chain(&self, number: u32) -> Option<PythonChain> {
        let used = self.used()?.chains.load(Ordering::Acquire);
        if number == 0 || u64::from(number) >= used {
            return None;
        }
        let chain = self.chains.record(CHAIN_WORDS, number).first()?;
        let [a, b, c, d, count_low, count_high, end, _] = chain.load(Ordering::Acquire).to_le_bytes();
        let first = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
        let count = usize::from(u16::from_le_bytes([count_low, count_high]));
        let frames = self.frames.words().get(first..)?.get(..count)?;
        Some(PythonChain {
            frames: frames
                .iter()
                .map(|frame| decode(frame.load(Ordering::Acquire)))
                .collect(),
            is_whole: u32::from(end) == python_end::PYTHON_WHOLE.0,
        })
    }

    /// Code object by its number in a chain; `None` if it is not known.
    pub fn code(&self, number: u32) -> Option<RawPythonCode> {
        if number == python_code_number::PYTHON_UNKNOWN_CODE.0 {
            return None;
        }
        let words = self.codes.record(CODE_WORDS, number);
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| word.load(Ordering::Acquire).to_le_bytes())
            .collect();
        let half = |at: usize| -> Option<u32> { Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)) };
        let address = u64::from_le_bytes(*bytes.get(offset_of!(python_code, code)..)?.first_chunk()?);
        if half(offset_of!(python_code, is_read))? == 0 {
            return None;
        }
        let text = |kind, length, at: usize, most: u32| {
            Some(RawPythonText {
                kind: half(kind)?,
                length: half(length)?,
                bytes: bytes.get(at..)?.get(..usize::try_from(most).ok()?)?.to_vec(),
            })
        };
        Some(RawPythonCode {
            address,
            instance: half(offset_of!(python_code, instance))?,
            first_line: half(offset_of!(python_code, first_line))?,
            name: text(
                offset_of!(python_code, name_kind),
                offset_of!(python_code, name_length),
                offset_of!(python_code, name),
                python_limits::PYTHON_NAME_BYTES.0,
            )?,
            file: text(
                offset_of!(python_code, file_kind),
                offset_of!(python_code, file_length),
                offset_of!(python_code, file),
                python_limits::PYTHON_FILE_BYTES.0,
            )?,
            lines: self.lines(
                half(offset_of!(python_code, lines_at))?,
                half(offset_of!(python_code, lines_bytes))?,
            ),
        })
    }

    /// Table of lines that begins at word `at`; `None` if there is none.
    fn lines(&self, at: u32, bytes: u32) -> Option<Vec<u8>> {
        if at == python_lines_at::PYTHON_NO_LINES.0 {
            return None;
        }
        let bytes = usize::try_from(bytes).ok()?;
        let words = self.lines.words().get(usize::try_from(at).ok()?..)?;
        let words = words.get(..bytes.div_ceil(WORD))?;
        let mut table: Vec<u8> = words
            .iter()
            .flat_map(|word| word.load(Ordering::Acquire).to_le_bytes())
            .collect();
        table.truncate(bytes);
        Some(table)
    }
}

fn decode(word: u64) -> PythonFrame {
    let low = u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
    let entry = 1 << python_frame_layout::PYTHON_ENTRY_SHIFT.0;
    PythonFrame {
        code: u32::try_from(word >> python_frame_layout::PYTHON_CODE_SHIFT.0).unwrap_or_default(),
        instruction: low & !entry,
        is_entry: low & entry != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both halves of a word can be set, in any order.
    #[test]
    fn fields_of_a_layout_do_not_touch_each_other() {
        let mut layout = PythonLayout::default();
        layout.set(offset_of!(python_layout, key), 7);
        layout.set(offset_of!(python_layout, values_at), 5);
        layout.set(offset_of!(python_layout, value_bytes), 6);
        layout.set(offset_of!(python_layout, values_at), 9);
        layout.set_whole(offset_of!(python_layout, runtime), u64::MAX);
        let half = |offset: usize| layout.words[offset / WORD] >> (8 * (offset % WORD)) & 0xffff_ffff;
        assert_eq!(half(offset_of!(python_layout, key)), 7);
        assert_eq!(half(offset_of!(python_layout, values_at)), 9);
        assert_eq!(half(offset_of!(python_layout, value_bytes)), 6);
        assert_eq!(half(offset_of!(python_layout, runtime)), 0xffff_ffff);
    }

    /// Code, instruction and mark of a stored frame are taken apart.
    #[test]
    fn frames_are_decoded() {
        assert_eq!(
            decode(5 << 32 | 1 << 31 | 12),
            PythonFrame {
                code: 5,
                instruction: 12,
                is_entry: true,
            }
        );
        assert!(!decode(5 << 32 | 12).is_entry);
    }
}
