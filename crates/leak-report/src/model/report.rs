//! One report: plain data with everything any format needs.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use unwind_tables::walk::{End, LeftOut, Unwind};

use super::amount::is_default;
use super::diagnosis::Diagnosis;
use super::dictionary::{Frames, Import};
use super::{
    Ages, Amount, BlockList, Change, Completeness, Dictionary, Direction, EndGroup, Estimate, Events,
    Excerpts, Fragmentation, FrameRef, Held, InstanceEnd, Judgement, KernelFacts, Location, Losses, Makeup,
    MemoryLack, Missing, ModuleId, ModuleRef, ModuleSteps, NameStyle, Order, Overhead, OwnMemory, Parts,
    PathId, Peak, Quantity, Reason, RegionKind, Sampling, Source, Suspicion, TextId, Verdict,
};

/// Contents of one report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Local time at which the totals were read.
    pub time: TimeOfDay,
    /// Absolute time of the same moment as `time`.
    pub read_at: SystemTime,
    /// Time since the attach.
    pub elapsed: Duration,
    /// Reason for the report, if the trace makes reports by conditions.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// Method of walking stacks.
    pub unwind: Unwind,
    /// Number of stacks that formats for people show.
    pub top: usize,
    /// Style of names in formats for people; not recorded.
    #[serde(skip)]
    pub names: NameStyle,
    /// Quantity shown by formats that have one number per stack.
    pub quantity: Quantity,
    /// Direction of flame graphs; not recorded.
    #[serde(skip)]
    pub direction: Direction,
    /// Lines of source, if they are shown; not recorded.
    #[serde(skip)]
    pub excerpts: Option<Arc<Excerpts>>,
    /// Maximum number of frames per stack, if the user set one; stacks that agree in these frames are merged.
    pub depth: Option<usize>,
    /// Instances that were traced.
    pub targets: Vec<TargetFacts>,
    /// Periods and thresholds of ages and changes.
    pub compared: Compared,
    /// Order of stacks, if the user chose one.
    pub order: Option<Order>,
    /// Texts, modules and frames that the report refers to.
    #[serde(skip)]
    pub dictionary: Arc<Dictionary>,
    /// Every stack that allocated, in `order`, by default the largest outstanding amount first; those of
    /// ended instances last.
    #[serde(skip)]
    pub stacks: Vec<Stack>,
    /// Source of the knowledge of allocations.
    #[serde(default)]
    pub source: Source,
    /// Selection of the recorded allocations; unless all were recorded, amounts are estimates.
    pub sampling: Sampling,
    /// The moment of the highest total; `None` where that was not followed.
    #[serde(default)]
    pub peak: Option<Peak>,
    /// Counts of allocator calls.
    pub events: Events,
    /// Events that could not be accounted for.
    pub losses: Losses,
    /// Parts that the trace lacks because the kernel refused a program.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Completeness of the stacks.
    pub completeness: Completeness,
    /// Ends of incomplete stacks, most allocations first.
    pub ends: Vec<EndGroup<ModuleId>>,
    /// Methods by which walks left each module, most steps first.
    pub steps: Vec<ModuleSteps<ModuleId>>,
    /// Cost of tracing, if it was measured.
    pub overhead: Option<Overhead>,
    /// Facts about the verdict; `None` if none was asked for.
    #[serde(default)]
    pub judgement: Option<Judgement>,
    /// Answer to why memory grows; `None` if that was not asked for.
    #[serde(default)]
    pub diagnosis: Option<Box<Diagnosis>>,
    /// Facts about the kernel, if its own allocations were traced.
    pub kernel: Option<KernelFacts>,
    /// Memory of memleak itself.
    pub own: OwnMemory,
}

impl Report {
    /// A report of processes that were not traced, at a local time and the same moment.
    pub fn without_trace(time: TimeOfDay, read_at: SystemTime, targets: Vec<TargetFacts>) -> Self {
        Self {
            time,
            read_at,
            elapsed: Duration::ZERO,
            reason: None,
            unwind: Unwind::Dwarf,
            top: 0,
            names: NameStyle::default(),
            quantity: Quantity::default(),
            direction: Direction::default(),
            excerpts: None,
            depth: None,
            targets,
            compared: Compared::default(),
            order: None,
            dictionary: Arc::default(),
            stacks: Vec::new(),
            source: Source::default(),
            sampling: Sampling::All,
            peak: None,
            events: Events::default(),
            losses: Losses::default(),
            missing: Vec::new(),
            completeness: Completeness::default(),
            ends: Vec::new(),
            steps: Vec::new(),
            overhead: None,
            judgement: None,
            diagnosis: None,
            kernel: None,
            own: OwnMemory::default(),
        }
    }

