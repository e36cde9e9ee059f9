//! Chooses blocks, and announces them and their frees.
//!
//! The caller keeps a [`Thread`] for each thread, subtracts the size of each allocation from
//! [`Thread::left`], and calls [`allocated`] only if that was less. So most allocations cost a comparison and
//! a subtraction.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::blocks::{self, Announced};
use crate::chance::{Generator, one_minus_exp};
use crate::contract::{ANNOUNCEMENTS, Announcement, BASE_DISTANCE, SEMAPHORES, announce_free};

/// State of a thread; all zero until its first allocation while a tracer is attached.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Thread {
    /// Bytes up to the next chosen one. The fast path subtracts the size of each allocation from this
    /// unsigned number: an allocation that makes it wrap around contains a chosen byte, however large the
    /// allocation is.
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

/// Word that is part of the seed of every generator. It changes in a forked child, which would otherwise
/// choose as its parent does.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// Number of generators that were seeded. It is part of the seed, since consecutive threads can have their
/// state at the same address.
static SEEDED: AtomicU64 = AtomicU64::new(0);

/// Makes the generators of a forked child differ from those of its parent.
pub(crate) fn has_forked(pid: u32) {
    let epoch = EPOCH.load(Relaxed).wrapping_add(u64::from(pid) << 32) | 1;
    EPOCH.store(epoch, Relaxed);
}

/// Returns true if a tracer is attached to any of the probes, of allocations or frees.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    SEMAPHORES.any()
}

/// Handles an allocation of `size` bytes that made `thread.left` wrap around when `size` was subtracted:
/// announces the block if it is chosen. `block` is 0 if the allocation failed.
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
        // `left` was 0, since no gap had been drawn before.
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

/// Seeds the generator from values that differ between threads (their number) and between programs (their
/// addresses in memory). It reads no clock and no time stamp counter: a process may have forbidden these to
/// itself.
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

/// Returns a bit for each announcement that a block of `size` bytes is chosen for, given that it is chosen at
/// the base distance. The one number `uniform` decides for all of them, so that a block that is chosen at a
/// large distance is also chosen at every smaller one.
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

/// Returns the number of bytes that a block chosen at this distance stands for.
fn weighted(size: usize, distance: f64) -> u64 {
    let size = size as f64;
    (size / one_minus_exp(size / distance) + 0.5) as u64
}

/// Announces a block by the probes that it was chosen for. If frees are traced and there is no place to
/// remember the block, it is not announced, since its free could not be announced either.
fn announce(block: usize, announced: Announced) {
    if SEMAPHORES.free() && !blocks::insert(block, announced) {
        return;
    }
    for (number, announcement) in ANNOUNCEMENTS.iter().enumerate() {
        // Tracers that attached after the choice are left out: they could see this block, and not its free.
        if announced.chosen() & 1 << number != 0 {
            let size = announced.size();
            announcement.hit(block, size, weighted(size, announcement.distance));
        }
    }
}

/// Returns true if the free of `block` may have to be announced: then [`freed`] must be called before the
/// block is freed.
#[inline(always)]
pub(crate) fn must_tell_free(block: usize) -> bool {
    SEMAPHORES.free() && blocks::may_have(block)
}

/// Announces the free of `block` if the block was announced, and returns its record. Must be called before
/// the block is freed, since afterwards another thread can be given its address.
#[cold]
#[inline(never)]
pub(crate) fn freed(block: usize) -> Option<Announced> {
    let announced = blocks::remove(block)?;
    announce_free(block);
    Some(announced)
}

/// Announces a block again after its free was announced and did not happen.
#[cold]
pub(crate) fn kept(block: usize, announced: Announced) {
    announce(block, announced);
}

#[cfg(test)]
mod tests;
