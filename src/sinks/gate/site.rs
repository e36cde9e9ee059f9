//! The sites that a gate counts, by the names of their functions.

use std::collections::HashMap;

use leak_report::model::site_name::{SiteName, SiteNamer, SiteNames};
use leak_report::model::{Estimate, InstanceEnd, Report, StackRef};

/// The stacks of a report that are of one site, together.
#[derive(Clone, Debug)]
pub(super) struct Site<'a> {
    pub(super) key: SiteName,
    /// What they hold: what reports for people show.
    pub(super) held: Estimate,
    /// What of it processes hold that still run.
    pub(super) running: Estimate,
    /// The one that holds most.
    pub(super) stack: StackRef<'a>,
}

/// The stacks that count: those that can be leaks, but for what a program held when it executed another, which is nobody's.
pub(super) fn counted(report: &Report) -> impl Iterator<Item = StackRef<'_>> {
    let suspects = report.suspects();
    suspects.filter(|stack| stack.ended != Some(InstanceEnd::Execed))
}

/// The sites that hold something, in the order of their first stack.
pub(super) fn sites<'a>(report: &'a Report, names: &mut SiteNames) -> Vec<Site<'a>> {
    let mut reader = SiteNamer::new(names);
    let mut sites: Vec<Site<'a>> = Vec::new();
    let mut known: HashMap<SiteName, usize> = HashMap::new();
    for stack in counted(report) {
        let held = stack.shown_estimate();
        if held.amount.blocks == 0 {
            continue;
        }
        let running = match stack.ended {
            None => held,
            Some(_) => Estimate::default(),
        };
        let key = reader.site(stack);
        match known.get(&key).and_then(|&at| sites.get_mut(at)) {
            Some(site) => {
                site.held = site.held + held;
                site.running = site.running + running;
                if held.amount.bytes > site.stack.shown().bytes {
                    site.stack = stack;
                }
            }
            None => {
                known.insert(key.clone(), sites.len());
                sites.push(Site {
                    key,
                    held,
                    running,
                    stack,
                });
            }
        }
    }
    sites
}