    /// Stacks in the report's order.
    pub fn stacks(&self) -> impl ExactSizeIterator<Item = StackRef<'_>> + Clone {
        self.stacks.iter().map(|stack| self.stack(stack))
    }

    /// Pairs one of the report's stacks with the report.
    pub fn stack<'a>(&'a self, stack: &'a Stack) -> StackRef<'a> {
        StackRef { report: self, stack }
    }

    /// Returns true if a process grows mostly by memory that the trace does not follow.
    pub fn grows_elsewhere(&self) -> bool {
        self.memory().flat_map(Parts::grows_elsewhere).next().is_some()
    }

    /// Returns true if an allocator's memory grows although no call of a probed function was seen. A process
    /// that chooses what it announces may have chosen none.
    pub fn grows_without_calls(&self) -> bool {
        let is_growing = || {
            self.memory()
                .flat_map(Parts::grows_without_calls)
                .next()
                .is_some()
        };
        self.events.is_without_calls() && self.source == Source::Uprobe && is_growing()
    }

    fn memory(&self) -> impl Iterator<Item = &Parts> {
        self.targets.iter().filter_map(|target| target.memory.as_ref())
    }

    /// Stacks shown to people: possible leaks that are not suppressed, without blocks that another stack
    /// counts.
    pub fn suspects(&self) -> impl Iterator<Item = StackRef<'_>> {
        self.stacks().filter(|stack| stack.is_suspect())
    }

    /// Suspects with outstanding blocks that are not young, in the report's order.
    pub fn outstanding_suspects(&self) -> impl Iterator<Item = StackRef<'_>> {
        self.suspects().filter(|stack| stack.shown().blocks > 0)
    }

    /// Copies the report without its stacks, with the ids of another dictionary.
    #[must_use]
    pub fn heading(&self, import: &mut Import<'_>) -> Self {
        let ends = self.ends.iter().map(|group| EndGroup {
            module: group.module.map(|module| import.module(module)),
            ..group.clone()
        });
        let ends = ends.collect();
        let steps = self.steps.iter().map(|steps| ModuleSteps {
            module: steps.module.map(|module| import.module(module)),
            ..*steps
        });
        Self {
            dictionary: Arc::default(),
            stacks: Vec::new(),
            ends,
            steps: steps.collect(),
            targets: self.targets.clone(),
            losses: self.losses.clone(),
            missing: self.missing.clone(),
            completeness: self.completeness.clone(),
            kernel: self.kernel.clone(),
            time: self.time,
            read_at: self.read_at,
            elapsed: self.elapsed,
            reason: self.reason.clone(),
            unwind: self.unwind,
            top: self.top,
            names: self.names,
            quantity: self.quantity,
            direction: self.direction,
            excerpts: None,
            depth: self.depth,
            compared: self.compared,
            order: self.order,
            source: self.source,
            sampling: self.sampling,
            peak: self.peak,
            events: self.events,
            overhead: self.overhead,
            judgement: self.judgement.clone(),
            diagnosis: self.diagnosis.clone(),
            own: self.own,
        }
    }

    /// Looks up a module.
    pub fn module(&self, module: ModuleId) -> ModuleRef<'_> {
        self.dictionary.module(module)
    }

    /// Kernel release, if the kernel was traced.
    pub fn kernel_release(&self) -> Option<&str> {
        Some(self.kernel.as_ref()?.release.as_str())
    }
}

/// Local time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeOfDay {
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60.
    pub second: u8,
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }
}

/// Nanoseconds since 1970; saturates at 0 and `u64::MAX`.
pub fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Instance: what runs in a traced process between two execs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetFacts {
    /// Process id.
    pub pid: u32,
    /// Number of the instance, unique within the trace.
    pub instance: u32,
    /// Instance that it was forked from, or that it replaced in its process.
    pub parent: Option<u32>,
    /// Command name of the process (`comm`).
    pub comm: String,
    /// Path of the executable.
    pub exe: Option<String>,
    /// Event that ended it; `None` while it runs.
    pub ended: Option<InstanceEnd>,
    /// Memory that was short when the kernel killed it for that; `None` if it did not.
    #[serde(default)]
    pub lack: Option<MemoryLack>,
    /// Breakdown of its resident memory; `None` if it has ended or the memory could not be read.
    pub memory: Option<Parts>,
    /// Uses of its allocators' memory; `None` if they were not asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fragmentation: Option<Fragmentation>,
}

