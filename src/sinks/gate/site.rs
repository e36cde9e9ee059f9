//! Groups the stacks that count by site name.

use std::collections::HashMap;

use leak_report::model::site_name::{SiteName, SiteNamer, SiteNames};
use leak_report::model::{Estimate, InstanceEnd, Report, StackRef};

/// A site: the stacks of a report with the same site name.
#[derive(Clone, Debug)]
pub(super) struct Site<'a> {
    pub(super) key: SiteName,
    /// Outstanding and not young.
    pub(super) outstanding: Estimate,
    /// The part of `outstanding` in processes that still run.
    pub(super) running: Estimate,
    /// Definitely and indirectly lost, young or not; zero without a verdict.
    pub(super) lost: [Estimate; 2],
    /// The stack with most outstanding bytes.
    pub(super) stack: StackRef<'a>,
}

/// The stacks that count: possible leaks, except of instances that ended with an exec, which discards their
/// memory.
pub(super) fn counted(report: &Report) -> impl Iterator<Item = StackRef<'_>> {
    let suspects = report.suspects();
    suspects.filter(|stack| stack.ended != Some(InstanceEnd::Execed))
}

/// The sites with outstanding or lost memory, in the order of their first stack.
pub(super) fn sites<'a>(report: &'a Report, names: &mut SiteNames) -> Vec<Site<'a>> {
    let mut reader = SiteNamer::new(names);
    let mut sites: Vec<Site<'a>> = Vec::new();
    let mut known: HashMap<SiteName, usize> = HashMap::new();
    for stack in counted(report) {
        let outstanding = stack.shown_estimate();
        if outstanding.amount.blocks == 0 && !stack.judged().has_lost() {
            continue;
        }
        let running = match stack.ended {
            None => outstanding,
            Some(_) => Estimate::default(),
        };
        let lost = [stack.definitely_lost(), stack.indirectly_lost()];
        let key = reader.site(stack);
        match known.get(&key).and_then(|&at| sites.get_mut(at)) {
            Some(site) => {
                site.outstanding = site.outstanding + outstanding;
                site.running = site.running + running;
                site.lost = [site.lost[0] + lost[0], site.lost[1] + lost[1]];
                if outstanding.amount.bytes > site.stack.shown().bytes {
                    site.stack = stack;
                }
            }
            None => {
                known.insert(key.clone(), sites.len());
                sites.push(Site {
                    key,
                    outstanding,
                    running,
                    lost,
                    stack,
                });
            }
        }
    }
    sites
}
