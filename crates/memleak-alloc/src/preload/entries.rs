//! The C library's functions.

#[cfg(target_arch = "x86_64")]
use super::next::Next;
use super::next::{NEXT, Nesting};
use super::thread;
#[cfg(target_arch = "x86_64")]
use crate::blocks::ANNOUNCED_IN_PAGE;
use crate::blocks::Announced;
#[cfg(target_arch = "x86_64")]
use crate::contract::{SEMAPHORE_OF_FREE, SEMAPHORES};
use crate::sampler;

#[cfg(target_arch = "x86_64")]
const _: () = assert!(core::mem::offset_of!(Next, malloc) == 0);

/// Handles an allocation that [`thread::is_due`] said to contain a chosen byte. Returns `block`.
#[cold]
#[inline(never)]
pub(super) extern "C" fn allocated(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: this thread's state. The sampler allocates nothing, so that it is not entered again; a signal
    // handler that allocates meanwhile changes the thread's numbers, but all their values are valid.
    let thread = unsafe { &mut *thread::current() };
    sampler::allocated(thread, block.addr(), size);
    block
}

/// Returns true if an allocation of `size` bytes has to be handled by [`allocated`].
#[inline(always)]
pub(super) fn is_due(size: usize) -> bool {
    sampler::is_active() && thread::is_due(size)
}

/// Calls a function of the next allocator that may call another of the functions here. Inner calls are not
/// sampled; the caller of this function samples the block.
#[inline(always)]
fn outer<T>(nesting: Nesting, call: impl FnOnce() -> T) -> T {
    match sampler::is_active() && nesting.is_nested() {
        true => thread::without_samples(call),
        false => call(),
    }
}

/// Written in assembly, with instructions that compare and jump through memory, which compilers do not
/// generate for atomic variables: this saves two of eight instructions. All of them are in one cache line, as
/// are those of `free`: in two lines, a pair of `malloc` and `free` takes up to 1.2 ns more.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.memleak_malloc")]
pub(super) extern "C" fn malloc(size: usize) -> *mut u8 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp qword ptr [rip + {semaphores}], 0",
        "jne 3f",
        "2: jmp qword ptr [rip + {next}]",
        "3: mov rax, qword ptr [rip + memleak_thread@GOTTPOFF]",
        "sub qword ptr fs:[rax], rdi",
        "jnc 2b",
        "jmp {chosen}",
        ".cfi_endproc",
        // The section has this alignment, too, and begins with this function.
        ".balign 64",
        semaphores = sym SEMAPHORES, next = sym NEXT, chosen = sym malloc_chosen,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
