//! Python in traced processes: tells the kernel side where interpreters have their frames, and puts the
//! functions of Python that it found into stacks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use unwind_tables::ElfView;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::walk::Frame;

use super::Session;
use super::live::Live;
use super::prepared::Prepared;
use crate::allocator::parts::parts_elsewhere;
use crate::bpf::python::NOT_BEGUN;
use crate::bpf::{Hook, HookKind, PythonLayout, Pythons, RawPythonCode, RawPythonText};
use crate::process::python::{PythonBuild, TextState, ThreadPlaces};
use crate::process::{MappedCode, Mappings, Module, ModuleId, Modules};
use crate::symbolize::python::{Kept, LineTable, PythonCode, decode_text};
use leak_report::model::leak::{PythonChain, PythonFrame, place_python_frames};
use leak_report::model::{Snapshot, StackTotals, Symbolized};

/// Interpreters in the files of traced processes, and whether their frames are read.
pub(super) struct PythonTracing {
    reads: Reads,
    /// True once a warning was logged that Python was loaded unexpectedly.
    is_told: bool,
    /// `None` for files without one, or with one that is not known.
    by_module: HashMap<ModuleId, Option<Arc<Interpreter>>>,
}

/// An interpreter whose frames can be read.
#[derive(Debug)]
pub(super) struct Interpreter {
    build: PythonBuild,
    /// Code of the function that runs Python's frames, with the parts of it that the compiler has put
    /// elsewhere.
    evaluator: Vec<Range<Svma>>,
}

/// Reading of Python's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Frames,
    /// There was no Python when the trace began, and so there is no room for its frames.
    NothingExpected,
    Nothing,
}

impl PythonTracing {
    /// `is_wanted`: frames are to be read; `may_come`: also if no process has Python yet.
    pub(super) fn start(is_wanted: bool, may_come: bool, prepared: &Prepared) -> Self {
        let mut tracing = Self {
            reads: Reads::Nothing,
            is_told: false,
            by_module: HashMap::new(),
        };
        let mut processes = prepared.mappings.iter();
        if is_wanted {
            let has_some = may_come
                || processes.any(|mappings| tracing.in_mappings(mappings, &prepared.modules).is_some());
            tracing.reads = match has_some {
                true => Reads::Frames,
                false => Reads::NothingExpected,
            };
        }
        tracing
    }

    /// A copy that reads frames only if `reads` is set as well.
    pub(super) fn reading(&self, reads: bool) -> Self {
        let reads = match self.reads {
            Reads::Frames if !reads => Reads::Nothing,
            kept @ (Reads::Frames | Reads::NothingExpected | Reads::Nothing) => kept,
        };
        Self {
            reads,
            is_told: self.is_told,
            by_module: self.by_module.clone(),
        }
    }

    pub(super) fn reads_frames(&self) -> bool {
        self.reads == Reads::Frames
    }

    /// The interpreter in a file.
    fn of(&mut self, module: &Module) -> Option<Arc<Interpreter>> {
        let known = self.by_module.entry(module.id);
        let interpreter = known.or_insert_with(|| {
            let found = PythonBuild::find(module.bytes());
            let found = found.inspect_err(|reason| {
                let remedy = reason.remedy().map(|remedy| format!("; {remedy}"));
                let remedy = remedy.unwrap_or_default();
                tracing::warn!(
                    "{}: no functions of Python: {reason}{remedy}",
                    module.path.display()
                );
            });
            let build = found.ok().flatten();
            let interpreter = build.map(|build| {
                let elsewhere = parts_elsewhere(module.bytes(), &build.evaluator);
                Arc::new(Interpreter {
                    evaluator: [vec![build.evaluator.clone()], elsewhere].concat(),
                    build,
                })
            });
            // Little of it is needed again.
            module.release();
            interpreter
        });
        interpreter.clone()
    }

    /// The interpreter that a process has mapped, with its file and bias.
    fn in_mappings<'a>(
        &mut self,
        mappings: &Mappings,
        modules: &'a Modules,
    ) -> Option<(Arc<Interpreter>, &'a Module, Bias)> {
        mappings.entries().iter().find_map(|entry| match entry.code {
            MappedCode::Module { module, bias } => {
                let module = modules.get(module)?;
                Some((self.of(module)?, module, bias))
            }
            MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
        })
    }

    /// Returns whether an address is in the function that runs Python's frames.
    fn is_evaluator(&self, live: &Live<'_>, stack: &StackTotals, frame: &Frame) -> bool {
        let looked_up = frame.pc.wrapping_sub(u64::from(!frame.exact));
        let process = live.roster.get(stack.instance);
        let process = process.filter(|process| process.python.is_some());
        let place = process.and_then(|process| process.history.resolve(stack.epoch, looked_up));
        place.is_some_and(|(module, svma)| {
            let interpreter = self.by_module.get(&module).and_then(Option::as_ref);
            interpreter.is_some_and(|found| found.evaluator.iter().any(|part| part.contains(&svma)))
        })
    }
}

