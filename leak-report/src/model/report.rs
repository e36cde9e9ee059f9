//! One report: plain data that holds everything any format needs.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use unwind_tables::walk::{End, Unwind};

use super::amount::is_default;
use super::dictionary::{Frames, Import};
use super::{
    Ages, Amount, BlockList, Change, Completeness, Dictionary, EndGroup, Estimate, Events, InstanceEnd,
    KernelFacts, Location, Losses, ModuleId, ModuleRef, ModuleSteps, NameStyle, Order, Overhead, OwnMemory,
    Parts, PathId, Quantity, RegionKind, Sampling, Suspicion, TextId,
};

/// Everything one report says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Local time at which the totals were read.
    pub time: TimeOfDay,
    /// The same moment in the time of the world.
    pub read_at: SystemTime,
    /// Time since the attach.
    pub elapsed: Duration,
    /// How stacks were walked.
    pub unwind: Unwind,
    /// How many stacks formats for people show.
    pub top: usize,
    /// How formats for people write names; not recorded.
    #[serde(skip)]
    pub names: NameStyle,
    /// What formats that have one number for each stack show.
    pub quantity: Quantity,
    /// The most frames that stacks have, if the user set a limit; what is alike in these is one stack.
    pub depth: Option<usize>,
    /// The processes.
    pub targets: Vec<TargetFacts>,
    /// What ages and changes are measured by.
    pub compared: Compared,
    /// The order of stacks, if the user chose one.
    pub order: Option<Order>,
    /// The texts, modules and frames of its stacks.
    #[serde(skip)]
    pub dictionary: Arc<Dictionary>,
    /// Every stack that allocated, in that order, else those that hold most first; those of ended instances last.
    #[serde(skip)]
    pub stacks: Vec<Stack>,
    /// Which allocations were recorded; if not all, then amounts are estimates.
    pub sampling: Sampling,
    /// Calls seen.
    pub events: Events,
    /// What could not be accounted.
    pub losses: Losses,
    /// How far the stacks can be trusted.
    pub completeness: Completeness,
    /// Where incomplete stacks ended, most allocations first.
    pub ends: Vec<EndGroup<ModuleId>>,
    /// How walks went on from the modules that they came through, most steps first.
    pub steps: Vec<ModuleSteps<ModuleId>>,
    /// What tracing costs, if that was looked at.
    pub overhead: Option<Overhead>,
    /// The kernel, where its own allocations were traced.
    pub kernel: Option<KernelFacts>,
    /// What memleak itself takes.
    pub own: OwnMemory,
}

impl Report {
    /// Every stack, in the report's order.
    pub fn stacks(&self) -> impl ExactSizeIterator<Item = StackRef<'_>> + Clone {
        self.stacks.iter().map(|stack| self.stack(stack))
    }

    /// One of the report's stacks.
    pub fn stack<'a>(&'a self, stack: &'a Stack) -> StackRef<'a> {
        StackRef { report: self, stack }
    }

    /// Stacks that people are shown: what can be a leak as far as can be told and is not suppressed, and no block twice.
    pub fn suspects(&self) -> impl Iterator<Item = StackRef<'_>> {
        self.stacks().filter(|stack| stack.is_suspect())
    }

    /// Suspects that hold anything that is not young, in the order asked for.
    pub fn holders(&self) -> impl Iterator<Item = StackRef<'_>> {
        self.suspects().filter(|stack| stack.shown().blocks > 0)
    }

    /// The report without its stacks, by the numbers of another dictionary.
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
            completeness: self.completeness.clone(),
            kernel: self.kernel.clone(),
            time: self.time,
            read_at: self.read_at,
            elapsed: self.elapsed,
            unwind: self.unwind,
            top: self.top,
            names: self.names,
            quantity: self.quantity,
            depth: self.depth,
            compared: self.compared,
            order: self.order,
            sampling: self.sampling,
            events: self.events,
            overhead: self.overhead,
            own: self.own,
        }
    }

    /// A module that the report refers to.
    pub fn module(&self, module: ModuleId) -> ModuleRef<'_> {
        self.dictionary.module(module)
    }

    /// The kernel's version, if the kernel was traced.
    pub fn kernel_release(&self) -> Option<&str> {
        Some(self.kernel.as_ref()?.release.as_str())
    }
}

/// A time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeOfDay {
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }
}

/// A moment in nanoseconds since 1970, as far as there are numbers for it.
pub fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What ran in a traced process between two execs: an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetFacts {
    /// Process id.
    pub pid: u32,
    /// Its number, which no other instance of the trace has.
    pub instance: u32,
    /// The instance that it was forked from, or that it replaced in its process.
    pub parent: Option<u32>,
    /// Its name.
    pub comm: String,
    /// Its executable.
    pub exe: Option<String>,
    /// How it ended, if it has.
    pub ended: Option<InstanceEnd>,
    /// Where its resident memory is; `None` once it has ended, or where that could not be read.
    pub memory: Option<Parts>,
}

/// What a report's ages and changes are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Blocks younger than this are hidden from people; `None` if ages were not looked at.
    pub older: Option<Duration>,
    /// There was no report before: then "the last report" is the attach.
    pub first: bool,
    /// Time since the last report.
    pub since_last: Duration,
    /// Time since the baseline.
    pub since_baseline: Duration,
    /// When the user marked the baseline; `None` if it is the attach.
    pub marked: Option<TimeOfDay>,
}

