//! JSON reports as their readers see them: schema version 1, every field that is promised.

mod memory;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use self::memory::{Beside, Elsewhere, KindBytes, Memory};
pub use super::amount::Amount;

#[derive(Debug, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    pub memleak: String,
    pub unwind: String,
    pub duration_ns: u64,
    pub source: String,
    pub sampling: Option<Sampling>,
    pub targets: Vec<Target>,
    pub events: Events,
    pub outstanding: Estimate,
    pub allocated: Estimate,
    /// `None` where it is not followed.
    pub peak: Option<super::recent::Peak>,
    pub lost: Lost,
    /// Parts that the trace went without.
    #[serde(default)]
    pub missing: Vec<Missing>,
    pub unwinding: Unwinding,
    #[serde(flatten)]
    pub recent: super::recent::Recent,
    /// `None` unless a verdict was asked for.
    pub verdict: Option<Judgement>,
    pub overhead: Option<super::overhead::Overhead>,
    #[serde(rename = "self")]
    pub own: OwnMemory,
    pub stacks: Vec<Stack>,
    /// Outstanding amount of each stack, with its standard error.
    #[serde(skip)]
    pub estimates: Vec<Estimate>,
    /// Allocated amount of each stack, with its standard error.
    #[serde(skip)]
    pub allocated_estimates: Vec<Estimate>,
}

/// A part that a trace went without, as the kernel refused a program.
#[derive(Clone, Debug, Deserialize)]
pub struct Missing {
    pub part: String,
    pub text: String,
    pub program: String,
    pub reason: String,
}

/// Outstanding blocks by whether the process can still reach them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Verdict {
    pub definitely_lost: Amount,
    pub indirectly_lost: Amount,
    pub reachable: Amount,
    pub unknown: Amount,
}

/// Verdict of a report, with how it was made.
#[derive(Debug, Deserialize)]
pub struct Judgement {
    #[serde(flatten)]
    pub verdict: Verdict,
    pub passes: u32,
    pub took_ns: u64,
    pub read_bytes: u64,
    pub stopped_ns: Option<u64>,
    pub unknown_because: BTreeMap<String, Amount>,
    pub freed_later: Amount,
    pub unreadable_bytes: u64,
    pub not_seen: BTreeMap<String, u64>,
    pub not_seen_words: Option<u64>,
    pub only_inside: BTreeMap<String, Amount>,
}

/// Memory of memleak itself, in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct OwnMemory {
    pub resident_bytes: u64,
    pub peak_bytes: u64,
    pub kernel_bytes: u64,
}

/// Part of a report that is parsed a second time, for estimates.
#[derive(Deserialize)]
struct WithEstimates {
    stacks: Vec<StackEstimate>,
}

#[derive(Deserialize)]
struct StackEstimate {
    outstanding: Estimate,
    allocated: Estimate,
}

#[derive(Debug, Deserialize)]
pub struct Target {
    pub pid: u32,
    pub comm: String,
    pub exe: Option<String>,
    pub instance: u32,
    pub parent: Option<u32>,
    pub ended: Option<String>,
    pub memory: Option<Memory>,
    /// `None` without `--pinned`.
    pub fragmentation: Option<super::fragmentation::Fragmentation>,
}

#[derive(Debug, Deserialize)]
pub struct Events {
    pub allocations: u64,
    pub frees: u64,
    pub unknown_frees: u64,
    pub own_unknown_frees: u64,
    pub failed: u64,
    pub abandoned: u64,
    pub missed_frees: u64,
    pub filtered: u64,
    pub filtered_bytes: u64,
}

#[derive(Debug, Deserialize)]
pub struct Sampling {
    pub method: String,
    pub interval: Option<u64>,
}

