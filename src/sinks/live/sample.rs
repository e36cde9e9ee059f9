//! Part of a report that the view keeps: numbers, and the sites worth a line.
//!
//! A report can have more than a hundred thousand stacks, most of which a view cannot use. It keeps those
//! that are among the first in any order that the user can choose, and counts the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use unwind_tables::walk::{End, LeftOut, Unwind};

use super::text::{printable, short_count};
use leak_report::model::leak::Suspicion;
use leak_report::model::{
    Amount, Dictionary, Estimate, InstanceEnd, Losses, NameStyle, PathId, Sampling, SiteKey, StackRef,
    StepStacks, Verdict,
};
use leak_report::model::{Report, TargetFacts, TimeOfDay, Unit};
use leak_report::render::titles::title;
use leak_report::render::{
    counted, end_of, explain, holder_lines, losses_in_short, percent, share, short_size, telling_peak,
    verdict_in_words, verdict_of_stack, via, whole,
};

/// Sites kept per order.
const SITES_PER_ORDER: usize = 250;

/// Orders of sites, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Definitely lost bytes, then suspicion: how much they behave like leaks.
    Suspicion,
    /// Bytes outstanding.
    Outstanding,
    /// Net growth (allocated - freed).
    Growth,
    /// Everything allocated.
    Allocated,
    /// Blocks outstanding.
    Blocks,
}

impl Order {
    pub(super) const ALL: [Self; 5] = [
        Self::Suspicion,
        Self::Outstanding,
        Self::Growth,
        Self::Allocated,
        Self::Blocks,
    ];

    /// Next order, in a circle.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Suspicion => Self::Outstanding,
            Self::Outstanding => Self::Growth,
            Self::Growth => Self::Allocated,
            Self::Allocated => Self::Blocks,
            Self::Blocks => Self::Suspicion,
        }
    }
}

/// Net growth (allocated - freed) in bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NetGrowth {
    pub(super) bytes: i64,
    pub(super) blocks: i64,
}

impl NetGrowth {
    pub(super) fn of(self, unit: Unit) -> i64 {
        match unit {
            Unit::Bytes => self.bytes,
            Unit::Blocks => self.blocks,
        }
    }
}

/// Part of a site that is shown.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// Key that is the same in each report.
    pub(super) key: SiteKey,
    pub(super) pid: u32,
    pub(super) ended: Option<InstanceEnd>,
    /// Function that names the site; printable.
    pub(super) name: String,
    /// Allocator function, with the purpose of a mapping; printable.
    pub(super) allocator: String,
    /// Outstanding and not young.
    pub(super) shown: Amount,
    pub(super) young: Amount,
    pub(super) allocated: Amount,
    pub(super) lost: Amount,
    /// Verdict on the blocks; `None` without a verdict.
    pub(super) verdict: Option<Verdict>,
    /// Verdict in words; printable.
    pub(super) verdict_words: Option<String>,
    /// Holders of the blocks, and their classes; printable.
    pub(super) holders: Vec<String>,
    /// Growth since the baseline, if the user marked one; else since the previous report.
    pub(super) growth: NetGrowth,
    pub(super) suspicion: Suspicion,
    /// Standard error of the bytes shown; `None` where they are exact.
    pub(super) error: Option<u64>,
    pub(super) end: End,
    /// True if the stack was cut at the depth that the user chose.
    pub(super) is_cut: bool,
    /// End of the stack, and what can be done about it if it is not complete; printable.
    pub(super) end_lines: Vec<String>,
    pub(super) path: Option<PathId>,
    /// Frames that were left out between these.
    pub(super) left_out: Option<LeftOut>,
}

impl Site {
    /// Rank in an order; the greater comes first.
    pub(super) fn rank(&self, order: Order, unit: Unit) -> (bool, [i128; 4]) {
        let Self {
            shown,
            allocated,
            growth,
            suspicion,
            verdict,
            ..
        } = *self;
        let ranked = Ranked {
            lost: verdict.unwrap_or_default().definitely_lost,
            shown,
            allocated,
            growth,
            suspicion,
        };
        (self.ended.is_none(), ranked.rank(order, unit))
    }
}

