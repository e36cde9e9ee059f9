//! The table as one JSON object on one line, schema version 1. Fields are only ever added.

use std::io::{self, Write};
use std::time::SystemTime;

use serde::Serialize;

use super::table::{Row, Table, Trend};
use crate::commands::nanoseconds;
use leak_report::render::write_json;

const SCHEMA_VERSION: u32 = 1;

/// Writes the first `rows` processes, and sums up the others.
pub(super) fn render(table: &Table, rows: usize, out: &mut dyn Write) -> io::Result<()> {
    let (shown, others) = table.rows.split_at(rows.min(table.rows.len()));
    let unix = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let json = TableJson {
        schema_version: SCHEMA_VERSION,
        memleak: env!("CARGO_PKG_VERSION"),
        unix_ns: nanoseconds(unix),
        elapsed_ns: nanoseconds(table.elapsed),
        sample_ns: nanoseconds(table.interval),
        window_ns: nanoseconds(table.window),
        machine: MachineJson {
            total_bytes: table.machine.total,
            available_bytes: table.machine.available,
            swap_free_bytes: table.machine.swap_free,
        },
        trends: TrendsJson {
            grows: table.count(Trend::Grows),
            shrinks: table.count(Trend::Shrinks),
            none: table.count(Trend::None),
            early: table.count(Trend::Early),
        },
        not_watched: table.left_out,
        hides_processes: table.hides_processes,
        processes: shown.iter().map(|row| ProcessJson::new(row, table)).collect(),
        others: OthersJson {
            processes: others.len(),
            anonymous_bytes: others
                .iter()
                .map(|row| row.memory.bytes())
                .fold(0, u64::saturating_add),
        },
    };
    write_json(&json, out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct TableJson {
    schema_version: u32,
    memleak: &'static str,
    unix_ns: u64,
    elapsed_ns: u64,
    /// Time between two samples.
    sample_ns: u64,
    /// Maximum time over which growth is judged.
    window_ns: u64,
    machine: MachineJson,
    trends: TrendsJson,
    /// Processes beyond the number that can be watched.
    not_watched: usize,
    /// True if `/proc` does not show other users' processes.
    hides_processes: bool,
    /// Sorted by certain growth.
    processes: Vec<ProcessJson>,
    others: OthersJson,
}

#[derive(Serialize)]
struct MachineJson {
    total_bytes: u64,
    available_bytes: u64,
    swap_free_bytes: u64,
}

/// Number of processes with each trend.
#[derive(Serialize)]
struct TrendsJson {
    grows: usize,
    shrinks: usize,
    none: usize,
    early: usize,
}

/// Processes beyond the number of rows.
#[derive(Serialize)]
struct OthersJson {
    processes: usize,
    anonymous_bytes: u64,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u32,
    start_ticks: u64,
    uid: u32,
    /// Null if no user has this ID.
    user: Option<String>,
    comm: String,
    anonymous_bytes: u64,
    /// Part of `anonymous_bytes` that is in swap.
    swapped_bytes: u64,
    /// Resident anonymous memory in percent of the machine's memory.
    memory_percent: f64,
    samples: usize,
    since_ns: u64,
    trend: &'static str,
    growth: GrowthJson,
    /// Null if the process does not grow, or no limit is near.
    full: Option<FullJson>,
}

/// Growth in bytes per minute, with its 99 % confidence interval; a limit that is not finite is null.
#[derive(Serialize)]
struct GrowthJson {
    bytes_per_minute: f64,
    low: Option<f64>,
    high: Option<f64>,
}

#[derive(Serialize)]
struct FullJson {
    after_ns: u64,
    what: &'static str,
    /// Null for the machine, as are the fields that follow.
    cgroup: Option<String>,
    limit_bytes: Option<u64>,
    room_bytes: Option<u64>,
}

impl ProcessJson {
    fn new(row: &Row, table: &Table) -> Self {
        let finite = |number: f64| Some(number).filter(|number| number.is_finite());
        Self {
            pid: row.pid,
            start_ticks: row.start_time,
            uid: row.uid,
            user: row.user.clone(),
            comm: row.comm.clone(),
            anonymous_bytes: row.memory.bytes(),
            swapped_bytes: row.memory.swapped,
            memory_percent: row.share(&table.machine),
            samples: row.samples,
            since_ns: nanoseconds(row.span),
            trend: row.trend().name(),
            growth: GrowthJson {
                bytes_per_minute: row.growth.slope,
                low: finite(row.growth.low),
                high: finite(row.growth.high),
            },
            full: row.full.as_ref().map(|full| FullJson {
                after_ns: nanoseconds(full.after),
                what: full.what(),
                cgroup: full.limit.as_ref().map(|limit| limit.cgroup.clone()),
                limit_bytes: full.limit.as_ref().map(|limit| limit.limit),
                room_bytes: full.limit.as_ref().map(|limit| limit.room),
            }),
        }
    }
}
