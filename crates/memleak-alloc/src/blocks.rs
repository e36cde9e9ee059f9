//! The set of announced blocks that are not freed yet. It has no locks, so that signal handlers may allocate
//! and free; it has no tombstones; and it takes no memory until there is a block.
//!
//! A block belongs into one of two buckets of each table; the keys of a bucket fill a cache line. The first
//! table is a part of the program, the others are mapped when those before are full. In front of the tables
//! is a counter for each page (modulo 256 MiB): for most blocks that were not announced, one load of it is
//! enough.

#![allow(unsafe_code, reason = "memory that is mapped by hand")]

use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Keys and values of eight blocks. A key is the address of a block, 0 in an empty place.
#[repr(C, align(64))]
struct Bucket {
    keys: [AtomicUsize; 8],
    values: [AtomicU64; 8],
}

impl Bucket {
    const fn empty() -> Self {
        Self {
            keys: [const { AtomicUsize::new(0) }; 8],
            values: [const { AtomicU64::new(0) }; 8],
        }
    }
}

/// Numbers of buckets of the tables, powers of two: room for some 6 thousand blocks in the first, 4 million
/// in all.
const TABLES: [usize; 4] = [1 << 10, 1 << 13, 1 << 16, 1 << 19];
/// Number of page counters: one for each value of 16 bits, which `preload::entries::free` relies on.
const PAGES: usize = 1 << 16;

static FIRST: [Bucket; TABLES[0]] = [const { Bucket::empty() }; TABLES[0]];
static OTHERS: [AtomicPtr<Bucket>; TABLES.len() - 1] =
    [const { AtomicPtr::new(ptr::null_mut()) }; TABLES.len() - 1];
pub(crate) static ANNOUNCED_IN_PAGE: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];
/// Number of blocks that were chosen and not announced, because the set had no place for them. Tracers read
/// it by its symbol.
#[cfg_attr(memleak_preload, unsafe(no_mangle))]
#[allow(non_upper_case_globals, reason = "a symbol")]
pub(crate) static memleak_samples_not_announced: AtomicU64 = AtomicU64::new(0);

/// Record of an announced block: its size, and the announcements that it was chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced(u64);

impl Announced {
    /// `chosen` has a bit for each of the three announcements. No block has a size of 2^61.
    pub(crate) fn new(size: usize, chosen: u8) -> Self {
        Self((size as u64) << 3 | u64::from(chosen & 7))
    }

    pub(crate) fn size(self) -> usize {
        (self.0 >> 3) as usize
    }

    pub(crate) fn chosen(self) -> u8 {
        self.0 as u8 & 7
    }
}

fn announced_in_page_of(block: usize) -> &'static AtomicU8 {
    &ANNOUNCED_IN_PAGE[block >> 12 & (PAGES - 1)]
}

/// Returns false if `block` was certainly not announced.
#[inline(always)]
pub(crate) fn may_have(block: usize) -> bool {
    announced_in_page_of(block).load(Relaxed) != 0
}

/// Adds a block, or replaces its record: a block that was freed while no tracer of frees was attached is
/// still in the set. Returns false, and counts the block, if there is no place.
pub(crate) fn insert(block: usize, announced: Announced) -> bool {
    if let Some((bucket, at)) = find(block) {
        bucket.values[at].store(announced.0, Relaxed);
        return true;
    }
    // A counter at its maximum stays there.
    let raise = |counter: u8| counter.checked_add(1);
    let counter = announced_in_page_of(block);
    let _ = counter.fetch_update(AcqRel, Relaxed, raise);
    for number in 0..TABLES.len() {
        let Some(table) = table(number).or_else(|| map(number)) else {
            break;
        };
        if buckets(table, block)
            .into_iter()
            .any(|bucket| put(bucket, block, announced))
        {
            return true;
        }
    }
    lower(counter);
    memleak_samples_not_announced.fetch_add(1, Relaxed);
    false
}