/// Amounts that sites are ranked by.
#[derive(Clone, Copy)]
struct Ranked {
    /// Definitely lost; zero without a verdict.
    lost: Amount,
    shown: Amount,
    allocated: Amount,
    growth: NetGrowth,
    suspicion: Suspicion,
}

impl Ranked {
    fn rank(self, order: Order, unit: Unit) -> [i128; 4] {
        let (bytes, blocks) = (i128::from(self.shown.bytes), i128::from(self.shown.blocks));
        match order {
            Order::Suspicion => {
                let [score, growth] = self.suspicion.rank();
                // Definitely lost memory is certain, and ranks before any suspicion.
                [self.lost.bytes.into(), score, growth, bytes]
            }
            Order::Outstanding => [bytes, blocks, 0, 0],
            Order::Growth => [self.growth.of(unit).into(), bytes, 0, 0],
            Order::Allocated => [unit.of(self.allocated).into(), bytes, 0, 0],
            Order::Blocks => [blocks, bytes, 0, 0],
        }
    }
}

/// A report's words on the trace itself.
#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) overhead: Option<String>,
    pub(super) lost: Option<String>,
    /// Verdict on all blocks, with errors of an earlier one.
    pub(super) verdict: Option<String>,
    pub(super) has_false_verdict: bool,
    pub(super) completeness: String,
    pub(super) is_complete: bool,
    pub(super) sampling: Option<String>,
}

impl Health {
    fn of(report: &Report) -> Self {
        let (completeness, is_complete) = completeness(report);
        let judgement = report.judgement.as_ref();
        Self {
            overhead: overhead(report),
            lost: losses(&report.losses),
            verdict: report.verdict().map(|verdict| in_words(&verdict, report)),
            has_false_verdict: judgement.is_some_and(|judgement| judgement.freed_later.blocks > 0),
            completeness,
            is_complete,
            sampling: sampling(report.sampling),
        }
    }
}

/// Part of a report that is shown.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Frames of the sites.
    pub(super) dictionary: Arc<Dictionary>,
    pub(super) elapsed: Duration,
    /// Time since the previous report, or the attach.
    pub(super) since_last: Duration,
    /// Time at which the user marked the baseline, and time since then.
    pub(super) marked: Option<(TimeOfDay, Duration)>,
    /// Processes or kernel that the memory belongs to; printable.
    pub(super) subject: String,
    /// True if several processes are traced: sites then show theirs.
    pub(super) is_of_several: bool,
    /// First process that has not ended.
    pub(super) process: Option<u32>,
    /// True if processes were traced, and all have ended.
    pub(super) has_ended: bool,
    pub(super) unwind: Unwind,
    pub(super) names: NameStyle,
    /// Age below which blocks are young.
    pub(super) older: Option<Duration>,
    /// Allocations since the attach.
    pub(super) allocations: u64,
    /// Frees since the attach, of known and unknown blocks.
    pub(super) frees: u64,
    /// Outstanding, young or not.
    pub(super) live: Amount,
    /// Highest total since the attach, if it notably exceeds the outstanding amount of running programs.
    pub(super) peak: Option<Amount>,
    pub(super) health: Health,
    pub(super) sites: Vec<Site>,
    /// Number of sites with something outstanding, kept or not.
    pub(super) outstanding_sites: u64,
    /// Number of sites that are not kept.
    pub(super) unlisted: u64,
}

