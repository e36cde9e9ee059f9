//! Where CPython's structures have what is read of them: a table for each minor version.
//!
//! The structures are internal, but the same in all releases of a minor version (`pycore_runtime.h`, `pycore_pystate.h` or `pystate.h`,
//! `pycore_frame.h` or `frameobject.h`, `code.h`, `unicodeobject.h`, `bytesobject.h`). The offsets are those of 64-bit builds, compared with
//! the headers of 3.9.2, 3.9.18, 3.10.13, 3.11.2, 3.11.7, 3.12.1, 3.13.0 and 3.13.5. What of them can be seen in a file is compared
//! with it ([`PythonBuild`](super::PythonBuild)).

use unwind_tables::addr::Avma;

/// Offset of `ob_type` in every object; `ob_refcnt` is at 0.
pub(crate) const OBJECT_TYPE: u32 = 8;

/// Offsets of one minor version, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Second part of the version: 11 of 3.11.
    pub(crate) minor: u8,
    pub(crate) runtime: RuntimeFields,
    pub(crate) thread: ThreadFields,
    pub(crate) frame: FrameFields,
    pub(crate) code: CodeFields,
    pub(crate) text: TextFields,
    pub(crate) bytes: BytesFields,
    /// `tp_basicsize` of the types of [`TYPES`](super::TYPES).
    pub(super) basic_sizes: [u64; 4],
}

/// Fields of the variable `_PyRuntime`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuntimeFields {
    /// `autoTSSkey._key`, an `unsigned int`: the pthread key of each thread's own state. The `int` before it is nonzero once there is one.
    pub(crate) key: u32,
    /// `gilstate.tstate_current`: state of the thread that has the GIL. It is no longer here in 3.12, where each interpreter has its own.
    pub(crate) current: Option<u32>,
    /// `interpreters.next_id`, 64 bits: how many interpreters there have been. Where `current` is.
    pub(crate) next_interpreter: Option<u32>,
}

/// Fields of a `PyThreadState`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ThreadFields {
    /// `thread_id`: `pthread_self()` of its thread.
    pub(crate) id: u32,
    /// Pointer to the innermost frame; to a `_PyCFrame` if there is `cframe_frame`.
    pub(crate) frame: u32,
    /// `_PyCFrame.current_frame`: pointer to the innermost frame.
    pub(crate) cframe_frame: Option<u32>,
    /// `datastack_chunk`: pointer to the newest part of the stack of frames, which begins with a pointer to the part before it, and its size
    /// in bytes. Up to 3.10 each frame is an object of its own.
    pub(crate) chunk: Option<u32>,
}

/// Fields of a frame: `_PyInterpreterFrame`, or up to 3.10 `PyFrameObject`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FrameFields {
    /// Pointer to its code; to another object in some shims.
    pub(crate) code: u32,
    /// Pointer to the frame that called it; null for the outermost.
    pub(crate) back: u32,
    /// Where it is: `f_lasti`, an `int`, up to 3.10; then a pointer into its bytecode (`prev_instr`, from 3.13 on `instr_ptr`).
    pub(crate) instruction: u32,
    /// The byte that `entry` is about.
    pub(crate) mark: u32,
    pub(crate) entry: EntryMark,
    /// Number of bytes from its start that have all these fields.
    pub(crate) frame_bytes: u32,
}

/// How frames tell where a call of the native function that runs them, `_PyEval_EvalFrameDefault`, begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryMark {
    /// Each frame has a call of its own. Up to 3.10.
    Every,
    /// A frame with `is_entry` other than 0 is the first of its call. 3.11.
    IsEntry,
    /// A shim of `owner` `FRAME_OWNED_BY_CSTACK` is before the first of a call. It is no frame of Python's. From 3.12 on.
    Shim,
}

/// Fields of a `PyCodeObject`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodeFields {
    /// Pointer to the name, a str: `co_qualname`, or up to 3.10 `co_name`.
    pub(crate) name: u32,
    /// `co_filename`: pointer to a str.
    pub(crate) file: u32,
    /// `co_firstlineno`, an `int`.
    pub(crate) first_line: u32,
    /// `co_linetable`, in 3.9 `co_lnotab`: pointer to a bytes object.
    pub(crate) line_table: u32,
    pub(crate) line_format: LineFormat,
    /// `co_code_adaptive`: the instructions, of which a frame's pointer is one. Up to 3.10 they are elsewhere, and not needed.
    pub(crate) bytecode: Option<u32>,
}

