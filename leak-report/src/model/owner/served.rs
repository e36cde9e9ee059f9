//! Functions that are plumbing because of what calls them.

use super::super::{FrameRef, StackRef};
use super::names;

/// True for each frame whose own function allocates on behalf of its caller, as the caller's name shows:
///
/// * it implements an interface of allocators, and that calls it ([`names::is_implementation`]), or
/// * it has no name, and an allocation function of its module calls it, by others without a name or not. Stripped libraries have
///   static helpers below what they export: `sqlite3Malloc` calls one that calls `malloc`. One in another module has code of its own
///   to answer for.
pub(in super::super) fn served(stack: StackRef<'_>) -> Vec<bool> {
    let mut served = vec![false; stack.frames().len()];
    // A frame's caller comes behind it, so that the outermost is looked at first.
    let mut caller: Option<(FrameRef<'_>, bool)> = None;
    let numbers = (0..served.len()).rev();
    let frames: Vec<_> = stack.frames().collect();
    for number in numbers {
        let frame = frames[number];
        let is_served =
            caller.is_some_and(|(caller, is_served)| is_called_to_allocate(frame, caller, is_served));
        served[number] = is_served;
        caller = Some((frame, is_served));
    }
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
        (None, _) if frame.inlined().len() > 0 || !is_same_module(frame, caller) => false,
        (None, Some(calling)) => names::is_allocation(calling),
        (None, None) => is_served,
    }
}

fn is_same_module(one: FrameRef<'_>, other: FrameRef<'_>) -> bool {
    let modules = [one, other].map(|frame| frame.at.place.map(|place| place.module));
    modules[0].is_some() && modules[0] == modules[1]
}
