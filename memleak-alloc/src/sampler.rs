//! Chooses blocks, and announces them and their frees.
//!
//! The caller keeps a [`Thread`] for each thread, subtracts the size of each allocation from [`Thread::left`], and calls
//! [`allocated`] only if that was less. So most allocations cost a comparison and a subtraction.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::blocks::{self, Announced};
use crate::chance::{Generator, one_minus_exp};
use crate::contract::{ANNOUNCEMENTS, Announcement, BASE_DISTANCE, SEMAPHORES, announce_free};

/// State of a thread. All zero until its first allocation that somebody wants to know of.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Thread {
    /// Bytes up to the next that is chosen. The fast path subtracts from it, without a sign: an allocation for which that is
    /// not enough contains a chosen byte, however large it is.
    pub(crate) left: u64,
    generator: Generator,
    /// [`EPOCH`] when the generator was seeded.
    epoch: u64,
}

impl Thread {
    #[cfg(not(memleak_preload))]
    pub(crate) const NEW: Self = Self {
        left: 0,
        generator: Generator(0),
        epoch: 0,
    };
}

/// Word that all generators are seeded by. It changes in a forked child, which would choose as its parent does.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// Number of generators that were seeded: threads that come one after another can have their state in one place.
static SEEDED: AtomicU64 = AtomicU64::new(0);

/// Makes the generators of this process others than those of its parent. For a forked child.
pub(crate) fn has_forked(pid: u32) {
    let epoch = EPOCH.load(Relaxed).wrapping_add(u64::from(pid) << 32) | 1;
    EPOCH.store(epoch, Relaxed);
}

/// Returns whether anybody wants to know of allocations, or of frees.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    SEMAPHORES.any()
}

/// Handles an allocation of `size` bytes, from which `thread.left` was less than `size` and has it subtracted: announces it if
/// it is chosen. `block` is 0 if the allocation failed.
#[cold]
#[inline(never)]
pub(crate) fn allocated(thread: &mut Thread, block: usize, size: usize) {
    if block == 0 {
        thread.left = thread.left.wrapping_add(size as u64);
        return;
    }
    let is_first = thread.epoch == 0;
    if thread.epoch != EPOCH.load(Relaxed) {
        seed(thread);
    }
    if is_first {
        // Nothing was left since nothing was drawn.
        let gap = thread.generator.gap(BASE_DISTANCE);
        thread.left = gap.wrapping_sub(size as u64);
        if gap >= size as u64 {
            return;
        }
    }
    thread.left = thread.generator.gap(BASE_DISTANCE);
    let chosen = choose(thread.generator.uniform(), size);
    if chosen != 0 {
        announce(block, Announced::new(size, chosen));
    }
}

/// Seeds the generator from what differs between threads (their number) and between programs (where they are in memory).
/// Neither clocks nor the time stamp counter are asked: a process may have forbidden them to itself.
fn seed(thread: &mut Thread) {
    let epoch = EPOCH.load(Relaxed);
    let place = core::ptr::from_ref(thread).addr() as u64;
    let code = core::ptr::from_ref(&SEMAPHORES).addr() as u64;
    let number = SEEDED.fetch_add(1, Relaxed);
    let words = [number, place, code, epoch, thread.generator.0];
    let seed = words
        .iter()
        .fold(0, |seed, word| Generator::mix(seed ^ word.rotate_left(17)));
    thread.generator = Generator(seed);
    thread.epoch = epoch;
}

/// Returns a bit for each announcement that a block of `size` bytes is chosen for, given that it is chosen at the base distance.
/// `uniform` decides for all of them, so that who is chosen at a large distance is at a small one, too.
fn choose(uniform: f64, size: usize) -> u8 {
    choose_for(uniform, size, Announcement::is_wanted)
}

fn choose_for(uniform: f64, size: usize, is_wanted: impl Fn(&Announcement) -> bool) -> u8 {
    let base = one_minus_exp(size as f64 / BASE_DISTANCE);
    let mut chosen = 0;
    for (number, announcement) in ANNOUNCEMENTS.iter().enumerate() {
        if is_wanted(announcement) && uniform * base <= one_minus_exp(size as f64 / announcement.distance) {
            chosen |= 1 << number;
        }
    }
    chosen
}

/// Returns how many bytes a block stands for that was chosen at a distance.
fn weighted(size: usize, distance: f64) -> u64 {
    let size = size as f64;
    (size / one_minus_exp(size / distance) + 0.5) as u64
}

/// Announces a block to those that it was chosen for. Not if its free could not be: what is announced must be known.
fn announce(block: usize, announced: Announced) {
    if SEMAPHORES.free() && !blocks::insert(block, announced) {
        return;
    }
    for (number, announcement) in ANNOUNCEMENTS.iter().enumerate() {
        // Whoever has come since would know of this block and not of its free.
        if announced.chosen() & 1 << number != 0 {
            let size = announced.size();
            announcement.hit(block, size, weighted(size, announcement.distance));
        }
    }
}

/// Returns whether the free of `block` may have to be announced: then [`freed`] must be called before it is freed.
#[inline(always)]
pub(crate) fn must_tell_free(block: usize) -> bool {
    SEMAPHORES.free() && blocks::may_have(block)
}

/// Announces the free of `block` if it was announced, and returns what is known of it. Before it is freed: as soon as it is,
/// another thread can be given its address.
#[cold]
#[inline(never)]
pub(crate) fn freed(block: usize) -> Option<Announced> {
    let announced = blocks::remove(block)?;
    announce_free(block);
    Some(announced)
}

/// Announces a block again whose free was announced and did not happen.
#[cold]
pub(crate) fn kept(block: usize, announced: Announced) {
    announce(block, announced);
}

#[cfg(test)]
mod tests;
