//! Accuracy of the last report, as the page shows it: the closing block of text reports, with numbers where
//! the page draws something.

use serde::Serialize;
use unwind_tables::walk::{End, FoundBy};

use super::visible::visible;
use crate::model::Report;
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::{ModuleId, OwnMemory};
use crate::render::health::{call_lines, lost_lines, python_line, unseen_lines, walk_lines};
use crate::render::{estimates, kernel, missing, occasion, overhead, regions, suppressed};

/// Maximum number of rows of each table; there are rarely more than twenty.
const MAX_ROWS: usize = 300;

/// Facts on the trace as a whole.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Health {
    /// Text on why the report was made, one line each.
    occasion: Vec<String>,
    /// Text, one line each.
    calls: Vec<String>,
    sampling: Vec<String>,
    overhead: Vec<String>,
    /// Totals of the kernel's allocators.
    kinds: Vec<String>,
    /// Mappings by kind, with `--mmap`.
    mapped: Vec<String>,
    /// Parts that are missing from the trace, because the kernel refused a program.
    missing: Vec<String>,
    /// Suppressed amounts, by rule.
    left_out: Vec<String>,
    /// Events that were not observed.
    unseen: Vec<String>,
    /// Losses by cause; a single line "nothing" if there are none.
    lost: Vec<String>,
    lost_blocks: u64,
    lost_bytes: u64,
    /// Number in the table of ends; stacks; allocations.
    ends: Vec<(usize, u64, u64)>,
    /// Number of frames by how they were found, over all walks.
    frames: FramesFound,
    /// Walks through code that had just been mapped.
    walks: Vec<String>,
    /// Text on functions of Python; empty if there are none.
    python: Vec<String>,
    /// Modules and causes where incomplete stacks ended, most allocations first.
    places: Vec<EndPlace>,
    more_places: usize,
    /// Modules that walks passed through, most steps first.
    modules: Vec<ModuleRow>,
    more_modules: usize,
    /// Outstanding blocks by age: upper bound in nanoseconds (null for the oldest), bytes, blocks.
    ages: Option<Vec<(Option<u64>, u64, u64)>>,
    own: OwnMemoryData,
}

/// memleak's own memory in bytes.
#[derive(Clone, Debug, Serialize)]
struct OwnMemoryData {
    resident: u64,
    peak: u64,
    kernel: u64,
}

#[derive(Clone, Debug, Serialize)]
struct FramesFound {
    probe: u64,
    cfi: u64,
    fp: u64,
    fp_generated: u64,
    fp_uncertain: u64,
    kernel: u64,
}

/// Stacks that ended in one module for one cause.
#[derive(Clone, Debug, Serialize)]
struct EndPlace {
    /// Path; null outside all modules.
    module: Option<String>,
    /// Number in the table of ends.
    end: usize,
    stacks: u64,
    allocations: u64,
    /// SVMAs in the module; AVMAs if there is none.
    addresses: Vec<String>,
}

/// Numbers of frames of a module by how their callers were found, and the coverage of its CFI.
#[derive(Clone, Debug, Serialize)]
struct ModuleRow {
    module: Option<String>,
    cfi: u64,
    fp: u64,
    /// Bytes of code; like the bytes covered by CFI and those of the table, null without an unwind table.
    code: Option<u64>,
    covered: Option<u64>,
    table: Option<u64>,
}

/// Number of an end in [`End::ALL`], which is the order of the page's table.
pub(super) fn end_number(end: End) -> usize {
    let number = End::ALL.iter().position(|&other| other == end);
    number.unwrap_or_default()
}

impl Health {
    /// The facts of a report.
    pub(super) fn of(report: &Report) -> Self {
        let sums = &report.completeness;
        let allocations = |end| sums.allocations.get(end).copied().unwrap_or(0);
        let by = |found_by| sums.frames_by(found_by);
        let OwnMemory {
            resident_bytes,
            peak_bytes,
            kernel_bytes,
        } = report.own;
        Self {
            occasion: shown(occasion::lines(report)),
            calls: shown(call_lines(report)),
            sampling: shown(estimates::sampling_lines(report)),
            overhead: shown(overhead::lines(report)),
            kinds: shown(kernel::kind_lines(report)),
            mapped: shown(regions::lines(report)),
            missing: shown(missing::lines(report)),
            left_out: shown(suppressed::lines(report)),
            unseen: shown(unseen_lines(&report.losses)),
            lost: shown(lost_lines(&report.losses)),
            lost_blocks: report.losses.blocks,
            lost_bytes: report.losses.bytes,
            ends: sums
                .stacks
                .iter()
                .map(|(end, &stacks)| (end_number(*end), stacks, allocations(end)))
                .collect(),
            frames: FramesFound {
                probe: by(FoundBy::Probe),
                cfi: by(FoundBy::Cfi),
                fp: by(FoundBy::Fp),
                fp_generated: by(FoundBy::FpGenerated),
                fp_uncertain: by(FoundBy::FpUncertain),
                kernel: by(FoundBy::Kernel),
            },
            walks: shown(walk_lines(report)),
            python: shown(python_line(report).into_iter().collect()),
            places: report
                .ends
                .iter()
                .take(MAX_ROWS)
                .map(|group| EndPlace::of(group, report))
                .collect(),
            more_places: report.ends.len().saturating_sub(MAX_ROWS),
            modules: report
                .steps
                .iter()
                .take(MAX_ROWS)
                .map(|steps| ModuleRow::of(steps, report))
                .collect(),
            more_modules: report.steps.len().saturating_sub(MAX_ROWS),
            ages: ages(report),
            own: OwnMemoryData {
                resident: resident_bytes,
                peak: peak_bytes,
                kernel: kernel_bytes,
            },
        }
    }
}

/// Makes lines safe to show: recordings can contain any text.
fn shown(lines: Vec<String>) -> Vec<String> {
    lines.iter().map(|line| visible(line)).collect()
}

fn ages(report: &Report) -> Option<Vec<(Option<u64>, u64, u64)>> {
    let classes = report.ages()?;
    let class = |(bound, class): (Option<std::time::Duration>, crate::model::Estimate)| {
        let bound = bound.map(|bound| u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX));
        (bound, class.amount.bytes, class.amount.blocks)
    };
    Some(classes.classes().map(class).collect())
}

fn path(module: Option<ModuleId>, report: &Report) -> Option<String> {
    module.map(|module| visible(report.module(module).path()))
}

impl EndPlace {
    fn of(group: &EndGroup<ModuleId>, report: &Report) -> Self {
        Self {
            module: path(group.module, report),
            end: end_number(group.end),
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses.iter().map(|at| format!("{at:#x}")).collect(),
        }
    }
}

impl ModuleRow {
    fn of(steps: &ModuleSteps<ModuleId>, report: &Report) -> Self {
        let table = steps.module.and_then(|module| report.module(module).table);
        Self {
            module: path(steps.module, report),
            cfi: steps.cfi,
            fp: steps.fp,
            code: table.map(|table| table.code_bytes),
            covered: table.map(|table| table.covered_bytes),
            table: table.map(|table| table.table_bytes),
        }
    }
}
