//! The functions that the program would call without this library: each is that of the first object behind
//! it, in the loader's search order, that has one.
//!
//! Each place initially has a function that finds the next functions, so that the fast path has nothing to
//! test. The search runs in the library's constructor, or at the first allocation if that is earlier.

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::abort::abort;
use super::elf::{self, Name};
use super::{jemalloc, thread};
use crate::sampler;

/// Place of a function of type `F`.
#[repr(transparent)]
pub(super) struct Place<F>(AtomicPtr<()>, PhantomData<F>);

impl<F: Copy> Place<F> {
    const fn new(initial: *const ()) -> Self {
        Self(AtomicPtr::new(initial.cast_mut()), PhantomData)
    }

    #[inline(always)]
    pub(super) fn get(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
        let function = self.0.load(Relaxed);
        // SAFETY: every place has a function of its type from the start.
        unsafe { core::mem::transmute_copy(&function) }
    }

    fn set(&self, function: *const ()) {
        self.0.store(function.cast_mut(), Release);
    }
}

/// Defines [`Next`] and its initial functions, each of which finds all functions and calls the one that it
/// stands for.
macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?, otherwise $otherwise:expr;)*) => {
        #[repr(C)]
        pub(super) struct Next {
            $(pub(super) $name: Place<extern "C" fn($($type),*) $(-> $result)?>,)*
        }

        pub(super) static NEXT: Next = Next {
            $($name: Place::new(first::$name as *const ()),)*
        };

        mod first {
            use super::*;
            $(pub(super) extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                found().$name.get()($($argument),*)
            })*
        }

        /// Functions that were found, before they are published in [`NEXT`].
        static FOUND: Next = Next {
            $($name: Place::new($otherwise as *const ()),)*
        };

        fn find() {
            $(if let Some(found) = elf::next(const { Name::new(stringify!($name)) }) {
                FOUND.$name.set(found.function);
            })*
        }

        fn publish() {
            $(NEXT.$name.set(FOUND.$name.0.load(Relaxed));)*
        }

        /// Makes all calls come to [`found`] again.
        fn withdraw() {
            $(NEXT.$name.set(first::$name as *const ());)*
        }
    };
}

next! {
    malloc(size: usize) -> *mut u8, otherwise missing;
    calloc(count: usize, size: usize) -> *mut u8, otherwise missing;
    realloc(block: *mut u8, size: usize) -> *mut u8, otherwise missing;
    free(block: *mut u8), otherwise missing;
    posix_memalign(place: *mut *mut u8, alignment: usize, size: usize) -> i32, otherwise missing;
    aligned_alloc(alignment: usize, size: usize) -> *mut u8, otherwise missing;
    memalign(alignment: usize, size: usize) -> *mut u8, otherwise missing;
    valloc(size: usize) -> *mut u8, otherwise missing;
    pvalloc(size: usize) -> *mut u8, otherwise missing;
    free_sized(block: *mut u8, size: usize), otherwise free_without_size;
    free_aligned_sized(block: *mut u8, alignment: usize, size: usize), otherwise free_without_alignment;
    mallocx(size: usize, flags: i32) -> *mut u8, otherwise jemalloc::emulated::mallocx;
    rallocx(block: *mut u8, size: usize, flags: i32) -> *mut u8, otherwise jemalloc::emulated::rallocx;
    xallocx(block: *mut u8, size: usize, extra: usize, flags: i32) -> usize, otherwise jemalloc::emulated::xallocx;
    dallocx(block: *mut u8, flags: i32), otherwise jemalloc::emulated::dallocx;
    sdallocx(block: *mut u8, size: usize, flags: i32), otherwise jemalloc::emulated::sdallocx;
    malloc_usable_size(block: *mut u8) -> usize, otherwise no_size;
}

/// Stands for a function that every C library has, and no object does.
extern "C" fn missing() -> ! {
    abort()
}

extern "C" fn free_without_size(block: *mut u8, _size: usize) {
    NEXT.free.get()(block);
}

extern "C" fn free_without_alignment(block: *mut u8, _alignment: usize, _size: usize) {
    NEXT.free.get()(block);
}

extern "C" fn no_size(_block: *mut u8) -> usize {
    0
}

/// A group of functions that some C libraries implement by calls of others by their dynamic symbols, so that
/// this library sees both calls.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Nesting {
    /// `calloc`, which calls `malloc`.
    Calloc = 1,
    /// `posix_memalign`, `memalign` and `valloc`, which call `aligned_alloc`.
    Aligned = 2,
}

