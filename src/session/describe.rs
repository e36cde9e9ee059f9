//! Makes a report of a snapshot: groups, resolves and names what the kernel side recorded.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chrono::Timelike;
use unwind_tables::addr::Avma;
use unwind_tables::elf::Segment;
use unwind_tables::walk::{FoundBy, Unwind};

use super::View;
use super::held;
use super::pinned::{self, Pinned};
use super::python_names::PythonNames;
use super::roster::Roster;
use super::tables::ModuleTables;
use super::verdict::Holding;
use crate::allocator::Catalog;
use crate::bpf::collect::{JudgedBlocks, LiveBlocks, own_memory, region_call_of_function};
use crate::process::{History, ModuleId, Modules};
use crate::symbolize::{CodeObject, PerfMap, Symbolizer, outside_modules};
use leak_report::model::leak::growth::Changes;
use leak_report::model::leak::{
    Completeness, Recent, Resolver, Site, SiteFrame, SiteProcesses, by_module, group, innermost,
};
use leak_report::model::{
    self, Ages, Amount, BlockList, CodeSegment, Compared, Dictionary, EndGroup, Estimate, Frame, FrameId,
    Judgement, Location, Makeup, Module, ModuleSteps, Name, PathId, Place, Report, Snapshot, Stack,
    StackRecent, StackTotals, Symbolized, TargetFacts, TextKind, TimeOfDay, Unjudged, Verdict,
};
use leak_report::render::frame_name;

/// Source of frames and of facts about them: traced processes, or the kernel.
pub(super) trait Origin {
    /// Identifies a module of this origin.
    type Module: Copy + Ord + Hash;
    /// Resolves addresses of an instance to modules.
    type Addresses: Resolver<Self::Module>;
    /// True if code that is unknown now can become known once more mappings are read.
    const LEARNS: bool;

    fn addresses(&self, instance: u32) -> &Self::Addresses;

    /// The process that a stack belongs to; `None` if it can be any.
    fn process(&self, instance: u32) -> Option<&TargetFacts>;

    /// State of an instance, which decides whether its outstanding blocks can still be freed.
    fn site_processes(&self, instance: u32) -> SiteProcesses;

    /// Name of the allocator: a function, a mapping call or a kind of kernel allocation.
    fn allocator(&self, site: &Site<Self::Module>) -> Name;

    fn module(&mut self, module: Self::Module) -> Option<Module>;

    fn names(&mut self, instance: u32, frame: &SiteFrame<Self::Module>) -> Arc<Symbolized>;

    /// A function of Python: address of its code object, and names. By number of its code, and line.
    fn function(&self, _code: u32, _line: u32) -> (Avma, Symbolized) {
        (Avma::new(0), Symbolized::default())
    }
}

/// Resolves recorded data: names frames, and fills the dictionary that stacks refer to.
pub(super) struct Describer<O: Origin> {
    origin: O,
    dictionary: Dictionary,
    /// Blocks without a verdict, by reason.
    unjudged: BTreeMap<Unjudged, Amount>,
    modules: HashMap<O::Module, Option<model::ModuleId>>,
    frames: HashMap<FrameKey<O::Module>, FrameId>,
}

/// Identity of a frame before it has names. Code outside all modules belongs to its instance, `owner`.
#[derive(PartialEq, Eq, Hash)]
struct FrameKey<M> {
    at: Location<M>,
    exact: bool,
    found_by: FoundBy,
    owner: Option<u32>,
}

/// Facts about stacks beyond their totals: changes, ages and single blocks.
pub(super) struct RecentFacts<'a> {
    pub(super) changes: Changes<'a>,
    /// True if no report was made before.
    pub(super) first: bool,
    pub(super) marked: Option<TimeOfDay>,
    /// Set if block ages were read.
    pub(super) blocks: Option<&'a LiveBlocks>,
}

