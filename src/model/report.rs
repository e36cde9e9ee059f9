//! One report: plain data that holds everything any format needs.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use siphasher::sip::SipHasher24;
use unwind_tables::Coverage;
use unwind_tables::addr::{Avma, FileOffset, Svma};
use unwind_tables::coverage::RuleKind;
use unwind_tables::walk::{End, FoundBy, Unwind};

use super::{
    Ages, Amount, BlockList, Change, Completeness, EndGroup, Estimate, Events, InstanceEnd, KernelFacts,
    Losses, ModuleSteps, Name, NameStyle, Order, Overhead, OwnMemory, Parts, Quantity, RegionKind, Sampling,
    Suspicion, Symbolized,
};

/// Everything one report says.
#[derive(Clone, Debug)]
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
    /// Every stack that allocated, in that order, else those that hold most first; those of ended instances last.
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
    pub ends: Vec<EndGroup<Arc<ModuleFacts>>>,
    /// How walks went on from the modules that they came through, most steps first.
    pub steps: Vec<ModuleSteps<Arc<ModuleFacts>>>,
    /// What tracing costs, if that was looked at.
    pub overhead: Option<Overhead>,
    /// The kernel, where its own allocations were traced.
    pub kernel: Option<KernelFacts>,
    /// What memleak itself takes.
    pub own: OwnMemory,
}

impl Report {
    /// Stacks of what people are shown: what can be a leak as far as can be told and is not suppressed, and no block twice.
    pub fn suspects(&self) -> impl Iterator<Item = &Stack> {
        self.stacks.iter().filter(|stack| self.is_suspect(stack))
    }

    /// Whether people are shown this stack.
    pub(crate) fn is_suspect(&self, stack: &Stack) -> bool {
        let kernel = self.kernel.as_ref();
        let holds_others = kernel.is_some_and(|kernel| kernel.holds_others(&stack.allocator));
        let is_suspect = stack.kind.is_none_or(RegionKind::is_suspect) && stack.suppressed_by.is_none();
        is_suspect && !holds_others
    }

    /// Those of them that hold anything that is not young, in the order asked for.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Stack> {
        self.suspects().filter(|stack| stack.shown().blocks > 0)
    }
}

/// A time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
pub(crate) fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What ran in a traced process between two execs: an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub exe: Option<PathBuf>,
    /// How it ended, if it has.
    pub ended: Option<InstanceEnd>,
    /// Where its resident memory is; `None` once it has ended, or where that could not be read.
    pub memory: Option<Parts>,
}

/// What a report's ages and changes are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default)]
pub struct StackRecent {
    /// What of the outstanding is young, or was freed while the report was made; `None` if not known.
    pub young: Option<Estimate>,
    /// Live blocks by age; `None` if not known.
    pub ages: Option<Ages>,
    /// What came and went since the last report.
    pub since_last: Change,
    /// What came and went since the baseline.
    pub since_baseline: Change,
    /// How much it behaves like a leak; `None` if the report was recorded before that was judged.
    pub suspicion: Option<Suspicion>,
}

