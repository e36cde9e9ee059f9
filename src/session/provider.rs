//! Processes that announce what they allocate: leaves out the frames of the code that does, and warns of those that do not.

use unwind_tables::addr::Avma;
use unwind_tables::walk::Frame;

use super::live::Live;
use super::probes::NO_ANNOUNCEMENT;
use crate::bpf::Origin;
use crate::process::ModuleId;
use leak_report::model::leak::leave_out_providers;
use leak_report::model::{Snapshot, StackTotals};
use leak_report::render::printable;

/// Code that announces blocks.
enum Announcer {
    /// A library, which does nothing else.
    Library(ModuleId),
    /// The innermost frame: its file is the program's own.
    Frame(Avma),
}

impl Live<'_> {
    /// Copies `snapshot` without the frames of providers; `None` if there are none.
    pub(super) fn without_providers(&self, snapshot: &Snapshot) -> Option<Snapshot> {
        self.probes.are_announced().then(|| {
            let mut snapshot = snapshot.clone();
            self.leave_out_providers(&mut snapshot.stacks);
            snapshot
        })
    }

    /// Leaves out of `stacks` the frames of libraries that announced the blocks; of a program that announces them itself, the
    /// innermost frame.
    pub(super) fn leave_out_providers(&self, stacks: &mut [StackTotals]) {
        if !self.probes.are_announced() {
            return;
        }
        leave_out_providers(
            stacks,
            |stack| self.announcer(stack),
            |announcer, stack, frame| match announcer {
                Announcer::Library(module) => self.module_of(stack, frame) == Some(*module),
                Announcer::Frame(pc) => frame.pc == *pc,
            },
        );
    }

    /// Warns once of each process that now runs a program which announces nothing.
    pub(super) fn warn_of_silence(&mut self) {
        if !self.probes.are_announced() {
            return;
        }
        let live = self.processes.values_mut().filter(|process| process.is_live());
        for process in live.filter(|process| process.instance.origin == Origin::Execed) {
            if !process.is_silence_told && !self.probes.any_announced(process.mappings.module_ids()) {
                process.is_silence_told = true;
                let (pid, comm) = (process.facts.pid, printable(&process.facts.comm));
                tracing::warn!("process {pid} now runs {comm}, of which nothing is seen: {NO_ANNOUNCEMENT}");
            }
        }
    }

    fn announcer(&self, stack: &StackTotals) -> Option<Announcer> {
        let first = stack.frames.first()?;
        let module = self.module_of(stack, first)?;
        let process = self.processes.get(&stack.instance)?;
        let path = &self.modules.get(module)?.path;
        let is_own = process
            .facts
            .exe
            .as_ref()
            .is_some_and(|exe| path.as_os_str() == exe.as_str());
        Some(match is_own {
            true => Announcer::Frame(first.pc),
            false => Announcer::Library(module),
        })
    }

    fn module_of(&self, stack: &StackTotals, frame: &Frame) -> Option<ModuleId> {
        let behind_call = u64::from(!frame.exact);
        let process = self.processes.get(&stack.instance)?;
        let address = Avma::new(frame.pc.get().wrapping_sub(behind_call));
        let (module, _) = process.history.resolve(stack.epoch, address)?;
        Some(module)
    }
}