/// Form of a code object's table of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Where lines begin: 3.9.
    Starts,
    /// Ranges of bytecode, each with a line or none (PEP 626): 3.10.
    Ranges,
    /// Ranges with lines and columns (PEP 657): since 3.11.
    Locations,
}

/// Fields of a str.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextFields {
    /// Number of characters, 64 bits.
    pub(crate) length: u32,
    /// `state`, 32 bits, which [`TextState`] takes apart.
    pub(crate) state: u32,
    /// The characters of one that is compact and ASCII.
    pub(crate) ascii_data: u32,
    /// The characters of any other that is compact.
    pub(crate) compact_data: u32,
}

/// Fields of a bytes object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BytesFields {
    /// `ob_size`: number of bytes, 64 bits.
    pub(crate) length: u32,
    /// `ob_sval`: the bytes.
    pub(crate) data: u32,
}

/// How the characters of a str are stored: its word `state`, the same in all known versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextState(pub(crate) u32);

impl TextState {
    const KIND_SHIFT: u32 = 2;
    const KIND_MASK: u32 = 7;
    const COMPACT: u32 = 1 << 5;
    const ASCII: u32 = 1 << 6;

    /// Bytes of each character; `None` for a str that is not of characters of equal size, or damaged.
    pub(crate) fn character_bytes(self) -> Option<usize> {
        let found = match self.0 >> Self::KIND_SHIFT & Self::KIND_MASK {
            1 => 1,
            2 => 2,
            4 => 4,
            _ => return None,
        };
        (!self.is_ascii() || found == 1).then_some(found)
    }

    /// Returns whether the characters are in the object itself.
    pub(crate) fn is_compact(self) -> bool {
        self.0 & Self::COMPACT != 0
    }

    /// Returns whether all characters are below 128.
    pub(crate) fn is_ascii(self) -> bool {
        self.0 & Self::ASCII != 0
    }
}

impl Layout {
    /// Where a frame of this code is, in bytes of its bytecode, by the word at [`FrameFields::instruction`]; `None` if it has not begun, or
    /// the word is of no instruction.
    pub(crate) fn instruction(&self, code: Avma, word: u64) -> Option<u32> {
        let Some(bytecode) = self.code.bytecode else {
            let index = u32::try_from(word & u64::from(u32::MAX)).ok()?;
            let index = Some(index).filter(|index| index.cast_signed() >= 0)?;
            return match self.code.line_format {
                LineFormat::Starts => Some(index),
                // Counted in instructions of two bytes.
                LineFormat::Ranges | LineFormat::Locations => index.checked_mul(2),
            };
        };
        let first = code.wrapping_add(bytecode.into());
        u32::try_from(Avma::new(word).offset_from(first)).ok()
    }
}

/// All versions that are known.
pub(crate) const LAYOUTS: [Layout; 5] = [
    Layout {
        minor: 9,
        runtime: OLD_RUNTIME,
        thread: OLD_THREAD,
        frame: FrameFields {
            instruction: 104,
            frame_bytes: 112,
            ..OLD_FRAME
        },
        code: CodeFields {
            line_format: LineFormat::Starts,
            ..OLD_CODE
        },
        text: OLD_TEXT,
        bytes: BYTES,
        basic_sizes: [176, 368, 80, 33],
    },
    Layout {
        minor: 10,
        runtime: OLD_RUNTIME,
        thread: OLD_THREAD,
        frame: OLD_FRAME,
        code: OLD_CODE,
        text: OLD_TEXT,
        bytes: BYTES,
        basic_sizes: [176, 360, 80, 33],
    },
    Layout {
        minor: 11,
        runtime: RuntimeFields {
            key: 596,
            current: Some(576),
            next_interpreter: Some(56),
        },
        thread: ThreadFields {
            id: 152,
            frame: 56,
            cframe_frame: Some(8),
            chunk: Some(296),
        },
        frame: FrameFields {
            code: 32,
            back: 48,
            instruction: 56,
            mark: 68,
            entry: EntryMark::IsEntry,
            frame_bytes: 72,
        },
        code: CodeFields {
            first_line: 72,
            bytecode: Some(184),
            ..CODE
        },
        text: OLD_TEXT,
        bytes: BYTES,
        basic_sizes: [184, 120, 80, 33],
    },
    Layout {
        minor: 12,
        runtime: RuntimeFields { key: 1548, ..RUNTIME },
        thread: ThreadFields {
            id: 136,
            frame: 56,
            cframe_frame: Some(0),
            chunk: Some(232),
        },
        frame: FRAME,
        code: CodeFields {
            bytecode: Some(192),
            ..CODE
        },
        text: TEXT,
        bytes: BYTES,
        basic_sizes: [192, 120, 64, 33],
    },
    Layout {
        minor: 13,
        runtime: RUNTIME,
        thread: ThreadFields {
            id: 152,
            frame: 72,
            cframe_frame: None,
            chunk: Some(232),
        },
        frame: FRAME,
        code: CODE,
        text: TEXT,
        bytes: BYTES,
        basic_sizes: [200, 136, 64, 33],
    },
];

