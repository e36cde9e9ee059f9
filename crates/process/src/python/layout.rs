//! Offsets of the fields that are read of CPython's structures, with a table for each minor version up to
//! 3.12. Later versions describe themselves ([`described`](super::described)).
//!
//! The structures are internal, but the same in all releases of a minor version (`pycore_runtime.h`,
//! `pycore_pystate.h` or `pystate.h`, `pycore_frame.h` or `frameobject.h`, `code.h`, `unicodeobject.h`,
//! `bytesobject.h`). The offsets are those of 64-bit builds, compared with the headers of 3.9.2, 3.9.18,
//! 3.10.13, 3.11.2, 3.11.7 and 3.12.1. As far as a file shows them, they are compared with it
//! ([`PythonBuild`](super::PythonBuild)).

use unwind_tables::Architecture;
use unwind_tables::addr::Avma;

/// Offset of `ob_type` in every object of a build with a lock; `ob_refcnt` is at 0.
pub(super) const OBJECT_TYPE: u32 = 8;

/// Offsets of one minor version, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Second part of the version: 11 of 3.11.
    pub minor: u8,
    /// `ob_type`: where every object has its type.
    pub object_type: u32,
    pub runtime: RuntimeFields,
    pub thread: ThreadFields,
    pub frame: FrameFields,
    pub code: CodeFields,
    pub text: TextFields,
    pub bytes: BytesFields,
    /// `tp_basicsize` of the types of [`TYPES`](super::TYPES); `None` if not known.
    pub(super) basic_sizes: [Option<u32>; 4],
}

/// Fields of the variable `_PyRuntime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeFields {
    /// `autoTSSkey._key`, an `unsigned int`: the pthread key of each thread's own state. The `int` before it
    /// is nonzero once there is one. From 3.15 on, the state is in a thread-local variable.
    pub key: Option<u32>,
    /// `gilstate.tstate_current`: state of the thread that has the GIL. It is no longer here in 3.12, where
    /// each interpreter has its own.
    pub current: Option<u32>,
    /// `interpreters.next_id`, 64 bits: the number of interpreters that there have been. Known where
    /// `current` is.
    pub next_interpreter: Option<u32>,
}

/// Fields of a `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadFields {
    /// `thread_id`: `pthread_self()` of its thread.
    pub id: u32,
    /// Pointer to the innermost frame; to a `_PyCFrame` if there is `cframe_frame`.
    pub frame: u32,
    /// `_PyCFrame.current_frame`: pointer to the innermost frame.
    pub cframe_frame: Option<u32>,
    /// `datastack_chunk`: pointer to the newest part of the stack of frames, which begins with a pointer to
    /// the part before it, and its size in bytes. Up to 3.10 each frame is an object of its own.
    pub chunk: Option<u32>,
    /// `base_frame`: pointer to a frame without a function, which calls all others. From 3.15 on.
    pub base: Option<u32>,
}

/// Fields of a frame: `_PyInterpreterFrame`, or up to 3.10 `PyFrameObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFields {
    /// Pointer to its code; to another object in some shims.
    pub code: u32,
    /// Pointer to the frame that called it; null for the outermost.
    pub back: u32,
    /// Position in the code: `f_lasti`, an `int`, up to 3.10; then a pointer into its bytecode (`prev_instr`,
    /// from 3.13 on `instr_ptr`).
    pub instruction: u32,
    /// Byte that `entry` refers to.
    pub mark: u32,
    pub entry: EntryMark,
    /// `tlbc_index`, an `int32_t`: number of the copy of the code's bytecode that it runs. In builds without
    /// a lock, from 3.14 on.
    pub copy: Option<u32>,
}

impl FrameFields {
    /// Number of bytes from its start that have all these fields. A frame is a multiple of 8.
    pub fn bytes(&self) -> u32 {
        let words = [self.code, self.back, self.instruction].map(|at| at + 8);
        let ends = words.into_iter().chain([self.mark + 1]);
        let ends = ends.chain(self.copy.map(|at| at + 4));
        ends.max().unwrap_or(0).next_multiple_of(8)
    }
}

