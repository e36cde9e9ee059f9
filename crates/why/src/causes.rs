//! Causes of the growth of each region.

use leak_report::model::Amount;
use leak_report::model::diagnosis::{Cause, CauseKind, Certainty};

use crate::course::Course;
use crate::heap;
use crate::observed::{Observed, Site, Took, Trace};
use crate::region::Region;
use crate::words;

/// Sites that explain less than this share of a region's growth are not named.
const MIN_SHARE: f64 = 0.1;

/// Causes of the growth of a region, without their shares of all growth.
pub(crate) fn of_region(region: Region, course: &Course, observed: &Observed) -> Vec<Cause> {
    match region {
        Region::Heap => heap::causes(course, observed),
        Region::LiveStacks | Region::EndedStacks => {
            of_sites(CauseKind::ThreadStacks, Took::ThreadStack, course, observed)
        }
        Region::Mappings => of_sites(CauseKind::Mappings, Took::Mapping, course, observed),
        Region::Shared => of_sites(CauseKind::SharedMemory, Took::Shared, course, observed),
        Region::Files => of_sites(CauseKind::Files, Took::File, course, observed),
        Region::HugePages => of_sites(CauseKind::HugePages, Took::Page, course, observed),
        Region::MainStack => of_sites(CauseKind::Stack, Took::Page, course, observed),
        Region::Managed => of_sites(CauseKind::ManagedHeap, Took::Page, course, observed),
        Region::Kernel => of_sites(CauseKind::Kernel, Took::Descriptor, course, observed),
    }
}

/// A cause for each site that took much of what the region has grown by; one without a site if there is none.
fn of_sites(kind: CauseKind, took: Took, course: &Course, observed: &Observed) -> Vec<Cause> {
    let rate = course.rate.slope;
    let traces = observed.traces.iter();
    let of_kind = |trace: &&Trace| trace.sites.iter().any(|site| site.took == took);
    let Some(trace) = traces.into_iter().find(of_kind) else {
        return vec![cause(kind, None, rate, course)];
    };
    let sites = || trace.sites.iter().filter(|site| site.took == took);
    let sum: f64 = sites().map(|site| site.rate(trace)).sum();
    // Of mappings, only touched pages count: the region's growth is divided in proportion.
    let scale = rate / sum.max(1.0);
    let named = sites()
        .map(|site| (site, site.rate(trace) * scale))
        .filter(|(_, grown)| *grown >= MIN_SHARE * rate)
        .map(|(site, grown)| cause(kind, Some(site), grown, course));
    let named: Vec<_> = named.collect();
    match named.is_empty() {
        true => vec![cause(kind, None, rate, course)],
        false => named,
    }
}

fn cause(kind: CauseKind, site: Option<&Site>, bytes_per_second: f64, course: &Course) -> Cause {
    let holder = site.and_then(|site| site.holder.clone());
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
