//! Names and lines of the Python functions that the kernel side has found.

use std::collections::HashMap;
use std::sync::Arc;

use unwind_tables::addr::Avma;

use crate::bpf::python::NOT_BEGUN;
use crate::bpf::{Pythons, RawPythonCode, RawPythonText};
use crate::process::python::{PythonBuild, TextState};
use crate::symbolize::python::{Kept, LineTable, PythonCode, decode_text};
use leak_report::model::Symbolized;
use leak_report::model::leak::{PythonChain, PythonFrame};

/// Names of the Python functions that the kernel side has found.
#[derive(Default)]
pub(super) struct PythonNames {
    /// Code objects by number.
    codes: HashMap<u32, Known>,
    /// Number of the first code object of each function.
    functions: HashMap<Function, u32>,
    /// Chains with lines, by the address of the kernel side's.
    chains: HashMap<*const PythonChain, Arc<PythonChain>>,
    /// True once a warning was logged that there is no room for more.
    pub(super) is_full: bool,
}

/// Identity of a function, which is the same however often its code object is created again.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Function {
    instance: u32,
    name: Option<Arc<str>>,
    file: Option<Arc<str>>,
    first_line: u32,
}

/// A code object.
struct Known {
    /// Number of the first one of its function.
    first: u32,
    address: Avma,
    code: PythonCode,
    /// False for code between functions, which Python itself does not show, either.
    is_function: bool,
}

impl PythonNames {
    /// Converts a chain: code objects become the first one of their function, and instructions become lines,
    /// 0 for none. Chains that differ in nothing else are the same to a reader.
    pub(super) fn with_lines(
        &mut self,
        chain: &Arc<PythonChain>,
        pythons: &Pythons,
        build: Option<&PythonBuild>,
    ) -> Arc<PythonChain> {
        if let Some(known) = self.chains.get(&Arc::as_ptr(chain)) {
            return Arc::clone(known);
        }
        let frames = chain.frames.iter().filter_map(|frame| {
            let at = build.and_then(|build| self.place(frame, pythons, build));
            let (code, instruction) = at.unwrap_or((frame.code, 0));
            let is_function = self.codes.get(&frame.code).is_none_or(|known| known.is_function);
            // Code between functions never has a separate eval frame: it runs in that of the function that
            // calls it.
            (is_function || frame.is_entry).then_some(PythonFrame {
                code,
                instruction,
                ..*frame
            })
        });
        let with_lines = Arc::new(PythonChain {
            frames: frames.collect(),
            is_whole: chain.is_whole,
        });
        self.chains.insert(Arc::as_ptr(chain), Arc::clone(&with_lines));
        with_lines
    }

    /// The first code object of a frame's function, and the line.
    fn place(&mut self, frame: &PythonFrame, pythons: &Pythons, build: &PythonBuild) -> Option<(u32, u32)> {
        if !self.codes.contains_key(&frame.code) {
            let known = self.known(frame.code, &pythons.code(frame.code)?, build);
            self.codes.insert(frame.code, known);
        }
        let known = self.codes.get(&frame.code)?;
        let has_begun = frame.instruction != NOT_BEGUN;
        let word = match build.layout.code.bytecode {
            Some(_) => known.address.get().wrapping_add(frame.instruction.into()),
            None => frame.instruction.into(),
        };
        let position = build
            .layout
            .instruction(known.address, word)
            .filter(|_| has_begun);
        Some((known.first, known.code.line(position).unwrap_or(0)))
    }

    fn known(&mut self, number: u32, code: &RawPythonCode, build: &PythonBuild) -> Known {
        let lines = code.lines.as_deref().and_then(|lines| {
            let format = build.layout.code.line_format;
            LineTable::new(format, code.first_line.cast_signed(), lines)
        });
        let named = PythonCode {
            name: text(&code.name, Kept::Start),
            file: text(&code.file, Kept::End),
            lines,
        };
        let function = Function {
            instance: code.instance,
            name: named.name.clone(),
            file: named.file.clone(),
            first_line: code.first_line,
        };
        Known {
            is_function: !named.is_between_functions(code.first_line),
            first: *self.functions.entry(function).or_insert(number),
            address: Avma::new(code.address),
            code: named,
        }
    }

    /// Address of a code object, and names at a line.
    pub(super) fn at_line(&self, code: u32, line: u32) -> (Avma, Symbolized) {
        let known = self.codes.get(&code);
        known.map_or_else(
            || (Avma::new(0), Symbolized::default()),
            |known| {
                (
                    known.address,
                    known.code.symbolized(Some(line).filter(|&line| line > 0)),
                )
            },
        )
    }
}

fn text(text: &RawPythonText, kept: Kept) -> Option<Arc<str>> {
    let state = TextState(text.kind);
    let whole = usize::try_from(text.length).unwrap_or(usize::MAX);
    let whole = whole.saturating_mul(state.character_bytes()?);
    // Where the last characters are kept, they are at the start of the buffer, too.
    let bytes = text.bytes.get(..whole).unwrap_or(&text.bytes);
    decode_text(state, text.length.into(), bytes, kept).map(Arc::from)
}
