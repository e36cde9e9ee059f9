//! Counts of a trace, and its losses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Amount;

/// Counts of calls since the attach. A field that a recording does not have is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// Allocated blocks, including lost ones.
    pub allocations: u64,
    /// Freed blocks that were known.
    pub frees: u64,
    /// Freed blocks that were not known: allocated before the attach, or lost.
    pub unknown_frees: u64,
    /// Part of `unknown_frees` whose free was called from the allocator's own module: the C library freed its
    /// own data, or freed a second time what it had cached for a thread that ended.
    pub own_unknown_frees: u64,
    /// Calls that the allocator failed.
    pub failed: u64,
    /// Blocks whose address was allocated again without a recorded free.
    pub missed_frees: u64,
    /// Allocator calls that never returned.
    pub abandoned_calls: u64,
    /// Probe hits of allocation functions, including nested calls.
    pub probe_hits: u64,
    /// Calls with sizes that are not recorded, and the bytes they requested.
    pub filtered: Amount,
}

impl Events {
    /// Returns true if no call was seen of the functions that are probed.
    pub fn is_without_calls(&self) -> bool {
        [self.probe_hits, self.frees, self.unknown_frees] == [0; 3]
    }
}

/// Events that were not recorded. A field that a recording does not have is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// Blocks missing from the totals of all stacks.
    pub blocks: u64,
    /// Bytes of the blocks missing from all totals.
    pub bytes: u64,
    /// Unrecorded frees: their blocks count as outstanding until the address is allocated again.
    pub frees: u64,
    /// Processes that should have been traced but were not.
    pub processes: u64,
    /// Programs executed by traced processes whose first allocations were not seen.
    pub beginnings: u64,
    /// Calls missing from the call trace (`-t`): they arrived faster than they could be written.
    pub calls: u64,
    /// Events that did not reach user space: mappings may have been out of date until the next report.
    pub events: u64,
    /// Lost blocks by cause; causes that did not occur are absent.
    pub causes: BTreeMap<Cow<'static, str>, u64>,
}

/// Count of `T` as formats show it. One row here defines its text line, its JSON field and its metric.
#[derive(Debug)]
pub struct Count<T: 'static> {
    /// Field in JSON.
    pub field: &'static str,
    /// Getter of the count.
    pub of: fn(&T) -> u64,
    /// Metric, if the count has one.
    pub metric: Option<Metric>,
    /// Line in text reports, if the count has one.
    pub line: Option<Line<T>>,
}

/// Name and description of a metric.
#[derive(Debug)]
pub struct Metric {
    /// Full name, with its `memleak_` prefix.
    pub name: &'static str,
    /// Text of the metric's `HELP`.
    pub help: &'static str,
}

/// Line in text reports, omitted if its count is 0: `3 frees of unknown blocks`.
#[derive(Debug)]
pub struct Line<T: 'static> {
    /// Getter of the number to print.
    pub of: fn(&T) -> u64,
    /// Noun for one counted thing, such as `free`.
    pub noun: &'static str,
    /// Text behind the number and noun.
    pub text: &'static str,
}

pub(super) const fn metric(name: &'static str, help: &'static str) -> Option<Metric> {
    Some(Metric { name, help })
}

pub(super) const fn line<T>(of: fn(&T) -> u64, noun: &'static str, text: &'static str) -> Option<Line<T>> {
    Some(Line { of, noun, text })
}

/// Counts of calls. The first two share a text line with others and have none here.
pub const CALLS: [Count<Events>; 9] = [
    Count {
        field: "allocations",
        of: |events| events.allocations,
        metric: metric(
            "memleak_allocations_total",
            "Blocks allocated, including lost ones.",
        ),
        line: None,
    },
    Count {
        field: "frees",
        of: |events| events.frees,
        metric: metric("memleak_frees_total", "Blocks freed that were known."),
        line: None,
    },
    Count {
        field: "unknown_frees",
        of: |events| events.unknown_frees,
        metric: metric(
            "memleak_unknown_frees_total",
            "Blocks freed that were not known: allocated before the attach, or lost.",
        ),
        line: line(
            |events| events.unknown_frees.saturating_sub(events.own_unknown_frees),
            "free",
            "of unknown blocks: allocated before the attach or by a parent process, lost, or freed twice",
        ),
    },
    Count {
        field: "own_unknown_frees",
        of: |events| events.own_unknown_frees,
        metric: None,
        line: line(
            |events| events.own_unknown_frees,
            "free",
            "of unknown blocks by the allocator's own library: caches of threads that ended, or its own data",
        ),
    },
    Count {
        field: "failed",
        of: |events| events.failed,
        metric: metric(
            "memleak_failed_allocations_total",
            "Calls that the allocator refused.",
        ),
        line: line(|events| events.failed, "call", "failed and allocated nothing"),
    },
    Count {
        field: "abandoned",
        of: |events| events.abandoned_calls,
        metric: None,
        line: line(|events| events.abandoned_calls, "call", "never returned"),
    },
    Count {
        field: "missed_frees",
        of: |events| events.missed_frees,
        metric: metric(
            "memleak_missed_frees_total",
            "Blocks whose free was not seen, but whose address was allocated again.",
        ),
        line: line(
            |events| events.missed_frees,
            "block",
            "whose free was not seen, but whose address was allocated again",
        ),
    },
    Count {
        field: "filtered",
        of: |events| events.filtered.blocks,
        metric: metric(
            "memleak_filtered_allocations_total",
            "Calls whose sizes are not recorded.",
        ),
        line: None,
    },
    Count {
        field: "filtered_bytes",
        of: |events| events.filtered.bytes,
        metric: metric(
            "memleak_filtered_bytes_total",
            "Bytes requested by calls whose sizes are not recorded.",
        ),
        line: None,
    },
];

/// Losses other than blocks and their bytes, which are broken down by cause.
pub const LOSSES: [Count<Losses>; 5] = [
    Count {
        field: "frees",
        of: |losses| losses.frees,
        metric: metric(
            "memleak_lost_frees_total",
            "Frees that were not seen: their blocks still count as outstanding.",
        ),
        line: line(
            |losses| losses.frees,
            "free",
            "not seen: their blocks count as outstanding until the address is allocated again",
        ),
    },
    Count {
        field: "processes",
        of: |losses| losses.processes,
        metric: metric(
            "memleak_lost_processes_total",
            "Processes that were not traced though they should have been.",
        ),
        line: line(
            |losses| losses.processes,
            "process",
            "not traced: too many at once; their allocations are not in this report",
        ),
    },
    Count {
        field: "beginnings",
        of: |losses| losses.beginnings,
        metric: metric(
            "memleak_lost_beginnings_total",
            "Programs executed by traced processes whose first allocations were not seen.",
        ),
        line: line(
            |losses| losses.beginnings,
            "program",
            "executed by a traced process: allocations before its allocator had probes were not seen",
        ),
    },
    Count {
        field: "events",
        of: |losses| losses.events,
        metric: metric(
            "memleak_lost_events_total",
            "Notices of mapping changes that came too late or not at all.",
        ),
        line: line(
            |losses| losses.events,
            "mapping notice",
            "lost: until this report, stacks through new code may have ended there",
        ),
    },
    Count {
        field: "calls",
        of: |losses| losses.calls,
        metric: metric(
            "memleak_lost_calls_total",
            "Calls missing from the call trace (-t).",
        ),
        line: line(
            |losses| losses.calls,
            "call",
            "missing from the call trace, as they came too fast; they count in the amounts",
        ),
    },
];
