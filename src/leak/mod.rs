//! From a snapshot to ranked allocation sites. Pure: no clock, no I/O, no names.
//!
//! A *site* is one allocator function called by one stack of code. The kernel keeps totals per stack of
//! addresses; the same code has other addresses after the process's mappings changed, so totals are merged by
//! where the addresses lie in their modules.

pub mod by_module;
pub mod completeness;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::Hash;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Frame};

use crate::collect::{Amount, Snapshot, StackTotals};

pub use by_module::{EndGroup, ModuleSteps};
pub use completeness::Completeness;

/// A byte of a module, in the module's own space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place<M> {
    /// The module.
    pub module: M,
    /// The address in it.
    pub svma: Svma,
}

/// One frame of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteFrame<M> {
    /// The raw return address, in the epoch in which the site was seen last.
    pub pc: Avma,
    /// The same return address in its module; `None` outside all modules (JIT code).
    pub place: Option<Place<M>>,
    /// How the frame was found.
    pub found_by: FoundBy,
    /// The address is the very instruction, not the one behind a call.
    pub exact: bool,
}

/// Where a walk could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndAt<M> {
    /// The address in the process.
    pub pc: Avma,
    /// The same address in its module; `None` outside all modules.
    pub place: Option<Place<M>>,
}

/// One allocator function called by one stack of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site<M> {
    /// Slot of the process.
    pub process: u32,
    /// Index into the table of allocator functions.
    pub function: u8,
    /// Frames, innermost first.
    pub frames: Vec<SiteFrame<M>>,
    /// Why the walk ended.
    pub end: End,
    /// Where it ended; `None` for complete stacks.
    pub end_at: Option<EndAt<M>>,
    /// Everything allocated here since the attach.
    pub allocated: Amount,
    /// Those blocks of it that were freed.
    pub freed: Amount,
}

impl<M> Site<M> {
    /// What was allocated and not freed: `allocated - freed`, not below zero.
    ///
    /// The two totals are read one after the other while the process runs, so a free can be in the second
    /// whose allocation is not yet in the first.
    pub fn outstanding(&self) -> Amount {
        Amount {
            bytes: self.allocated.bytes.saturating_sub(self.freed.bytes),
            blocks: self.allocated.blocks.saturating_sub(self.freed.blocks),
        }
    }
}

/// What two stacks of a site have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SiteKey<M> {
    process: u32,
    function: u8,
    frames: Vec<(CodeKey<M>, FoundBy)>,
    end: End,
    /// Unlike frames, an end outside all modules has no key: it can be any garbage on the stack, and would
    /// make a site of each value.
    end_at: Option<Place<M>>,
}

/// The identity of a frame's code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CodeKey<M> {
    /// In a module.
    Place(Place<M>),
    /// Outside all modules, known by its address only.
    Pc(Avma),
}

/// Merges the stacks of `snapshot` into sites, most outstanding bytes first.
///
/// `resolve` says which module's byte an address was in an epoch. Sites are ranked by outstanding bytes, then
/// outstanding blocks, then allocated bytes, then by their code, so that equal snapshots rank equally.
pub fn group<M: Copy + Ord + Hash>(
    snapshot: &Snapshot,
    resolve: impl Fn(u32, Avma) -> Option<(M, Svma)>,
) -> Vec<Site<M>> {
    let mut sites: HashMap<SiteKey<M>, (u32, Site<M>)> = HashMap::new();
    for stack in &snapshot.stacks {
        let site = resolved(stack, |pc, exact| place_of(&resolve, stack.epoch, pc, exact));
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

/// Return addresses are looked up one byte lower, in the call: a call can be the last instruction of its
/// mapping.
fn place_of<M>(
    resolve: impl Fn(u32, Avma) -> Option<(M, Svma)>,
    epoch: u32,
    pc: Avma,
    exact: bool,
) -> Option<Place<M>> {
    let adjust = u64::from(!exact);
    let (module, svma) = resolve(epoch, pc.wrapping_sub(adjust))?;
    Some(Place {
        module,
        svma: svma.wrapping_add(adjust),
    })
}

fn resolved<M>(stack: &StackTotals, place: impl Fn(Avma, bool) -> Option<Place<M>>) -> Site<M> {
    let frame = |&Frame { pc, found_by, exact }: &Frame| SiteFrame {
        pc,
        place: place(pc, exact),
        found_by,
        exact,
    };
    // Where the last frame is what the walk could not get past, it is exact or not as that frame is.
    let last_exact = stack
        .frames
        .last()
        .is_some_and(|last| last.exact && last.pc == stack.end_pc);
    let end_at = (stack.end != End::Complete).then(|| EndAt {
        pc: stack.end_pc,
        place: place(stack.end_pc, last_exact),
    });
    Site {
        process: stack.process,
        function: stack.function,
        frames: stack.frames.iter().map(frame).collect(),
        end: stack.end,
        end_at,
        allocated: stack.allocated,
        freed: stack.freed,
    }
}

fn key_of<M: Copy>(site: &Site<M>) -> SiteKey<M> {
    let frame = |frame: &SiteFrame<M>| {
        let code = frame.place.map_or(CodeKey::Pc(frame.pc), CodeKey::Place);
        (code, frame.found_by)
    };
    SiteKey {
        process: site.process,
        function: site.function,
        frames: site.frames.iter().map(frame).collect(),
        end: site.end,
        end_at: site.end_at.as_ref().and_then(|at| at.place),
    }
}

/// Adds `site`'s amounts to `known`'s; its addresses replace the known ones where they are `newer`.
fn merge<M>(known: &mut Site<M>, site: Site<M>, newer: bool) {
    known.allocated = sum(known.allocated, site.allocated);
    known.freed = sum(known.freed, site.freed);
    if newer {
        known.frames = site.frames;
        known.end_at = site.end_at;
    }
}

fn sum(a: Amount, b: Amount) -> Amount {
    Amount {
        bytes: a.bytes.saturating_add(b.bytes),
        blocks: a.blocks.saturating_add(b.blocks),
    }
}

fn ranked<M: Ord>(mut sites: Vec<(SiteKey<M>, Site<M>)>) -> Vec<Site<M>> {
    let size = |site: &Site<M>| {
        let outstanding = site.outstanding();
        (outstanding.bytes, outstanding.blocks, site.allocated.bytes)
    };
    sites.sort_by(|(key_a, a), (key_b, b)| size(b).cmp(&size(a)).then_with(|| key_a.cmp(key_b)));
    sites.into_iter().map(|(_, site)| site).collect()
}
