//! The allocator for Rust programs.

#![allow(unsafe_code, reason = "an allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::alloc::System;
use std::thread_local;

use crate::sampler::{self, Thread};

/// An allocator that samples its allocations, and forwards to `A`.
///
/// If `libmemleak.so` is preloaded too and `A` calls `malloc`, blocks are announced twice: use one of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled<A = System>(A);

impl Sampled {
    /// Forwards to the system's allocator.
    pub const fn system() -> Self {
        Self(System)
    }
}

impl<A> Sampled<A> {
    /// Forwards to `allocator`.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

thread_local! {
    /// State of a thread. It has no destructor, so that its use does not allocate, and it remains usable
    /// while destructors of other variables run.
    static THREAD: UnsafeCell<Thread> = const { UnsafeCell::new(Thread::NEW) };
}

/// Returns true if an allocation of `size` bytes contains a chosen byte; false while the thread ends.
#[inline]
fn is_due(size: usize) -> bool {
    sampler::is_active()
        && THREAD
            .try_with(|thread| {
                // SAFETY: no other thread has it, and no reference to it lives longer than this.
                let left = unsafe { &mut (*thread.get()).left };
                let (rest, is_due) = left.overflowing_sub(size as u64);
                *left = rest;
                is_due
            })
            .unwrap_or(false)
}

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        in_parent: Option<extern "C" fn()>,
        in_child: Option<extern "C" fn()>,
    ) -> i32;
}

/// Makes forked children choose other blocks than their parent. Called once a tracer is attached.
fn follow_forks() {
    extern "C" fn in_child() {
        sampler::has_forked(std::process::id());
    }
    static FOLLOWED: AtomicBool = AtomicBool::new(false);
    if !FOLLOWED.swap(true, Relaxed) {
        // SAFETY: the handler only stores a number.
        unsafe { pthread_atfork(None, None, Some(in_child)) };
    }
}

#[cold]
#[inline(never)]
fn allocated(block: *mut u8, size: usize) -> *mut u8 {
    follow_forks();
    let _ = THREAD.try_with(|thread| {
        // SAFETY: no other thread has it; the sampler allocates nothing, so that it is not entered again. A
        // signal handler that allocates meanwhile changes the thread's numbers, but all their values are
        // valid.
        let thread = unsafe { &mut *thread.get() };
        sampler::allocated(thread, block.addr(), size);
    });
    block
}

// SAFETY: blocks are those of the other allocator.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the other allocator requires.
        let block = unsafe { self.0.alloc(layout) };
        match is_due(layout.size()) {
            true => allocated(block, layout.size()),
            false => block,
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        match is_due(layout.size()) {
            true => allocated(block, layout.size()),
            false => block,
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if sampler::must_tell_free(block.addr()) {
            sampler::freed(block.addr());
        }
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let old = match sampler::must_tell_free(block.addr()) {
            true => sampler::freed(block.addr()),
            false => None,
        };
        // SAFETY: as above.
        let new = unsafe { self.0.realloc(block, layout, size) };
        match old {
            Some(old) if new.is_null() => sampler::kept(block.addr(), old),
            _ => {}
        }
        match is_due(size) {
            true => allocated(new, size),
            false => new,
        }
    }
}