/// The hook at the function that ends code objects.
fn hook(build: &PythonBuild, module: &Module) -> Option<Hook> {
    Some(Hook {
        kind: HookKind::PythonCode,
        path: module.probe_path()?,
        file: module.path.display().to_string(),
        offset: ElfView::parse(module.bytes())
            .ok()?
            .offset_of(build.code_dealloc)?,
    })
}

impl Live<'_> {
    /// Enables Python frames in the stacks of an instance, if it has a known interpreter and they are not
    /// enabled yet.
    pub(super) fn attach_python(&mut self, number: u32, mappings: &Mappings) {
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        let Some(pythons) = self.kernel.pythons() else {
            return;
        };
        if self.python.reads == Reads::Nothing {
            return;
        }
        let found = self.python.in_mappings(mappings, self.code.modules());
        let Some((interpreter, module, bias)) = found else {
            return;
        };
        let build = &interpreter.build;
        process.python = Some(Arc::clone(&interpreter));
        match self.python.reads {
            Reads::Frames => (),
            Reads::NothingExpected if !self.python.is_told => {
                let pid = process.facts.pid;
                tracing::warn!("{pid} has loaded Python since the attach: attach again for its functions");
                self.python.is_told = true;
                return;
            }
            Reads::NothingExpected | Reads::Nothing => return,
        }
        let slot = process.instance.slot;
        // A child of fork has its parent's.
        if pythons.instance_in(slot) == number {
            return;
        }
        let loader = mappings.loader().and_then(|id| self.code.modules().get(id));
        let modules = mappings.module_ids().filter_map(|id| self.code.modules().get(id));
        let threads = match ThreadPlaces::of(loader, modules) {
            Ok(Some(threads)) => threads,
            // The C library is not mapped yet.
            Ok(None) => return,
            Err(reason) => {
                if process.is_given {
                    let remedy = build.version.remedy().map(|remedy| format!("; {remedy}"));
                    let remedy = remedy.unwrap_or_default();
                    tracing::warn!("{}: no functions of Python: {reason}{remedy}", process.facts.pid);
                }
                return;
            }
        };
        let probed_in = &self.sharing.probed_in(process.facts.pid, self.roster.pids());
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        let attached = match self.sharing.is_shared() {
            true => &mut self.attached,
            false => &mut process.attached,
        };
        let layout = PythonLayout::of(build, bias, threads);
        // First the hook: a code object that ended before it is attached would be taken for the next one at
        // its address.
        let hook = || hook(build, module);
        match attached.add_python_hook(&self.kernel, probed_in, module.id, hook) {
            Ok(()) => {
                pythons.publish(slot, number, &layout);
                tracing::debug!(
                    "{}: functions of CPython {} are read",
                    process.facts.pid,
                    build.version
                );
            }
            Err(error) => tracing::warn!("{}: no functions of Python: {error:#}", process.facts.pid),
        }
    }
}

impl Session<'_> {
    /// Puts the functions of Python of all stacks between their native frames. Their frames have lines for
    /// instructions from then on.
    pub(super) fn place_python_frames(&mut self, snapshot: &mut Snapshot) {
        let Some(pythons) = self.live.kernel.pythons() else {
            return;
        };
        if self.live.python.reads == Reads::Nothing {
            return;
        }
        let exhausted = pythons.exhausted().filter(|_| self.live.python.reads_frames());
        if let Some(what) = exhausted.filter(|_| !self.python_names.is_full) {
            tracing::warn!(
                "no room for more {what} of Python: new ones are unknown; -s and -z record fewer allocations"
            );
            self.python_names.is_full = true;
        }
        for stack in &mut snapshot.stacks {
            let process = self.live.roster.get(stack.instance);
            let interpreter = process.and_then(|process| process.python.as_ref());
            let build = interpreter.map(|interpreter| &interpreter.build);
            let chain = stack.python.take();
            stack.python = chain.map(|chain| self.python_names.with_lines(&chain, pythons, build));
        }
        place_python_frames(snapshot, |stack, frame| {
            self.live.python.is_evaluator(&self.live, stack, frame)
        });
    }
}

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
    is_full: bool,
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
    fn with_lines(
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