/// An amount over all stacks, with its error if it is estimated.
#[derive(Debug, Deserialize)]
pub struct Estimate {
    pub bytes: u64,
    pub blocks: u64,
    pub standard_error: Option<StandardError>,
    pub recorded_blocks: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StandardError {
    pub bytes: f64,
    pub blocks: f64,
}

#[derive(Debug, Deserialize)]
pub struct Lost {
    pub blocks: u64,
    pub bytes: u64,
    pub frees: u64,
    pub processes: u64,
    #[serde(default)]
    pub beginnings: u64,
    pub events: u64,
    pub causes: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
pub struct Unwinding {
    pub stacks: BTreeMap<String, u64>,
    pub allocations: BTreeMap<String, u64>,
    pub frames: Frames,
    /// Walks that were finished in user space.
    pub finished_in_user_space: u64,
    /// Walks that user space did not finish.
    pub not_finished: u64,
    pub ends: Vec<EndGroup>,
    pub modules: Vec<ModuleUse>,
    /// Allocations of stacks with functions of Python.
    #[serde(default)]
    pub python: super::python::PythonStacks,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Frames {
    pub cfi: u64,
    pub fp: u64,
    /// Only of whole reports: in counts by module these are part of `fp`.
    #[serde(default)]
    pub fp_generated: u64,
    #[serde(default)]
    pub fp_uncertain: u64,
}

#[derive(Debug, Deserialize)]
pub struct EndGroup {
    pub module: Option<String>,
    pub build_id: Option<String>,
    pub cause: String,
    pub stacks: u64,
    pub allocations: u64,
    pub addresses: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct ModuleUse {
    pub module: Option<String>,
    pub build_id: Option<String>,
    pub frames: Frames,
    pub code_bytes: Option<u64>,
    pub covered_bytes: Option<u64>,
    pub rows: Option<u64>,
    pub unsupported_rows: Option<u64>,
    pub table_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Stack {
    pub pid: u32,
    pub instance: u32,
    pub ended: Option<String>,
    pub allocator: String,
    /// Kind of the mappings; `None` for blocks.
    pub kind: Option<String>,
    pub outstanding: Amount,
    pub allocated: Amount,
    pub makeup: Option<super::makeup::Makeup>,
    /// Outstanding at the peak of the report.
    pub peak: Option<Amount>,
    pub lost: Amount,
    pub end: String,
    pub end_at: Option<EndAt>,
    #[serde(flatten)]
    pub recent: super::recent::StackRecent,
    /// `None` unless a verdict was asked for.
    pub verdict: Option<Verdict>,
    /// Free memory that its blocks pin; `None` without `--pinned`.
    pub pinned: Option<Amount>,
    pub held: Option<super::holders::Held>,
    /// Single blocks, with `-a`.
    pub blocks: Option<super::makeup::Blocks>,
    pub responsible: Option<Responsible>,
    pub frames: Vec<Frame>,
    /// `None` if all frames are there.
    pub left_out: Option<super::recent::LeftOut>,
}

/// The responsible function.
#[derive(Debug, Deserialize)]
pub struct Responsible {
    pub symbol: String,
}

#[derive(Debug, Deserialize)]
pub struct EndAt {
    pub module: Option<String>,
    pub address: String,
}

#[derive(Debug, Deserialize)]
pub struct Frame {
    pub pc: String,
    pub module: Option<String>,
    pub build_id: Option<String>,
    pub address: Option<String>,
    pub found_by: String,
    pub symbol: Option<String>,
    pub offset: Option<u64>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub inlined: Vec<Inlined>,
}

#[derive(Debug, Deserialize)]
pub struct Inlined {
    pub symbol: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

impl Report {
    #[track_caller]
    pub fn parse(line: &str) -> Self {
        let wrong = |error| -> ! { panic!("{error} in report {line}") };
        let report: Self = serde_json::from_str(line).unwrap_or_else(|error| wrong(error));
        let with: WithEstimates = serde_json::from_str(line).unwrap_or_else(|error| wrong(error));
        let both = with
            .stacks
            .into_iter()
            .map(|stack| (stack.outstanding, stack.allocated));
        let (estimates, allocated_estimates) = both.unzip();
        Self {
            estimates,
            allocated_estimates,
            ..report
        }
    }

    /// Outstanding amount of all stacks with a frame of this name, with its standard error.
    #[track_caller]
    pub fn estimate_through(&self, symbol: &str) -> Estimate {
        self.sum_through(symbol, &self.estimates)
    }

    /// Allocated amount of all stacks with a frame of this name, with its standard error.
    #[track_caller]
    pub fn allocated_estimate_through(&self, symbol: &str) -> Estimate {
        self.sum_through(symbol, &self.allocated_estimates)
    }

    #[track_caller]
    fn sum_through(&self, symbol: &str, estimates: &[Estimate]) -> Estimate {
        let stacks = self.stacks.iter().zip(estimates);
        let chosen = stacks.filter(|(stack, _)| stack.passes(symbol));
        let mut sum = Estimate {
            bytes: 0,
            blocks: 0,
            standard_error: None,
            recorded_blocks: None,
        };
        let (mut bytes, mut blocks) = (0.0, 0.0);
        for (_, estimate) in chosen {
            let error = estimate.standard_error.expect("an estimate has an error");
            sum.bytes += estimate.bytes;
            sum.blocks += estimate.blocks;
            bytes += error.bytes.powi(2);
            blocks += error.blocks.powi(2);
        }
        let (bytes, blocks) = (f64::sqrt(bytes), f64::sqrt(blocks));
        sum.standard_error = Some(StandardError { bytes, blocks });
        sum
    }

    /// Stacks with a frame of this name.
    pub fn through(&self, symbol: &str) -> Vec<&Stack> {
        self.stacks.iter().filter(|stack| stack.passes(symbol)).collect()
    }

    /// The sum of what stacks with a frame of this name allocated. A compiler can copy a call; each copy is a
    /// stack of its own.
    pub fn allocated_through(&self, symbol: &str) -> Amount {
        self.through(symbol).iter().map(|stack| stack.allocated).sum()
    }

    /// The one stack with a frame of this name.
    #[track_caller]
    pub fn only_through(&self, symbol: &str) -> &Stack {
        match self.through(symbol)[..] {
            [stack] => stack,
            [] => panic!("no stack through {symbol}:\n{self}"),
            _ => panic!("several stacks through {symbol}:\n{self}"),
        }
    }

    /// The sum of what each stack allocated.
    pub fn allocated(&self) -> Amount {
        self.stacks.iter().map(|stack| stack.allocated).sum()
    }

    pub fn outstanding(&self) -> Amount {
        self.stacks.iter().map(|stack| stack.outstanding).sum()
    }

    /// Checks claims that hold for every report of dwarf walks.
    #[track_caller]
    pub fn check_sums(&self) {
        let allocated = self.allocated();
        assert_eq!(
            allocated.blocks + self.lost.blocks,
            self.events.allocations,
            "shown + lost = allocated:\n{self}"
        );
        let lost = self.stacks.iter().map(|stack| stack.lost).sum::<Amount>();
        assert_eq!(
            (lost.blocks, lost.bytes),
            (self.lost.blocks, self.lost.bytes),
            "{self}"
        );
        let total = |total: &Estimate| Amount {
            bytes: total.bytes,
            blocks: total.blocks,
        };
        assert_eq!(
            (total(&self.allocated), total(&self.outstanding)),
            (allocated, self.outstanding())
        );
        assert_eq!(
            allocated.blocks - self.outstanding().blocks,
            self.events.frees,
            "allocated - outstanding = freed:\n{self}"
        );
        assert_eq!(
            self.unwinding.stacks.values().sum::<u64>(),
            self.stacks.len() as u64
        );
        assert_eq!(self.unwinding.allocations.values().sum::<u64>(), allocated.blocks);
        self.check_ends_and_modules();
    }

    /// Checks that counts by module, and by end, add up to those of the whole report.
    #[track_caller]
    fn check_ends_and_modules(&self) {
        let Unwinding {
            stacks,
            allocations,
            frames,
            ends,
            modules,
            finished_in_user_space,
            not_finished,
            python: _,
        } = &self.unwinding;
        let walks = finished_in_user_space.saturating_add(*not_finished);
        assert!(walks <= allocations.values().sum::<u64>(), "{self}");
        let incomplete = |sums: &BTreeMap<String, u64>| sums.values().sum::<u64>() - sums["complete"];
        let of_ends = |sum: fn(&EndGroup) -> u64| ends.iter().map(sum).sum::<u64>();
        assert_eq!(of_ends(|end| end.stacks), incomplete(stacks), "{self}");
        assert_eq!(of_ends(|end| end.allocations), incomplete(allocations), "{self}");
        let of_modules = |sum: fn(&ModuleUse) -> u64| modules.iter().map(sum).sum::<u64>();
        let (cfi, fp) = (
            of_modules(|module| module.frames.cfi),
            of_modules(|module| module.frames.fp),
        );
        let all_by_fp = frames.fp + frames.fp_generated + frames.fp_uncertain;
        assert_eq!((cfi, fp), (frames.cfi, all_by_fp), "{self}");
    }

    /// Finds the counts of the module whose path ends with `ending`.
    #[track_caller]
    pub fn module(&self, ending: &str) -> &ModuleUse {
        let ends_so = |module: &&ModuleUse| module.module.as_ref().is_some_and(|path| path.ends_with(ending));
        let module = self.unwinding.modules.iter().find(ends_so);
        module.unwrap_or_else(|| panic!("no module {ending}:\n{self}"))
    }
}

impl Stack {
    /// Single blocks; none unless they were asked for.
    pub fn listed(&self) -> impl Iterator<Item = &super::makeup::ListedBlock> {
        self.blocks.iter().flat_map(|blocks| &blocks.listed)
    }

    pub fn names(&self) -> Vec<&str> {
        self.frames.iter().map(Frame::name).collect()
    }

    pub fn passes(&self, symbol: &str) -> bool {
        self.frames.iter().any(|frame| frame.name() == symbol)
    }

    /// Checks that this stack is complete and is `expected`, innermost frame first.
    ///
    /// `..` stands for any number of frames in libraries. A name that ends in `*` is the start of a name.
    /// `clone3` is `__clone3` where the C library's symbols have it so.
    #[track_caller]
    pub fn check(&self, expected: &[&str]) {
        assert_eq!(self.end, "complete", "{self}");
        self.check_names(expected);
        for frame in &self.frames {
            assert!(frame.module.is_some(), "a frame outside all modules:\n{self}");
        }
    }

    /// Returns whether its frames have these names, in the form of [`Self::check`].
    pub fn has_names(&self, expected: &[&str]) -> bool {
        matches(&self.frames, expected)
    }

    /// Checks the names of frames alone, whatever the stack's end.
    #[track_caller]
    pub fn check_names(&self, expected: &[&str]) {
        assert!(
            self.has_names(expected),
            "expected {expected:#?}, found\n{self}(without names of libc.so.6: apt-get install libc6-dbg)"
        );
    }
}

/// Frames below `main`, innermost first. glibc's own names need its debug symbols.
const BELOW_MAIN: [&str; 3] = ["__libc_start_call_main", "__libc_start_main*", "_start"];

/// Appends the frames below `main` to `names`.
pub fn from_main<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().chain(&BELOW_MAIN).copied().collect()
}

fn matches(frames: &[Frame], expected: &[&str]) -> bool {
    match (expected, frames) {
        ([], frames) => frames.is_empty(),
        (["..", rest @ ..], frames) => {
            let library = |frame: &&Frame| frame.module.as_deref().is_some_and(|path| path.contains(".so"));
            let libraries = frames.iter().take_while(library).count();
            (0..=libraries).any(|skip| matches(&frames[skip..], rest))
        }
        ([name, rest @ ..], [frame, frames @ ..]) => {
            let same = match name.strip_suffix('*') {
                Some(start) => frame.name().starts_with(start),
                None => frame.name() == *name || (frame.name(), *name) == ("__clone3", "clone3"),
            };
            same && matches(frames, rest)
        }
        (_, []) => false,
    }
}

impl Frame {
    /// The function's name, or `?`.
    pub fn name(&self) -> &str {
        self.symbol.as_deref().unwrap_or("?")
    }

    /// The module's file name, or `?`.
    pub fn module_name(&self) -> &str {
        let path = self.module.as_deref().unwrap_or("?");
        path.rsplit('/').next().unwrap_or(path)
    }

    /// The address in the module.
    #[track_caller]
    pub fn svma(&self) -> u64 {
        let text = self.address.as_deref().expect("a frame in a module");
        let digits = text.strip_prefix("0x").expect("hexadecimal");
        u64::from_str_radix(digits, 16).expect("hexadecimal")
    }
}

/// Form that a failed test shows.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}\n{:?}\n{:?}", self.events, self.lost, self.unwinding)?;
        self.targets
            .iter()
            .try_for_each(|target| writeln!(f, "{target:?}"))?;
        self.stacks.iter().try_for_each(|stack| write!(f, "{stack}"))
    }
}

impl std::fmt::Display for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (outstanding, allocated) = (self.outstanding, self.allocated);
        writeln!(
            f,
            "{} in {} ({}): {} of {} bytes, {} of {} blocks",
            self.allocator,
            self.pid,
            self.instance,
            outstanding.bytes,
            allocated.bytes,
            outstanding.blocks,
            allocated.blocks
        )?;
        for frame in &self.frames {
            writeln!(
                f,
                "    {} {} {}+{:#x} [{}]",
                frame.pc,
                frame.found_by,
                frame.name(),
                frame.offset.unwrap_or(0),
                frame.module_name()
            )?;
        }
        if let Some(left_out) = self.left_out {
            writeln!(f, "    {left_out:?}")?;
        }
        writeln!(f, "    end {} at {:?}", self.end, self.end_at)
    }
}
