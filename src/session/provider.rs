//! Chooses whether and how processes are traced by what they announce of their allocations.

use anyhow::bail;

use super::probes::{AllocatorProbes, NO_ANNOUNCEMENT};
use super::{SourceChoice, TraceConfig};
use crate::allocator::Selection;
use crate::allocator::usdt::{DEFAULT_DISTANCE, DISTANCES, distance_near};
use crate::process::{Mappings, Target};
use leak_report::model::Sampling;

/// Announcements by which processes are traced.
pub(super) struct Chosen {
    /// Distance of the probes that are used where there is a choice; with a governor, the first and smallest.
    pub(super) distance: u64,
    /// True if all providers offer a choice, so that this is the distance of each.
    pub(super) is_known: bool,
}

/// Chooses how the processes are traced by their announcements; `None` if they are not.
///
/// # Errors
///
/// Tracing by announcements is requested, but not possible with these flags.
pub(super) fn choose(
    config: &TraceConfig,
    targets: &[Target],
    mappings: &[Mappings],
    probes: &AllocatorProbes,
) -> anyhow::Result<Option<Chosen>> {
    let processes = || targets.iter().zip(mappings);
    let offers: Vec<_> = processes()
        .map(|(target, mappings)| offer(config, target, mappings, probes))
        .collect();
    let distance = match config.count.sampling {
        Sampling::All => Some(DEFAULT_DISTANCE),
        Sampling::Bytes(bytes) => distance_near(bytes),
        Sampling::Governed(1) => Some(DISTANCES[0]),
        Sampling::Governed(min) => distance_near(min),
        Sampling::Calls(_) | Sampling::Provider(_) => None,
    };
    let is_known = offers.iter().all(|offer| *offer == Some(true));
    match config.count.source {
        SourceChoice::Uprobe => Ok(None),
        // A request for some functions, or for another choice of calls, is one for probes in allocators.
        SourceChoice::Auto => {
            let is_announced = offers.iter().all(Option::is_some);
            let is_any = config.count.sampling == Sampling::All;
            let is_usual =
                config.count.counted.is_blocks() && config.count.allocators == Selection::default();
            let distance = distance.filter(|_| is_announced && is_usual && (is_any || is_known));
            Ok(distance.map(|distance| Chosen { distance, is_known }))
        }
        SourceChoice::Usdt => {
            for ((target, _), offer) in processes().zip(&offers) {
                match (offer, config.count.sampling) {
                    (None, _) => tracing::warn!(
                        "process {} announces nothing yet: {NO_ANNOUNCEMENT}",
                        target.pid()
                    ),
                    (Some(false), Sampling::Bytes(_) | Sampling::Governed(_)) => bail!(
                        "process {} samples at its own fixed interval: leave out --sample-bytes and \
                         --max-overhead, or use --source uprobe",
                        target.pid()
                    ),
                    (Some(_), _) => {}
                }
            }
            let Some(distance) = distance else {
                bail!(
                    "--source usdt: processes announce at most one allocation per {} bytes; --source uprobe \
                     can record more",
                    64 << 10
                );
            };
            Ok(Some(Chosen { distance, is_known }))
        }
    }
}

/// Returns whether the providers of a process all offer a choice of distances; `None` if it has none.
fn offer(
    config: &TraceConfig,
    target: &Target,
    mappings: &Mappings,
    probes: &AllocatorProbes,
) -> Option<bool> {
    let program = mappings.module_ids().next();
    if probes.is_passed_by(program, mappings.module_ids()) {
        if config.count.source != SourceChoice::Uprobe {
            tracing::warn!(
                "process {} has loaded libmemleak.so, but calls an allocator in its own file instead",
                target.pid()
            );
        }
        return None;
    }
    probes.offers_distances(mappings.module_ids())
}