/// Removes a block that is about to be freed, and returns its record. Only the thread that frees the block
/// calls this.
pub(crate) fn remove(block: usize) -> Option<Announced> {
    // Empty places have the key 0.
    if block == 0 {
        return None;
    }
    let (bucket, at) = find(block)?;
    let announced = Announced(bucket.values[at].load(Relaxed));
    bucket.keys[at].store(0, Release);
    lower(announced_in_page_of(block));
    Some(announced)
}

fn lower(counter: &AtomicU8) {
    let _ = counter.fetch_update(AcqRel, Relaxed, |count| match count {
        0 | u8::MAX => None,
        count => Some(count - 1),
    });
}

fn put(bucket: &Bucket, block: usize, announced: Announced) -> bool {
    for (key, value) in bucket.keys.iter().zip(&bucket.values) {
        if key.load(Relaxed) == 0 && key.compare_exchange(0, block, AcqRel, Relaxed).is_ok() {
            value.store(announced.0, Relaxed);
            return true;
        }
    }
    false
}

fn find(block: usize) -> Option<(&'static Bucket, usize)> {
    for number in 0..TABLES.len() {
        for bucket in buckets(table(number)?, block) {
            if let Some(at) = bucket.keys.iter().position(|key| key.load(Relaxed) == block) {
                return Some((bucket, at));
            }
        }
    }
    None
}

/// The two buckets of a table that a block can be in.
fn buckets(table: &'static [Bucket], block: usize) -> [&'static Bucket; 2] {
    let bits = table.len().trailing_zeros();
    let word = (block >> 4) as u64;
    [0x9e37_79b9_7f4a_7c15_u64, 0xc2b2_ae3d_27d4_eb4f].map(|factor| {
        let at = word.wrapping_mul(factor) >> (64 - bits);
        &table[at as usize & (table.len() - 1)]
    })
}

/// Returns a table if it has been mapped.
fn table(number: usize) -> Option<&'static [Bucket]> {
    let Some(other) = number.checked_sub(1) else {
        return Some(&FIRST);
    };
    let start = OTHERS[other].load(Acquire);
    // SAFETY: `map` stored the start of so many buckets, which are never unmapped.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, TABLES[number]) })
}

/// Maps a table; `None` if there is no memory.
fn map(number: usize) -> Option<&'static [Bucket]> {
    let length = TABLES[number] * size_of::<Bucket>();
    let mapped = map_memory(length)?.cast::<Bucket>();
    let place = &OTHERS[number.checked_sub(1)?];
    if place
        .compare_exchange(ptr::null_mut(), mapped, AcqRel, Acquire)
        .is_err()
    {
        unmap_memory(mapped.cast(), length);
    }
    table(number)
}

/// Maps zeroed memory by a system call, not by the C library's wrapper, which would change `errno`.
fn map_memory(length: usize) -> Option<*mut u8> {
    /// PROT_READ | PROT_WRITE, and MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE.
    const READ_WRITE: usize = 3;
    const ANONYMOUS: usize = 0x4022;
    #[cfg(target_arch = "x86_64")]
    const MMAP: usize = 9;
    #[cfg(target_arch = "aarch64")]
    const MMAP: usize = 222;
    // SAFETY: new memory, at an address that the kernel chooses.
    let address = unsafe { system_call(MMAP, [0, length, READ_WRITE, ANONYMOUS, usize::MAX, 0]) };
    // Errors are -4095 to -1.
    (address < usize::MAX - 4095).then(|| ptr::with_exposed_provenance_mut(address))
}

fn unmap_memory(start: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    const MUNMAP: usize = 11;
    #[cfg(target_arch = "aarch64")]
    const MUNMAP: usize = 215;
    // SAFETY: `map` has just mapped it, and it is not used anywhere else.
    unsafe { system_call(MUNMAP, [start.expose_provenance(), length, 0, 0, 0, 0]) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let result;
    // SAFETY: what the call does is up to the caller; the kernel changes no other registers than these.
    unsafe {
        core::arch::asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let result;
    // SAFETY: what the call does is up to the caller; the kernel changes no other register than this.
    unsafe {
        core::arch::asm!(
            "svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

#[cfg(test)]
mod tests;
