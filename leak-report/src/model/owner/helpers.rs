//! Nameless helpers of stripped libraries, which have names only for what they export.
//!
//! An address in a library tells a reader nothing, and the function that the library exports for its callers does. So helpers near below
//! such a function are left to it. Far below, there can be others between that it only calls back: above each method that is written in
//! C, libruby has the function that runs programs.

use super::super::FrameRef;
use super::served::{Served, is_nameless, is_same_module};

/// Maximum number of nameless frames below a function with a name that are its helpers. In Ruby 3.1, `rb_ary_cat` has four, and the
/// function that runs programs at least five where a method is between.
const MAX_NEAR: usize = 4;

/// Programs that export functions for their extensions, so that they have names where a library has them.
const PROGRAMS: [&str; 4] = ["lua", "perl", "php", "ruby"];

/// Marks helpers of functions with names, and those that are [shared](FrameRef::is_shared_helper), whoever calls them.
pub(super) fn mark(frames: &[FrameRef<'_>], served: &mut [Served]) {
    let mut at = 0;
    for run in
        frames.chunk_by(|&one, &other| is_helper(one) && is_helper(other) && is_same_module(one, other))
    {
        let first = at;
        at += run.len();
        if !is_helper(run[0]) {
            continue;
        }
        let is_below_name = frames
            .get(at)
            .is_some_and(|&caller| is_same_module(run[0], caller));
        let helpers = match is_below_name && run.len() <= MAX_NEAR {
            true => run.len(),
            false => run.iter().take_while(|frame| frame.is_shared_helper()).count(),
        };
        served[first..first + helpers].fill(Served::Own);
    }
}

/// True for a nameless frame of a library, or of a program that is one to its extensions.
fn is_helper(frame: FrameRef<'_>) -> bool {
    let module = frame.module().filter(|_| is_nameless(frame));
    module.is_some_and(|module| {
        let name = module.basename();
        name.contains(".so") || PROGRAMS.iter().any(|program| name.starts_with(program))
    })
}
