//! Functions that are plumbing because of what calls them.

use super::super::{FrameRef, StackRef};
use super::{Interpreters, arrays, helpers, names};

/// Part of a frame that passes blocks on to its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in super::super) enum Served {
    /// None of it, judging by its callers.
    #[default]
    No,
    /// Its own function; functions inlined there are judged by themselves.
    Own,
    /// All of it.
    All,
}

/// Finds for each frame the part that allocates on behalf of its caller, judging by the callers:
///
/// * it implements an interface of allocators, and is called by that ([`names::is_implementation`]),
/// * it has no name, and an allocation function of its module calls it, directly or through other nameless
///   functions. Stripped libraries have static helpers below their exports: `sqlite3Malloc` calls one that
///   calls `malloc`. A nameless function of another module has its own code to answer for;
/// * it has no name, and is a helper of a named function ([`helpers`]), or
/// * it makes an array for its caller ([`arrays`]).
pub(in super::super) fn served(stack: StackRef<'_>) -> Vec<Served> {
    let frames: Vec<_> = stack.frames().collect();
    let mut served = vec![Served::No; frames.len()];
    // A frame's caller follows it, so begin with the outermost.
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

/// True if the frame's own function allocates on behalf of `caller`. `is_served`: the caller does so, too.
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

/// True for a native frame without any known function.
pub(super) fn is_nameless(frame: FrameRef<'_>) -> bool {
    !frame.is_python() && frame.function().is_none() && frame.inlined().len() == 0
}

pub(super) fn is_same_module(one: FrameRef<'_>, other: FrameRef<'_>) -> bool {
    let modules = [one, other].map(|frame| frame.at.place.map(|place| place.module));
    modules[0].is_some() && modules[0] == modules[1]
}
