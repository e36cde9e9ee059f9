//! State of each thread, in the memory that the loader reserves for a thread's variables when the thread
//! starts (initial-exec): access takes one load, and never allocates.

use core::arch::{asm, global_asm};

use crate::sampler::Thread;

const _: () = assert!(size_of::<Thread>() == 24);
const _: () = assert!(core::mem::offset_of!(Thread, left) == 0);

global_asm!(
    ".pushsection .tbss.memleak_thread,\"awT\",@nobits",
    ".balign 8",
    ".globl memleak_thread",
    ".hidden memleak_thread",
    ".type memleak_thread, @object",
    ".size memleak_thread, 24",
    "memleak_thread: .zero 24",
    ".popsection",
);

/// Returns the current thread's state.
pub(super) fn current() -> *mut Thread {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the address of a variable of this thread.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + memleak_thread@GOTTPOFF]",
            out(reg) thread, options(pure, readonly, nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the address of a variable of this thread.
    unsafe {
        asm!(
            "mrs {0}, tpidr_el0",
            "adrp {1}, :gottprel:memleak_thread",
            "ldr {1}, [{1}, :gottprel_lo12:memleak_thread]",
            "add {0}, {0}, {1}",
            out(reg) thread, out(reg) _, options(pure, readonly, nostack)
        );
    }
    core::ptr::with_exposed_provenance_mut(thread)
}

/// Subtracts `size` from the current thread's `left`. Returns true if `left` was less than `size`.
#[inline(always)]
pub(super) fn is_due(size: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes the variable of this thread, by one instruction: a signal handler comes before or after
    // it.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + memleak_thread@GOTTPOFF]",
            "sub qword ptr fs:[{0}], {1}",
            "jc {2}",
            out(reg) _, in(reg) size, label { return true }, options(nostack)
        );
        false
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: the state of this thread. A signal handler that allocates in between is not counted.
        let left = unsafe { &mut (*current()).left };
        let (rest, is_due) = left.overflowing_sub(size as u64);
        *left = rest;
        is_due
    }
}

/// Calls `call`, whose allocations are not sampled.
#[cold]
pub(super) fn without_samples<T>(call: impl FnOnce() -> T) -> T {
    /// More bytes than it will allocate.
    const PLENTY: u64 = 1 << 63;
    let thread = current();
    // SAFETY: the state of this thread.
    let left = unsafe { core::mem::replace(&mut (*thread).left, PLENTY) };
    let result = call();
    // SAFETY: as above.
    unsafe { (*thread).left = left };
    result
}
