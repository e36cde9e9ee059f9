//! The page's data: the largest sites and their amounts at each moment, as tables that refer to one another
//! by number. `page/model.js` reads them; the two change together.

use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use unwind_tables::walk::Unwind;

use super::health::Health;
use super::model::AGES;
use super::visible::visible;
use crate::model::{Direction, FATES, Measure, Report, Verdict};
use crate::render::DiagnosisText;

/// The whole input of the page's scripts.
#[derive(Serialize)]
pub(super) struct Data {
    pub(super) memleak: &'static str,
    #[serde(flatten)]
    pub(super) trace: Trace,
    /// True if rows have standard errors.
    pub(super) are_estimates: bool,
    /// Number of snapshots that were dropped.
    pub(super) thinned: u64,
    /// Maximum number of sites.
    pub(super) limit: usize,
    pub(super) processes: Vec<Process>,
    pub(super) more_processes: usize,
    /// Text table; the first entry stands for no text.
    pub(super) strings: Vec<String>,
    /// Pairs of an abbreviated name and its exact name; several names can share an abbreviation.
    pub(super) exact: Vec<(u32, u32)>,
    /// Path, build-id. The first entry stands for no module.
    pub(super) modules: Vec<(u32, String)>,
    #[serde(serialize_with = "as_table")]
    pub(super) frames: Vec<FrameRow>,
    /// Node of the caller, and in `node_frames` the frame, by node; the first node is above all roots.
    pub(super) callers: Vec<u32>,
    pub(super) node_frames: Vec<u32>,
    pub(super) ends: Vec<EndRow>,
    pub(super) kinds: Vec<KindRow>,
    pub(super) memory_kinds: Vec<MemoryKindRow>,
    /// Largest first, followed by the sums of all others.
    #[serde(serialize_with = "as_table")]
    pub(super) sites: Vec<SiteRow>,
    /// Site, then the number of frames before those that were left out, and the number of these. Sites with
    /// all their frames are omitted.
    pub(super) left_out: Vec<(usize, [u32; 2])>,
    /// Site, then bytes and blocks of each age class.
    pub(super) ages: Vec<(usize, [u64; 2 * AGES])>,
    /// Site, then the score, the growth in bytes per second, and certainty, steadiness, kept and age spread
    /// in per cent; -1 where unknown. Sites without suspicion are omitted.
    pub(super) suspicions: Vec<(usize, [i64; 6])>,
    /// Site, then bytes and blocks of each part of its verdict in the order of
    /// [`FATES`](crate::model::FATES), as of the last report. Sites without a verdict are omitted.
    pub(super) verdicts: Vec<(usize, [u64; 8])>,
    /// Site, then bytes and blocks at the peak of the last report. Sites without any are omitted.
    pub(super) peaks: Vec<(usize, [u64; 2])>,
    /// Site, then bytes that its blocks pin, and the number of blocks that pin any, as of the last report.
    /// Sites without any are omitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pins: Vec<(usize, [u64; 2])>,
    /// Site, then lines about who holds its blocks, and their classes, as of the last report. Sites without
    /// any are omitted.
    pub(super) held: Vec<(usize, Vec<String>)>,
    /// Chains that hold blocks of sites, as of the last report.
    #[serde(serialize_with = "as_table")]
    pub(super) holders: Vec<HolderRow>,
    /// Source excerpts, if they are shown: file, line of the code, first line of the excerpt, whether the
    /// file is newer than the code, and the lines.
    pub(super) sources: Vec<(String, u32, u32, bool, Vec<String>)>,
    /// Peak of the last report in words; null where it was not followed.
    pub(super) peak: Option<PeakRow>,
    /// Verdict of the last report; null if none was asked for.
    pub(super) verdict: Option<VerdictRow>,
    /// Diagnosis of the last report; null if none was asked for.
    pub(super) diagnosis: Option<DiagnosisText>,
    /// Pinned memory by the last report; left out if it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pinned: Option<PinnedRow>,
    pub(super) snapshots: Vec<SnapshotRow>,
    pub(super) health: Option<Health>,
}

/// Writes rows as a table, which names their fields once: pages have thousands of them.
fn as_table<T: Serialize, S: Serializer>(rows: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Default, Serialize)]
    struct Table {
        columns: Vec<String>,
        rows: Vec<Vec<Value>>,
    }
    let mut table = Table::default();
    for row in rows {
        let row = serde_json::to_value(row).and_then(serde_json::from_value::<Map<_, _>>);
        let (columns, values) = row.map_err(S::Error::custom)?.into_iter().unzip();
        table.columns = columns;
        table.rows.push(values);
    }
    table.serialize(serializer)
}

/// Subject and settings of the trace.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Trace {
    /// Unwinder of the stacks: `dwarf`, `fp`, `kernel`.
    pub(super) unwind: &'static str,
    /// Kernel version, if its own allocations were traced.
    pub(super) kernel: Option<String>,
    /// Minimum age in nanoseconds; younger blocks are young. Null if ages were not recorded.
    pub(super) older_ns: Option<u64>,
    /// Maximum number of frames of a stack, if the user set one.
    depth: Option<usize>,
    /// Measure that the page shows at first.
    measure: &'static str,
    unit: &'static str,
    /// True if the flame graph begins with the functions that allocate.
    inverted: bool,
}