/// Mark by which frames show where a call of the native function that runs them, `_PyEval_EvalFrameDefault`,
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMark {
    /// Each frame has its own call. Up to 3.10.
    Every,
    /// A frame with `is_entry` other than 0 is the first of its call. 3.11.
    IsEntry,
    /// A shim of `owner` `FRAME_OWNED_BY_CSTACK`, since 3.14 `FRAME_OWNED_BY_INTERPRETER`, is before the
    /// first of a call. It is not a frame of a Python function. From 3.12 on.
    Shim,
}

/// Fields of a `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFields {
    /// Pointer to the name, a str: `co_qualname`, or up to 3.10 `co_name`.
    pub name: u32,
    /// `co_filename`: pointer to a str.
    pub file: u32,
    /// `co_firstlineno`, an `int`.
    pub first_line: u32,
    /// `co_linetable`, in 3.9 `co_lnotab`: pointer to a bytes object.
    pub line_table: u32,
    pub line_format: LineFormat,
    /// `co_code_adaptive`: the instructions, to one of which a frame points. Up to 3.10 they are elsewhere,
    /// and not needed.
    pub bytecode: Option<u32>,
    /// `co_tlbc`: pointer to the number of copies of the bytecode, 64 bits, and pointers to them, the first
    /// of which is `bytecode`. Known where [`FrameFields::copy`] is.
    pub copies: Option<u32>,
}

/// Form of a code object's table of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// Starts of lines: 3.9.
    Starts,
    /// Ranges of bytecode, each with a line or none (PEP 626): 3.10.
    Ranges,
    /// Ranges with lines and columns (PEP 657): since 3.11.
    Locations,
}

/// Fields of a str.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextFields {
    /// Number of characters, 64 bits.
    pub length: u32,
    /// `state`, 32 bits, which [`TextState`] decodes.
    pub state: u32,
    /// Number of bits by which the bits read of `state` are further left than in other versions.
    pub state_shift: u32,
    /// The characters of a compact ASCII str.
    pub ascii_data: u32,
    /// The characters of any other compact str.
    pub compact_data: u32,
}

/// Fields of a bytes object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesFields {
    /// `ob_size`: number of bytes, 64 bits.
    pub length: u32,
    /// `ob_sval`: the bytes.
    pub data: u32,
}

/// Storage of a str's characters: its word `state`, after `TextFields::state_shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextState(pub u32);

impl TextState {
    const KIND_SHIFT: u32 = 2;
    const KIND_MASK: u32 = 7;
    const COMPACT: u32 = 1 << 5;
    const ASCII: u32 = 1 << 6;

    /// Bytes of each character; `None` for a str whose characters are not of equal size, or that is damaged.
    pub fn character_bytes(self) -> Option<usize> {
        let found = match self.0 >> Self::KIND_SHIFT & Self::KIND_MASK {
            1 => 1,
            2 => 2,
            4 => 4,
            _ => return None,
        };
        (!self.is_ascii() || found == 1).then_some(found)
    }

    /// Returns whether the characters are in the object itself.
    pub fn is_compact(self) -> bool {
        self.0 & Self::COMPACT != 0
    }

    /// Returns whether all characters are below 128.
    pub fn is_ascii(self) -> bool {
        self.0 & Self::ASCII != 0
    }
}

impl Layout {
    /// Adapts the layout on x86-64 to a machine. Up to 3.11, `_PyRuntime` contains two mutexes of the C
    /// library (`ceval.gil`), of 40 bytes each on x86-64, and of 48 on AArch64; the rest is before them, or
    /// has the same sizes.
    pub(super) fn for_machine(mut self, machine: Architecture) -> Self {
        let more = match machine {
            Architecture::X86_64 => 0,
            Architecture::Aarch64 => 2 * (48 - 40),
        };
        let RuntimeFields { key, current, .. } = &mut self.runtime;
        if let (Some(key), Some(current)) = (key, current) {
            *key += more;
            *current += more;
        }
        self
    }