/// Periods and thresholds of a report's ages and changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Age below which blocks are hidden from people; `None` if ages were not read.
    pub older: Option<Duration>,
    /// True for the first report: the attach then counts as the last report.
    pub first: bool,
    /// Time since the last report.
    pub since_last: Duration,
    /// Time since the baseline.
    pub since_baseline: Duration,
    /// Time at which the user marked the baseline; `None` if it is the attach.
    pub marked: Option<TimeOfDay>,
}

/// Ages and changes of a stack in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackRecent {
    /// Outstanding blocks that are young or were freed while the report was made; `None` if not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub young: Option<Estimate>,
    /// Outstanding blocks by age; `None` if not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ages: Option<Ages>,
    /// Change since the last report.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since_last: Change,
    /// Change since the baseline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since_baseline: Change,
    /// Degree to which it behaves like a leak; `None` if the report was recorded by a version without
    /// suspicion.
    #[serde(default, skip_serializing_if = "is_default")]
    pub suspicion: Option<Suspicion>,
}

/// One allocator function called by one stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Process id; 0 if the stack is not known and stands for several processes.
    pub pid: u32,
    /// Instance number; 0 if the stack is not known and stands for several instances.
    pub instance: u32,
    /// Event that ended the instance; the outstanding amount is then that at its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended: Option<InstanceEnd>,
    /// Allocator function, which is not one of the frames.
    pub allocator: TextId,
    /// Use of the mappings; `None` for blocks of an allocator.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Option<RegionKind>,
    /// Allocated and not freed.
    pub outstanding: Estimate,
    /// Allocated since the attach.
    pub allocated: Estimate,
    /// Outstanding at the moment of [`Report::peak`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub peak: Amount,
    /// Ages and changes.
    pub recent: StackRecent,
    /// Verdict on the outstanding blocks; `None` if that was not asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub verdict: Option<Verdict>,
    /// Free memory of the allocator that the outstanding blocks pin, and the number of blocks that pin any;
    /// `None` if that was not asked for, or is not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pinned: Option<Estimate>,
    /// Holders and classes of the outstanding blocks; `None` without a verdict, or if they were not looked
    /// for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub held: Option<Box<Held>>,
    /// Allocated but not recorded; not included in `allocated`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: Amount,
    /// Walks of it that were finished in user space.
    #[serde(default, skip_serializing_if = "is_default")]
    pub finished_walks: u64,
    /// Sizes, threads and life spans of the blocks; `None` if nothing is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub makeup: Option<Box<Makeup>>,
    /// Reason why the walk ended.
    pub end: End,
    /// Location where the walk ended; `None` for complete stacks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub end_at: Option<Location<ModuleId>>,
    /// Frames, innermost first; `None` if there are none.
    pub path: Option<PathId>,
    /// Frames between these that were found but not kept, in the first of its walks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub left_out: Option<LeftOut>,
    /// Single blocks that are not young; `None` unless they were requested.
    #[serde(skip)]
    pub blocks: Option<BlockList>,
    /// Rule that suppresses the stack in reports for people; never recorded.
    #[serde(skip)]
    pub suppressed_by: Option<Arc<Suppression>>,
}

/// Rule of the user that suppresses known stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppression {
    /// The rule as written.
    pub rule: String,
    /// File and line of the rule.
    pub place: String,
}

impl Stack {
    /// Copies the stack with the ids of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        Self {
            allocator: import.text(self.allocator),
            path: self.path.map(|path| import.path(path)),
            end_at: self.end_at.map(|at| at.map(|module| import.module(module))),
            held: self.held.as_ref().map(|held| Box::new(held.renumbered(import))),
            makeup: self
                .makeup
                .as_ref()
                .map(|makeup| Box::new(makeup.renumbered(import))),
            blocks: self.blocks.as_ref().map(|blocks| blocks.renumbered(import)),
            ..self.clone()
        }
    }

    /// Outstanding amount without young blocks, as shown to people.
    pub fn shown(&self) -> Amount {
        self.shown_estimate().amount
    }

    /// [`Stack::shown`] with its variance.
    pub fn shown_estimate(&self) -> Estimate {
        self.outstanding.less(self.recent.young.unwrap_or_default())
    }
}