impl Sample {
    pub(super) fn of(report: &Report) -> Self {
        let suspects: Vec<_> = report
            .suspects()
            .filter(|stack| stack.allocated.amount.blocks > 0)
            .collect();
        let kept = most_important(&suspects, report);
        let sites = suspects
            .iter()
            .zip(0..)
            .filter(|(_, number)| kept.contains(number));
        let outstanding_sites = suspects.iter().filter(|stack| stack.shown().blocks > 0);
        let stacks = StepStacks::of(report);
        let compared = &report.compared;
        Self {
            dictionary: Arc::clone(&report.dictionary),
            elapsed: report.elapsed,
            since_last: compared.since_last,
            marked: compared.marked.map(|time| (time, compared.since_baseline)),
            subject: subject(report),
            is_of_several: report.targets.len() > 1,
            process: report
                .targets
                .iter()
                .find(|target| target.ended.is_none())
                .map(|target| target.pid),
            has_ended: !report.targets.is_empty()
                && report.targets.iter().all(|target| target.ended.is_some()),
            unwind: report.unwind,
            names: report.names,
            older: compared.older,
            allocations: report.events.allocations,
            frees: report.events.frees.saturating_add(report.events.unknown_frees),
            live: suspects.iter().map(|stack| stack.outstanding.amount).sum(),
            peak: telling_peak(report).map(|peak| peak.total),
            health: Health::of(report),
            sites: sites.map(|(&stack, _)| site(stack, report, &stacks)).collect(),
            outstanding_sites: outstanding_sites.count() as u64,
            unlisted: (suspects.len() - kept.len()) as u64,
        }
    }

    /// Time over which growth is counted.
    pub(super) fn grown_in(&self) -> Duration {
        self.marked.map_or(self.since_last, |(_, time)| time)
    }
}

/// Indices of the stacks that are among the first in any order.
fn most_important(suspects: &[StackRef<'_>], report: &Report) -> HashSet<usize> {
    let measure = |stack: &StackRef<'_>| {
        let ranked = Ranked {
            lost: stack.judged().definitely_lost,
            shown: stack.shown(),
            allocated: stack.allocated.amount,
            growth: growth(*stack, report),
            suspicion: stack.recent.suspicion.unwrap_or_default(),
        };
        (stack.ended.is_some(), ranked)
    };
    let measured: Vec<_> = suspects.iter().map(measure).collect();
    let orders = Order::ALL.map(|order| (order, Unit::Bytes));
    // Only these two orders depend on the unit.
    let by_blocks = [Order::Growth, Order::Allocated].map(|order| (order, Unit::Blocks));
    let mut kept = HashSet::new();
    for (order, unit) in orders.into_iter().chain(by_blocks) {
        let mut ranked: Vec<_> = (0..measured.len()).collect();
        let key = |&number: &usize| {
            let (has_ended, ranked) = measured[number];
            (has_ended, ranked.rank(order, unit).map(|value| -value))
        };
        if ranked.len() > SITES_PER_ORDER {
            ranked.select_nth_unstable_by_key(SITES_PER_ORDER, key);
            ranked.truncate(SITES_PER_ORDER);
        }
        kept.extend(ranked);
    }
    kept
}

fn growth(stack: StackRef<'_>, report: &Report) -> NetGrowth {
    let change = match report.compared.marked {
        Some(_) => &stack.recent.since_baseline,
        None => &stack.recent.since_last,
    };
    NetGrowth {
        bytes: change.net_bytes(),
        blocks: change.net_blocks(),
    }
}

fn site(stack: StackRef<'_>, report: &Report, stacks: &StepStacks<'_>) -> Site {
    let Estimate { amount, spread } = stack.shown_estimate();
    Site {
        key: stack.key(),
        pid: stack.pid,
        ended: stack.ended,
        name: printable(&title(stack, report.names)),
        allocator: printable(&via(stack)),
        shown: amount,
        young: stack.recent.young.unwrap_or_default().amount,
        allocated: stack.allocated.amount,
        lost: stack.lost,
        verdict: stack.verdict,
        verdict_words: verdict_of_stack(stack),
        holders: holder_lines(stack, stacks, true),
        growth: growth(stack, report),
        suspicion: stack.recent.suspicion.unwrap_or_default(),
        error: (report.sampling != Sampling::All).then(|| whole(spread.standard_error().bytes)),
        end: stack.end,
        is_cut: stack.is_cut(),
        end_lines: end_lines(stack),
        path: stack.path,
        left_out: stack.left_out,
    }
}

