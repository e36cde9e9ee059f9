//! JSON, schema version 1: one object per report, on one line.
//!
//! The types here are the schema; the program's own types can change without it. Fields are only ever added.
//! Addresses are strings, since a JSON number read as a double loses bits beyond 2^53.

mod amount;
mod bounded;
mod diagnosis;
mod fragmentation;
mod frames;
mod holders;
mod lack;
mod makeup;
mod memory;
mod missing;
mod overhead;
mod peak;
mod reason;
mod recent;
mod short;
mod target;
mod verdict;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, FoundBy, LeftOut, Unwind};

use amount::{AmountJson, SamplingJson};
use bounded::OthersJson;
use frames::FramesJson;
use holders::HeldJson;
use makeup::MakeupJson;
use memory::OwnJson;
use missing::MissingJson;
use overhead::OverheadJson;
use peak::PeakJson;

use super::blocks::BlocksJson;
use super::kernel::KernelJson;
use crate::model::leak::{Completeness, EndGroup, ModuleSteps, PYTHON, PythonStacks, WALKS};
use crate::model::owner::{Owner, owner};
use crate::model::printable::is_format;
use crate::model::{
    CALLS, Count, Events, FrameRef, LOSSES, Losses, ModuleId, ModuleRef, StackRef, StepStacks,
};
use crate::model::{InlinedFrame, InstanceEnd, RegionKind};
use crate::model::{Location, Report};

pub use diagnosis::DiagnosisJson;
use reason::ReasonJson;
use recent::{RecentJson, StackRecentJson};
use target::TargetJson;
pub use verdict::JudgementJson;
use verdict::VerdictJson;

/// Version of the JSON document, its field `schema_version`; later versions only add fields, which a reader
/// of an earlier one ignores.
pub const SCHEMA_VERSION: u32 = 1;

/// Writes `report` as one line.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    write(&ReportJson::of(report, None), out)?;
    writeln!(out)
}

/// Writes `report` as one line with at most `top` stacks, in the order of formats for people, and the sum of
/// the others.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn render_top(report: &Report, top: usize, out: &mut dyn Write) -> io::Result<()> {
    write(&ReportJson::of(report, Some(top)), out)?;
    writeln!(out)
}

/// Writes a value as JSON that a terminal shows completely: characters without a shape of their own are
/// escaped in strings.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn write(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Visible))?;
    Ok(())
}

/// Escapes characters that serde_json leaves unchanged and terminals interpret: control characters from DEL
/// on, and invisible characters.
struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        // Nearly all names.
        if fragment.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        let hidden = |character: char| character.is_control() || is_format(character);
        while let Some((at, character)) = rest.char_indices().find(|&(_, character)| hidden(character)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + character.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

#[derive(Serialize)]
struct ReportJson<'a> {
    schema_version: u32,
    memleak: &'static str,
    unwind: &'static str,
    duration_ns: u64,
    /// Only with conditions (`--report-when`).
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ReasonJson<'a>>,
    source: &'static str,
    sampling: Option<SamplingJson>,
    /// Only with `--perf-max-stack-depth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_stack_depth: Option<usize>,
    targets: Vec<TargetJson<'a>>,
    events: CountsJson<'a, Events>,
    /// Sum over all stacks, as is `allocated`.
    outstanding: AmountJson,
    allocated: AmountJson,
    /// Only if the peak was followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<PeakJson>,
    lost: LostByCauseJson<'a>,
    /// Only if the kernel refused a program that the trace could go without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingJson<'a>>,
    unwinding: UnwindingJson<'a>,
    #[serde(flatten)]
    recent: RecentJson,
    /// Only if a verdict was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<JudgementJson>,
    overhead: Option<OverheadJson>,
    /// Only of `memleak why`.
    #[serde(skip_serializing_if = "Option::is_none")]
    diagnosis: Option<DiagnosisJson<'a>>,
    /// Only if the kernel's own allocations were traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelJson>,
    /// memleak's own memory.
    #[serde(rename = "self")]
    own: OwnJson,
    stacks: Vec<StackJson<'a>>,
    /// Only with a limit to the number of stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<OthersJson>,
}

/// Counts of `T`, one field each.
struct CountsJson<'a, T: 'static>(&'static [Count<T>], &'a T);

impl<T> Serialize for CountsJson<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(counts, of) = *self;
        serializer.collect_map(counts.iter().map(|count| (count.field, (count.of)(of))))
    }
}