/// 3.9 and 3.10.
const OLD_RUNTIME: RuntimeFields = RuntimeFields {
    key: 588,
    current: Some(568),
    next_interpreter: Some(48),
};

/// 3.13.
const RUNTIME: RuntimeFields = RuntimeFields {
    key: 2164,
    current: None,
    next_interpreter: None,
};

/// 3.9 and 3.10.
const OLD_THREAD: ThreadFields = ThreadFields {
    id: 176,
    frame: 24,
    cframe_frame: None,
    chunk: None,
};

/// 3.10.
const OLD_FRAME: FrameFields = FrameFields {
    code: 32,
    back: 24,
    instruction: 96,
    mark: 0,
    entry: EntryMark::Every,
    frame_bytes: 104,
};

/// Since 3.12.
const FRAME: FrameFields = FrameFields {
    code: 0,
    back: 8,
    instruction: 56,
    mark: 70,
    entry: EntryMark::Shim,
    frame_bytes: 72,
};

/// 3.10.
const OLD_CODE: CodeFields = CodeFields {
    name: 112,
    file: 104,
    first_line: 40,
    line_table: 120,
    line_format: LineFormat::Ranges,
    bytecode: None,
};

/// 3.13.
const CODE: CodeFields = CodeFields {
    name: 128,
    file: 112,
    first_line: 68,
    line_table: 136,
    line_format: LineFormat::Locations,
    bytecode: Some(200),
};

/// Up to 3.11: with `wchar_t *` of another form of the same text.
const OLD_TEXT: TextFields = TextFields {
    length: 16,
    state: 32,
    ascii_data: 48,
    compact_data: 72,
};

/// Since 3.12.
const TEXT: TextFields = TextFields {
    length: 16,
    state: 32,
    ascii_data: 40,
    compact_data: 56,
};

const BYTES: BytesFields = BytesFields { length: 16, data: 32 };

/// `_Py_DebugOffsets`, at the start of `_PyRuntime` from 3.13 on: what CPython says of itself, in 64-bit words behind eight bytes
/// (`pycore_runtime.h`).
pub(super) mod described {
    use super::{Layout, OBJECT_TYPE};

    pub(in crate::process) const COOKIE: &[u8; 8] = b"xdebugpy";
    pub(in crate::process) const FREE_THREADED: usize = 16;
    /// Size of what is read of it, in 3.13.
    pub(in crate::process) const BYTES: usize = 568;

    /// Offsets as 3.13 describes them: where each is, its name, and what is known of it.
    pub(in crate::process) fn offsets(layout: &Layout) -> [(usize, &'static str, Option<u32>); 18] {
        let Layout {
            thread,
            frame,
            code,
            text,
            bytes,
            ..
        } = layout;
        [
            (184, "PyThreadState.current_frame", Some(thread.frame)),
            (192, "PyThreadState.thread_id", Some(thread.id)),
            (208, "PyThreadState.datastack_chunk", thread.chunk),
            (232, "_PyInterpreterFrame.previous", Some(frame.back)),
            (240, "_PyInterpreterFrame.f_executable", Some(frame.code)),
            (248, "_PyInterpreterFrame.instr_ptr", Some(frame.instruction)),
            (264, "_PyInterpreterFrame.owner", Some(frame.mark)),
            (280, "PyCodeObject.co_filename", Some(code.file)),
            (296, "PyCodeObject.co_qualname", Some(code.name)),
            (304, "PyCodeObject.co_linetable", Some(code.line_table)),
            (312, "PyCodeObject.co_firstlineno", Some(code.first_line)),
            (344, "PyCodeObject.co_code_adaptive", code.bytecode),
            (360, "PyObject.ob_type", Some(OBJECT_TYPE)),
            (520, "PyBytesObject.ob_size", Some(bytes.length)),
            (528, "PyBytesObject.ob_sval", Some(bytes.data)),
            (544, "PyUnicodeObject.state", Some(text.state)),
            (552, "PyUnicodeObject.length", Some(text.length)),
            // Behind it are the characters.
            (560, "sizeof(PyASCIIObject)", Some(text.ascii_data)),
        ]
    }
}
