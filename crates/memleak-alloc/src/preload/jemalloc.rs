//! jemalloc's own functions (`mallocx` and related ones), whose last argument has flags.
//!
//! By the address of one of them, a program may test whether its allocator is jemalloc. If the next allocator
//! does not have them, they are emulated with this library's other functions, which sample.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::elf::{self, Name};
use super::entries::{after_resize, allocated, announced, is_due};
use super::next::NEXT;
use super::thread;
use crate::sampler;

/// True if the next allocator has these functions.
static IS_NEXT: AtomicBool = AtomicBool::new(false);

/// Finds out whether the next allocator has these functions.
pub(super) fn find() {
    let allocator = elf::next(const { Name::new("malloc") });
    let of_jemalloc = elf::next(const { Name::new("mallocx") });
    let is_next = allocator
        .zip(of_jemalloc)
        .is_some_and(|(one, other)| one.object == other.object);
    IS_NEXT.store(is_next, Relaxed);
}

fn is_sampled() -> bool {
    sampler::is_active() && IS_NEXT.load(Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn mallocx(size: usize, flags: i32) -> *mut u8 {
    match is_sampled() && is_due(size) {
        true => allocated(NEXT.mallocx.get()(size, flags), size),
        false => NEXT.mallocx.get()(size, flags),
    }
}

#[unsafe(no_mangle)]
extern "C" fn rallocx(block: *mut u8, size: usize, flags: i32) -> *mut u8 {
    if !is_sampled() {
        return NEXT.rallocx.get()(block, size, flags);
    }
    let old = announced(block);
    let new = NEXT.rallocx.get()(block, size, flags);
    after_resize(block, old, new, size);
    new
}

/// Resizes in place. The call has succeeded only if the result is at least `size`; the block then counts as a
/// new one.
#[unsafe(no_mangle)]
extern "C" fn xallocx(block: *mut u8, size: usize, extra: usize, flags: i32) -> usize {
    let result = NEXT.xallocx.get()(block, size, extra, flags);
    if is_sampled() && result >= size {
        announced(block);
        if thread::is_due(size) {
            allocated(block, size);
        }
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn dallocx(block: *mut u8, flags: i32) {
    announced(block);
    NEXT.dallocx.get()(block, flags);
}

#[unsafe(no_mangle)]
extern "C" fn sdallocx(block: *mut u8, size: usize, flags: i32) {
    announced(block);
    NEXT.sdallocx.get()(block, size, flags);
}

/// Functions for allocators without them.
pub(super) mod emulated {
    use core::ptr;

    use crate::preload::entries::{calloc, free, malloc, posix_memalign, realloc};
    use crate::preload::next::NEXT;

    /// Flags: the logarithm of the alignment, and whether the block is zeroed.
    const ALIGNMENT: i32 = 63;
    const ZERO: i32 = 64;

    pub(in crate::preload) extern "C" fn mallocx(size: usize, flags: i32) -> *mut u8 {
        let alignment = 1_usize.wrapping_shl((flags & ALIGNMENT).cast_unsigned());
        if alignment <= align_of::<u128>() {
            return match flags & ZERO {
                0 => malloc(size),
                _ => calloc(1, size),
            };
        }
        let mut block = ptr::null_mut();
        // SAFETY: the result has a place.
        if unsafe { posix_memalign(&raw mut block, alignment, size) } != 0 {
            return ptr::null_mut();
        }
        if flags & ZERO != 0 {
            // SAFETY: a new block of that size.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    pub(in crate::preload) extern "C" fn rallocx(block: *mut u8, size: usize, flags: i32) -> *mut u8 {
        if flags & (ALIGNMENT | ZERO) == 0 {
            return realloc(block, size);
        }
        let new = mallocx(size, flags);
        if !new.is_null() {
            let copied = NEXT.malloc_usable_size.get()(block).min(size);
            // SAFETY: two blocks of at least that size.
            unsafe { block.copy_to_nonoverlapping(new, copied) };
            free(block);
        }
        new
    }

    /// Never resizes, a result that callers must expect.
    pub(in crate::preload) extern "C" fn xallocx(block: *mut u8, _: usize, _: usize, _: i32) -> usize {
        NEXT.malloc_usable_size.get()(block)
    }

    pub(in crate::preload) extern "C" fn dallocx(block: *mut u8, _: i32) {
        free(block);
    }

    pub(in crate::preload) extern "C" fn sdallocx(block: *mut u8, _: usize, _: i32) {
        free(block);
    }
}
