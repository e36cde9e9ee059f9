//! `_Py_DebugOffsets`, at the start of `_PyRuntime` from 3.13 on: CPython's description of its own
//! structures, in 64-bit words after eight bytes (`pycore_runtime.h`, since 3.14 `pycore_debug_offsets.h`).
//!
//! Offsets are taken from it, so that each build has its own, with a lock or without. The places of its words
//! are in a table for each minor version, compared with the headers of 3.13.5, 3.13.15, 3.14.4, 3.14.8 and
//! 3.15.0. Untrusted: an offset that is not aligned, or beyond the bytes that are read, is refused.

use super::layout::{
    BytesFields, CodeFields, EntryMark, FrameFields, Layout, LineFormat, RuntimeFields, TextFields,
    ThreadFields,
};

pub(super) const COOKIE: &[u8; 8] = b"xdebugpy";
/// `Py_Version` of the build.
pub(super) const VERSION: usize = 8;
/// 1 for a build without a lock, else 0.
pub(super) const FREE_THREADED: usize = 16;
const WORD: usize = 8;

/// Maximum offset of a field, by what is read of its structure (`bpf/python/layout.h`), and alignment of the
/// offset.
#[derive(Clone, Copy, Debug)]
struct Room {
    max: u32,
    align: u32,
}

const IN_STATE: Room = Room { max: 504, align: 8 };
const IN_FRAME: Room = Room { max: 120, align: 8 };
const IN_CODE: Room = Room { max: 248, align: 8 };
/// Room of other objects, which are not read as a whole.
const ELSEWHERE: Room = Room { max: 248, align: 8 };

/// Offsets of the words in one minor version's description, in bytes from its start, and values that it does
/// not describe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Description {
    pub(super) minor: u8,
    /// [`RuntimeFields::key`].
    key: Option<u32>,
    /// [`TextFields::state_shift`] of a build without a lock.
    state_shift: u32,
    object_type: usize,
    thread: DescribedThread,
    frame: DescribedFrame,
    code: DescribedCode,
    bytes_length: usize,
    bytes_data: usize,
    text_state: usize,
    text_length: usize,
    text_data: usize,
}

