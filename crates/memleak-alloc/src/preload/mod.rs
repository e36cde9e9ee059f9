//! `libmemleak.so`: `malloc` and related functions, for programs that are started with it (`LD_PRELOAD`).
//! Each forwards to the allocator that the program would have without it (`next`).
//!
//! The library needs no other one (no `DT_NEEDED`), so that one object serves glibc of any age and musl. It
//! uses three functions of the C library by name: `dl_iterate_phdr`, `getpid`, and `__register_atfork` or
//! `pthread_atfork`, whichever exists.
//!
//! An allocation must not count twice where one of these functions calls another by its dynamic symbol:
//! libstdc++'s `operator new`, which calls `malloc`, is passed through; where musl's `calloc` calls `malloc`,
//! the inner call is not sampled.

#![allow(unsafe_code, reason = "the C library's allocation functions")]

mod abort;
mod elf;
mod entries;
mod jemalloc;
mod next;
mod operators;
mod thread;

/// Constructor: called by the loader before any code of the program except other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZE: extern "C" fn() = initialize;

extern "C" fn initialize() {
    next::resolve();
    next::follow_forks();
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    abort::abort()
}
