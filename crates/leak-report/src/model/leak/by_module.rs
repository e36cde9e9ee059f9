//! Ends and steps of walks by module, which show the module whose unwind information is at fault.

use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};
use unwind_tables::walk::{End, FoundBy};

use super::Site;
use crate::model::Location;

/// Maximum number of addresses in an [`EndGroup`].
pub const MAX_ADDRESSES: usize = 8;

/// Stacks that ended in one module for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndGroup<M> {
    /// Module; `None` outside all modules, and for walks without a known end address.
    pub module: Option<M>,
    /// Reason for the end; never [`End::Complete`].
    pub end: End,
    /// Number of distinct sites.
    pub stacks: u64,
    /// Blocks that the sites of the group allocated.
    pub allocations: u64,
    /// Addresses of the ends in the module's own space, or in the process if there is no module: those with
    /// most allocations, at most [`MAX_ADDRESSES`].
    pub addresses: Vec<u64>,
}

/// Methods by which the callers of a module's frames were found, over all walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSteps<M> {
    /// Module; `None` outside all modules.
    pub module: Option<M>,
    /// Steps by the module's CFI.
    pub cfi: u64,
    /// Steps by the frame pointer, for lack of CFI.
    pub fp: u64,
}

/// Sites that ended in one module for one reason, and their allocations by end address.
#[derive(Default)]
struct Ended {
    stacks: u64,
    by_address: HashMap<u64, u64>,
}

/// Groups the ends of `sites` other than [`End::Complete`], most allocations first.
pub fn ends<M: Copy + Ord + Hash>(sites: &[Site<M>]) -> Vec<EndGroup<M>> {
    let mut groups: HashMap<(Option<M>, End), Ended> = HashMap::new();
    for site in sites.iter().filter(|site| site.end != End::Complete) {
        let at = site.end_at.as_ref();
        let module = at.and_then(|at| at.place).map(|place| place.module);
        let ended = groups.entry((module, site.end)).or_default();
        ended.stacks += 1;
        let allocations = ended.by_address.entry(at.map_or(0, address)).or_default();
        *allocations = allocations.saturating_add(site.allocated.amount.blocks);
    }
    let mut groups: Vec<_> = groups
        .into_iter()
        .map(|((module, end), Ended { stacks, by_address })| EndGroup {
            module,
            end,
            stacks,
            allocations: by_address.values().copied().fold(0, u64::saturating_add),
            addresses: most_frequent(by_address),
        })
        .collect();
    groups.sort_by_key(|group| {
        let most_first = std::cmp::Reverse((group.allocations, group.stacks));
        (most_first, group.end, group.module)
    });
    groups
}

fn address<M>(at: &Location<M>) -> u64 {
    at.place.as_ref().map_or(at.pc.get(), |place| place.svma.get())
}

/// Returns the addresses with most allocations. Address 0 marks an unknown end and is omitted: no code is at
/// 0.
fn most_frequent(addresses: HashMap<u64, u64>) -> Vec<u64> {
    let mut addresses: Vec<_> = addresses
        .into_iter()
        .filter(|&(address, _)| address != 0)
        .collect();
    addresses.sort_by_key(|&(address, allocations)| (std::cmp::Reverse(allocations), address));
    addresses
        .into_iter()
        .take(MAX_ADDRESSES)
        .map(|(address, _)| address)
        .collect()
}

/// Counts how walks of `sites` left each module, most steps first; a module in which all walks ended has zero
/// steps.
pub fn steps<M: Copy + Ord + Hash>(sites: &[Site<M>]) -> Vec<ModuleSteps<M>> {
    let mut modules: HashMap<Option<M>, (u64, u64)> = HashMap::new();
    for site in sites {
        let walks = site.allocated.amount.blocks;
        // No walk has stepped over a Python function: the native caller is that of the frame before it.
        let native = site
            .frames
            .iter()
            .filter(|frame| frame.found_by != FoundBy::Python);
        let modules_of = native
            .clone()
            .map(|frame| frame.at.place.map(|place| place.module));
        let found_callers = native.skip(1).map(|caller| Some(caller.found_by));
        for (module, caller) in modules_of.zip(found_callers.chain([None])) {
            let (cfi, fp) = modules.entry(module).or_default();
            match caller {
                Some(FoundBy::Cfi) => *cfi = cfi.saturating_add(walks),
                Some(FoundBy::Fp | FoundBy::FpGenerated | FoundBy::FpUncertain) => {
                    *fp = fp.saturating_add(walks)
                }
                Some(FoundBy::Probe | FoundBy::Kernel | FoundBy::Python) | None => {}
            }
        }
    }
    let mut steps: Vec<_> = modules
        .into_iter()
        .map(|(module, (cfi, fp))| ModuleSteps { module, cfi, fp })
        .collect();
    steps.sort_by_key(|steps| {
        let all = steps.cfi.saturating_add(steps.fp);
        (std::cmp::Reverse(all), steps.module)
    });
    steps
}