/// Losses, one field each; calls missing in the call trace only if there are any.
pub struct LostJson<'a>(pub &'a Losses);

impl Serialize for LostJson<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let blocks = [("blocks", self.0.blocks), ("bytes", self.0.bytes)];
        let others = LOSSES.iter().map(|count| (count.field, (count.of)(self.0)));
        let is_shown = |&(field, count): &(&str, u64)| !matches!(field, "calls" | "beginnings") || count > 0;
        serializer.collect_map(blocks.into_iter().chain(others).filter(is_shown))
    }
}

/// Losses, with lost blocks by cause.
#[derive(Serialize)]
struct LostByCauseJson<'a> {
    #[serde(flatten)]
    lost: LostJson<'a>,
    causes: &'a BTreeMap<Cow<'static, str>, u64>,
}

#[derive(Serialize)]
struct UnwindingJson<'a> {
    stacks: BTreeMap<&'static str, u64>,
    allocations: BTreeMap<&'static str, u64>,
    frames: FramesJson,
    #[serde(flatten)]
    walks: CountsJson<'a, Completeness>,
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<CountsJson<'a, PythonStacks>>,
    ends: Vec<EndGroupJson<'a>>,
    modules: Vec<ModuleJson<'a>>,
}

/// Stacks that ended in one module for one cause.
#[derive(Serialize)]
struct EndGroupJson<'a> {
    module: Option<&'a str>,
    build_id: Option<&'a str>,
    cause: &'static str,
    stacks: u64,
    allocations: u64,
    /// SVMAs in the module; AVMAs if there is none.
    addresses: Vec<String>,
}

/// A module that walks passed through. Values from its unwind table are null if there is none.
#[derive(Serialize)]
struct ModuleJson<'a> {
    module: Option<&'a str>,
    build_id: Option<&'a str>,
    /// Frames of the module by how their callers were found.
    frames: FramesJson,
    code_bytes: Option<u64>,
    covered_bytes: Option<u64>,
    rows: Option<u64>,
    unsupported_rows: Option<u64>,
    table_bytes: Option<u64>,
}

#[derive(Serialize)]
struct StackJson<'a> {
    pid: u32,
    instance: u32,
    ended: Option<&'static str>,
    allocator: &'a str,
    /// Purpose of the mappings, with `--mmap`.
    kind: Option<&'static str>,
    /// Number of the site, which is the same in other runs of the same builds, and in metrics.
    site: String,
    responsible: Option<ResponsibleJson<'a>>,
    outstanding: AmountJson,
    allocated: AmountJson,
    /// Only if the peak was followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<AmountJson>,
    #[serde(flatten)]
    recent: StackRecentJson,
    /// Only if a verdict was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictJson>,
    /// Only with `--pinned`, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<AmountJson>,
    /// Only with a verdict or `--classes`, if holders or classes were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldJson<'a>>,
    /// Only if sizes, threads or life spans are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    makeup: Option<MakeupJson<'a>>,
    lost: AmountJson,
    /// Only if there are some.
    #[serde(skip_serializing_if = "is_zero")]
    finished_in_user_space: u64,
    end: &'static str,
    end_at: Option<EndAtJson<'a>>,
    frames: Vec<FrameJson<'a>>,
    /// Only if frames were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutJson>,
    /// Only with `-a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<BlocksJson<'a>>,
    /// The user's rule that leaves the stack out of reports for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed_by: Option<&'a str>,
}

/// The innermost function that is not an allocator's, the language runtime's or the standard library's.
#[derive(Serialize)]
struct ResponsibleJson<'a> {
    /// Index in `frames`.
    frame: usize,
    /// Index in that frame's `inlined`; null for the frame's own function.
    inlined: Option<usize>,
    /// Name of the function, or its address in its module.
    symbol: Cow<'a, str>,
}

impl<'a> ResponsibleJson<'a> {
    fn of(stack: StackRef<'a>) -> Option<Self> {
        let Owner { function, frame, at } = owner(stack)?;
        Some(Self {
            frame: at.0,
            inlined: Some(at.1).filter(|&inlined| inlined < frame.inlined().len()),
            symbol: function,
        })
    }
}

#[derive(Serialize)]
struct EndAtJson<'a> {
    module: Option<&'a str>,
    /// SVMA in the module; AVMA if there is none.
    address: String,
}

