//! Programs that traced processes execute, and whose first allocations are not seen because their allocator
//! is in a file that no process had mapped before. The program that memleak has started misses none, as it is
//! stopped meanwhile.

use std::time::{Duration, Instant};

/// Time after an exec in which added probes, even if they are not the first, count as having been missing
/// since the program's start.
const BEGINNING: Duration = Duration::from_secs(1);

/// Beginning of one instance.
#[derive(Debug)]
pub(super) struct Beginning {
    at: Instant,
    /// True once probes were attached to the files that it had mapped.
    is_attached: bool,
    is_missed: bool,
}

impl Beginning {
    /// Beginning of an instance that begins now.
    pub(super) fn now() -> Self {
        Self {
            at: Instant::now(),
            is_attached: false,
            is_missed: false,
        }
    }

    /// Notes that its allocator, if it had mapped one, has probes from now on.
    pub(super) fn attached(&mut self) {
        self.is_attached = true;
    }

    /// Returns whether its allocator, if it had mapped one, has had probes.
    pub(super) fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Notes that allocations until now were not seen. Returns for how long; `None` if that was noted before,
    /// or if this is no longer the beginning.
    pub(super) fn miss(&mut self) -> Option<Duration> {
        let lasted = self.at.elapsed();
        let is_new = !self.is_missed && (!self.is_attached || lasted < BEGINNING);
        self.is_missed |= is_new;
        is_new.then_some(lasted)
    }
}
