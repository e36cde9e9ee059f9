//! Probes out of their sites, all at once.

use std::thread;

use libbpf_rs::Link;

use super::attach::{Attached, AttachedHook};

/// Threads that detach at once.
const DETACHING_THREADS: usize = 16;

/// Detaches all of these at once, in no order: for when nothing is recorded any more.
///
/// The kernel takes the probes of a link out of the process, and then waits until no thread is in their programs, which
/// on a busy machine takes a tenth of a second. One after the other, the last link's probes would wait for all others.
pub fn detach_at_once(
    probes: impl IntoIterator<Item = Attached>,
    hooks: impl IntoIterator<Item = AttachedHook>,
) {
    let probes = probes.into_iter();
    let links = probes.flat_map(|Attached { allocations, frees }| allocations.into_iter().chain(frees));
    let mut links: Vec<Link> = links.chain(hooks.into_iter().map(|hook| hook.link)).collect();
    let share = links.len().div_ceil(DETACHING_THREADS).max(1);
    thread::scope(|scope| {
        while !links.is_empty() {
            let links = links.split_off(links.len().saturating_sub(share));
            // A thread that cannot be had drops what it was to drop here.
            _ = thread::Builder::new().spawn_scoped(scope, move || drop(links));
        }
    });
}