/// A frame with its symbols.
#[derive(Serialize)]
pub struct FrameJson<'a> {
    pc: String,
    module: Option<&'a str>,
    build_id: Option<&'a str>,
    address: Option<String>,
    found_by: &'static str,
    symbol: Option<&'a str>,
    /// Name as in formats for people, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_short: Option<String>,
    /// Names of other functions with the same code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    folded_with: Vec<&'a str>,
    offset: Option<u64>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: Vec<InlinedJson<'a>>,
}

/// Frames that were left out of a stack.
#[derive(Serialize)]
pub struct LeftOutJson {
    /// Number of entries of `frames` before them.
    after: u32,
    frames: u32,
}

impl LeftOutJson {
    /// Frames that were left out of a stack; `None` if it has all.
    pub fn of(stack: StackRef<'_>) -> Option<Self> {
        let LeftOut { after, frames } = stack.left_out?;
        Some(Self { after, frames })
    }
}

#[derive(Serialize)]
struct InlinedJson<'a> {
    symbol: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_short: Option<String>,
    file: Option<&'a str>,
    line: Option<u32>,
}

impl<'a> ReportJson<'a> {
    /// The report with all stacks, or with the first `top`.
    fn of(report: &'a Report, top: Option<usize>) -> Self {
        let (stacks, others) = match top {
            None => (report.stacks().collect(), None),
            Some(top) => {
                let (stacks, others) = bounded::first(report, top);
                (stacks, Some(others))
            }
        };
        let step_stacks = StepStacks::of(report);
        let (events, losses, completeness) = (&report.events, &report.losses, &report.completeness);
        Self {
            schema_version: SCHEMA_VERSION,
            memleak: env!("CARGO_PKG_VERSION"),
            unwind: match report.unwind {
                _ if report.kernel.is_some() => "kernel",
                Unwind::Dwarf => "dwarf",
                Unwind::Fp => "fp",
            },
            duration_ns: u64::try_from(report.elapsed.as_nanos()).unwrap_or(u64::MAX),
            reason: report.reason.as_ref().map(ReasonJson::from),
            source: report.source.name(),
            sampling: SamplingJson::of(report.sampling),
            max_stack_depth: report.depth,
            targets: report
                .targets
                .iter()
                .map(|target| TargetJson::of(target, report))
                .collect(),
            events: CountsJson(&CALLS, events),
            outstanding: AmountJson::total(report, |stack| stack.outstanding),
            allocated: AmountJson::total(report, |stack| stack.allocated),
            peak: report.peak.map(PeakJson::from),
            lost: LostByCauseJson {
                lost: LostJson(losses),
                causes: &losses.causes,
            },
            missing: report.missing.iter().map(MissingJson::from).collect(),
            unwinding: UnwindingJson {
                stacks: by_end(&completeness.stacks),
                allocations: by_end(&completeness.allocations),
                frames: FramesJson {
                    cfi: completeness.frames_by(FoundBy::Cfi),
                    fp: completeness.frames_by(FoundBy::Fp),
                    fp_generated: Some(completeness.frames_by(FoundBy::FpGenerated)),
                    fp_uncertain: Some(completeness.frames_by(FoundBy::FpUncertain)),
                    python: Some(completeness.frames_by(FoundBy::Python)).filter(|&frames| frames > 0),
                },
                walks: CountsJson(&WALKS, completeness),
                python: Some(CountsJson(&PYTHON, &completeness.python))
                    .filter(|_| completeness.python.all() > 0),
                ends: report
                    .ends
                    .iter()
                    .map(|group| EndGroupJson::of(group, report))
                    .collect(),
                modules: report
                    .steps
                    .iter()
                    .map(|steps| ModuleJson::of(steps, report))
                    .collect(),
            },
            recent: report.into(),
            verdict: JudgementJson::of(report),
            overhead: report.overhead.as_ref().map(OverheadJson::from),
            diagnosis: report.diagnosis.as_deref().map(DiagnosisJson::from),
            kernel: report.kernel.as_ref().map(KernelJson::from),
            own: report.own.into(),
            stacks: stacks
                .into_iter()
                .map(|stack| StackJson::of(stack, report, &step_stacks))
                .collect(),
            others,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Counts by name of the end. `complete` is always present: a missing key must not read as "no such check".
fn by_end(counts: &BTreeMap<End, u64>) -> BTreeMap<&'static str, u64> {
    let mut named: BTreeMap<_, _> = counts.iter().map(|(end, &count)| (end.name(), count)).collect();
    named.entry(End::Complete.name()).or_insert(0);
    named
}

impl<'a> EndGroupJson<'a> {
    fn of(group: &EndGroup<ModuleId>, report: &'a Report) -> Self {
        let module = group.module.map(|module| report.module(module));
        Self {
            module: module.map(ModuleRef::path),
            build_id: module.and_then(ModuleRef::build_id),
            cause: group.end.name(),
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses.iter().map(|at| format!("{at:#x}")).collect(),
        }
    }
}

impl<'a> ModuleJson<'a> {
    fn of(steps: &ModuleSteps<ModuleId>, report: &'a Report) -> Self {
        let module = steps.module.map(|module| report.module(module));
        let table = module.and_then(|module| module.table);
        Self {
            module: module.map(ModuleRef::path),
            build_id: module.and_then(ModuleRef::build_id),
            frames: FramesJson {
                cfi: steps.cfi,
                fp: steps.fp,
                ..FramesJson::default()
            },
            code_bytes: table.map(|table| table.code_bytes),
            covered_bytes: table.map(|table| table.covered_bytes),
            rows: table.map(|table| table.rows),
            unsupported_rows: table.map(|table| table.unsupported_rows),
            table_bytes: table.map(|table| table.table_bytes),
        }
    }
}

impl<'a> StackJson<'a> {
    fn of(stack: StackRef<'a>, report: &'a Report, stacks: &StepStacks<'a>) -> Self {
        Self {
            pid: stack.pid,
            instance: stack.instance,
            ended: stack.ended.map(InstanceEnd::name),
            allocator: stack.allocator(),
            kind: stack.kind.map(RegionKind::name),
            site: stack.site().to_string(),
            responsible: ResponsibleJson::of(stack),
            outstanding: AmountJson::of(report, stack.outstanding),
            allocated: AmountJson::of(report, stack.allocated),
            peak: report.peak.map(|_| stack.peak.into()),
            recent: StackRecentJson::of(&stack.recent, report),
            verdict: stack.verdict.map(VerdictJson),
            pinned: stack.pinned.map(|pinned| AmountJson::of(report, pinned)),
            held: stack
                .get()
                .held
                .as_ref()
                .map(|held| HeldJson::of(held, report, stacks)),
            makeup: stack
                .get()
                .makeup
                .as_deref()
                .map(|makeup| MakeupJson::of(makeup, report)),
            lost: stack.lost.into(),
            finished_in_user_space: stack.finished_walks,
            end: stack.end.name(),
            end_at: stack.end_at().map(EndAtJson::from),
            frames: frames(stack),
            left_out: LeftOutJson::of(stack),
            blocks: stack.blocks.as_ref().map(|list| BlocksJson::of(list, report)),
            suppressed_by: stack.get().suppressed_by.as_ref().map(|by| by.rule.as_str()),
        }
    }
}

impl<'a> From<Location<ModuleRef<'a>>> for EndAtJson<'a> {
    fn from(at: Location<ModuleRef<'a>>) -> Self {
        Self {
            module: at.place.map(|place| place.module.path()),
            address: own_address(at).unwrap_or_else(|| hex(at.pc)),
        }
    }
}

impl<'a> From<FrameRef<'a>> for FrameJson<'a> {
    fn from(frame: FrameRef<'a>) -> Self {
        let (at, symbol) = (frame.location(), frame.symbol());
        let module = frame.module();
        Self {
            pc: hex(at.pc),
            module: module.map(ModuleRef::path),
            build_id: module.and_then(ModuleRef::build_id),
            address: own_address(at),
            found_by: frame.found_by.name(),
            symbol: frame.function(),
            symbol_short: frame.function().and_then(short::short),
            folded_with: frame.folded().collect(),
            offset: symbol.and_then(|symbol| symbol.offset),
            file: frame.file(),
            line: frame.line(),
            inlined: frame.inlined().map(InlinedJson::from).collect(),
        }
    }
}

impl<'a> From<InlinedFrame<&'a str>> for InlinedJson<'a> {
    fn from(inlined: InlinedFrame<&'a str>) -> Self {
        let InlinedFrame { symbol, file, line } = inlined;
        Self {
            symbol,
            symbol_short: symbol.and_then(short::short),
            file,
            line,
        }
    }
}

/// The frames of a stack, innermost first, as in a report's JSON.
pub fn frames(stack: StackRef<'_>) -> Vec<FrameJson<'_>> {
    stack.frames().map(FrameJson::from).collect()
}

fn own_address(at: Location<ModuleRef<'_>>) -> Option<String> {
    Some(format!("{:#x}", at.place?.svma))
}

fn hex(pc: Avma) -> String {
    format!("{pc:#x}")
}