    /// Position of a frame of this code, in bytes of its bytecode, by the word at
    /// `FrameFields::instruction`; `None` if the frame has not begun, or if the word points to no
    /// instruction.
    pub fn instruction(&self, code: Avma, word: u64) -> Option<u32> {
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

/// Versions that do not describe themselves.
pub const LAYOUTS: [Layout; 4] = [
    Layout {
        minor: 9,
        frame: FrameFields {
            instruction: 104,
            ..OLD_FRAME
        },
        code: CodeFields {
            line_format: LineFormat::Starts,
            ..OLD_CODE
        },
        basic_sizes: [Some(176), Some(368), Some(80), Some(33)],
        ..OLD
    },
    OLD,
    Layout {
        minor: 11,
        runtime: RuntimeFields {
            key: Some(596),
            current: Some(576),
            next_interpreter: Some(56),
        },
        thread: ThreadFields {
            id: 152,
            frame: 56,
            cframe_frame: Some(8),
            chunk: Some(296),
            base: None,
        },
        frame: FrameFields {
            code: 32,
            back: 48,
            instruction: 56,
            mark: 68,
            entry: EntryMark::IsEntry,
            copy: None,
        },
        code: CodeFields {
            first_line: 72,
            bytecode: Some(184),
            ..CODE
        },
        basic_sizes: [Some(184), Some(120), Some(80), Some(33)],
        ..OLD
    },
    Layout {
        minor: 12,
        object_type: OBJECT_TYPE,
        runtime: RuntimeFields {
            key: Some(1548),
            current: None,
            next_interpreter: None,
        },
        thread: ThreadFields {
            id: 136,
            frame: 56,
            cframe_frame: Some(0),
            chunk: Some(232),
            base: None,
        },
        frame: FrameFields {
            code: 0,
            back: 8,
            instruction: 56,
            mark: 70,
            entry: EntryMark::Shim,
            copy: None,
        },
        code: CODE,
        // Without the `wchar_t *` to another form of the same text.
        text: TextFields {
            ascii_data: 40,
            compact_data: 56,
            ..OLD.text
        },
        bytes: OLD.bytes,
        basic_sizes: [Some(192), Some(120), Some(64), Some(33)],
    },
];

/// 3.10.
const OLD: Layout = Layout {
    minor: 10,
    object_type: OBJECT_TYPE,
    runtime: RuntimeFields {
        key: Some(588),
        current: Some(568),
        next_interpreter: Some(48),
    },
    thread: ThreadFields {
        id: 176,
        frame: 24,
        cframe_frame: None,
        chunk: None,
        base: None,
    },
    frame: OLD_FRAME,
    code: OLD_CODE,
    text: TextFields {
        length: 16,
        state: 32,
        state_shift: 0,
        ascii_data: 48,
        compact_data: 72,
    },
    bytes: BytesFields { length: 16, data: 32 },
    basic_sizes: [Some(176), Some(360), Some(80), Some(33)],
};

/// 3.10.
const OLD_FRAME: FrameFields = FrameFields {
    code: 32,
    back: 24,
    instruction: 96,
    mark: 0,
    entry: EntryMark::Every,
    copy: None,
};

/// 3.10.
const OLD_CODE: CodeFields = CodeFields {
    name: 112,
    file: 104,
    first_line: 40,
    line_table: 120,
    line_format: LineFormat::Ranges,
    bytecode: None,
    copies: None,
};

/// 3.12.
const CODE: CodeFields = CodeFields {
    name: 128,
    file: 112,
    first_line: 68,
    line_table: 136,
    line_format: LineFormat::Locations,
    bytecode: Some(192),
    copies: None,
};
