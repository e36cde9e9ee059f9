//! Merges the stacks of a snapshot into ranked allocation sites. Pure: no clock, no I/O, no names.
//!
//! A *site* is one allocator function called by one stack of code. The kernel side keeps totals per stack of
//! addresses; the same code has other addresses after the process's mappings changed, so totals are merged by
//! the place of the addresses in their modules.

pub mod age;
pub mod by_module;
pub mod completeness;
pub mod depth;
pub mod growth;
pub mod kernel_frames;
pub mod moments;
pub mod order;
pub mod provider;
pub mod python;
pub mod suspicion;
#[cfg(test)]
mod tests;
pub mod theil_sen;

use std::collections::HashMap;
use std::hash::Hash;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Frame, LeftOut};

use crate::model::{Amount, Estimate, LifeSpans, Location, Place, RegionKind, Snapshot, StackTotals};

pub use age::SiteProcesses;
pub use by_module::{EndGroup, ModuleSteps};
pub use completeness::{Completeness, WALKS};
pub use depth::innermost;
pub use growth::{Change, Growth, Recent};
pub use order::Order;
pub use provider::leave_out_providers;
pub use python::{PYTHON, PythonChain, PythonFrame, PythonStacks, place_python_frames, python_code};
pub use suspicion::Suspicion;

/// Frame of a site. `at.pc` is the raw return address in the epoch in which the site was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteFrame<M> {
    /// Return address.
    pub at: Location<M>,
    /// Method that found the frame.
    pub found_by: FoundBy,
    /// True if the address is the instruction itself, not the one behind a call.
    pub exact: bool,
}

/// One allocator function called by one stack of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site<M> {
    /// Instance that allocated; 0 for all together.
    pub instance: u32,
    /// Index into the table of allocator functions.
    pub function: u8,
    /// Use of the mappings; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Frames, innermost first.
    pub frames: Vec<SiteFrame<M>>,
    /// Frames between these that were found but not kept, in the first of its walks.
    pub left_out: Option<LeftOut>,
    /// Reason why the walk ended.
    pub end: End,
    /// Location where the walk ended; `None` for complete stacks.
    pub end_at: Option<Location<M>>,
    /// Allocated since the attach.
    pub allocated: Estimate,
    /// Part of `allocated` that was freed.
    pub freed: Estimate,
    /// Outstanding at the moment of the highest total.
    pub peak: Amount,
    /// Changes and block ages.
    pub recent: Recent,
    /// Allocated but not recorded; not included in `allocated`.
    pub lost: Amount,
    /// Walks of it that were finished in user space.
    pub finished_walks: u64,
    /// Freed blocks by how long they lived.
    pub life_spans: LifeSpans,
    /// Ids of its stack records.
    pub records: Vec<u32>,
}

impl<M> Site<M> {
    /// Outstanding amount, `allocated - freed`, not below zero.
    ///
    /// The two totals are read one after the other while the process runs, so `freed` can include a block
    /// whose allocation is missing from `allocated`.
    pub fn outstanding(&self) -> Estimate {
        self.allocated.less(self.freed)
    }
}

/// Key that is equal for all stacks of a site.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SiteKey<M> {
    instance: u32,
    function: u8,
    kind: Option<RegionKind>,
    frames: Vec<(CodeKey<M>, FoundBy)>,
    /// Number of frames before those that are left out. The number of the latter is not part of the key:
    /// recursions of different depth are one site.
    left_out_after: Option<u32>,
    end: End,
    /// Place of the end. Unlike for frames, an end outside all modules has no key: it can be any garbage on
    /// the stack, and each value would make another site.
    end_at: Option<Place<M>>,
}

/// Identity of a frame's code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CodeKey<M> {
    /// Code in a module.
    Place(Place<M>),
    /// Code outside all modules, identified only by its address.
    Pc(Avma),
}

/// Resolves addresses of a process to modules as they were mapped when the addresses were recorded.
pub trait Resolver<M> {
    /// Returns the module and SVMA of an address in an epoch.
    fn resolve_at(&self, epoch: u32, address: Avma) -> Option<(M, Svma)>;

    /// Returns the module and SVMA that an address has in later epochs, if it was unknown in `epoch` or its
    /// mapping had been replaced by then. `None` if it is still unknown; `Some(None)` if it is code outside
    /// all modules.
    fn resolve_after(&self, epoch: u32, address: Avma) -> Option<Option<(M, Svma)>>;
}

/// Merges the stacks of `snapshot` into sites, most outstanding bytes first.
///
/// `resolver` returns the resolver of an instance, `recent` the changes and block ages of a stack. Sites are
/// ranked by outstanding bytes, then outstanding blocks, then allocated bytes, then by their code, so that
/// equal snapshots rank equally.
pub fn group<'a, M: Copy + Ord + Hash, N: Resolver<M> + 'a>(
    snapshot: &Snapshot,
    resolver: impl Fn(u32) -> &'a N,
    recent: impl Fn(&StackTotals) -> Recent,
) -> Vec<Site<M>> {
    let mut sites: HashMap<SiteKey<M>, (u32, Site<M>)> = HashMap::new();
    for stack in &snapshot.stacks {
        let site = Site {
            recent: recent(stack),
            ..resolved(stack, resolver(stack.instance))
        };
        match sites.entry(key_of(&site)) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert((stack.epoch, site));
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => {
                let (epoch, known) = occupied.get_mut();
                merge(known, site, stack.epoch >= *epoch);
                *epoch = stack.epoch.max(*epoch);
            }
        }
    }
    ranked(sites.into_iter().map(|(key, (_, site))| (key, site)).collect())
}

