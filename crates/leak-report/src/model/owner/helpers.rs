//! Nameless helpers of stripped libraries, which have names only for their exports.
//!
//! An address in a library tells a reader nothing, but the exported function above it does. So helpers close
//! below such a function are attributed to it. Far below, there can be other functions in between, which it
//! only calls back: libruby has the function that runs programs above every method written in C.

use super::super::FrameRef;
use super::served::{Served, is_nameless, is_same_module};

/// Maximum number of nameless frames below a named function that count as its helpers. In Ruby 3.1,
/// `rb_ary_cat` has four, and the function that runs programs has at least five if a method is in between.
const MAX_NEAR: usize = 4;

/// Programs that export functions for their extensions, and so have named functions as a library has.
const PROGRAMS: [&str; 4] = ["lua", "perl", "php", "ruby"];

/// Marks helpers of named functions, and [shared](FrameRef::is_shared_helper) ones, whatever calls them.
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

/// True for a nameless frame of a library, or of a program that serves its extensions as a library.
fn is_helper(frame: FrameRef<'_>) -> bool {
    let module = frame.module().filter(|_| is_nameless(frame));
    module.is_some_and(|module| {
        let name = module.basename();
        name.contains(".so") || PROGRAMS.iter().any(|program| name.starts_with(program))
    })
}