fn end_lines(stack: StackRef<'_>) -> Vec<String> {
    let end = format!("end: {}", end_of(stack));
    let advice = match stack.is_cut() {
        true => "",
        false => explain(stack.end).advice,
    };
    let lines = [end, format!("     {advice}")].into_iter();
    let lines = lines.filter(|line| !line.trim().is_empty());
    lines.map(|line| printable(&line)).collect()
}

fn subject(report: &Report) -> String {
    let name = |target: &TargetFacts| format!("{} {}", target.pid, printable(&target.comm));
    let running: Vec<_> = report
        .targets
        .iter()
        .filter(|target| target.ended.is_none())
        .collect();
    match (&report.kernel, &report.targets[..], &running[..]) {
        (Some(kernel), ..) => format!("Linux {}", printable(&kernel.release)),
        (None, [target], _) => name(target),
        (None, _, [target]) => format!("{} and {} ended", name(target), report.targets.len() - 1),
        (None, all, []) => format!("{} processes, ended", all.len()),
        (None, _, [first, ..]) => format!("{} processes: {}…", running.len(), name(first)),
    }
}

fn overhead(report: &Report) -> Option<String> {
    let overhead = report.overhead.as_ref()?;
    let about = if overhead.measured { "" } else { "about " };
    let limit = overhead
        .governed
        .map(|governed| format!(" of {} allowed", share(governed.limit)));
    Some(format!(
        "{about}{}{}",
        share(overhead.lately),
        limit.unwrap_or_default()
    ))
}

/// Verdict in words. Errors of an earlier one come first, since the line may be cut.
fn in_words(verdict: &Verdict, report: &Report) -> String {
    let judgement = report.judgement.as_ref();
    let words = verdict_in_words(verdict);
    match judgement.map_or(0, |judgement| judgement.freed_later.blocks) {
        0 => words,
        1 => format!("1 block called lost was freed since; {words}"),
        more => format!("{more} blocks called lost were freed since; {words}"),
    }
}

/// Losses in words; `None` if nothing was lost.
fn losses(losses: &Losses) -> Option<String> {
    let parts = losses_in_short(losses, short_size);
    let causes = losses.causes.iter().filter(|&(_, &blocks)| blocks > 0);
    let causes: Vec<_> = causes
        .map(|(cause, blocks)| format!("{cause} {}", short_count(*blocks)))
        .collect();
    match (parts.is_empty(), causes.is_empty()) {
        (true, true) => None,
        (_, true) => Some(parts.join(", ")),
        (_, false) => Some(format!("{} ({})", parts.join(", "), causes.join(", "))),
    }
}

/// Number of complete stacks in words; true if all are.
fn completeness(report: &Report) -> (String, bool) {
    let [complete, stacks] = report.completeness.complete_stacks();
    if stacks == 0 {
        return ("no allocation yet".to_owned(), true);
    }
    if complete == stacks {
        return (format!("all {} complete", counted(stacks, "stack")), true);
    }
    let [complete_walks, walks] = report.completeness.complete_allocations();
    let share = percent(complete_walks, walks);
    let text = format!("{complete} of {stacks} stacks complete ({share} of allocations)");
    (text, false)
}

fn sampling(sampling: Sampling) -> Option<String> {
    match sampling {
        Sampling::All => None,
        Sampling::Calls(calls) => Some(format!("estimates: 1 of {calls}")),
        Sampling::Bytes(bytes) | Sampling::Governed(bytes) if bytes > 1 => {
            Some(format!("estimates: 1 for each {}", short_size(bytes)))
        }
        Sampling::Bytes(_) | Sampling::Governed(_) => None,
        Sampling::Provider(None) => Some("estimates: chosen by the process".to_owned()),
        Sampling::Provider(Some(bytes)) => Some(format!("estimates: 1 for each {}", short_size(bytes))),
    }
}
