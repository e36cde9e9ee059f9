//! JSON, schema version 1: one object per report, on one line.
//!
//! The types here are the schema; the program's own types can change without it. Fields are only ever added.
//! Addresses are strings, since a JSON number read as a double loses bits beyond 2^53.

mod amount;
mod memory;
mod overhead;
mod recent;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, FoundBy, Unwind};

use amount::{AmountJson, SamplingJson};
use memory::{MemoryJson, OwnJson};
use overhead::OverheadJson;

use super::blocks::BlocksJson;
use super::kernel::KernelJson;
use super::owner::{Owner, owner};
use super::text::is_format;
use crate::model::Name;
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::{Frame, Location, ModuleFacts, Report, Stack, TargetFacts};
use crate::model::{InlinedFrame, InstanceEnd, RegionKind, abbreviated};

use recent::{RecentJson, StackRecentJson};

pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Writes `report` as one line.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    write(&ReportJson::from(report), out)?;
    writeln!(out)
}

/// Writes a value so that a terminal shows all of it: in strings, everything is escaped that has no shape of its own.
pub(crate) fn write(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Visible))?;
    Ok(())
}

/// JSON by itself leaves control characters from DEL on as they are. Terminals do not.
struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
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
struct ReportJson {
    schema_version: u32,
    memleak: &'static str,
    unwind: &'static str,
    duration_ns: u64,
    sampling: Option<SamplingJson>,
    /// With `--perf-max-stack-depth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_stack_depth: Option<usize>,
    targets: Vec<TargetJson>,
    events: EventsJson,
    /// Over all stacks.
    outstanding: AmountJson,
    allocated: AmountJson,
    lost: LostJson,
    unwinding: UnwindingJson,
    #[serde(flatten)]
    recent: RecentJson,
    overhead: Option<OverheadJson>,
    /// Where the kernel's own allocations were traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelJson>,
    /// What memleak itself takes.
    #[serde(rename = "self")]
    own: OwnJson,
    stacks: Vec<StackJson>,
}

#[derive(Serialize)]
struct TargetJson {
    pid: u32,
    comm: String,
    exe: Option<String>,
    instance: u32,
    parent: Option<u32>,
    ended: Option<&'static str>,
    memory: Option<MemoryJson>,
}

#[derive(Serialize)]
struct EventsJson {
    allocations: u64,
    frees: u64,
    unknown_frees: u64,
    /// Those of them that the allocator's own module called for.
    own_unknown_frees: u64,
    failed: u64,
    abandoned: u64,
    missed_frees: u64,
    /// Calls that asked for a size that is not recorded.
    filtered: u64,
    filtered_bytes: u64,
}

#[derive(Serialize)]
struct LostJson {
    blocks: u64,
    bytes: u64,
    /// That were not seen.
    frees: u64,
    processes: u64,
    events: u64,
    /// With `-t`: calls that were not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    causes: BTreeMap<Cow<'static, str>, u64>,
}

#[derive(Serialize)]
struct UnwindingJson {
    stacks: BTreeMap<&'static str, u64>,
    allocations: BTreeMap<&'static str, u64>,
    frames: FramesJson,
    ends: Vec<EndGroupJson>,
    modules: Vec<ModuleJson>,
}

/// Stacks that ended in one module for one cause, most allocations first.
#[derive(Serialize)]
struct EndGroupJson {
    module: Option<String>,
    build_id: Option<String>,
    cause: &'static str,
    stacks: u64,
    allocations: u64,
    /// In the module's own space; in the process where there is no module.
    addresses: Vec<String>,
}

/// A module that walks came through. What comes from its unwind table is null where there is none.
#[derive(Serialize)]
struct ModuleJson {
    module: Option<String>,
    build_id: Option<String>,
    /// How the callers of its frames were found.
    frames: FramesJson,
    code_bytes: Option<u64>,
    covered_bytes: Option<u64>,
    rows: Option<u64>,
    unsupported_rows: Option<u64>,
    table_bytes: Option<u64>,
}

#[derive(Serialize)]
struct FramesJson {
    cfi: u64,
    fp: u64,
}

#[derive(Serialize)]
struct StackJson {
    pid: u32,
    instance: u32,
    ended: Option<&'static str>,
    allocator: Name,
    /// With `--mmap`: what the mappings are for.
    kind: Option<&'static str>,
    /// A number that is the same in other runs of the same builds, and in metrics.
    site: String,
    responsible: Option<ResponsibleJson>,
    outstanding: AmountJson,
    allocated: AmountJson,
    #[serde(flatten)]
    recent: StackRecentJson,
    lost: AmountJson,
    end: &'static str,
    end_at: Option<EndAtJson>,
    frames: Vec<FrameJson>,
    /// With `-a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<BlocksJson>,
    /// The rule of the user's that leaves it out of reports for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed_by: Option<String>,
}

