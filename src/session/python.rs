//! Python in traced processes: finds interpreters in mapped files.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use unwind_tables::addr::{Bias, Svma};

use super::prepared::Prepared;
use crate::allocator::parts::parts_elsewhere;
use crate::process::python::PythonBuild;
use crate::process::{MappedCode, Mappings, Module, ModuleId, Modules};

/// Interpreters in the files of traced processes, and whether their frames are read.
pub(super) struct PythonTracing {
    pub(super) reads: Reads,
    /// True once a warning was logged that Python was loaded unexpectedly.
    pub(super) is_told: bool,
    /// `None` for files without one, or with one that is not known.
    by_module: HashMap<ModuleId, Option<Arc<Interpreter>>>,
}

/// An interpreter whose frames can be read.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) build: PythonBuild,
    /// Code of the function that runs Python's frames, with the parts of it that the compiler has put
    /// elsewhere.
    evaluator: Vec<Range<Svma>>,
}

/// Reading of Python's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
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
    pub(super) fn in_mappings<'a>(
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

    /// Returns whether an address of a file is in the function that runs Python's frames.
    pub(super) fn is_evaluator(&self, module: ModuleId, svma: Svma) -> bool {
        let interpreter = self.by_module.get(&module).and_then(Option::as_ref);
        interpreter.is_some_and(|found| found.evaluator.iter().any(|part| part.contains(&svma)))
    }
}