/// Identity of a site: a hash of the allocator function and of the calling code. It is equal in every report
/// and in other runs of the same builds: its algorithm and keys never change. The probability that two of a
/// thousand sites share an id is below 10⁻¹³.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(u64);

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl SiteId {
    /// First five of the sixteen hexadecimal digits, enough to distinguish the sites on a screen.
    pub fn short(self) -> String {
        format!("{:05x}", self.0 >> 44)
    }
}

/// Site of one instance: identifies a stack in every report of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteKey {
    /// Number of the instance.
    pub instance: u32,
    /// Use of the mappings; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Hash of the code.
    pub site: SiteId,
}

/// Part of a stack.
#[derive(Clone, Copy, Debug)]
pub enum StackPart<'a> {
    /// A frame.
    Frame(FrameRef<'a>),
    /// Number of frames that were found but not kept.
    LeftOut(u32),
}

/// Stack of a report, with access to what it refers to.
#[derive(Clone, Copy, Debug)]
pub struct StackRef<'a> {
    report: &'a Report,
    stack: &'a Stack,
}

impl Deref for StackRef<'_> {
    type Target = Stack;

    fn deref(&self) -> &Stack {
        self.stack
    }
}

impl<'a> StackRef<'a> {
    /// Report that contains the stack.
    pub fn report(self) -> &'a Report {
        self.report
    }

    /// Stack with the lifetime of the report.
    pub fn get(self) -> &'a Stack {
        self.stack
    }

    /// Name of the allocator function.
    pub fn allocator(self) -> &'a str {
        self.report.dictionary.text(self.stack.allocator)
    }

    /// Frames, innermost first.
    pub fn frames(self) -> Frames<'a> {
        self.report.dictionary.frames(self.stack.path)
    }

    /// Frames, innermost first, with the number of left-out frames in their place.
    pub fn parts(self) -> impl Iterator<Item = StackPart<'a>> {
        let left_out = self.stack.left_out;
        let inner = left_out.map_or(usize::MAX, |left_out| left_out.after as usize);
        let innermost = self.frames().take(inner).map(StackPart::Frame);
        let outermost = self.frames().skip(inner).map(StackPart::Frame);
        let missing = left_out.map(|left_out| StackPart::LeftOut(left_out.frames));
        innermost.chain(missing).chain(outermost)
    }

    /// Location where the walk ended; `None` for complete stacks.
    pub fn end_at(self) -> Option<Location<ModuleRef<'a>>> {
        let end_at = self.stack.end_at?;
        Some(self.report.dictionary.location(end_at))
    }

    /// Returns whether the stack is shown to people.
    pub fn is_suspect(self) -> bool {
        let is_suspect = self.kind.is_none_or(RegionKind::is_suspect) && self.suppressed_by.is_none();
        is_suspect && !self.holds_others()
    }

    /// Returns whether these are kernel pages whose contents another allocator's stacks count.
    pub fn holds_others(self) -> bool {
        let kernel = self.report.kernel.as_ref();
        kernel.is_some_and(|kernel| kernel.holds_others(self.allocator()))
    }

    /// Returns whether the stack ends because of the user's limit on frames.
    pub fn is_cut(self) -> bool {
        let missing = self.left_out.map_or(0, |left_out| left_out.frames as usize);
        self.end == End::DepthLimit && self.report.depth == self.frames().len().checked_add(missing)
    }

    /// Computes the id of the site.
    pub fn site(self) -> SiteId {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        self.allocator().as_bytes().hash(&mut hasher);
        self.end.name().hash(&mut hasher);
        if let Some(left_out) = self.left_out {
            left_out.after.hash(&mut hasher);
        }
        for frame in self.frames() {
            match frame.place() {
                Some(place) => {
                    let module = place.module;
                    // `str` hashes like `String`.
                    module.build_id().unwrap_or(module.path()).hash(&mut hasher);
                    place.svma.get().hash(&mut hasher);
                }
                // The number of a code object differs from one run to the next.
                None if frame.is_python() => {
                    (frame.function(), frame.file(), frame.line()).hash(&mut hasher);
                }
                None => frame.pc().get().hash(&mut hasher),
            }
        }
        SiteId(hasher.finish())
    }

    /// Key of the site in its instance.
    pub fn key(self) -> SiteKey {
        SiteKey {
            instance: self.instance,
            kind: self.kind,
            site: self.site(),
        }
    }
}