/// The innermost function that is not an allocator's, the language runtime's or the standard library's.
#[derive(Serialize)]
struct ResponsibleJson {
    /// Its place in `frames`.
    frame: usize,
    /// Its place in that frame's `inlined`; null for the function that holds the code.
    inlined: Option<usize>,
    /// Its name, or its place in its module.
    symbol: String,
}

impl ResponsibleJson {
    fn of(stack: &Stack) -> Option<Self> {
        let Owner { function, frame, at } = owner(stack)?;
        Some(Self {
            frame: at.0,
            inlined: Some(at.1).filter(|&inlined| inlined < frame.names.inlined.len()),
            symbol: function.into_owned(),
        })
    }
}

#[derive(Serialize)]
struct EndAtJson {
    module: Option<String>,
    /// In the module's own space; in the process where there is no module.
    address: String,
}

/// A frame with its names.
#[derive(Serialize)]
pub(crate) struct FrameJson {
    pc: String,
    module: Option<String>,
    build_id: Option<String>,
    address: Option<String>,
    found_by: &'static str,
    symbol: Option<String>,
    /// As formats for people have it, if that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_short: Option<String>,
    offset: Option<u64>,
    file: Option<String>,
    line: Option<u32>,
    inlined: Vec<InlinedJson>,
}

#[derive(Serialize)]
struct InlinedJson {
    symbol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol_short: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

impl From<&Report> for ReportJson {
    fn from(report: &Report) -> Self {
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
            sampling: SamplingJson::of(report.sampling),
            max_stack_depth: report.depth,
            targets: report
                .targets
                .iter()
                .map(|target| TargetJson::of(target, report))
                .collect(),
            events: EventsJson {
                allocations: events.allocations,
                frees: events.frees,
                unknown_frees: events.unknown_frees,
                own_unknown_frees: events.own_unknown_frees,
                failed: events.failed,
                abandoned: events.abandoned_calls,
                missed_frees: events.missed_frees,
                filtered: events.filtered.blocks,
                filtered_bytes: events.filtered.bytes,
            },
            outstanding: AmountJson::total(report, |stack| stack.outstanding),
            allocated: AmountJson::total(report, |stack| stack.allocated),
            lost: LostJson {
                blocks: losses.blocks,
                bytes: losses.bytes,
                frees: losses.frees,
                processes: losses.processes,
                events: losses.events,
                calls: Some(losses.calls).filter(|&calls| calls > 0),
                causes: losses.causes.clone(),
            },
            unwinding: UnwindingJson {
                stacks: by_end(&completeness.stacks),
                allocations: by_end(&completeness.allocations),
                frames: FramesJson {
                    cfi: completeness.frames_by(FoundBy::Cfi),
                    fp: completeness.frames_by(FoundBy::Fp),
                },
                ends: report.ends.iter().map(EndGroupJson::from).collect(),
                modules: report.steps.iter().map(ModuleJson::from).collect(),
            },
            recent: report.into(),
            overhead: report.overhead.as_ref().map(OverheadJson::from),
            kernel: report.kernel.as_ref().map(KernelJson::from),
            own: report.own.into(),
            stacks: report
                .stacks
                .iter()
                .map(|stack| StackJson::of(stack, report))
                .collect(),
        }
    }
}

/// Counts by the ends' names. `complete` is always there: a missing key must not read as "no such check".
fn by_end(counts: &BTreeMap<End, u64>) -> BTreeMap<&'static str, u64> {
    let mut named: BTreeMap<_, _> = counts.iter().map(|(end, &count)| (end.name(), count)).collect();
    named.entry(End::Complete.name()).or_insert(0);
    named
}

impl From<&EndGroup<Arc<ModuleFacts>>> for EndGroupJson {
    fn from(group: &EndGroup<Arc<ModuleFacts>>) -> Self {
        Self {
            module: group.module.as_deref().map(path_text),
            build_id: group.module.as_ref().and_then(|module| module.build_id.clone()),
            cause: group.end.name(),
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses.iter().map(|at| format!("{at:#x}")).collect(),
        }
    }
}

