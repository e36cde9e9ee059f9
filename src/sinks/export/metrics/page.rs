//! Renders the metrics page.
//!
//! Counters count from the attach to the last report. Outstanding memory excludes young blocks, as in reports
//! for people. The number of process and site series is bounded; one more series has the sum of the rest.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use super::sites::{self, Amounts};
use super::text::Page;
use crate::sinks::export::push::Counts;
use leak_report::model::leak::WALKS;
use leak_report::model::{Amount, CALLS, Count, Fragmentation, LOSSES, Losses, Sampling};
use leak_report::model::{Report, TargetFacts};
use leak_report::render::printable;

/// Maximum number of processes with their own series.
const MAX_PROCESSES: usize = 100;
/// Label value of the series that sums the rest.
const OTHER: &str = "other";

/// The page before the first report.
pub(super) fn before_reports() -> String {
    let mut page = Page::default();
    build(&mut page);
    page.into_text()
}

/// The page of a report, with own series for the `sites` largest sites.
pub(super) fn of_report(report: &Report, sites: usize) -> String {
    let mut page = Page::default();
    build(&mut page);
    times(&mut page, report);
    counts(&mut page, &CALLS, &report.events);
    outstanding(&mut page, report, sites);
    losses(&mut page, &report.losses);
    counts(&mut page, &WALKS, &report.completeness);
    stacks(&mut page, report);
    cost(&mut page, report);
    page.into_text()
}

/// Adds nothing: this build does not push.
#[cfg(not(feature = "net"))]
pub(super) fn of_push(Counts: &Counts) -> String {
    String::new()
}

/// Adds the metrics of pushing.
#[cfg(feature = "net")]
pub(super) fn of_push(counts: &Counts) -> String {
    let mut page = Page::default();
    page.counter(
        "memleak_push_sent_profiles_total",
        "Profiles that the server has accepted.",
    )
    .is(counts.sent);
    let mut lost = page.counter(
        "memleak_push_lost_profiles_total",
        "Profiles that did not arrive at the server, by cause.",
    );
    for (cause, count) in counts.losses.by_cause() {
        lost.of(&[("cause", cause)], count);
    }
    page.counter(
        "memleak_push_retries_total",
        "Failed requests that are sent again.",
    )
    .is(counts.retries);
    page.gauge("memleak_push_waiting_profiles", "Profiles that are not sent yet.")
        .is(counts.waiting);
    page.into_text()
}

fn build(page: &mut Page) {
    page.gauge("memleak_build_info", "The version of memleak; always 1.")
        .of(&[("version", env!("CARGO_PKG_VERSION"))], 1);
}

fn times(page: &mut Page, report: &Report) {
    let since_epoch = report.read_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    page.gauge(
        "memleak_report_timestamp_seconds",
        "Time of the last report, which all metrics of this page describe.",
    )
    .is(since_epoch.as_secs_f64());
    page.gauge(
        "memleak_trace_duration_seconds",
        "Time from the attach to the last report.",
    )
    .is(report.elapsed.as_secs_f64());
    let distance = match report.sampling {
        Sampling::Bytes(bytes) | Sampling::Governed(bytes) => Some(bytes),
        Sampling::Provider(bytes) => bytes,
        Sampling::All | Sampling::Calls(_) => None,
    };
    if let Some(bytes) = distance {
        page.gauge(
            "memleak_sampling_distance_bytes",
            "Mean number of allocated bytes per recorded allocation; if above 1, amounts are estimates.",
        )
        .is(bytes);
    }
}

/// Adds the counts that have a metric.
fn counts<T>(page: &mut Page, counts: &[Count<T>], of: &T) {
    for count in counts {
        if let Some(metric) = &count.metric {
            page.counter(metric.name, metric.help).is((count.of)(of));
        }
    }
}

fn outstanding(page: &mut Page, report: &Report, sites: usize) {
    let all: Amount = report.suspects().map(|stack| stack.shown()).sum();
    page.gauge("memleak_outstanding_bytes", "Bytes allocated and not freed.")
        .is(all.bytes);
    page.gauge("memleak_outstanding_blocks", "Blocks allocated and not freed.")
        .is(all.blocks);
    verdict(page, report);
    processes(page, report);
    if sites > 0 {
        of_sites(page, report, sites);
    }
}

