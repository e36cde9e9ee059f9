//! Free memory that blocks pin, as text: for a stack what its blocks pin, and for each process how much
//! memory is free in its allocators.

use std::collections::BTreeMap;

use super::estimates::error;
use super::health::has_lost;
use super::words::{counted, short_size};
use crate::model::{
    Amount, Estimate, Fragmentation, HeldBytes, NotMeasured, Report, Sampling, StackRef, TargetFacts,
};

/// Maximum number of processes with lines of their own.
const MAX_PROCESSES: usize = 10;

/// Memory that the blocks of a stack pin: `480 KiB in 500 blocks pin 15 MiB`; `None` if they pin none, or if
/// that is not known.
pub(super) fn of_stack(stack: StackRef<'_>) -> Option<String> {
    let Estimate { amount, spread } = stack.pinned?;
    let all = stack.outstanding.amount;
    let Amount { bytes, blocks } = amount;
    if bytes == 0 {
        return None;
    }
    let verb = if blocks == 1 { "pins" } else { "pin" };
    let who = match blocks >= all.blocks {
        true => format!("{} in {}", short_size(all.bytes), counted(blocks, "block")),
        false => format!("{blocks} of {}", counted(all.blocks, "block")),
    };
    Some(match stack.report().sampling {
        Sampling::All => format!("{who} {verb} {}", short_size(bytes)),
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
            format!("about {who} {verb} {}, {}", short_size(bytes), error(spread))
        }
    })
}

/// Bytes that the blocks of a stack pin, for the table.
pub(super) fn cell(stack: StackRef<'_>) -> String {
    let pinned = stack.pinned.map(|pinned| short_size(pinned.amount.bytes));
    pinned.unwrap_or_else(|| "?".to_owned())
}

/// Lines about the memory that is free in the allocators of each process, and why that is not known; empty if
/// it was not asked for.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let several = report.targets.len() > 1;
    let known = |target: &&TargetFacts| {
        target
            .fragmentation
            .as_ref()
            .and_then(Fragmentation::total)
            .is_some()
    };
    let mut targets: Vec<_> = report.targets.iter().filter(known).collect();
    let left_out = targets.split_off(targets.len().min(MAX_PROCESSES));
    let mut lines: Vec<_> = targets
        .into_iter()
        .flat_map(|target| of_target(target, several, report))
        .collect();
    if !left_out.is_empty() {
        lines.push(format!("and of {} more processes", left_out.len()));
    }
    lines.extend(not_measured(report));
    lines
}

/// Lines about one process: what is free, and what is pinned by blocks of no stack.
fn of_target(target: &TargetFacts, several: bool, report: &Report) -> Vec<String> {
    let memory = target.fragmentation.as_ref().and_then(Fragmentation::known);
    let of_process = match several {
        true => format!(" of {}", target.pid),
        false => String::new(),
    };
    let memory = memory.unwrap_or_default();
    let total: HeldBytes = memory.iter().map(|memory| memory.held).sum();
    let mut line = format!(
        "free in the allocator{of_process}: {}, of it pinned by blocks {}",
        short_size(total.free()),
        short_size(total.pinned_by_blocks())
    );
    let trims = memory.iter().filter(|memory| memory.held.free() > 0);
    let trims = trims.filter_map(|memory| Some((memory.allocator.trim()?, memory.held.trimmable)));
    let trims: Vec<_> = trims
        .map(|(call, bytes)| format!("`{call}` would return {}", short_size(bytes)))
        .collect();
    if !trims.is_empty() {
        line += &format!("; {}", trims.join(", "));
    }
    let others = report.pinned_by_others(target).filter(|&bytes| bytes > 0);
    let others = others.map(|bytes| {
        let about = if report.sampling == Sampling::All {
            ""
        } else {
            "about "
        };
        format!(
            "{about}{} pinned by {}{of_process}",
            short_size(bytes),
            blocks_without_stacks(report)
        )
    });
    [Some(line), others].into_iter().flatten().collect()
}

/// Blocks that no stack has.
fn blocks_without_stacks(report: &Report) -> &'static str {
    match report.events.filtered.blocks > 0 || has_lost(&report.losses) {
        true => "blocks from before the attach, or that were not recorded",
        false => "blocks from before the attach",
    }
}

/// Notes on processes of which nothing is known, one for each reason.
fn not_measured(report: &Report) -> Vec<String> {
    let mut reasons: BTreeMap<NotMeasured, Vec<u32>> = BTreeMap::new();
    for target in &report.targets {
        match &target.fragmentation {
            Some(Fragmentation::Unknown(reason)) => reasons.entry(*reason).or_default().push(target.pid),
            Some(Fragmentation::Known(_)) | None => {}
        }
    }
    let lines = reasons.iter().map(|(reason, pids)| {
        let who = match &pids[..] {
            [pid] => format!("process {pid}"),
            several => format!("{} processes", several.len()),
        };
        format!("not known of {who}: {}", reason.words())
    });
    lines.collect()
}
