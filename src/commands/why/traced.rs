//! Short traces that tell who makes a region grow.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use leak_report::model::diagnosis::Place;
use leak_report::model::owner::owner;
use leak_report::model::{Amount, RegionKind, Report, SiteKey, StackRef};
use leak_report::render::root_in_words;
use leak_report::render::titles::{function_title, title};

use crate::session::{Counted, MaxOverhead, Session, Signals, TraceConfig, VerdictSettings, View, storages};
use memleak_why::{Observed, Region, Site, Took, Trace, growing};

/// Kind of memory that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Blocks,
    Mappings,
    Pages,
}

impl Wanted {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Mappings => "mappings",
            Self::Pages => "page faults",
        }
    }

    fn counted(self) -> Counted {
        match self {
            Self::Blocks => Counted::Blocks,
            Self::Mappings => Counted::Mappings,
            Self::Pages => Counted::Pages,
        }
    }

    /// The trace that tells who takes memory of a region; `None` if none does.
    fn of(region: Region) -> Option<Self> {
        match region {
            Region::Heap => Some(Self::Blocks),
            Region::LiveStacks | Region::EndedStacks | Region::Mappings => Some(Self::Mappings),
            Region::MainStack | Region::Shared | Region::Files | Region::HugePages | Region::Managed => {
                Some(Self::Pages)
            }
            Region::Kernel => None,
        }
    }
}

/// Traces that are needed by now, each once, the one about the fastest growth first.
pub(super) fn wanted(observed: &Observed) -> Vec<Wanted> {
    let mut all = Vec::new();
    for wanted in growing(observed).into_iter().filter_map(Wanted::of) {
        if !all.contains(&wanted) {
            all.push(wanted);
        }
    }
    all
}

/// Traces a kind of memory for some time; calls `on_tick` several times a second.
pub(super) fn trace(
    (pid, wanted): (u32, Wanted),
    time: Duration,
    limit: MaxOverhead,
    signals: &Signals,
    on_tick: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Trace> {
    let mut config = TraceConfig::of_process(pid);
    config.count.counted = wanted.counted();
    config.count.max_overhead = (wanted == Wanted::Blocks).then_some(limit);
    let mut storages = storages();
    let mut session = Session::start(&mut storages, &config)?;
    let began = Instant::now();
    let end = began + time.saturating_sub(RESERVE).max(time / 2);
    let middle = began + (end - began) / 2;
    let plain = View::default();
    let ended = session.follow_with(middle, signals, &mut |_| on_tick())?;
    let before = session.report(&plain, 0, signals)?;
    let read = Instant::now();
    if !ended {
        session.follow_with(end, signals, &mut |_| on_tick())?;
    }
    let judged = View {
        verdict: (wanted == Wanted::Blocks).then(VerdictSettings::default),
        ..plain
    };
    let second_half = read.elapsed();
    let report = session.last_report(&judged, 0, signals)?;
    Ok(Trace {
        second_half,
        sites: sites(&before, &report, wanted),
        is_judged: wanted == Wanted::Blocks,
    })
}

/// Time that is kept for the verdict and the report.
const RESERVE: Duration = Duration::from_secs(3);

/// Sites of a report, with what they had before.
fn sites(before: &Report, report: &Report, wanted: Wanted) -> Vec<Site> {
    let known: HashMap<SiteKey, Amount> = before
        .stacks()
        .map(|stack| (stack.key(), stack.outstanding.amount))
        .collect();
    let site = |stack: StackRef<'_>| {
        let verdict = stack.verdict.unwrap_or_default();
        let held = stack.held.as_deref();
        Site {
            place: place(stack, report),
            took: took(stack.kind, wanted),
            outstanding: stack.outstanding.amount,
            before: known.get(&stack.key()).copied().unwrap_or_default(),
            lost: verdict.definitely_lost + verdict.indirectly_lost,
            holder: held
                .and_then(|held| held.by.first())
                .map(|holder| root_in_words(&holder.root, report)),
        }
    };
    report.stacks().map(site).collect()
}

fn took(kind: Option<RegionKind>, wanted: Wanted) -> Took {
    match (wanted, kind) {
        (Wanted::Blocks, _) => Took::Block,
        (Wanted::Pages, _) => Took::Page,
        (Wanted::Mappings, Some(RegionKind::ThreadStack)) => Took::ThreadStack,
        (Wanted::Mappings, Some(RegionKind::Shared)) => Took::Shared,
        (Wanted::Mappings, Some(RegionKind::File)) => Took::File,
        (
            Wanted::Mappings,
            Some(RegionKind::Anonymous | RegionKind::Reservation | RegionKind::Allocator) | None,
        ) => Took::Mapping,
    }
}

fn place(stack: StackRef<'_>, report: &Report) -> Place {
    let Some(owner) = owner(stack) else {
        return Place {
            function: title(stack, report.names).into(),
            ..Place::default()
        };
    };
    let (file, line) = owner.source();
    Place {
        function: function_title(&owner, report.names).into(),
        file: file.map(Into::into),
        line,
        module: owner.frame.module().map(|module| module.path().into()),
    }
}