/// Adds the amounts of each class of the verdict, and how it was made; nothing without a verdict.
fn verdict(page: &mut Page, report: &Report) {
    let (Some(verdict), Some(judgement)) = (report.verdict(), &report.judgement) else {
        return;
    };
    for (bytes, blocks, help, amount) in [
        (
            "memleak_definitely_lost_bytes",
            "memleak_definitely_lost_blocks",
            "that no chain of pointers leads to, by the last verdict.",
            verdict.definitely_lost,
        ),
        (
            "memleak_indirectly_lost_bytes",
            "memleak_indirectly_lost_blocks",
            "that only lost blocks lead to, by the last verdict.",
            verdict.indirectly_lost,
        ),
        (
            "memleak_reachable_bytes",
            "memleak_reachable_blocks",
            "that the process can still reach, by the last verdict.",
            verdict.reachable,
        ),
        (
            "memleak_unjudged_bytes",
            "memleak_unjudged_blocks",
            "that the last verdict could not judge.",
            verdict.unknown,
        ),
    ] {
        page.gauge(bytes, &format!("Bytes {help}")).is(amount.bytes);
        page.gauge(blocks, &format!("Blocks {help}")).is(amount.blocks);
    }
    page.counter(
        "memleak_falsely_lost_blocks_total",
        "Blocks that a verdict of the trace called lost, and that were freed since.",
    )
    .is(judgement.freed_later.blocks);
    page.gauge("memleak_verdict_seconds", "Time that the last verdict took.")
        .is(judgement.took.as_secs_f64());
    page.gauge(
        "memleak_verdict_passes",
        "Passes of the last verdict over a process's memory, for the process with most passes.",
    )
    .is(judgement.passes);
}

/// Adds series for the `sites` largest sites.
fn of_sites(page: &mut Page, report: &Report, sites: usize) {
    let (largest, others) = sites::largest(report, sites);
    let mut series = Vec::new();
    for site in &largest {
        let mut labels = vec![
            ("site", site.id.clone()),
            ("allocator", site.allocator.clone()),
            ("function", site.function.clone()),
            ("module", site.module.clone()),
        ];
        // Kernel memory and memory of no single process have no pid label.
        if site.pid != 0 {
            labels.push(("pid", site.pid.to_string()));
        }
        series.push((labels, site.amounts));
    }
    series.push((vec![("site", OTHER.to_owned())], others));
    let of = |amount: fn(&Amounts) -> Amount| -> Vec<(Labels, Amount)> {
        let series = series.iter();
        series
            .map(|(labels, amounts)| (labels.clone(), amount(amounts)))
            .collect()
    };
    two_families(
        page,
        &of(|amounts| amounts.outstanding),
        (
            "memleak_site_outstanding_bytes",
            "Bytes allocated and not freed, by the calling stack that allocated them.",
        ),
        (
            "memleak_site_outstanding_blocks",
            "Blocks allocated and not freed, by the calling stack that allocated them.",
        ),
    );
    if report.judgement.is_some() {
        two_families(
            page,
            &of(|amounts| amounts.definitely_lost),
            (
                "memleak_site_definitely_lost_bytes",
                "Bytes that no chain of pointers leads to, by the calling stack that allocated them.",
            ),
            (
                "memleak_site_definitely_lost_blocks",
                "Blocks that no chain of pointers leads to, by the calling stack that allocated them.",
            ),
        );
    }
    if report.pinned().is_some() {
        two_families(
            page,
            &of(|amounts| amounts.pinned),
            (
                "memleak_site_pinned_bytes",
                "Free memory that stays resident because of blocks, by the calling stack that allocated them.",
            ),
            (
                "memleak_site_pinning_blocks",
                "Blocks because of which free memory stays resident, by the calling stack that allocated them.",
            ),
        );
    }
}

