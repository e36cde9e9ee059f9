//! Processes that announce their allocations: leaves out the frames of announcing code, and warns of
//! processes that announce nothing.

use unwind_tables::addr::Avma;
use unwind_tables::walk::{FoundBy, Frame};

use super::live::Live;
use super::not_announced::NotAnnounced;
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
    /// Reads how many blocks each running process could not announce.
    pub(super) fn read_not_announced(&mut self) {
        if !self.attach.probes().are_announced() {
            return;
        }
        let probes = self.attach.probes();
        for process in self.roster.all_mut() {
            if let Some(target) = &process.target {
                process.not_announced.read(target, &process.mappings, probes);
            }
        }
    }

    /// Adds blocks that were chosen but not announced to the losses of `snapshot`.
    pub(super) fn add_not_announced(&self, snapshot: &mut Snapshot) {
        let counts = self.roster.all().map(|process| process.not_announced);
        let blocks = counts.map(NotAnnounced::since_begin).fold(0, u64::saturating_add);
        if blocks > 0 {
            let losses = &mut snapshot.losses;
            losses.blocks = losses.blocks.saturating_add(blocks);
            losses.causes.insert("not_announced".into(), blocks);
            snapshot.events.allocations = snapshot.events.allocations.saturating_add(blocks);
        }
    }

    /// Copies `snapshot` without the frames of providers; `None` if there are none.
    pub(super) fn without_providers(&self, snapshot: &Snapshot) -> Option<Snapshot> {
        self.attach.probes().are_announced().then(|| {
            let mut snapshot = snapshot.clone();
            self.leave_out_providers(&mut snapshot.stacks);
            snapshot
        })
    }

    /// Leaves out of `stacks` the frames of libraries that announced the blocks; of a program that announces
    /// them itself, the innermost frame.
    pub(super) fn leave_out_providers(&self, stacks: &mut [StackTotals]) {
        if !self.attach.probes().are_announced() {
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
        if !self.attach.probes().are_announced() {
            return;
        }
        let live = self.roster.running_mut();
        for process in live.filter(|process| process.instance.origin == Origin::Execed) {
            if !process.is_silence_told && !self.attach.probes().any_announced(process.mappings.module_ids())
            {
                process.is_silence_told = true;
                let (pid, comm) = (process.facts.pid, printable(&process.facts.comm));
                tracing::warn!("process {pid} now runs {comm}, which announces no blocks: {NO_ANNOUNCEMENT}");
            }
        }
    }

    fn announcer(&self, stack: &StackTotals) -> Option<Announcer> {
        let first = stack.frames.first()?;
        let module = self.module_of(stack, first)?;
        let process = self.roster.get(stack.instance)?;
        let path = &self.code.modules().get(module)?.path;
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
        if frame.found_by == FoundBy::Python {
            // Its number is no address.
            return None;
        }
        let behind_call = u64::from(!frame.exact);
        let process = self.roster.get(stack.instance)?;
        let address = Avma::new(frame.pc.get().wrapping_sub(behind_call));
        let (module, _) = process.history.resolve(stack.epoch, address)?;
        Some(module)
    }
}