impl RecentFacts<'_> {
    /// Describes for the report what it was compared with.
    pub(super) fn compared(&self, view: &View) -> Compared {
        Compared {
            older: view.older,
            first: self.first,
            since_last: self.changes.since_last,
            since_baseline: self.changes.since_baseline,
            marked: self.marked,
        }
    }

    fn judged(&self) -> Option<&JudgedBlocks> {
        self.blocks?.judged()
    }
}

/// Report options that do not depend on the recorded data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) view: &'a View,
    /// Maximum number of stacks in a text report.
    pub(super) top: usize,
    pub(super) unwind: Unwind,
    /// Unfiltered snapshot for statistics of how frames were found, if some frames are never shown.
    pub(super) walked: Option<&'a Snapshot>,
    /// Holders of blocks, if a verdict was made.
    pub(super) holdings: &'a [Holding],
    /// Free memory that blocks pin, if that was asked for.
    pub(super) pinned: Option<&'a Pinned>,
}

/// Makes the report of `snapshot`, without its targets. `inspect` is called with all sites before any frame
/// is left out.
pub(super) fn report<O: Origin>(
    origin: O,
    snapshot: &Snapshot,
    recently: &RecentFacts<'_>,
    shown: Shown<'_>,
    inspect: impl FnOnce(&[Site<O::Module>]),
) -> Report {
    let Shown {
        view,
        walked,
        holdings,
        ..
    } = shown;
    let changes = &recently.changes;
    let sites_of = |origin: &O, snapshot: &Snapshot| {
        group(
            snapshot,
            |instance| origin.addresses(instance),
            |stack| changes.of(stack, recently.blocks.map(|blocks| blocks.of(stack.record))),
        )
    };
    let mut describer = Describer::new(origin);
    let sites = sites_of(&describer.origin, snapshot);
    inspect(&sites);
    let mut completeness = Completeness {
        unfinished_walks: snapshot.unfinished_walks,
        python: snapshot.python,
        ..Completeness::of(&sites)
    };
    let ends = describer.ends(&sites);
    let steps = match walked {
        None => describer.steps(&sites),
        Some(walked) => {
            let sites = sites_of(&describer.origin, walked);
            completeness.frames = Completeness::of(&sites).frames;
            describer.steps(&sites)
        }
    };
    let sites = match view.depth {
        None => sites,
        Some(depth) => sites_of(&describer.origin, &innermost(snapshot, depth.get())),
    };
    let records: Vec<_> = sites.iter().map(|site| site.records.clone()).collect();
    let stacks = sites
        .into_iter()
        .map(|site| describer.stack(site, recently, view));
    let mut stacks: Vec<_> = stacks.collect();
    let sampling = snapshot.sampling;
    held::fill(
        &mut stacks,
        &records,
        holdings,
        sampling,
        &mut describer.dictionary,
    );
    if let Some(pinned) = shown.pinned {
        pinned::fill(&mut stacks, &records, pinned);
    }
    let mut report = Report {
        dictionary: Arc::new(describer.dictionary),
        stacks,
        completeness,
        ends,
        steps,
        judgement: recently.judged().map(|_| Judgement {
            unjudged: describer.unjudged,
            ..Judgement::default()
        }),
        ..heading(snapshot, recently, shown)
    };
    report.sort(view.sort);
    report
}

/// A report without stacks, and without facts about them.
fn heading(snapshot: &Snapshot, recently: &RecentFacts<'_>, shown: Shown<'_>) -> Report {
    let Shown {
        view, top, unwind, ..
    } = shown;
    Report {
        time: time_of_day(),
        read_at: SystemTime::now(),
        elapsed: snapshot.elapsed,
        reason: None,
        unwind,
        top,
        names: view.names,
        quantity: view.quantity,
        direction: view.direction,
        excerpts: None,
        depth: view.depth.map(NonZeroUsize::get),
        compared: recently.compared(view),
        targets: Vec::new(),
        order: None,
        dictionary: Arc::default(),
        stacks: Vec::new(),
        source: snapshot.source,
        sampling: snapshot.sampling,
        peak: snapshot.peak,
        events: snapshot.events,
        losses: snapshot.losses.clone(),
        missing: Vec::new(),
        completeness: Completeness::default(),
        ends: Vec::new(),
        steps: Vec::new(),
        overhead: None,
        judgement: None,
        diagnosis: None,
        kernel: None,
        own: own_memory(),
    }
}

