//! Growth of the heap, divided: what blocks take, lost or kept, what they pin, and what is free.

use leak_report::model::Amount;
use leak_report::model::diagnosis::{Cause, CauseKind, Certainty};

use crate::course::Course;
use crate::observed::{HeapUse, Observed, Site, Took, Trace};
use crate::region::Region;
use crate::words;

/// Sites whose share of the growth is below this are not named each.
const MIN_SHARE: f64 = 0.05;
/// Share of a site's blocks from which they count as lost.
const MOSTLY: f64 = 0.5;
/// Factor by which sites may seem to grow more than all blocks do before some of them must be caches that
/// are only renewed.
const RENEWED: f64 = 1.5;

/// Parts of the heap's growth, in bytes per second, that add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Parts {
    blocks: f64,
    pinned: f64,
    free: f64,
}

impl Parts {
    /// Divides `rate` as the uses of the memory have changed. Without uses, all of it is by blocks.
    fn of(rate: f64, heap: Option<&[HeapUse; 2]>) -> Self {
        let all = Self {
            blocks: rate,
            ..Self::default()
        };
        let Some([first, last]) = heap else {
            return all;
        };
        let grown = |of: fn(&HeapUse) -> u64| of(last).saturating_sub(of(first)) as f64;
        let parts = [
            grown(|heap| heap.in_blocks),
            grown(|heap| heap.pinned),
            grown(|heap| heap.free),
        ];
        let sum: f64 = parts.iter().sum();
        if sum <= 0.0 {
            return all;
        }
        let [blocks, pinned, free] = parts.map(|part| rate * part / sum);
        Self { blocks, pinned, free }
    }
}

/// Causes of the heap's growth.
pub(crate) fn causes(course: &Course, observed: &Observed) -> Vec<Cause> {
    let rate = course.rate.slope;
    let parts = Parts::of(rate, observed.heap.as_ref());
    let trace = observed
        .traces
        .iter()
        .find(|trace| trace.sites.iter().any(|site| site.took == Took::Block));
    let mut causes = match trace {
        Some(trace) => of_blocks(parts.blocks, rate, trace),
        None => of_pages(parts.blocks, rate, observed),
    };
    if let Some([_, last]) = &observed.heap {
        let pins = trace.and_then(most_pinning);
        let held = |kind, bytes_per_second, bytes, site: Option<&Site>| Cause {
            kind,
            share: 0.0,
            bytes_per_second,
            amount: Amount {
                bytes,
                blocks: site.map_or(0, |site| site.pinned.blocks),
            },
            certainty: Certainty::Certain,
            site: site.map(|site| site.place.clone()),
            holder: None,
            meaning: words::meaning(kind, None),
            next: match site {
                Some(site) => words::of_site(kind, site),
                None => words::of_heap(kind, last),
            },
        };
        let both = [
            held(CauseKind::Pinned, parts.pinned, last.pinned, pins),
            held(CauseKind::FreeInAllocator, parts.free, last.free, None),
        ];
        let matters = |cause: &Cause| cause.bytes_per_second >= MIN_SHARE * rate;
        causes.extend(both.into_iter().filter(matters));
    }
    causes
}

/// The place whose blocks pin most, if they pin any.
fn most_pinning(trace: &Trace) -> Option<&Site> {
    let pins = trace.sites.iter().filter(|site| site.pinned.bytes > 0);
    pins.max_by_key(|site| site.pinned.bytes)
}

/// Causes of the blocks' growth, `rate` bytes per second of the heap's `all`.
fn of_blocks(rate: f64, all: f64, trace: &Trace) -> Vec<Cause> {
    if rate < MIN_SHARE * all {
        return Vec::new();
    }
    let lost = |site: &&Site| trace.is_judged && site.lost_share() >= MOSTLY;
    let sites = || trace.sites.iter().filter(|site| site.took == Took::Block);
    let lost_rate: f64 = sites().filter(lost).map(|site| site.rate(trace)).sum();
    let kept_rate: f64 = sites()
        .filter(|site| !lost(site))
        .map(|site| site.rate(trace))
        .sum();
    // What is lost is lost for sure; what is kept grows by the rest.
    let lost_scale = (rate / lost_rate.max(1.0)).min(1.0);
    let rest = rate - lost_rate * lost_scale;
    let kept_scale = rest / kept_rate.max(1.0);
    let mut causes = Vec::new();
    let mut left = rate;
    for site in sites() {
        let is_lost = lost(&site);
        let scale = if is_lost { lost_scale } else { kept_scale.min(1.0) };
        let grown = site.rate(trace) * scale;
        if grown < MIN_SHARE * all {
            continue;
        }
        left -= grown;
        let certainty = match is_lost {
            true => Certainty::Certain,
            false if kept_rate > RENEWED * rest => Certainty::Possible,
            false => Certainty::Likely,
        };
        causes.push(of_site(site, is_lost, grown, certainty));
    }
    if left >= MIN_SHARE * all && causes.is_empty() {
        causes.push(unknown(left));
    }
    causes
}

fn of_site(site: &Site, is_lost: bool, bytes_per_second: f64, certainty: Certainty) -> Cause {
    let kind = match is_lost {
        true => CauseKind::Lost,
        false => CauseKind::Kept,
    };
    Cause {
        kind,
        share: 0.0,
        bytes_per_second,
        amount: if is_lost { site.lost } else { site.outstanding },
        certainty,
        site: Some(site.place.clone()),
        holder: site.holder.clone().filter(|_| !is_lost),
        meaning: words::meaning(kind, site.holder.as_deref().filter(|_| !is_lost)),
        next: words::of_site(kind, site),
    }
}

/// Causes of the blocks' growth, where blocks are not traced: by the places that touch the heap's new pages.
fn of_pages(rate: f64, all: f64, observed: &Observed) -> Vec<Cause> {
    if rate < MIN_SHARE * all {
        return Vec::new();
    }
    let sites = observed.rates(Took::Page(Region::Heap));
    let sum: f64 = sites.iter().map(|(_, rate)| rate).sum();
    let in_blocks = observed.heap.map_or(0, |[_, last]| last.in_blocks);
    let is_lost = observed
        .lost
        .is_some_and(|lost| in_blocks > 0 && lost as f64 >= MOSTLY * in_blocks as f64);
    let named = sites.into_iter().filter_map(|(site, grown)| {
        let grown = grown * rate / sum.max(1.0);
        let mut cause = of_site(site, is_lost, grown, Certainty::Possible);
        if let (true, Some(bytes)) = (is_lost, observed.lost) {
            cause.amount = Amount { bytes, blocks: 0 };
        }
        (grown >= MIN_SHARE * all).then_some(cause)
    });
    let named: Vec<_> = named.collect();
    match named.is_empty() {
        true => vec![unknown(rate)],
        false => named,
    }
}

/// Growth of blocks whose place is not known.
fn unknown(bytes_per_second: f64) -> Cause {
    let kind = CauseKind::Kept;
    Cause {
        kind,
        share: 0.0,
        bytes_per_second,
        amount: Amount::default(),
        certainty: Certainty::Possible,
        site: None,
        holder: None,
        meaning: words::meaning(kind, None),
        next: words::of_unknown_blocks(),
    }
}