fn resolved<M>(stack: &StackTotals, resolver: &impl Resolver<M>) -> Site<M> {
    let place = |pc, exact| {
        let lookup = lookup_address(pc, exact);
        let found = resolver.resolve_at(stack.epoch, lookup)?;
        Some(place_at(pc, lookup, found))
    };
    let frame = |&Frame { pc, found_by, exact }: &Frame| SiteFrame {
        at: Location {
            pc,
            // The number of a Python function is not an address.
            place: (found_by != FoundBy::Python).then(|| place(pc, exact)).flatten(),
        },
        found_by,
        exact,
    };
    let (end, end_at) = end_of(stack, resolver, place);
    Site {
        instance: stack.instance,
        function: stack.function,
        kind: stack.kind,
        frames: stack.frames.iter().map(frame).collect(),
        left_out: stack.left_out,
        end,
        end_at,
        allocated: stack.allocated,
        freed: stack.freed,
        peak: stack.peak,
        recent: Recent::default(),
        lost: stack.lost,
        finished_walks: stack.finished_walks,
        life_spans: stack.life_spans,
        records: vec![stack.record],
    }
}

/// Reason why the walk ended, as far as known by now, and its location.
///
/// A walk ends without a frame in code that is missing from its mapping list or is listed as something else.
/// If a later reading of the mappings found code there, the walk lacked the table.
fn end_of<M>(
    stack: &StackTotals,
    resolver: &impl Resolver<M>,
    place: impl Fn(Avma, bool) -> Option<Place<M>>,
) -> (End, Option<Location<M>>) {
    let pc = stack.end_pc;
    // If the walk could not get past its last frame, the address is exact if that frame is.
    let native = |frame: &&Frame| frame.found_by != FoundBy::Python;
    let last = stack.frames.iter().rfind(native).filter(|last| last.pc == pc);
    if stack.end == End::Complete {
        return (End::Complete, None);
    }
    if matches!(stack.end, End::NoMapping | End::TableNotLoaded) && last.is_none() {
        let lookup = lookup_address(pc, false);
        let found = resolver.resolve_after(stack.epoch, lookup);
        let end = if found.is_some() {
            End::TableNotLoaded
        } else {
            stack.end
        };
        let place = found.flatten().map(|found| place_at(pc, lookup, found));
        return (end, Some(Location { pc, place }));
    }
    let place = place(pc, last.is_some_and(|last| last.exact));
    (stack.end, Some(Location { pc, place }))
}

/// Return addresses are looked up one byte lower, in the call: a call can be the last instruction of its
/// mapping.
fn lookup_address(pc: Avma, exact: bool) -> Avma {
    pc.wrapping_sub(u64::from(!exact))
}

/// Place of `pc`, computed from the place of its lookup address.
fn place_at<M>(pc: Avma, lookup: Avma, (module, svma): (M, Svma)) -> Place<M> {
    Place {
        module,
        svma: svma.wrapping_add(pc.offset_from(lookup)),
    }
}

fn key_of<M: Copy>(site: &Site<M>) -> SiteKey<M> {
    let frame = |frame: &SiteFrame<M>| {
        let code = frame.at.place.map_or(CodeKey::Pc(frame.at.pc), CodeKey::Place);
        (code, frame.found_by)
    };
    SiteKey {
        instance: site.instance,
        function: site.function,
        kind: site.kind,
        frames: site.frames.iter().map(frame).collect(),
        left_out_after: site.left_out.map(|left_out| left_out.after),
        end: site.end,
        end_at: site.end_at.as_ref().and_then(|at| at.place),
    }
}

/// Adds `site`'s amounts to `known`'s; its addresses replace the known ones if it is `newer`.
fn merge<M>(known: &mut Site<M>, site: Site<M>, newer: bool) {
    known.records.extend(site.records);
    known.recent = known.recent + site.recent;
    known.allocated = known.allocated + site.allocated;
    known.freed = known.freed + site.freed;
    known.peak = known.peak + site.peak;
    known.lost = known.lost + site.lost;
    known.life_spans = known.life_spans + site.life_spans;
    known.finished_walks = known.finished_walks.saturating_add(site.finished_walks);
    if newer {
        known.frames = site.frames;
        known.end_at = site.end_at;
    }
}

fn ranked<M: Ord>(mut sites: Vec<(SiteKey<M>, Site<M>)>) -> Vec<Site<M>> {
    let size = |site: &Site<M>| {
        let outstanding = site.outstanding().amount;
        (outstanding.bytes, outstanding.blocks, site.allocated.amount.bytes)
    };
    sites.sort_by(|(key_a, a), (key_b, b)| size(b).cmp(&size(a)).then_with(|| key_a.cmp(key_b)));
    sites.into_iter().map(|(_, site)| site).collect()
}
