//! Arrays that packages of Python make for their callers.
//!
//! All numpy arrays come from the same functions, and pandas, scipy and others build theirs on numpy's. Only
//! the function that called them from outside distinguishes one leak from another.

use super::super::FrameRef;
use super::served::{Served, is_nameless};
use super::{Interpreters, is_in_library, is_own_plumbing, names};

/// Marks the frames of packages that make arrays, native ones and Python functions, from an allocator of
/// arrays outwards, up to a Python function or an extension of anyone else. In a stripped extension of such a
/// package, any nameless function is taken for an allocator of arrays.
///
/// If no Python function is further out, as in threads of a library, nothing is marked.
pub(super) fn mark(frames: &[FrameRef<'_>], interpreters: &Interpreters, served: &mut [Served]) {
    let own = |frame: FrameRef<'_>| match frame.is_python() {
        true => frame.file().and_then(names::package_of_arrays).is_some(),
        false => frame
            .module()
            .and_then(|module| names::package_of_arrays(module.path()))
            .is_some(),
    };
    // Python's standard library is in between if a package imports or calls through it.
    let is_between = |frame: FrameRef<'_>| {
        interpreters.contain(frame) || own(frame) || frame.is_python() && is_own_plumbing(frame)
    };
    let is_before = |frame: FrameRef<'_>| is_in_library(frame) || interpreters.contain(frame);
    let begins = |&frame: &FrameRef<'_>| !is_before(frame) && !is_inner_plumbing(frame);
    let Some(first) = frames.iter().position(begins) else {
        return;
    };
    let allocates = frames[..=first].iter().any(|&frame| allocates_arrays(frame));
    let is_stripped = own(frames[first]) && is_nameless(frames[first]);
    if !allocates && !is_stripped {
        return;
    }
    let more = frames[first..]
        .iter()
        .take_while(|&&frame| is_between(frame))
        .count();
    let outside = &frames[first + more..];
    if outside.iter().any(|frame| frame.is_python()) {
        served[first..first + more].fill(Served::All);
    }
}

/// True for a native frame that is plumbing by its names; it can be the allocator of arrays.
fn is_inner_plumbing(frame: FrameRef<'_>) -> bool {
    !frame.is_python() && is_own_plumbing(frame)
}

fn allocates_arrays(frame: FrameRef<'_>) -> bool {
    let inlined = frame.inlined().filter_map(|inlined| inlined.symbol);
    let mut functions = inlined.chain(frame.function()).filter(|_| !frame.is_python());
    functions.any(names::is_of_arrays)
}