/// The local time.
pub(crate) fn time_of_day() -> TimeOfDay {
    let now = chrono::Local::now();
    let part = |value: u32| u8::try_from(value).unwrap_or_default();
    TimeOfDay {
        hour: part(now.hour()),
        minute: part(now.minute()),
        second: part(now.second()),
    }
}

fn code_segment(segment: &Segment) -> CodeSegment {
    CodeSegment {
        svma: segment.svma.clone(),
        offset: segment.offset.start,
    }
}

/// Ages and changes of a site, and its suspicion score.
fn recent<M>(site: &Site<M>, processes: SiteProcesses, view: &View, changes: &Changes<'_>) -> StackRecent {
    let young = match view.older {
        Some(Duration::ZERO) => Some(Estimate::default()),
        _ => site.young(processes),
    };
    // Blocks of ended instances stay in the table for a while.
    let ages = site.recent.blocks.map(|blocks| match processes {
        SiteProcesses::Ended => Ages::default(),
        SiteProcesses::Running | SiteProcesses::Several => blocks.ages,
    });
    let shown = site.outstanding().less(young.unwrap_or_default()).amount;
    StackRecent {
        young,
        ages,
        suspicion: Some(changes.suspicion(site, shown, ages)),
        since_last: site.recent.since_last,
        since_baseline: site.recent.since_baseline,
    }
}

/// Counts all outstanding blocks as left out if the instance ended before the last report: the table has none
/// of them.
fn still_known(list: BlockList, processes: SiteProcesses, outstanding: Amount) -> BlockList {
    match processes {
        SiteProcesses::Ended if list.listed.is_empty() => BlockList {
            left_out: outstanding.blocks,
            ..list
        },
        SiteProcesses::Ended | SiteProcesses::Running | SiteProcesses::Several => list,
    }
}

/// Allocator function and caller of one call.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) allocator: Name,
    /// Name of the innermost frame; `None` if unknown.
    pub(super) at: Option<Arc<str>>,
}

/// Traced processes as the origin of frames.
pub(super) struct Processes<'a> {
    /// Processes by instance.
    pub(super) all: &'a Roster,
    pub(super) modules: &'a Modules,
    pub(super) tables: &'a ModuleTables,
    pub(super) allocators: &'a Catalog,
    pub(super) symbolizer: &'a mut Symbolizer,
    pub(super) facts: &'a mut HashMap<ModuleId, Module>,
    /// Perf maps, which name code generated at run time, by instance.
    pub(super) perf_maps: &'a HashMap<u32, PerfMap>,
    pub(super) python: &'a PythonNames,
    /// Empty history, for unknown instances.
    pub(super) unknown: History,
}