/// What a report says of a stack beyond its totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackRecent {
    /// What of the outstanding is young, or was freed while the report was made; `None` if not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub young: Option<Estimate>,
    /// Live blocks by age; `None` if not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ages: Option<Ages>,
    /// What came and went since the last report.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since_last: Change,
    /// What came and went since the baseline.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since_baseline: Change,
    /// How much it behaves like a leak; `None` if the report was recorded before that was judged.
    #[serde(default, skip_serializing_if = "is_default")]
    pub suspicion: Option<Suspicion>,
}

/// One allocator function called by one stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Process id; 0 where the stack is not known and stands for those of several processes.
    pub pid: u32,
    /// The instance, or 0 likewise.
    pub instance: u32,
    /// How the instance ended, if it has: then what is outstanding is what it held at its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended: Option<InstanceEnd>,
    /// The allocator function; it is not one of the frames.
    pub allocator: TextId,
    /// The use of the mappings; `None` for blocks of an allocator.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Option<RegionKind>,
    /// Allocated and not freed.
    pub outstanding: Estimate,
    /// Everything allocated since the attach.
    pub allocated: Estimate,
    /// Ages and changes.
    pub recent: StackRecent,
    /// Allocated besides, and not recorded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: Amount,
    /// Why the walk ended.
    pub end: End,
    /// Where it ended; `None` for complete stacks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub end_at: Option<Location<ModuleId>>,
    /// Frames, innermost first; `None` without frames.
    pub path: Option<PathId>,
    /// Its blocks one by one, those that are not young; `None` if they were not asked for.
    #[serde(skip)]
    pub blocks: Option<BlockList>,
    /// The rule that leaves it out of reports for people, if one does; never recorded.
    #[serde(skip)]
    pub suppressed_by: Option<Arc<Suppression>>,
}

/// A rule of the user's about stacks that are known and not to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppression {
    /// As it was written.
    pub rule: String,
    /// In which file and line.
    pub place: String,
}

impl Stack {
    /// The same stack with the numbers of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        Self {
            allocator: import.text(self.allocator),
            path: self.path.map(|path| import.path(path)),
            end_at: self.end_at.map(|at| at.map(|module| import.module(module))),
            ..self.clone()
        }
    }

    /// Outstanding and not young: what people are shown.
    pub fn shown(&self) -> Amount {
        self.shown_estimate().amount
    }

    /// [`Stack::shown`] with how far it can be off.
    pub fn shown_estimate(&self) -> Estimate {
        self.outstanding.less(self.recent.young.unwrap_or_default())
    }
}

/// The identity of a site: a hash of the allocator function and of the very code that called it. The same in every report, and
/// in other runs of the same builds: its algorithm and keys never change. That two of a thousand sites share one is less
/// probable than 10⁻¹³.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(u64);

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl SiteId {
    /// The first five of its sixteen hexadecimal digits, which tell apart what fits a screen.
    pub fn short(self) -> String {
        format!("{:05x}", self.0 >> 44)
    }
}

/// A site of one instance: tells the stacks of a trace apart, in every report of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteKey {
    /// The instance.
    pub instance: u32,
    /// The use of the mappings.
    pub kind: Option<RegionKind>,
    /// The code.
    pub site: SiteId,
}

/// A stack of a report with what it refers to.
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
    /// The report that it is of.
    pub fn report(self) -> &'a Report {
        self.report
    }

    /// The stack, for as long as the report lives.
    pub fn get(self) -> &'a Stack {
        self.stack
    }

    /// The allocator function.
    pub fn allocator(self) -> &'a str {
        self.report.dictionary.text(self.stack.allocator)
    }

    /// Frames, innermost first.
    pub fn frames(self) -> Frames<'a> {
        self.report.dictionary.frames(self.stack.path)
    }

    /// Where the walk ended; `None` for complete stacks.
    pub fn end_at(self) -> Option<Location<ModuleRef<'a>>> {
        let end_at = self.stack.end_at?;
        Some(self.report.dictionary.location(end_at))
    }

    /// True for a stack that people are shown.
    pub fn is_suspect(self) -> bool {
        let is_suspect = self.kind.is_none_or(RegionKind::is_suspect) && self.suppressed_by.is_none();
        is_suspect && !self.holds_others()
    }

    /// True for pages of the kernel's that hold what another allocator's stacks count.
    pub fn holds_others(self) -> bool {
        let kernel = self.report.kernel.as_ref();
        kernel.is_some_and(|kernel| kernel.holds_others(self.allocator()))
    }

    /// True if it ends where it does because the user wanted no more frames.
    pub fn is_cut(self) -> bool {
        self.end == End::DepthLimit && self.report.depth == Some(self.frames().len())
    }

    /// The site.
    pub fn site(self) -> SiteId {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        self.allocator().as_bytes().hash(&mut hasher);
        self.end.name().hash(&mut hasher);
        for frame in self.frames() {
            match frame.place() {
                Some(place) => {
                    let module = place.module;
                    // As `String` hashes.
                    module.build_id().unwrap_or(module.path()).hash(&mut hasher);
                    place.svma.get().hash(&mut hasher);
                }
                None => frame.pc().get().hash(&mut hasher),
            }
        }
        SiteId(hasher.finish())
    }

    /// The site in its instance.
    pub fn key(self) -> SiteKey {
        SiteKey {
            instance: self.instance,
            kind: self.kind,
            site: self.site(),
        }
    }
}
