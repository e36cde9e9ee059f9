//! The page's data: the largest sites, and what they had at each moment, as tables that refer to one another by
//! numbers. `page/model.js` reads them; the two change together.

use serde::Serialize;
use unwind_tables::walk::Unwind;

use super::health::Health;
use super::model::AGES;
use super::visible::visible;
use crate::model::{Measure, Report};

/// Everything that the page is given.
#[derive(Serialize)]
pub(super) struct Data {
    pub(super) memleak: &'static str,
    #[serde(flatten)]
    pub(super) trace: Trace,
    /// Rows have standard errors.
    pub(super) are_estimates: bool,
    /// Moments that were left out.
    pub(super) thinned: u64,
    /// Sites that there could be.
    pub(super) limit: usize,
    pub(super) processes: Vec<Process>,
    pub(super) more_processes: usize,
    /// The first is no text.
    pub(super) strings: Vec<String>,
    /// Of names that are abbreviated, and what they are exactly; several can be one in short.
    pub(super) exact: Vec<(u32, u32)>,
    /// Path, build-id. The first is no module.
    pub(super) modules: Vec<(u32, String)>,
    pub(super) frames: Vec<FrameRow>,
    /// By node: the caller's node and the frame. The first node is above all roots.
    pub(super) callers: Vec<u32>,
    pub(super) node_frames: Vec<u32>,
    pub(super) ends: Vec<EndRow>,
    pub(super) kinds: Vec<KindRow>,
    /// Largest first; behind them the sums of all others.
    pub(super) sites: Vec<SiteRow>,
    /// Site, then bytes and blocks of each class of ages.
    pub(super) ages: Vec<(usize, [u64; 2 * AGES])>,
    /// Site, then the score, the growth in bytes per second, and certainty, steadiness, kept and age spread in per cent, -1
    /// where one is not known. Sites without suspicion are left out.
    pub(super) suspicions: Vec<(usize, [i64; 6])>,
    pub(super) snapshots: Vec<SnapshotRow>,
    pub(super) health: Option<Health>,
}

/// What was traced, and how.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Trace {
    /// By which stacks were walked: `dwarf`, `fp`, `kernel`.
    pub(super) unwind: &'static str,
    /// The kernel's version, where its own allocations were traced.
    pub(super) kernel: Option<String>,
    /// Blocks younger than this are young; null if ages were not looked at.
    pub(super) older_ns: Option<u64>,
    /// The most frames of a stack, if the user set a limit.
    depth: Option<usize>,
    /// What the page opens with.
    measure: &'static str,
    unit: &'static str,
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
            },
            unit: report.quantity.unit.name(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Process {
    /// Null for those of several.
    pub(super) pid: Option<u32>,
    pub(super) instance: u32,
    pub(super) parent: Option<u32>,
    pub(super) comm: String,
    pub(super) exe: Option<String>,
    /// `exited` or `exec`.
    pub(super) ended: Option<&'static str>,
}

/// Module, address (in the module, or in the process), how it was found, function, offset in it, file, line, and the
/// functions inlined there, innermost first: function, file, line.
#[derive(Serialize)]
pub(super) struct FrameRow(
    pub(super) u32,
    pub(super) String,
    pub(super) u32,
    pub(super) u32,
    pub(super) Option<u64>,
    pub(super) u32,
    pub(super) u32,
    pub(super) Vec<[u32; 3]>,
);

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

/// A site, or several as one: process (-1 for those), allocator function, what mappings are for (or -1), how the walk ended,
/// in which module and at what address; the innermost frame's node, whether it can be a leak, how many sites it stands for
/// (0 for one that stands for itself), what was lost besides, in bytes and blocks, the rule that suppresses it, and the
/// responsible function: its frame from the innermost on, and which of the functions there it is: 0 for the frame's own, 1
/// for the innermost inlined one, and so on.
#[derive(Serialize)]
pub(super) struct SiteRow(
    pub(super) i64,
    pub(super) u32,
    pub(super) i64,
    pub(super) usize,
    pub(super) u32,
    pub(super) String,
    pub(super) u32,
    pub(super) u32,
    pub(super) u64,
    pub(super) u64,
    pub(super) u64,
    pub(super) u32,
    pub(super) usize,
    pub(super) usize,
);

#[derive(Serialize)]
pub(super) struct SnapshotRow {
    pub(super) time: String,
    /// The same in the time of the world: milliseconds since 1970; of a baseline, 0.
    pub(super) read_at_ms: u64,
    pub(super) elapsed_ns: u64,
    pub(super) marked: bool,
    /// Sums over all sites, as the report has them: bytes and blocks of what is outstanding, was allocated, is young.
    pub(super) all: Vec<u64>,
    /// Of sites that have changed: distance to the last site's number, then what it has.
    pub(super) rows: Vec<u64>,
    /// Process, the parts of its resident memory as `memory.js` names them, and the error of the first.
    pub(super) memory: Vec<(usize, [u64; 9], u64)>,
}