impl From<&ModuleSteps<Arc<ModuleFacts>>> for ModuleJson {
    fn from(steps: &ModuleSteps<Arc<ModuleFacts>>) -> Self {
        let module = steps.module.as_deref();
        let table = module.and_then(|module| module.table);
        Self {
            module: module.map(path_text),
            build_id: module.and_then(|module| module.build_id.clone()),
            frames: FramesJson {
                cfi: steps.cfi,
                fp: steps.fp,
            },
            code_bytes: table.map(|table| table.code_bytes),
            covered_bytes: table.map(|table| table.covered_bytes),
            rows: table.map(|table| table.rows),
            unsupported_rows: table.map(|table| table.unsupported_rows),
            table_bytes: table.map(|table| table.table_bytes),
        }
    }
}

fn path_text(module: &ModuleFacts) -> String {
    module.path.to_string_lossy().into_owned()
}

impl TargetJson {
    fn of(target: &TargetFacts, report: &Report) -> Self {
        Self {
            pid: target.pid,
            comm: target.comm.clone(),
            exe: target.exe.as_ref().map(|exe| exe.to_string_lossy().into_owned()),
            instance: target.instance,
            parent: target.parent,
            ended: target.ended.map(InstanceEnd::name),
            memory: target
                .memory
                .map(|parts| MemoryJson::of(parts, report.tracked_error(target.instance))),
        }
    }
}

impl StackJson {
    fn of(stack: &Stack, report: &Report) -> Self {
        Self {
            pid: stack.pid,
            instance: stack.instance,
            ended: stack.ended.map(InstanceEnd::name),
            allocator: stack.allocator.clone(),
            kind: stack.kind.map(RegionKind::name),
            site: format!("{:016x}", stack.id()),
            responsible: ResponsibleJson::of(stack),
            outstanding: AmountJson::of(report, stack.outstanding),
            allocated: AmountJson::of(report, stack.allocated),
            recent: StackRecentJson::of(&stack.recent, report),
            lost: stack.lost.into(),
            end: stack.end.name(),
            end_at: stack.end_at.as_ref().map(EndAtJson::from),
            frames: stack.frames.iter().map(FrameJson::from).collect(),
            blocks: stack.blocks.as_ref().map(|list| BlocksJson::of(list, report)),
            suppressed_by: stack.suppressed_by.as_ref().map(|by| by.rule.clone()),
        }
    }
}

impl From<&Location> for EndAtJson {
    fn from(at: &Location) -> Self {
        Self {
            module: module_path(at),
            address: own_address(at).unwrap_or_else(|| hex(at.pc)),
        }
    }
}

impl From<&Frame> for FrameJson {
    fn from(frame: &Frame) -> Self {
        let names = &frame.names;
        Self {
            pc: hex(frame.at.pc),
            module: module_path(&frame.at),
            build_id: frame
                .at
                .place
                .as_ref()
                .and_then(|(module, _)| module.build_id.clone()),
            address: own_address(&frame.at),
            found_by: frame.found_by.name(),
            symbol: names.symbol.as_ref().map(|symbol| symbol.name.clone()),
            symbol_short: names.symbol.as_ref().and_then(|symbol| short(&symbol.name)),
            offset: names.symbol.as_ref().and_then(|symbol| symbol.offset),
            file: names.file.clone(),
            line: names.line,
            inlined: names.inlined.iter().map(InlinedJson::from).collect(),
        }
    }
}

impl From<&InlinedFrame> for InlinedJson {
    fn from(inlined: &InlinedFrame) -> Self {
        Self {
            symbol: inlined.symbol.clone(),
            symbol_short: inlined.symbol.as_deref().and_then(short),
            file: inlined.file.clone(),
            line: inlined.line,
        }
    }
}

/// The abbreviated name, if the name is longer.
fn short(name: &str) -> Option<String> {
    match abbreviated(name) {
        Cow::Borrowed(_) => None,
        Cow::Owned(short) => Some(short),
    }
}

/// The frames of a stack as reports have them.
pub(crate) fn frames(stack: &Stack) -> Vec<FrameJson> {
    stack.frames.iter().map(FrameJson::from).collect()
}

fn module_path(at: &Location) -> Option<String> {
    let (module, _) = at.place.as_ref()?;
    Some(path_text(module))
}

fn own_address(at: &Location) -> Option<String> {
    let (_, svma) = at.place.as_ref()?;
    Some(format!("{svma:#x}"))
}

fn hex(pc: Avma) -> String {
    format!("{pc:#x}")
}