type Labels = Vec<(&'static str, String)>;

fn two_families(
    page: &mut Page,
    series: &[(Labels, Amount)],
    bytes: (&'static str, &str),
    blocks: (&'static str, &str),
) {
    for ((name, help), of) in [
        (bytes, (|amount: &Amount| amount.bytes) as fn(&Amount) -> u64),
        (blocks, |amount| amount.blocks),
    ] {
        let mut family = page.gauge(name, help);
        for (labels, amount) in series {
            let labels: Vec<_> = labels
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            family.of(&labels, of(amount));
        }
    }
}

/// Adds series for running processes; ended ones have no memory.
fn processes(page: &mut Page, report: &Report) {
    let mut outstanding: HashMap<u32, Amount> = HashMap::new();
    for stack in report.suspects() {
        let sum = outstanding.entry(stack.instance).or_default();
        *sum = [*sum, stack.shown()].into_iter().sum();
    }
    let running = |target: &&TargetFacts| target.ended.is_none();
    let mut targets: Vec<&TargetFacts> = report.targets.iter().filter(running).collect();
    let of = |target: &TargetFacts| outstanding.get(&target.instance).copied().unwrap_or_default();
    targets.sort_by_key(|target| (Reverse(of(target).bytes), target.pid));
    let others = targets.split_off(MAX_PROCESSES.min(targets.len()));
    let labels = |target: &TargetFacts| {
        let comm = printable(&target.comm);
        vec![("pid", target.pid.to_string()), ("comm", comm)]
    };
    let mut series: Vec<(Labels, Amount)> = targets
        .iter()
        .map(|target| (labels(target), of(target)))
        .collect();
    if !others.is_empty() {
        let sum = others.into_iter().map(of).sum();
        series.push((vec![("pid", OTHER.to_owned())], sum));
    }
    two_families(
        page,
        &series,
        (
            "memleak_process_outstanding_bytes",
            "Bytes allocated and not freed, by running process.",
        ),
        (
            "memleak_process_outstanding_blocks",
            "Blocks allocated and not freed, by running process.",
        ),
    );
    let mut resident = page.gauge(
        "memleak_process_resident_bytes",
        "Resident memory of the processes.",
    );
    for target in &targets {
        if let Some(memory) = &target.memory {
            let pid = target.pid.to_string();
            let comm = printable(&target.comm);
            resident.of(&[("pid", &pid), ("comm", &comm)], memory.rss);
        }
    }
    if report.pinned().is_some() {
        pinned(page, &targets);
    }
}

/// Adds the free memory that all blocks of each process pin, with a trace of their allocation or without.
fn pinned(page: &mut Page, targets: &[&TargetFacts]) {
    let mut pinned = page.gauge(
        "memleak_pinned_bytes",
        "Free memory of the allocator that stays resident because of blocks, by running process.",
    );
    for target in targets {
        if let Some(total) = target.fragmentation.as_ref().and_then(Fragmentation::total) {
            let pid = target.pid.to_string();
            let comm = printable(&target.comm);
            pinned.of(&[("pid", &pid), ("comm", &comm)], total.pinned_by_blocks());
        }
    }
}

fn losses(page: &mut Page, losses: &Losses) {
    let mut blocks = page.counter(
        "memleak_lost_blocks_total",
        "Blocks that were allocated and could not be recorded, by cause.",
    );
    for (cause, count) in &losses.causes {
        blocks.of(&[("cause", cause)], count);
    }
    page.counter(
        "memleak_lost_bytes_total",
        "Bytes of blocks that could not be recorded.",
    )
    .is(losses.bytes);
    counts(page, &LOSSES, losses);
}

fn stacks(page: &mut Page, report: &Report) {
    let mut stacks = page.gauge(
        "memleak_stacks",
        "Distinct stacks that allocated, by how their walk ended.",
    );
    for (end, count) in &report.completeness.stacks {
        stacks.of(&[("end", end.name())], count);
    }
    let mut allocations = page.gauge(
        "memleak_stack_allocations",
        "Blocks allocated by these stacks, by how their walk ended.",
    );
    for (end, count) in &report.completeness.allocations {
        allocations.of(&[("end", end.name())], count);
    }
}

fn cost(page: &mut Page, report: &Report) {
    if let Some(overhead) = &report.overhead {
        page.gauge(
            "memleak_overhead_ratio",
            "Cost of tracing for the traced processes in the last second, as a share of one CPU.",
        )
        .is(overhead.lately);
        let spent = overhead.spent.program_nanoseconds() + overhead.spent.trap_nanoseconds;
        page.counter(
            "memleak_overhead_seconds_total",
            "CPU time that tracing has cost the traced processes.",
        )
        .is(spent / 1e9);
    }
    for (name, help, bytes) in [
        (
            "memleak_resident_memory_bytes",
            "Resident memory of memleak itself.",
            report.own.resident_bytes,
        ),
        (
            "memleak_kernel_memory_bytes",
            "Memory of memleak's maps in the kernel.",
            report.own.kernel_bytes,
        ),
    ] {
        page.gauge(name, help).is(bytes);
    }
}
