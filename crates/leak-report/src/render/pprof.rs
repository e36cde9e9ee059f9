//! pprof's profile format, as read by pprof, Parca, Pyroscope, Grafana and others; compressed. Equal reports
//! give equal files.
//!
//! Values are allocated and outstanding blocks and bytes, under the conventional names of heap profiles, with
//! outstanding bytes shown by default; amounts at the peak, if it was followed; definitely lost amounts, if
//! there is a verdict; and free memory that blocks pin, if that is known. As in flame graphs, only stacks
//! that can be leaks are included, without young blocks. The allocator function is a label, not a frame, so
//! that its bytes count as its caller's own; the end of the stack is a label, too.

mod mappings;
mod part;
pub(super) mod proto;
mod pull;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::time::Duration;

use flate2::{Compression, GzBuilder};
use prost::Message;

use super::{flame, verdict};
use crate::model::{Amount, Losses, Sampling};
use crate::model::{Quantity, Report, StackRef, unix_nanoseconds};
pub use part::{Amounts, Part};
use proto::{Profile, ValueType};
pub use pull::{Shown, pulled};
pub(super) use table::LocationKind;
use table::{Table, Values};

/// The sample types, each with its unit; a sample has a value for each of them.
const SAMPLE_TYPES: [(&str, &str); 10] = [
    ("peak_objects", "count"),
    ("peak_space", "bytes"),
    ("definitely_lost_objects", "count"),
    ("definitely_lost_space", "bytes"),
    ("pinned_objects", "count"),
    ("pinned_space", "bytes"),
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];
/// Types of amounts at the peak, of definitely lost and of pinned amounts, and of every heap profile, with
/// its two halves.
/// A profile shows its last type unless the reader chooses another.
const PEAK_TYPES: &[usize] = &[0, 1];
const LOST_TYPES: &[usize] = &[2, 3];
const PINNED_TYPES: &[usize] = &[4, 5];
const HEAP_TYPES: &[usize] = &[6, 7, 8, 9];
const ALLOCATED_TYPES: &[usize] = &[6, 7];
const OUTSTANDING_TYPES: &[usize] = &[8, 9];

/// Functions that readers hide, as in all heap profiles, so that their allocations count as their callers'
/// own. (Readers match the whole name, some of them without its parameters.)
const DROPPED: &str = r"operator new(\[\])?(\(.*\))?";

/// Writes `report` as a compressed profile.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    compress(&profile(report), out)
}

fn compress(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::default());
    compressed.write_all(&profile.encode_to_vec())?;
    compressed.finish().map(drop)
}

fn profile(report: &Report) -> Profile {
    let mut table = Table::of(report);
    for stack in report.suspects() {
        table.add(stack, values(stack, stack.allocated.amount));
    }
    let period = match report.sampling {
        Sampling::All => None,
        Sampling::Calls(calls) => Some(("objects", "count", calls)),
        Sampling::Bytes(bytes) | Sampling::Governed(bytes) => Some(("space", "bytes", bytes)),
        Sampling::Provider(bytes) => bytes.map(|bytes| ("space", "bytes", bytes)),
    };
    finish(report, table, &types(report), period, report.elapsed)
}

/// Types of a profile with every amount that `report` has.
fn types(report: &Report) -> Vec<usize> {
    let peak = report.peak.map_or(&[][..], |_| PEAK_TYPES);
    let lost = report.judgement.as_ref().map_or(&[][..], |_| LOST_TYPES);
    let pinned = report.pinned().map_or(&[][..], |_| PINNED_TYPES);
    [peak, lost, pinned, HEAP_TYPES].concat()
}

/// Values of a stack, with the amount that counts as allocated.
fn values(stack: StackRef<'_>, allocated: Amount) -> Values {
    let (lost, outstanding) = (stack.judged().definitely_lost, stack.shown());
    let pinned = stack.pins().amount;
    [
        stack.peak.blocks,
        stack.peak.bytes,
        lost.blocks,
        lost.bytes,
        pinned.blocks,
        pinned.bytes,
        allocated.blocks,
        allocated.bytes,
        outstanding.blocks,
        outstanding.bytes,
    ]
}

/// Builds the profile of the samples in `table`, with the sample types in `types`, for the `duration` before
/// the report.
fn finish(
    report: &Report,
    mut table: Table<'_>,
    types: &[usize],
    period: Option<(&str, &str, u64)>,
    duration: Duration,
) -> Profile {
    let kinds: Vec<_> = types.iter().map(|&number| SAMPLE_TYPES[number]).collect();
    let sample_type = kinds
        .iter()
        .map(|(kind, unit)| value_type(&mut table, kind, unit))
        .collect();
    let period = period.map(|(kind, unit, period)| (value_type(&mut table, kind, unit), period));
    let comments = comments(report);
    let comment = comments.iter().map(|line| table.string(line)).collect();
    let default = kinds.last().map_or("", |(kind, _)| kind);
    let default_sample_type = table.string(default);
    let drop_frames = table.string(DROPPED);
    Profile {
        sample_type,
        period_type: period.map(|(kind, _)| kind),
        period: period.map_or(0, |(_, period)| signed(period)),
        time_nanos: signed(unix_nanoseconds(report.read_at)),
        duration_nanos: nanoseconds(duration),
        comment,
        default_sample_type,
        drop_frames,
        ..table.into_profile(types)
    }
}

fn value_type(table: &mut Table, kind: &str, unit: &str) -> ValueType {
    ValueType {
        kind: table.string(kind),
        unit: table.string(unit),
    }
}

/// Comments, a few lines, which pprof prints above each of its outputs.
fn comments(report: &Report) -> Vec<String> {
    let mut comments = vec![concat!("memleak ", env!("CARGO_PKG_VERSION")).to_owned()];
    comments.extend(flame::remarks(report, Quantity::default()));
    comments.extend(
        report
            .verdict()
            .map(|of_all| format!("verdict: {}", verdict::in_words(&of_all))),
    );
    comments.extend(report.judgement.iter().flat_map(verdict::doubts));
    if report.losses == Losses::default() {
        comments.push("lost: nothing".to_owned());
    }
    comments
}

/// Converts to the format's integers; saturates.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
