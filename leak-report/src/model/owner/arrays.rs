//! Arrays that packages of Python make for their callers.
//!
//! All arrays of numpy come from the same functions, and pandas, scipy and others make theirs of numpy's. The function that called them
//! from outside tells one leak from another.

use super::super::FrameRef;
use super::served::{Served, is_nameless};
use super::{Interpreters, is_in_library, is_own_plumbing, names};

/// Marks frames from an allocator of arrays outwards that are of packages that make arrays, native ones and functions of Python, up to a
/// function of Python that is not, or an extension of somebody else. In a stripped extension of such a package, all functions are
/// taken for that.
///
/// Where no function of Python is known to be the caller, as in threads of a library, nothing is marked.
pub(super) fn mark(frames: &[FrameRef<'_>], interpreters: &Interpreters, served: &mut [Served]) {
    let own = |frame: FrameRef<'_>| match frame.is_python() {
        true => frame.file().and_then(names::package_of_arrays).is_some(),
        false => frame
            .module()
            .and_then(|module| names::package_of_arrays(module.path()))
            .is_some(),
    };
    // Python's own library is between where a package imports or calls by it.
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

/// True for a frame that allocates for others by its names; it can be the allocator of arrays.
fn is_inner_plumbing(frame: FrameRef<'_>) -> bool {
    !frame.is_python() && is_own_plumbing(frame)
}

fn allocates_arrays(frame: FrameRef<'_>) -> bool {
    let inlined = frame.inlined().filter_map(|inlined| inlined.symbol);
    let mut functions = inlined.chain(frame.function()).filter(|_| !frame.is_python());
    functions.any(names::is_of_arrays)
}