/// One allocator function called by one stack.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Process id; 0 where the stack is not known and stands for those of several processes.
    pub pid: u32,
    /// The instance, or 0 likewise.
    pub instance: u32,
    /// How the instance ended, if it has: then what is outstanding is what it held at its end.
    pub ended: Option<InstanceEnd>,
    /// The allocator function; it is not one of the frames.
    pub allocator: Name,
    /// What mappings are for; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Allocated and not freed.
    pub outstanding: Estimate,
    /// Everything allocated since the attach.
    pub allocated: Estimate,
    /// Ages and changes.
    pub recent: StackRecent,
    /// What was allocated besides and could not be recorded.
    pub lost: Amount,
    /// Why the walk ended.
    pub end: End,
    /// Where it ended; `None` for complete stacks.
    pub end_at: Option<Location>,
    /// Frames, innermost first.
    pub frames: Vec<Frame>,
    /// Its blocks one by one, those that are not young; `None` if they were not asked for.
    pub blocks: Option<BlockList>,
    /// The rule that leaves it out of what people are shown, if one does.
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
    /// A number that is the same for a site in every report of a trace. That two sites share one is improbable: among a
    /// thousand, less than 10⁻¹³.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.instance, &self.allocator as &str).hash(&mut hasher);
        self.kind.hash(&mut hasher);
        self.end.name().hash(&mut hasher);
        for frame in &self.frames {
            match &frame.at.place {
                Some((module, svma)) => (&module.path, svma.get()).hash(&mut hasher),
                None => frame.at.pc.get().hash(&mut hasher),
            }
        }
        hasher.finish()
    }

    /// A number that is the same for a site in every report, and in other runs of the same builds: a hash of the allocator
    /// function and of the code that called it, whose algorithm and keys never change.
    pub(crate) fn id(&self) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        self.allocator.as_bytes().hash(&mut hasher);
        self.end.name().hash(&mut hasher);
        for frame in &self.frames {
            match &frame.at.place {
                Some((module, svma)) => {
                    let path = || module.path.to_string_lossy().into_owned();
                    module.build_id.clone().unwrap_or_else(path).hash(&mut hasher);
                    svma.get().hash(&mut hasher);
                }
                None => frame.at.pc.get().hash(&mut hasher),
            }
        }
        hasher.finish()
    }

    /// Whether it ends where it does because the user wanted no more than `depth` frames.
    pub(crate) fn is_cut(&self, depth: Option<usize>) -> bool {
        self.end == End::DepthLimit && depth == Some(self.frames.len())
    }

    /// What is outstanding and not young: what people are shown.
    pub fn shown(&self) -> Amount {
        self.shown_estimate().amount
    }

    /// The same, and how far it can be off.
    pub(crate) fn shown_estimate(&self) -> Estimate {
        self.outstanding.less(self.recent.young.unwrap_or_default())
    }
}

/// One frame with its names.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The raw return address.
    pub at: Location,
    /// The address is the very instruction, not the one behind a call.
    pub exact: bool,
    /// How it was found.
    pub found_by: FoundBy,
    /// Its names.
    pub names: Arc<Symbolized>,
}

/// A code address in a process and, if it lies in a module, there.
#[derive(Clone, Debug)]
pub struct Location {
    /// In the process.
    pub pc: Avma,
    /// The module and the same address in the module's own space.
    pub place: Option<(Arc<ModuleFacts>, Svma)>,
}

/// What a report says of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFacts {
    /// Its path as the process sees it, or a name in brackets for the vDSO.
    pub path: PathBuf,
    /// Its build-id in hexadecimal digits.
    pub build_id: Option<String>,
    /// Where its code is; empty where that is not known.
    pub code: Vec<CodeSegment>,
    /// Its unwind table, if one was built.
    pub table: Option<TableFacts>,
}

/// A segment of a module that has code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeSegment {
    /// Its addresses, in the module's own space.
    pub svma: Range<Svma>,
    /// Where the first of them is in the file.
    pub offset: FileOffset,
}

/// What a report says of a module's unwind table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableFacts {
    /// Bytes of the module's code.
    pub code_bytes: u64,
    /// Those of them that CFI covers.
    pub covered_bytes: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Rows that the table cannot express.
    pub unsupported_rows: u64,
    /// Bytes that the table takes.
    pub table_bytes: u64,
}

impl TableFacts {
    /// The facts of a table of `table_bytes`.
    pub fn of(coverage: &Coverage, table_bytes: u64) -> Self {
        Self {
            code_bytes: coverage.code_bytes,
            covered_bytes: coverage.code_bytes.saturating_sub(coverage.gap_bytes),
            rows: coverage.rows,
            unsupported_rows: coverage.of_kind(RuleKind::Unsupported).rows,
            table_bytes,
        }
    }
}

impl ModuleFacts {
    /// The last component of the path, without the vDSO's brackets.
    pub(crate) fn basename(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().trim_matches(['[', ']']).to_owned()
    }
}