impl From<&Report> for Trace {
    fn from(report: &Report) -> Self {
        let older = report.compared.older;
        Self {
            unwind: match (&report.kernel, report.unwind) {
                (Some(_), _) => "kernel",
                (None, Unwind::Dwarf) => "dwarf",
                (None, Unwind::Fp) => "fp",
            },
            kernel: report.kernel.as_ref().map(|kernel| visible(&kernel.release)),
            older_ns: older.map(|older| u64::try_from(older.as_nanos()).unwrap_or(u64::MAX)),
            depth: report.depth,
            measure: match report.quantity.measure {
                Measure::Outstanding => "outstanding",
                Measure::Allocated => "allocated",
                Measure::Growth => "growth",
                Measure::Peak if report.peak.is_some() => "peak",
                Measure::DefinitelyLost if report.judgement.is_some() => "definitely-lost",
                Measure::Pinned if report.asks_for_pinned() => "pinned",
                Measure::Peak | Measure::DefinitelyLost | Measure::Pinned => "outstanding",
            },
            unit: report.quantity.unit.name(),
            inverted: report.direction == Direction::Allocating,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Process {
    /// Process ID; null where the entry stands for several processes.
    pub(super) pid: Option<u32>,
    pub(super) instance: u32,
    pub(super) parent: Option<u32>,
    pub(super) comm: String,
    pub(super) exe: Option<String>,
    /// `exited` or `exec`; null while it runs.
    pub(super) ended: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct FrameRow {
    pub(super) module: u32,
    /// SVMA, or AVMA without a module; hexadecimal.
    pub(super) address: String,
    pub(super) found_by: u32,
    pub(super) function: u32,
    /// Offset in the function.
    pub(super) offset: Option<u64>,
    pub(super) file: u32,
    pub(super) line: u32,
    /// Functions inlined there, innermost first: function, file, line.
    pub(super) inlined: Vec<[u32; 3]>,
}

#[derive(Serialize)]
pub(super) struct EndRow {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) advice: String,
}

#[derive(Serialize)]
pub(super) struct KindRow {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
}

/// A site, or several merged.
#[derive(Default, Serialize)]
pub(super) struct SiteRow {
    /// -1 if several are merged.
    pub(super) process: i64,
    pub(super) allocator: u32,
    /// Purpose of the mappings; -1 if it is not of mappings.
    pub(super) kind: i64,
    /// How the walk ended, in which module and at what address.
    pub(super) end: usize,
    pub(super) end_module: u32,
    pub(super) end_address: String,
    /// Node of the innermost frame.
    pub(super) node: u32,
    /// True if it can be a leak.
    pub(super) is_suspect: bool,
    /// Number of sites merged; 0 for a single site.
    pub(super) merged: u64,
    /// Lost bytes and blocks.
    pub(super) lost: [u64; 2],
    /// Rule that suppresses it.
    pub(super) rule: u32,
    /// Responsible function: number of its frame from the innermost on, and its level there, 0 for the
    /// frame's own function, 1 for the innermost inlined one, and so on.
    pub(super) owner: [usize; 2],
}

/// A chain of sites that holds blocks.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderRow {
    /// Site of the blocks that it holds.
    pub(super) site: usize,
    /// Titles of the root and of the sites in between.
    pub(super) path: Vec<String>,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
    /// Lower bound of the bytes that would be lost with all blocks of the site; null if unknown.
    pub(super) retained: Option<u64>,
}

/// Peak of a report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PeakRow {
    /// Bytes and blocks of all stacks.
    pub(super) all: [u64; 2],
    pub(super) elapsed_ns: u64,
    pub(super) words: String,
}

/// Verdict of a report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerdictRow {
    /// Bytes and blocks of each part, of all suspects.
    pub(super) all: [u64; 8],
    /// Lines on how it was made, and reasons to doubt it.
    pub(super) lines: Vec<String>,
}

/// Free memory that blocks pin, in a report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PinnedRow {
    /// Bytes that the blocks of all suspects pin, and the number of blocks that pin any; null if that is not
    /// known.
    pub(super) all: Option<[u64; 2]>,
    /// Lines on what is free in the allocators.
    pub(super) lines: Vec<String>,
}

/// Bytes and blocks of each part of a verdict.
pub(super) fn verdict_numbers(verdict: &Verdict) -> [u64; 8] {
    std::array::from_fn(|at| {
        let amount = (FATES[at / 2].of)(verdict);
        match at % 2 {
            0 => amount.bytes,
            _ => amount.blocks,
        }
    })
}

#[derive(Serialize)]
pub(super) struct SnapshotRow {
    pub(super) time: String,
    /// Wall-clock time in milliseconds since 1970; 0 for a baseline.
    pub(super) read_at_ms: u64,
    pub(super) elapsed_ns: u64,
    pub(super) marked: bool,
    /// Reason for the report; null unless conditions decide when reports are made.
    pub(super) reason: Option<String>,
    /// Sums over all sites, as the report has them: bytes and blocks outstanding, allocated and young.
    pub(super) all: Vec<u64>,
    /// Rows that have changed: difference to the site number of the previous changed row, then the columns.
    pub(super) rows: Vec<u64>,
    pub(super) memory: Vec<MemoryRow>,
}

/// Memory of a process.
#[derive(Serialize)]
pub(super) struct MemoryRow {
    pub(super) process: usize,
    /// Parts of its resident memory in the order of `memory.js`.
    pub(super) parts: [u64; 9],
    /// Standard error of the tracked part.
    pub(super) error: u64,
    /// Number of a kind, and its bytes; empty if they are not known.
    pub(super) kinds: Vec<(usize, u64)>,
    /// Names of shared memory, and their bytes.
    pub(super) names: Vec<(String, u64)>,
    /// Memory that is not resident in the order of `memory.js`.
    pub(super) beside: [u64; 9],
}

/// A kind of memory.
#[derive(Serialize)]
pub(super) struct MemoryKindRow {
    /// Part that it belongs to, by its name in `memory.js`.
    pub(super) part: &'static str,
    pub(super) name: &'static str,
}