impl Origin for Processes<'_> {
    type Module = ModuleId;
    type Addresses = History;
    const LEARNS: bool = true;

    fn addresses(&self, instance: u32) -> &History {
        let process = self.all.get(instance);
        process.map_or(&self.unknown, |process| &process.history)
    }

    /// Returns the only process for every stack, if there is just one: a stack without an instance must be
    /// its.
    fn process(&self, instance: u32) -> Option<&TargetFacts> {
        let only = self.all.only().map(|(_, process)| process);
        let process = only.or_else(|| self.all.get(instance));
        process.map(|process| &process.facts)
    }

    fn site_processes(&self, instance: u32) -> SiteProcesses {
        match self.process(instance) {
            None => SiteProcesses::Several,
            Some(TargetFacts { ended: Some(_), .. }) => SiteProcesses::Ended,
            Some(TargetFacts { ended: None, .. }) => SiteProcesses::Running,
        }
    }

    fn allocator(&self, site: &Site<ModuleId>) -> Name {
        let call = site.kind.and_then(|_| region_call_of_function(site.function));
        if let Some(call) = call {
            return Name::Borrowed(call.name());
        }
        let function = self.allocators.get(usize::from(site.function));
        function.map_or(Name::Borrowed("?"), |function| function.name.clone())
    }

    fn module(&mut self, id: ModuleId) -> Option<Module> {
        if let Some(known) = self.facts.get(&id) {
            return Some(known.clone());
        }
        let module = self.modules.get(id)?;
        let facts = Module {
            path: module.path.to_string_lossy().into(),
            build_id: module
                .build_id
                .as_ref()
                .map(|build_id| build_id.to_string().into()),
            code: module.code().map(code_segment).collect(),
            table: self.tables.facts(id),
        };
        self.facts.insert(id, facts.clone());
        Some(facts)
    }

    fn function(&self, code: u32, line: u32) -> (Avma, Symbolized) {
        self.python.at_line(code, line)
    }

    fn names(&mut self, instance: u32, frame: &SiteFrame<ModuleId>) -> Arc<Symbolized> {
        let place = frame.at.place;
        let module = place.and_then(|Place { module, svma }| Some((self.modules.get(module)?, svma)));
        let Some((module, svma)) = module else {
            return outside_modules(self.perf_maps.get(&instance), frame.at.pc, frame.exact);
        };
        let object = CodeObject {
            key: module.id.index(),
            path: &module.path,
            bytes: module.bytes(),
        };
        self.symbolizer.symbolize(object, svma, frame.exact)
    }
}

impl<O: Origin> Describer<O> {
    pub(super) fn new(origin: O) -> Self {
        Self {
            origin,
            dictionary: Dictionary::default(),
            unjudged: BTreeMap::new(),
            modules: HashMap::new(),
            frames: HashMap::new(),
        }
    }

    /// Sizes, threads and life spans of a site's blocks; `None` if nothing is known of them.
    fn makeup(
        &mut self,
        site: &Site<O::Module>,
        processes: SiteProcesses,
        recently: &RecentFacts<'_>,
    ) -> Option<Box<Makeup>> {
        let text_of = |name: &str| self.dictionary.add_text(TextKind::Thread, name);
        let outstanding = recently
            .blocks
            .map(|blocks| blocks.makeup(&site.records, text_of));
        let outstanding = outstanding.filter(|makeup| match processes {
            // Blocks of ended instances stay in the table for a while.
            SiteProcesses::Ended => makeup.outstanding_blocks() == site.outstanding().amount.blocks,
            SiteProcesses::Running | SiteProcesses::Several => true,
        });
        let makeup = Makeup {
            freed: site.life_spans,
            ..outstanding.unwrap_or_default()
        };
        (!makeup.is_empty()).then(|| Box::new(makeup))
    }

    fn stack(&mut self, site: Site<O::Module>, recently: &RecentFacts<'_>, view: &View) -> Stack {
        let process = self.origin.process(site.instance);
        let (pid, instance) = process.map_or((0, 0), |process| (process.pid, process.instance));
        let ended = process.and_then(|process| process.ended);
        let processes = self.origin.site_processes(site.instance);
        let allocator = self.origin.allocator(&site);
        let class_of = |name: &str| self.dictionary.add_text(TextKind::Class, name);
        let blocks = recently
            .blocks
            .and_then(|blocks| blocks.listed(&site.records, class_of));
        Stack {
            blocks: blocks.map(|list| still_known(list, processes, site.outstanding().amount)),
            recent: recent(&site, processes, view, &recently.changes),
            verdict: self.verdict(&site, processes, recently),
            pinned: None,
            held: None,
            pid,
            instance,
            ended,
            allocator: self.dictionary.add_text(TextKind::Allocator, &allocator),
            kind: site.kind,
            outstanding: site.outstanding(),
            allocated: site.allocated,
            peak: site.peak,
            lost: site.lost,
            finished_walks: site.finished_walks,
            makeup: self.makeup(&site, processes, recently),
            end: site.end,
            end_at: site.end_at.map(|end_at| self.location(end_at)),
            path: self.path(&site),
            left_out: site.left_out,
            suppressed_by: None,
        }
    }

