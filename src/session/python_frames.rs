//! Tells the kernel side where interpreters of Python have their frames, and puts the functions that it found
//! into stacks.

use std::sync::Arc;

use unwind_tables::ElfView;
use unwind_tables::walk::Frame;

use super::Session;
use super::live::Live;
use super::python::Reads;
use crate::bpf::{Hook, HookKind, PythonLayout};
use crate::process::python::{PythonBuild, ThreadPlaces};
use crate::process::{Mappings, Module};
use leak_report::model::leak::place_python_frames;
use leak_report::model::{Snapshot, StackTotals};

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
        let layout = PythonLayout::of(build, bias, threads);
        // First the hook: a code object that ended before it is attached would be taken for the next one at
        // its address.
        let hook = || hook(build, module);
        let (pid, hook) = (process.facts.pid, (module.id, hook));
        match self
            .attach
            .add_python_hook(number, &mut self.roster, &self.kernel, hook)
        {
            Ok(()) => {
                pythons.publish(slot, number, &layout);
                tracing::debug!("{pid}: functions of CPython {} are read", build.version);
            }
            Err(error) => tracing::warn!("{pid}: no functions of Python: {error:#}"),
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
        place_python_frames(snapshot, |stack, frame| is_evaluator(&self.live, stack, frame));
    }
}

/// Returns whether a frame is in the function that runs Python's frames.
fn is_evaluator(live: &Live<'_>, stack: &StackTotals, frame: &Frame) -> bool {
    let looked_up = frame.pc.wrapping_sub(u64::from(!frame.exact));
    let process = live.roster.get(stack.instance);
    let process = process.filter(|process| process.python.is_some());
    let place = process.and_then(|process| process.history.resolve(stack.epoch, looked_up));
    place.is_some_and(|(module, svma)| live.python.is_evaluator(module, svma))
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
