//! Functions that are plumbing because of what calls them.

use super::super::{FrameRef, StackRef};
use super::{Interpreters, arrays, helpers, names};

/// How much of a frame passes blocks on to its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in super::super) enum Served {
    /// None of it, as far as callers show.
    #[default]
    No,
    /// Its own function; those inlined there, by what they are.
    Own,
    /// All of it.
    All,
}

/// For each frame, how much of it allocates on behalf of its caller, as callers show:
///
/// * it implements an interface of allocators, and that calls it ([`names::is_implementation`]),
/// * it has no name, and an allocation function of its module calls it, by others without a name or not. Stripped libraries have
///   static helpers below what they export: `sqlite3Malloc` calls one that calls `malloc`. One in another module has code of its own
///   to answer for;
/// * it has no name, and is a helper of a function that has one ([`helpers`]), or
/// * it makes an array for somebody else ([`arrays`]).
pub(in super::super) fn served(stack: StackRef<'_>) -> Vec<Served> {
    let frames: Vec<_> = stack.frames().collect();
    let mut served = vec![Served::No; frames.len()];
    // A frame's caller comes behind it, so that the outermost is looked at first.
    let mut caller: Option<(FrameRef<'_>, bool)> = None;
    for (&frame, served) in frames.iter().zip(&mut served).rev() {
        let is_served =
            caller.is_some_and(|(caller, is_served)| is_called_to_allocate(frame, caller, is_served));
        if is_served {
            *served = Served::Own;
        }
        caller = Some((frame, is_served));
    }
    helpers::mark(&frames, &mut served);
    arrays::mark(&frames, &Interpreters::of(stack), &mut served);
    served
}

/// `is_served` is true if the caller is.
fn is_called_to_allocate(frame: FrameRef<'_>, caller: FrameRef<'_>, is_served: bool) -> bool {
    if frame.is_python() || caller.is_python() {
        return false;
    }
    let calling = caller
        .inlined()
        .next()
        .map_or(caller.function(), |first| first.symbol);
    match (frame.function(), calling) {
        (Some(name), Some(calling)) => names::is_implementation(name, calling),
        (Some(_), None) => false,
        (None, _) if !is_nameless(frame) || !is_same_module(frame, caller) => false,
        (None, Some(calling)) => names::is_allocation(calling),
        (None, None) => is_served,
    }
}

/// True for a native frame of which no function is known.
pub(super) fn is_nameless(frame: FrameRef<'_>) -> bool {
    !frame.is_python() && frame.function().is_none() && frame.inlined().len() == 0
}

pub(super) fn is_same_module(one: FrameRef<'_>, other: FrameRef<'_>) -> bool {
    let modules = [one, other].map(|frame| frame.at.place.map(|place| place.module));
    modules[0].is_some() && modules[0] == modules[1]
}