static NESTED: AtomicU8 = AtomicU8::new(0);

impl Nesting {
    #[inline(always)]
    pub(super) fn is_nested(self) -> bool {
        NESTED.load(Relaxed) & self as u8 != 0
    }
}

/// Stages of [`resolve`].
const UNRESOLVED: u8 = 0;
const SEARCHING: u8 = 1;
const TRYING: u8 = 2;
const RESOLVED: u8 = 3;

static STAGE: AtomicU8 = AtomicU8::new(UNRESOLVED);
/// The thread that resolves, by the address of its state.
static RESOLVER: AtomicUsize = AtomicUsize::new(0);
/// Number of calls that came here from within the next allocator while it was tried out.
static CALLS_FROM_WITHIN: AtomicU32 = AtomicU32::new(0);

/// Finds the next functions, once. Other threads wait until that is done.
pub(super) fn resolve() {
    let own = thread::current().addr();
    match STAGE.compare_exchange(UNRESOLVED, SEARCHING, AcqRel, Acquire) {
        Ok(_) => {
            RESOLVER.store(own, Relaxed);
            find();
            jemalloc::find();
            STAGE.store(TRYING, Release);
            try_nesting();
            publish();
            STAGE.store(RESOLVED, Release);
        }
        Err(RESOLVED | TRYING) => {}
        Err(_) => {
            while STAGE.load(Acquire) == SEARCHING {
                // The search itself calls nothing that allocates.
                if RESOLVER.load(Relaxed) == own {
                    abort();
                }
                core::hint::spin_loop();
            }
        }
    }
}

/// Returns the functions that were found, for calls before they are published.
fn found() -> &'static Next {
    resolve();
    if STAGE.load(Acquire) == TRYING && RESOLVER.load(Relaxed) == thread::current().addr() {
        CALLS_FROM_WITHIN.fetch_add(1, Relaxed);
    }
    &FOUND
}

/// Finds out which functions call others by symbol, by trying them: such calls come to [`found`].
fn try_nesting() {
    const SIZE: usize = 64;
    CALLS_FROM_WITHIN.store(0, Relaxed);
    let block = FOUND.calloc.get()(1, SIZE);
    let mut nested = match CALLS_FROM_WITHIN.swap(0, Relaxed) {
        0 => 0,
        _ => Nesting::Calloc as u8,
    };
    let mut aligned = ptr::null_mut();
    let status = FOUND.posix_memalign.get()(&raw mut aligned, SIZE, SIZE);
    if CALLS_FROM_WITHIN.swap(0, Relaxed) > 0 {
        nested |= Nesting::Aligned as u8;
    }
    NESTED.store(nested, Relaxed);
    FOUND.free.get()(block);
    if status == 0 {
        FOUND.free.get()(aligned);
    }
}

/// Calls `call`, and returns true if that called any of these functions by its dynamic symbol. Requires that
/// all functions are found; other threads can call them meanwhile.
pub(super) fn calls_from_within(call: impl FnOnce()) -> bool {
    // One thread at a time; calls below do not come here again.
    while STAGE.compare_exchange(RESOLVED, TRYING, AcqRel, Acquire).is_err() {
        core::hint::spin_loop();
    }
    RESOLVER.store(thread::current().addr(), Relaxed);
    CALLS_FROM_WITHIN.store(0, Relaxed);
    withdraw();
    call();
    publish();
    let has_called = CALLS_FROM_WITHIN.swap(0, Relaxed) > 0;
    STAGE.store(RESOLVED, Release);
    has_called
}

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    fn getpid() -> i32;
}

/// Makes forked children choose other blocks than their parent, by the one of two functions that the C
/// library has.
pub(super) fn follow_forks() {
    extern "C" fn in_child() {
        // SAFETY: has no conditions.
        sampler::has_forked(unsafe { getpid() }.cast_unsigned());
    }
    if let Some(register) = elf::next(const { Name::new("__register_atfork") }) {
        // SAFETY: glibc's, with that type.
        let register: extern "C" fn(Handler, Handler, Handler, *const ()) -> i32 =
            unsafe { core::mem::transmute(register.function) };
        register(None, None, Some(in_child), ptr::null());
    } else if let Some(register) = elf::next(const { Name::new("pthread_atfork") }) {
        // SAFETY: as POSIX defines it.
        let register: extern "C" fn(Handler, Handler, Handler) -> i32 =
            unsafe { core::mem::transmute(register.function) };
        register(None, None, Some(in_child));
    }
}
