//! Processes that announce their allocations: chooses whether and how they are traced by their announcements,
//! leaves out the frames of announcing code, and warns of processes that announce nothing.

use std::collections::BTreeSet;

use anyhow::bail;
use unwind_tables::addr::Avma;
use unwind_tables::walk::{FoundBy, Frame};

use super::live::Live;
use super::probes::{AllocatorProbes, NO_ANNOUNCEMENT};
use super::{SourceChoice, TraceConfig};
use crate::allocator::Selection;
use crate::allocator::usdt::{DEFAULT_DISTANCE, DISTANCES, distance_near};
use crate::bpf::Origin;
use crate::process::{MappedCode, Mappings, ModuleId, Target};
use leak_report::model::leak::leave_out_providers;
use leak_report::model::{Sampling, Snapshot, StackTotals};
use leak_report::render::printable;

/// Announcements by which processes are traced.
pub(super) struct Chosen {
    /// Distance of the probes that are used where there is a choice; with a governor, the first and smallest.
    pub(super) distance: u64,
    /// True if all providers offer a choice, so that this is the distance of each.
    pub(super) is_known: bool,
}

/// Chooses how the processes are traced by their announcements; `None` if they are not.
///
/// # Errors
///
/// Tracing by announcements is requested, but not possible with these flags.
pub(super) fn choose(
    config: &TraceConfig,
    targets: &[Target],
    mappings: &[Mappings],
    probes: &AllocatorProbes,
) -> anyhow::Result<Option<Chosen>> {
    let processes = || targets.iter().zip(mappings);
    let offers: Vec<_> = processes()
        .map(|(target, mappings)| offer(config, target, mappings, probes))
        .collect();
    let distance = match config.count.sampling {
        Sampling::All => Some(DEFAULT_DISTANCE),
        Sampling::Bytes(bytes) => distance_near(bytes),
        Sampling::Governed(1) => Some(DISTANCES[0]),
        Sampling::Governed(min) => distance_near(min),
        Sampling::Calls(_) | Sampling::Provider(_) => None,
    };
    let is_known = offers.iter().all(|offer| *offer == Some(true));
    match config.count.source {
        SourceChoice::Uprobe => Ok(None),
        // A request for some functions, or for another choice of calls, is one for probes in allocators.
        SourceChoice::Auto => {
            let is_announced = offers.iter().all(Option::is_some);
            let is_any = config.count.sampling == Sampling::All;
            let is_usual =
                config.count.counted.is_blocks() && config.count.allocators == Selection::default();
            let distance = distance.filter(|_| is_announced && is_usual && (is_any || is_known));
            Ok(distance.map(|distance| Chosen { distance, is_known }))
        }
        SourceChoice::Usdt => {
            for ((target, _), offer) in processes().zip(&offers) {
                match (offer, config.count.sampling) {
                    (None, _) => tracing::warn!(
                        "process {} announces nothing yet: {NO_ANNOUNCEMENT}",
                        target.pid()
                    ),
                    (Some(false), Sampling::Bytes(_) | Sampling::Governed(_)) => bail!(
                        "process {} samples at its own fixed interval: leave out --sample-bytes and \
                         --max-overhead, or use --source uprobe",
                        target.pid()
                    ),
                    (Some(_), _) => {}
                }
            }
            let Some(distance) = distance else {
                bail!(
                    "--source usdt: processes announce at most one allocation per {} bytes; --source uprobe \
                     can record more",
                    64 << 10
                );
            };
            Ok(Some(Chosen { distance, is_known }))
        }
    }
}

/// Returns whether the providers of a process all offer a choice of distances; `None` if it has none.
fn offer(
    config: &TraceConfig,
    target: &Target,
    mappings: &Mappings,
    probes: &AllocatorProbes,
) -> Option<bool> {
    let program = mappings.module_ids().next();
    if probes.is_passed_by(program, mappings.module_ids()) {
        if config.count.source != SourceChoice::Uprobe {
            tracing::warn!(
                "process {} has loaded libmemleak.so, but calls an allocator in its own file instead",
                target.pid()
            );
        }
        return None;
    }
    probes.offers_distances(mappings.module_ids())
}

/// Code that announces blocks.
enum Announcer {
    /// A library, which does nothing else.
    Library(ModuleId),
    /// The innermost frame: its file is the program's own.
    Frame(Avma),
}

/// Blocks of a process that its library chose and could not announce.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotAnnounced {
    /// Count when the trace of the process began; `None` until it was read.
    before: Option<u64>,
    now: u64,
}

impl NotAnnounced {
    pub(super) fn of(origin: Origin) -> Self {
        Self {
            // A program begins with 0; a forked one has its parent's count.
            before: (origin == Origin::Execed).then_some(0),
            now: 0,
        }
    }

    fn since_begin(self) -> u64 {
        self.now.saturating_sub(self.before.unwrap_or(self.now))
    }
}

impl Live<'_> {
    /// Reads how many blocks each running process could not announce.
    pub(super) fn read_not_announced(&mut self) {
        if !self.probes.are_announced() {
            return;
        }
        for process in self.roster.all_mut() {
            let Some(target) = &process.target else {
                continue;
            };
            let counters = process
                .mappings
                .entries()
                .iter()
                .filter_map(|entry| match entry.code {
                    MappedCode::Module { module, bias } => {
                        Some(bias.to_avma(self.probes.not_announced_counter(module)?))
                    }
                    MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => {
                        None
                    }
                });
            // The library can be mapped in several pieces of code.
            let counters: BTreeSet<_> = counters.collect();
            let counts: Option<Vec<_>> = counters
                .into_iter()
                .map(|counter| target.read_word(counter).ok())
                .collect();
            if let Some(counts) = counts {
                let count = &mut process.not_announced;
                count.now = counts.into_iter().fold(0, u64::saturating_add);
                count.before.get_or_insert(count.now);
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
        self.probes.are_announced().then(|| {
            let mut snapshot = snapshot.clone();
            self.leave_out_providers(&mut snapshot.stacks);
            snapshot
        })
    }

    /// Leaves out of `stacks` the frames of libraries that announced the blocks; of a program that announces
    /// them itself, the innermost frame.
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
        let live = self.roster.running_mut();
        for process in live.filter(|process| process.instance.origin == Origin::Execed) {
            if !process.is_silence_told && !self.probes.any_announced(process.mappings.module_ids()) {
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
