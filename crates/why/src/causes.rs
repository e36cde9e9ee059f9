//! Causes of the growth of each region.

use leak_report::model::Amount;
use leak_report::model::diagnosis::{Cause, CauseKind, Certainty};

use crate::course::Course;
use crate::heap;
use crate::observed::{Observed, Site, Took};
use crate::region::Region;
use crate::words;

/// Sites that explain less than this share of a region's growth are not named.
const MIN_SHARE: f64 = 0.1;
/// Part of a region's growth that sites must explain to be preferred to other ways of explaining it.
const HALF: f64 = 0.5;

/// Causes of the growth of a region, without their shares of all growth.
pub(crate) fn of_region(region: Region, course: &Course, observed: &Observed) -> Vec<Cause> {
    let page = Took::Page(region);
    let of = |kind, took: &[Took]| of_sites((region, kind), took, course, observed);
    match region {
        Region::Heap => heap::causes(course, observed),
        Region::LiveStacks | Region::EndedStacks => of(CauseKind::ThreadStacks, &[Took::ThreadStack]),
        Region::Mappings => of(CauseKind::Mappings, &[Took::Mapping, page]),
        // Who makes ever more files is responsible rather than who fills them.
        Region::Shared => of(CauseKind::SharedMemory, &[Took::MemoryFile, page]),
        Region::Files => of(CauseKind::Files, &[page]),
        Region::HugePages => of(CauseKind::HugePages, &[page]),
        Region::MainStack => of(CauseKind::Stack, &[page]),
        Region::Managed => of(CauseKind::ManagedHeap, &[page]),
        Region::Kernel => of(CauseKind::Kernel, &[Took::Descriptor]),
        Region::PageTables => vec![page_tables(course)],
    }
}

/// A cause for each site that took much of what the region has grown by: by the first way of `took` that
/// explains at least half of it, else by the last way that has any. One without a site if there is none.
fn of_sites(
    (region, kind): (Region, CauseKind),
    took: &[Took],
    course: &Course,
    observed: &Observed,
) -> Vec<Cause> {
    let rate = course.rate.slope;
    let rates = |took: Took| -> Vec<_> {
        let mut rates = observed.rates(took);
        rates.retain(|(_, rate)| *rate > 0.0);
        rates
    };
    let sum = |sites: &[(&Site, f64)]| -> f64 { sites.iter().map(|(_, rate)| rate).sum() };
    let all: Vec<_> = took.iter().map(|&took| rates(took)).collect();
    let explaining = all.iter().find(|sites| sum(sites) >= HALF * rate);
    let chosen = explaining.or_else(|| all.iter().rfind(|sites| !sites.is_empty()));
    let name = observed.names.get(&region).map(String::as_str);
    let Some(sites) = chosen else {
        return vec![cause((kind, name), None, rate, course)];
    };
    // Of mappings, only touched pages count, and what was given back is not followed everywhere: the region's
    // growth is divided in proportion.
    let scale = rate / sum(sites).max(1.0);
    let named = sites
        .iter()
        .map(|&(site, grown)| (site, grown * scale))
        .filter(|(_, grown)| *grown >= MIN_SHARE * rate)
        .map(|(site, grown)| cause((kind, name), Some(site), grown, course));
    let mut named: Vec<_> = named.collect();
    let rest = rate - named.iter().map(|cause| cause.bytes_per_second).sum::<f64>();
    if rest >= MIN_SHARE * rate {
        named.push(cause((kind, name), None, rest, course));
    }
    named
}

fn page_tables(course: &Course) -> Cause {
    let rate = course.rate.slope;
    Cause {
        meaning: words::PAGE_TABLES.to_owned(),
        next: words::AFTER_PAGE_TABLES.to_owned(),
        ..cause((CauseKind::Kernel, Some("page tables")), None, rate, course)
    }
}

/// A cause of growth. `name`: that of the memory, if it has one.
fn cause(
    (kind, name): (CauseKind, Option<&str>),
    site: Option<&Site>,
    bytes_per_second: f64,
    course: &Course,
) -> Cause {
    let holder = site.and_then(|site| site.holder.clone());
    let holder = holder.or_else(|| name.map(str::to_owned));
    Cause {
        kind,
        share: 0.0,
        bytes_per_second,
        amount: Amount {
            bytes: course.bytes,
            blocks: 0,
        },
        certainty: match site {
            Some(_) => Certainty::Likely,
            None => Certainty::Certain,
        },
        site: site.map(|site| site.place.clone()),
        meaning: words::meaning(kind, holder.as_deref()),
        next: match site {
            Some(site) => words::of_site(kind, site),
            None => words::of_region(kind),
        },
        holder,
    }
}