    /// Verdict on the outstanding blocks of a site; `None` if none was made.
    fn verdict(
        &mut self,
        site: &Site<O::Module>,
        processes: SiteProcesses,
        recently: &RecentFacts<'_>,
    ) -> Option<Verdict> {
        let unseen = match processes {
            SiteProcesses::Ended => Unjudged::Ended,
            SiteProcesses::Running | SiteProcesses::Several => Unjudged::Young,
        };
        let judged = recently.judged()?;
        let outstanding = site.outstanding().amount;
        Some(judged.of(&site.records, outstanding, unseen, &mut self.unjudged))
    }

    fn path(&mut self, site: &Site<O::Module>) -> Option<PathId> {
        let frames: Vec<_> = site
            .frames
            .iter()
            .map(|frame| self.frame(site.instance, frame))
            .collect();
        self.dictionary.add_stack(frames.into_iter())
    }

    fn frame(&mut self, instance: u32, frame: &SiteFrame<O::Module>) -> FrameId {
        let SiteFrame { at, found_by, exact } = *frame;
        let key = FrameKey {
            at,
            exact,
            found_by,
            owner: at.place.is_none().then_some(instance),
        };
        if let Some(&known) = self.frames.get(&key) {
            return known;
        }
        let (at, names) = match frame.python_code() {
            Some((code, line)) => {
                let (pc, names) = self.origin.function(code, line);
                (Location { pc, place: None }, Arc::new(names))
            }
            None => (self.location(at), self.origin.names(instance, frame)),
        };
        let frame = Frame {
            at,
            exact,
            found_by,
            names: self.dictionary.add_names(&names),
        };
        let number = self.dictionary.add_frame(frame);
        self.frames.insert(key, number);
        number
    }

    /// Caller of an allocator function, given the stack of the call.
    pub(super) fn caller(&mut self, stack: Option<StackTotals>) -> Caller {
        let snapshot = Snapshot {
            stacks: stack.into_iter().collect(),
            ..Snapshot::default()
        };
        let addresses = |instance| self.origin.addresses(instance);
        let site = group(&snapshot, addresses, |_| Recent::default()).pop();
        Caller {
            allocator: site
                .as_ref()
                .map_or(Name::Borrowed("?"), |site| self.origin.allocator(site)),
            at: site.and_then(|site| {
                let frame = self.frame(site.instance, site.frames.first()?);
                let frame = self.dictionary.frame(frame);
                let is_known = frame.module().is_some() || frame.function().is_some();
                (is_known || !O::LEARNS).then(|| frame_name(frame).into())
            }),
        }
    }

    fn ends(&mut self, sites: &[Site<O::Module>]) -> Vec<EndGroup<model::ModuleId>> {
        let named = |group: EndGroup<O::Module>| EndGroup {
            module: group.module.and_then(|module| self.module(module)),
            end: group.end,
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses,
        };
        by_module::ends(sites).into_iter().map(named).collect()
    }

    fn steps(&mut self, sites: &[Site<O::Module>]) -> Vec<ModuleSteps<model::ModuleId>> {
        let named = |steps: ModuleSteps<O::Module>| ModuleSteps {
            module: steps.module.and_then(|module| self.module(module)),
            cfi: steps.cfi,
            fp: steps.fp,
        };
        by_module::steps(sites).into_iter().map(named).collect()
    }

    fn location(&mut self, at: Location<O::Module>) -> Location<model::ModuleId> {
        let place = at.place.and_then(|Place { module, svma }| {
            let module = self.module(module)?;
            Some(Place { module, svma })
        });
        Location { pc: at.pc, place }
    }

    fn module(&mut self, id: O::Module) -> Option<model::ModuleId> {
        if let Some(&known) = self.modules.get(&id) {
            return known;
        }
        let facts = self.origin.module(id);
        let number = facts.map(|facts| self.dictionary.add_module(&facts));
        self.modules.insert(id, number);
        number
    }
}
