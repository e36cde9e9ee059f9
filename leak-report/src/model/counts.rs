//! Counts of a trace, and what it has lost.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Amount;

/// Counts of calls since tracing began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Blocks allocated, those that were lost included.
    pub allocations: u64,
    /// Blocks freed that were known.
    pub frees: u64,
    /// Blocks freed that were not known: allocated before tracing began, or lost.
    pub unknown_frees: u64,
    /// Those of them that the allocator's own module called for: the C library freed what is its own, or once more what
    /// it kept for a thread that ended.
    pub own_unknown_frees: u64,
    /// Calls that the allocator refused.
    pub failed: u64,
    /// Blocks whose free was not seen before their address was allocated again.
    pub missed_frees: u64,
    /// Allocator calls that never returned.
    pub abandoned_calls: u64,
    /// Probe hits of allocation functions, nested calls included.
    pub probe_hits: u64,
    /// Calls that asked for sizes that are not recorded, and what they asked for.
    pub filtered: Amount,
}

/// What was not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Blocks that are in no stack's totals.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frees that were not seen: what they freed is outstanding until its address is allocated again.
    pub frees: u64,
    /// Processes that were not traced though they should have been.
    pub processes: u64,
    /// Calls that were not told one by one, where that was asked for: they came faster than they could be written.
    pub calls: u64,
    /// Times that user space was not told what it should act on: until the next report, mappings may have been older
    /// than they had to be.
    pub events: u64,
    /// Blocks by cause; causes that did not occur are left out.
    pub causes: BTreeMap<Cow<'static, str>, u64>,
}

/// A count of `T` as formats show it: a row here is a line for people, a field in JSON and a metric.
#[derive(Debug)]
pub struct Count<T: 'static> {
    /// Its field in JSON.
    pub field: &'static str,
    /// The count.
    pub of: fn(&T) -> u64,
    /// Its metric, if it is one.
    pub metric: Option<Metric>,
    /// Its line for people, if it has one.
    pub line: Option<Line<T>>,
}

/// A metric of its own.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub help: &'static str,
}

/// A line for people, which is there if its count is not 0: `3 frees of unknown blocks`.
#[derive(Debug)]
pub struct Line<T: 'static> {
    /// The count that it shows.
    pub of: fn(&T) -> u64,
    /// The thing that is counted.
    pub noun: &'static str,
    /// What to say of so many.
    pub text: &'static str,
}

const fn metric(name: &'static str, help: &'static str) -> Option<Metric> {
    Some(Metric { name, help })
}

const fn line<T>(of: fn(&T) -> u64, noun: &'static str, text: &'static str) -> Option<Line<T>> {
    Some(Line { of, noun, text })
}

/// Calls that were seen. The first two are in a line for people with others.
pub const CALLS: [Count<Events>; 9] = [
    Count {
        field: "allocations",
        of: |events| events.allocations,
        metric: metric(
            "memleak_allocations_total",
            "Blocks allocated, those that were lost included.",
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
            "Calls that asked for sizes that are not recorded.",
        ),
        line: None,
    },
    Count {
        field: "filtered_bytes",
        of: |events| events.filtered.bytes,
        metric: metric("memleak_filtered_bytes_total", "Bytes that these asked for."),
        line: None,
    },
];

/// Losses besides blocks and their bytes, whose causes are known one by one.
pub const LOSSES: [Count<Losses>; 4] = [
    Count {
        field: "frees",
        of: |losses| losses.frees,
        metric: metric(
            "memleak_lost_frees_total",
            "Frees that were not seen: what they freed still counts as outstanding.",
        ),
        line: line(
            |losses| losses.frees,
            "free",
            "not seen: what they freed is among the outstanding until its address is allocated again",
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
            "not traced: too many at once; what they allocated is not in this report",
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
            "Calls that were not told one by one though that was asked for.",
        ),
        line: line(
            |losses| losses.calls,
            "call",
            "not written one by one, having come too fast; they are in the amounts all the same",
        ),
    },
];
