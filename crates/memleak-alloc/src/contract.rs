//! The contract: USDT probes that announce chosen blocks and their frees, each with a counter of the attached
//! tracers (its semaphore).
//!
//! | probe | arguments | distance |
//! |---|---|---|
//! | `otel_memory:alloc` | pointer, size, weighted bytes | 512 KiB |
//! | `otel_memory:alloc_64k`, `otel_memory:alloc_4m` | the same | 64 KiB, 4 MiB |
//! | `otel_memory:free` | pointer | of blocks that were announced by any of these |
//!
//! A tracer chooses the distance by the probe that it attaches to. Distance is the mean number of bytes
//! between samples.
//!
//! Each probe is a function of its own: a `nop`, which every kernel can probe, and behind it, on x86-64, a
//! `nop` of ten bytes, which Linux 7.2 and newer replace by a call that costs half of a trap. Tracers that
//! know of the longer one choose between them, as with `nop,nop10` in libbpf's `usdt.h`. It is not a `nop` of
//! five bytes, since the call in its place harms the program (Linux 6.18 to 7.1).

#![allow(
    unsafe_code,
    reason = "instructions and notes that only an assembler can write"
)]

use core::arch::naked_asm;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

/// Numbers of tracers attached to each probe, in one word, so that one comparison is enough to see that there
/// are none. The kernel changes them, and finds them by their offset in the file.
#[repr(C, align(8))]
pub struct Semaphores {
    alloc: AtomicU16,
    alloc_64k: AtomicU16,
    alloc_4m: AtomicU16,
    free: AtomicU16,
}

/// The semaphores that the notes of the probes refer to.
#[unsafe(link_section = ".probes")]
pub static SEMAPHORES: Semaphores = Semaphores {
    alloc: AtomicU16::new(0),
    alloc_64k: AtomicU16::new(0),
    alloc_4m: AtomicU16::new(0),
    free: AtomicU16::new(0),
};

/// Offset of the semaphore of frees in [`Semaphores`].
pub const SEMAPHORE_OF_FREE: usize = core::mem::offset_of!(Semaphores, free);

impl Semaphores {
    /// Returns true if a tracer is attached to any of the probes.
    #[inline(always)]
    pub fn any(&self) -> bool {
        let word: *const Self = self;
        // SAFETY: four counters of 16 bits, aligned as one word, all of them atomic.
        unsafe { &*word.cast::<AtomicU64>() }.load(Relaxed) != 0
    }

    /// Returns true if a tracer is attached to the probe of frees.
    #[inline(always)]
    pub fn free(&self) -> bool {
        self.free.load(Relaxed) != 0
    }
}

/// A probe that announces blocks.
#[derive(Debug)]
pub struct Announcement {
    /// Mean number of bytes between samples.
    pub distance: f64,
    semaphore: &'static AtomicU16,
    probe: extern "C" fn(usize, usize, u64),
}

impl Announcement {
    /// Returns true if a tracer is attached.
    pub fn is_wanted(&self) -> bool {
        self.semaphore.load(Relaxed) != 0
    }

    /// Hits the probe.
    pub fn hit(&self, pointer: usize, size: usize, weighted: u64) {
        (self.probe)(pointer, size, weighted);
    }
}

/// Smallest distance of [`ANNOUNCEMENTS`]. Blocks are chosen at this distance first, and some of these at
/// random for the larger ones.
pub const BASE_DISTANCE: f64 = 65_536.0;

/// Probes that announce blocks, in the order of the bits in the record of a block.
pub static ANNOUNCEMENTS: [Announcement; 3] = [
    Announcement {
        distance: BASE_DISTANCE,
        semaphore: &SEMAPHORES.alloc_64k,
        probe: alloc_64k,
    },
    Announcement {
        distance: 8.0 * BASE_DISTANCE,
        semaphore: &SEMAPHORES.alloc,
        probe: alloc,
    },
    Announcement {
        distance: 64.0 * BASE_DISTANCE,
        semaphore: &SEMAPHORES.alloc_4m,
        probe: alloc_4m,
    },
];

#[cfg(target_arch = "x86_64")]
macro_rules! places {
    (3) => {
        "8@%rdi 8@%rsi 8@%rdx"
    };
    (1) => {
        "8@%rdi"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! places {
    (3) => {
        "8@x0 8@x1 8@x2"
    };
    (1) => {
        "8@x0"
    };
}

/// Instruction without effect that can be probed in place of the `nop` before it.
#[cfg(target_arch = "x86_64")]
macro_rules! longer {
    () => {
        // cs nopw 0(%rax,%rax,1)
        ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! longer {
    () => {
        ""
    };
}

/// Defines the function of a probe, and its note in the layout of SystemTap's `sys/sdt.h`: sizes and type;
/// addresses of the probe, of `.stapsdt.base`, and of the semaphore; provider, name and places of the
/// arguments. From the address of `.stapsdt.base`, readers see that an object was moved after it was linked.
macro_rules! probe {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*), semaphore $at:literal, places $count:tt) => {
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(link_section = ".text.memleak_probes")]
        extern "C" fn $name($($argument: $type),*) {
            naked_asm!(
                ".cfi_startproc",
                "990: nop",
                longer!(),
                "ret",
                ".cfi_endproc",
                // No instruction of a probe crosses a page: each function, like the section, is aligned to 16
                // bytes, which is more than its length.
                ".balign 16",
                ".pushsection .note.stapsdt,\"\",\"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                concat!("993: .8byte 990b, _.stapsdt.base, {semaphores} + ", $at),
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", stringify!($name), "\""),
                concat!(".asciz \"", places!($count), "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphores = sym SEMAPHORES,
            )
        }
    };
}

probe!(alloc(_pointer: usize, _size: usize, _weighted: u64), semaphore "0", places 3);
probe!(alloc_64k(_pointer: usize, _size: usize, _weighted: u64), semaphore "2", places 3);
probe!(alloc_4m(_pointer: usize, _size: usize, _weighted: u64), semaphore "4", places 3);
probe!(
    /// Announces that a block that was announced is about to be freed.
    free(_pointer: usize), semaphore "6", places 1
);

/// Hits the probe of frees.
pub fn announce_free(pointer: usize) {
    free(pointer);
}