#[derive(Clone, Copy, Debug)]
struct DescribedThread {
    frame: usize,
    id: usize,
    chunk: usize,
    base: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct DescribedFrame {
    back: usize,
    code: usize,
    instruction: usize,
    mark: usize,
    copy: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct DescribedCode {
    file: usize,
    name: usize,
    line_table: usize,
    first_line: usize,
    bytecode: usize,
    copies: Option<usize>,
}

/// Versions that describe themselves. A next version with the same words at the same places needs one line:
/// its number, and `..` the last.
pub(super) const DESCRIPTIONS: [Description; 3] = [
    Description {
        minor: 13,
        key: Some(2164),
        state_shift: 0,
        object_type: 360,
        thread: DescribedThread {
            frame: 184,
            id: 192,
            chunk: 208,
            base: None,
        },
        frame: DescribedFrame {
            back: 232,
            code: 240,
            instruction: 248,
            mark: 264,
            copy: None,
        },
        code: DescribedCode {
            file: 280,
            name: 296,
            line_table: 304,
            first_line: 312,
            bytecode: 344,
            copies: None,
        },
        bytes_length: 520,
        bytes_data: 528,
        text_state: 544,
        text_length: 552,
        text_data: 560,
    },
    Description {
        minor: 14,
        key: Some(2340),
        // `interned` is a separate byte.
        state_shift: 6,
        object_type: 408,
        thread: DescribedThread {
            frame: 208,
            id: 216,
            chunk: 232,
            base: None,
        },
        frame: DescribedFrame {
            back: 256,
            code: 264,
            instruction: 272,
            mark: 288,
            copy: Some(304),
        },
        code: DescribedCode {
            file: 320,
            name: 336,
            line_table: 344,
            first_line: 352,
            bytecode: 384,
            copies: Some(392),
        },
        bytes_length: 600,
        bytes_data: 608,
        text_state: 624,
        text_length: 632,
        text_data: 640,
    },
    Description {
        minor: 15,
        key: None,
        state_shift: 6,
        object_type: 472,
        thread: DescribedThread {
            frame: 208,
            id: 240,
            chunk: 256,
            base: Some(216),
        },
        frame: DescribedFrame {
            back: 320,
            code: 328,
            instruction: 336,
            mark: 352,
            copy: Some(368),
        },
        code: DescribedCode {
            file: 384,
            name: 400,
            line_table: 408,
            first_line: 416,
            bytecode: 448,
            copies: Some(456),
        },
        bytes_length: 696,
        bytes_data: 704,
        text_state: 720,
        text_length: 728,
        text_data: 736,
    },
];

/// A word of the description.
#[derive(Clone, Copy)]
pub(super) struct Described {
    /// `None` if the version does not have it.
    at: Option<usize>,
    pub(super) name: &'static str,
    room: Room,
    /// Field of the layout that it describes.
    pub(super) field: fn(&mut Layout) -> &mut u32,
}

impl Described {
    /// A word that is there in each version.
    const fn new(at: usize, name: &'static str, room: Room, field: fn(&mut Layout) -> &mut u32) -> Self {
        Self {
            at: Some(at),
            name,
            room,
            field,
        }
    }
}

impl Description {
    /// Number of bytes from its start that contain all words that are read.
    pub(super) fn bytes(&self) -> u64 {
        let ends = self.words(true).map(|(at, _)| at + WORD);
        ends.max().unwrap_or(0) as u64
    }

    /// Layout of a build, by its description. The error is the name of the word that is not usable.
    pub(super) fn layout(&self, said: &[u8]) -> Result<Layout, &'static str> {
        let word = |at: usize| {
            let bytes = said.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let is_free_threaded = match word(FREE_THREADED) {
            Some(0) => false,
            Some(1) => true,
            Some(_) | None => return Err("_Py_DebugOffsets.free_threaded"),
        };
        let mut layout = self.undescribed(is_free_threaded);
        for (at, described) in self.words(is_free_threaded) {
            let Room { max, align } = described.room;
            let offset = word(at).and_then(|offset| u32::try_from(offset).ok());
            let is_usable = |offset: &u32| *offset <= max && offset.is_multiple_of(align);
            *(described.field)(&mut layout) = offset.filter(is_usable).ok_or(described.name)?;
        }
        // A compact str that is not ASCII has two more words after the fields of an ASCII one: its form as
        // UTF-8.
        layout.text.compact_data = layout.text.ascii_data + 16;
        // A code object's type ends before the bytecode, a str's after a pointer to characters that are
        // elsewhere, and a bytes object's after the zero behind the bytes.
        layout.basic_sizes = [
            layout.code.bytecode,
            None,
            Some(layout.text.compact_data + 8),
            Some(layout.bytes.data + 1),
        ];
        Ok(layout)
    }

    /// All words that are read of the description, with their offsets.
    pub(super) fn words(&self, is_free_threaded: bool) -> impl Iterator<Item = (usize, Described)> {
        let copies = self
            .words_of_copies()
            .into_iter()
            .filter(move |_| is_free_threaded);
        let words = self.words_of_threads().into_iter().chain(self.words_of_code());
        let words = words.chain(self.words_of_objects()).chain(copies);
        words.filter_map(|described| Some((described.at?, described)))
    }

    fn words_of_threads(&self) -> [Described; 8] {
        let Self { thread, frame, .. } = self;
        [
            Described::new(thread.frame, "PyThreadState.current_frame", IN_STATE, |layout| {
                &mut layout.thread.frame
            }),
            Described::new(thread.id, "PyThreadState.thread_id", IN_STATE, |layout| {
                &mut layout.thread.id
            }),
            Described::new(
                thread.chunk,
                "PyThreadState.datastack_chunk",
                IN_STATE,
                |layout| layout.thread.chunk.get_or_insert(0),
            ),
            Described {
                at: thread.base,
                name: "PyThreadState.base_frame",
                room: IN_STATE,
                field: |layout| layout.thread.base.get_or_insert(0),
            },
            Described::new(frame.back, "_PyInterpreterFrame.previous", IN_FRAME, |layout| {
                &mut layout.frame.back
            }),
            Described::new(
                frame.code,
                "_PyInterpreterFrame.f_executable",
                IN_FRAME,
                |layout| &mut layout.frame.code,
            ),
            Described::new(
                frame.instruction,
                "_PyInterpreterFrame.instr_ptr",
                IN_FRAME,
                |layout| &mut layout.frame.instruction,
            ),
            Described::new(
                frame.mark,
                "_PyInterpreterFrame.owner",
                Room { align: 1, ..IN_FRAME },
                |layout| &mut layout.frame.mark,
            ),
        ]
    }

    fn words_of_code(&self) -> [Described; 5] {
        let code = &self.code;
        let half = Room { align: 4, ..IN_CODE };
        [
            Described::new(code.file, "PyCodeObject.co_filename", IN_CODE, |layout| {
                &mut layout.code.file
            }),
            Described::new(code.name, "PyCodeObject.co_qualname", IN_CODE, |layout| {
                &mut layout.code.name
            }),
            Described::new(code.line_table, "PyCodeObject.co_linetable", IN_CODE, |layout| {
                &mut layout.code.line_table
            }),
            Described::new(code.first_line, "PyCodeObject.co_firstlineno", half, |layout| {
                &mut layout.code.first_line
            }),
            Described::new(
                code.bytecode,
                "PyCodeObject.co_code_adaptive",
                IN_CODE,
                |layout| layout.code.bytecode.get_or_insert(0),
            ),
        ]
    }

    fn words_of_objects(&self) -> [Described; 6] {
        [
            Described::new(self.object_type, "PyObject.ob_type", IN_CODE, |layout| {
                &mut layout.object_type
            }),
            Described::new(self.bytes_length, "PyBytesObject.ob_size", ELSEWHERE, |layout| {
                &mut layout.bytes.length
            }),
            Described::new(self.bytes_data, "PyBytesObject.ob_sval", ELSEWHERE, |layout| {
                &mut layout.bytes.data
            }),
            Described::new(self.text_state, "PyUnicodeObject.state", ELSEWHERE, |layout| {
                &mut layout.text.state
            }),
            Described::new(self.text_length, "PyUnicodeObject.length", ELSEWHERE, |layout| {
                &mut layout.text.length
            }),
            // The characters follow it.
            Described::new(self.text_data, "sizeof(PyASCIIObject)", ELSEWHERE, |layout| {
                &mut layout.text.ascii_data
            }),
        ]
    }

    /// Words that only builds without a lock have.
    fn words_of_copies(&self) -> [Described; 2] {
        [
            Described {
                at: self.frame.copy,
                name: "_PyInterpreterFrame.tlbc_index",
                room: Room { align: 4, ..IN_FRAME },
                field: |layout| layout.frame.copy.get_or_insert(0),
            },
            Described {
                at: self.code.copies,
                name: "PyCodeObject.co_tlbc",
                room: IN_CODE,
                field: |layout| layout.code.copies.get_or_insert(0),
            },
        ]
    }

    /// Layout with the values that the description does not have; the others are 0 or absent.
    fn undescribed(&self, is_free_threaded: bool) -> Layout {
        Layout {
            minor: self.minor,
            object_type: 0,
            runtime: RuntimeFields {
                key: self.key,
                current: None,
                next_interpreter: None,
            },
            thread: ThreadFields {
                id: 0,
                frame: 0,
                cframe_frame: None,
                chunk: None,
                base: None,
            },
            frame: FrameFields {
                code: 0,
                back: 0,
                instruction: 0,
                mark: 0,
                entry: EntryMark::Shim,
                copy: None,
            },
            code: CodeFields {
                name: 0,
                file: 0,
                first_line: 0,
                line_table: 0,
                line_format: LineFormat::Locations,
                bytecode: None,
                copies: None,
            },
            text: TextFields {
                length: 0,
                state: 0,
                state_shift: if is_free_threaded { self.state_shift } else { 0 },
                ascii_data: 0,
                compact_data: 0,
            },
            bytes: BytesFields { length: 0, data: 0 },
            basic_sizes: [None; 4],
        }
    }
}