pub(super) extern "C" fn malloc(size: usize) -> *mut u8 {
    match is_due(size) {
        true => malloc_chosen(size),
        false => NEXT.malloc.get()(size),
    }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_chosen(size: usize) -> *mut u8 {
    allocated(NEXT.malloc.get()(size), size)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn calloc(count: usize, size: usize) -> *mut u8 {
    let bytes = count.saturating_mul(size);
    match is_due(bytes) {
        true => allocated(outer(Nesting::Calloc, || NEXT.calloc.get()(count, size)), bytes),
        false => outer(Nesting::Calloc, || NEXT.calloc.get()(count, size)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut u8 {
    match is_due(size) {
        true => allocated(NEXT.aligned_alloc.get()(alignment, size), size),
        false => NEXT.aligned_alloc.get()(alignment, size),
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: usize, size: usize) -> *mut u8 {
    match is_due(size) {
        true => allocated(
            outer(Nesting::Aligned, || NEXT.memalign.get()(alignment, size)),
            size,
        ),
        false => outer(Nesting::Aligned, || NEXT.memalign.get()(alignment, size)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut u8 {
    match is_due(size) {
        true => allocated(outer(Nesting::Aligned, || NEXT.valloc.get()(size)), size),
        false => outer(Nesting::Aligned, || NEXT.valloc.get()(size)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut u8 {
    match is_due(size) {
        true => allocated(outer(Nesting::Aligned, || NEXT.pvalloc.get()(size)), size),
        false => outer(Nesting::Aligned, || NEXT.pvalloc.get()(size)),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_memalign(place: *mut *mut u8, alignment: usize, size: usize) -> i32 {
    let status = outer(Nesting::Aligned, || {
        NEXT.posix_memalign.get()(place, alignment, size)
    });
    if is_due(size) {
        let block = match status {
            // SAFETY: it was stored there.
            0 => unsafe { place.read() },
            _ => core::ptr::null_mut(),
        };
        allocated(block, size);
    }
    status
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[unsafe(link_section = ".text.memleak_free")]
pub(super) extern "C" fn free(block: *mut u8) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp word ptr [rip + {semaphores} + {free}], 0",
        "jne 3f",
        "2: jmp qword ptr [rip + {next} + {place}]",
        "3: mov eax, edi",
        "shr eax, 12",
        "movzx eax, ax",
        "lea rcx, [rip + {announced}]",
        "cmp byte ptr [rcx + rax], 0",
        "je 2b",
        "jmp {freed}",
        ".cfi_endproc",
        ".balign 64",
        semaphores = sym SEMAPHORES, free = const SEMAPHORE_OF_FREE, next = sym NEXT,
        place = const core::mem::offset_of!(Next, free), announced = sym ANNOUNCED_IN_PAGE, freed = sym free_announced,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
pub(super) extern "C" fn free(block: *mut u8) {
    match sampler::must_tell_free(block.addr()) {
        true => free_announced(block),
        false => NEXT.free.get()(block),
    }
}

#[cold]
#[inline(never)]
extern "C" fn free_announced(block: *mut u8) {
    sampler::freed(block.addr());
    NEXT.free.get()(block);
}

#[unsafe(no_mangle)]
extern "C" fn free_sized(block: *mut u8, size: usize) {
    if sampler::must_tell_free(block.addr()) {
        sampler::freed(block.addr());
    }
    NEXT.free_sized.get()(block, size);
}

#[unsafe(no_mangle)]
extern "C" fn free_aligned_sized(block: *mut u8, alignment: usize, size: usize) {
    if sampler::must_tell_free(block.addr()) {
        sampler::freed(block.addr());
    }
    NEXT.free_aligned_sized.get()(block, alignment, size);
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    match sampler::is_active() {
        true => resize(block, size),
        false => NEXT.realloc.get()(block, size),
    }
}

/// Calls this library's `realloc`, not the next `reallocarray`, which would call that `realloc` itself.
#[unsafe(no_mangle)]
extern "C" fn reallocarray(block: *mut u8, count: usize, size: usize) -> *mut u8 {
    // A saturated size fails as an overflow must: with ENOMEM, and the block unchanged.
    realloc(block, count.saturating_mul(size))
}

/// Resizes a block, which counts as a free and an allocation. The free of an announced block is announced
/// before, since another block can get the address as soon as it is free; if the call fails, the block is
/// announced again.
#[inline(never)]
extern "C" fn resize(block: *mut u8, size: usize) -> *mut u8 {
    let old = announced(block);
    let new = NEXT.realloc.get()(block, size);
    after_resize(block, old, new, size);
    new
}

/// Announces the free of `block` if the block was announced, and returns its record.
pub(super) fn announced(block: *mut u8) -> Option<Announced> {
    match sampler::must_tell_free(block.addr()) {
        true => sampler::freed(block.addr()),
        false => None,
    }
}

/// Announces the outcome of resizing `block`, whose record was `old`.
pub(super) fn after_resize(block: *mut u8, old: Option<Announced>, new: *mut u8, size: usize) {
    match old {
        // Size 0 is a request to free: the result is then NULL without a failure.
        Some(old) if new.is_null() && size != 0 => sampler::kept(block.addr(), old),
        _ => {}
    }
    if !new.is_null() && thread::is_due(size) {
        allocated(new, size);
    }
}
