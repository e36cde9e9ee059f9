//! The C walk and the memory it reads. `compile` makes a shared object of it, with gcc's sanitizers on
//! request; fuzzers link it (tests/fuzz).

#![allow(unsafe_code, reason = "calls the C walk through a shared object")]

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Mutex;

use unwind_tables::addr::Avma;
use unwind_tables::program::SP;
use unwind_tables::walk::{
    End, FoundBy, Frame, MAX_FRAMES, Mapping, Registers, Stack, Tables, Unwind, in_order, walk,
};

/// Slots of the rule cache: the larger number of both architectures.
const CACHE_SLOTS: usize = 1 << 16;
const TRAIL_SLOTS: usize = 128;

/// Recorded memory, and one word of it that can be made to fault.
#[derive(Default)]
pub struct Memory {
    regions: Vec<(Avma, Vec<u8>)>,
    pub fault_at: Option<Avma>,
}

impl Memory {
    /// Changes the word at `address`, which must be present.
    pub fn change_word(&mut self, address: Avma, change: impl FnOnce(u64) -> u64) {
        let changed = change(self.word(address).expect("it is there")).to_le_bytes();
        for (start, bytes) in &mut self.regions {
            let offset = address.get().checked_sub(start.get());
            let offset = offset.and_then(|offset| usize::try_from(offset).ok());
            if let Some(word) = offset.and_then(|offset| bytes.get_mut(offset..)?.get_mut(..8)) {
                word.copy_from_slice(&changed);
                return;
            }
        }
    }

    pub fn add(&mut self, start: Avma, bytes: Vec<u8>) {
        self.regions.push((start, bytes));
    }

    pub fn add_words(&mut self, start: Avma, words: &[u64]) {
        self.add(start, words.iter().flat_map(|word| word.to_le_bytes()).collect());
    }

    /// The word at `address`, as the reference walker reads it.
    pub fn word(&self, address: Avma) -> Option<u64> {
        let bytes = self.bytes(address, 8)?;
        bytes.first_chunk().map(|&bytes| u64::from_le_bytes(bytes))
    }

    /// Returns bytes of memory; `None` if one is missing or lies in the faulting word.
    fn bytes(&self, address: Avma, length: u64) -> Option<&[u8]> {
        let end = address.checked_add(length)?;
        if let Some(fault) = self.fault_at
            && fault < end
            && address < fault.wrapping_add(8)
        {
            return None;
        }
        self.regions.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.get().checked_sub(start.get())?).ok()?;
            bytes.get(offset..)?.get(..usize::try_from(length).ok()?)
        })
    }
}

unsafe extern "C" fn read_memory(context: *mut c_void, to: *mut c_void, length: u64, from: u64) -> i64 {
    // SAFETY: the context is the `Memory` that `HostWalk::walk` passes and keeps borrowed.
    let memory = unsafe { &*context.cast::<Memory>() };
    let Some(bytes) = memory.bytes(Avma::new(from), length) else {
        return -14;
    };
    // SAFETY: the C side passes a buffer of at least `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    0
}

/// `struct mapping` of bpf/shared.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostMapping {
    pub start: u64,
    pub end: u64,
    pub bias: u64,
    pub image_at: u32,
    pub kind: u8,
    pub trust: u8,
    pub unused: u16,
    pub checks: [[u64; 2]; 2],
}

/// `struct host_tables` of tests/host_bpf/host.h.
#[repr(C)]
pub struct HostTables {
    words: *const u32,
    mappings: *const HostMapping,
    cache: *mut u64,
    word_count: u32,
    mapping_count: u32,
    by_fp: u32,
    changing: u32,
    fast_paths: u32,
    stack_end: u64,
    trampoline: u64,
    replaced: *const [u64; 2],
    replaced_count: u32,
}

/// Pairs of addresses are in memory what `replaced` is, pairs of words: copies of thousands for each walk
/// would take most of a test's time.
const _: () = {
    assert!(size_of::<(Avma, Avma)>() == 16);
    assert!(offset_of!((Avma, Avma), 0) == 0 && offset_of!((Avma, Avma), 1) == 8);
};

/// `struct host_stack` of tests/host_bpf/host.h.
#[repr(C)]
pub struct HostStack {
    end_pc: u64,
    saves_wanted: u64,
    hash: u64,
    frames: [u64; MAX_FRAMES],
    frame_count: u32,
    end: u32,
    repeatable: u32,
    slot_count: u32,
    slot_at: [u16; TRAIL_SLOTS],
    slot_value: [u64; TRAIL_SLOTS],
}

pub type ReadMemory = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64) -> i64;
/// The type of `host_walk`.
pub type Walk = unsafe extern "C" fn(*const HostTables, ReadMemory, *mut c_void, *const u64, *mut HostStack);

/// Lock that keeps walks apart: the C side has one set of globals.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The C walk.
pub struct HostWalk {
    host_walk: Walk,
    cache: Vec<u64>,
    /// True if the walk takes fast paths.
    pub fast_paths: bool,
    /// End of the stack that is passed to the walk; may be wrong.
    pub stack_end: Avma,
    /// The slots that the last walk depended on, with their content; `None` if it depended on more than is
    /// known.
    pub trail: Option<Vec<(Avma, u64)>>,
    /// Identity of the last walk's frames on the kernel side.
    pub hash: u64,
}

impl HostWalk {
    /// Wraps `host_walk`, the function of tests/host_bpf/host.c.
    pub fn new(host_walk: Walk) -> Self {
        Self {
            host_walk,
            cache: vec![0; CACHE_SLOTS],
            fast_paths: true,
            stack_end: Avma::new(0),
            trail: None,
            hash: 0,
        }
    }

    /// Compares the reference walker with the C walk: without fast paths, and with them when the cache is
    /// cold and when it is warm, and with each of two guesses of the stack's end. Returns the stack that all
    /// have found.
    pub fn check(
        &mut self,
        tables: Tables<'_>,
        start: Registers,
        memory: &Memory,
        stack_ends: [Avma; 2],
    ) -> Stack {
        let reference = walk(tables, start, |address| memory.word(address));
        self.clear_cache();
        let [whole, cut] = stack_ends;
        for (cache, stack_end) in [
            (None, Avma::new(0)),
            (Some("cold"), Avma::new(0)),
            (Some("warm"), whole),
            (Some("warm"), cut),
        ] {
            self.fast_paths = cache.is_some();
            self.stack_end = stack_end;
            let stack = self.walk(tables, start, memory);
            assert_eq!(
                stack, reference,
                "{cache:?} cache, end {stack_end:#x}, from {start:x?}"
            );
        }
        reference
    }

    pub fn clear_cache(&mut self) {
        self.cache.fill(0);
    }

    pub fn walk(&mut self, tables: Tables<'_>, start: Registers, memory: &Memory) -> Stack {
        let mut words = vec![0; tables.words.len().next_power_of_two()];
        words[..tables.words.len()].copy_from_slice(tables.words);
        let mut mappings: Vec<_> = tables.mappings.iter().map(host_mapping).collect();
        mappings.resize_with(mappings.len().next_power_of_two().max(2), || HostMapping {
            start: u64::MAX >> 1,
            end: 0,
            bias: 0,
            image_at: 0,
            kind: 0,
            trust: 0,
            unused: 0,
            checks: [[0; 2]; 2],
        });
        let count = |length: usize| u32::try_from(length).expect("test tables are small");
        let replaced = tables.return_probes.replaced;
        let given = HostTables {
            words: words.as_ptr(),
            mappings: mappings.as_ptr(),
            cache: self.cache.as_mut_ptr(),
            word_count: count(words.len()),
            mapping_count: count(mappings.len()),
            by_fp: u32::from(tables.unwind == Unwind::Fp),
            changing: u32::from(tables.changing),
            fast_paths: u32::from(self.fast_paths),
            stack_end: self.stack_end.get(),
            trampoline: tables.return_probes.trampoline.get(),
            replaced: replaced.as_ptr().cast(),
            replaced_count: count(replaced.len()),
        };
        let base = Avma::new(start.general[usize::from(SP)]);
        let start: Vec<u64> = [start.pc.get()].into_iter().chain(start.general).collect();
        let mut stack = HostStack {
            end_pc: 0,
            saves_wanted: 0,
            hash: 0,
            frames: [0; MAX_FRAMES],
            frame_count: 0,
            end: 0,
            repeatable: 0,
            slot_count: 0,
            slot_at: [0; TRAIL_SLOTS],
            slot_value: [0; TRAIL_SLOTS],
        };
        let context = std::ptr::from_ref(memory).cast_mut().cast();
        let turn = ONE_AT_A_TIME.lock();
        // SAFETY: it is the function of tests/host_bpf/host.c; all pointers are to live memory of the sizes
        // given, and the C side keeps none of them.
        unsafe {
            (self.host_walk)(
                &raw const given,
                read_memory,
                context,
                start.as_ptr(),
                &raw mut stack,
            );
        }
        drop(turn);
        self.hash = stack.hash;
        let slots = stack.slot_at.iter().zip(stack.slot_value);
        let slots = slots.map(|(&at, value)| (base.wrapping_add(at.into()), value));
        let count = usize::try_from(stack.slot_count).expect("it is small");
        self.trail = (stack.repeatable != 0).then(|| slots.take(count).collect());
        decode(&stack)
    }
}

fn host_mapping(mapping: &Mapping) -> HostMapping {
    let &Mapping {
        start,
        end,
        bias,
        image_at,
        kind,
        identity,
    } = mapping;
    HostMapping {
        start: start.get(),
        end: end.get(),
        bias: bias.get(),
        image_at,
        kind: kind as u8,
        trust: identity.trust as u8,
        unused: 0,
        checks: identity.checks.map(|check| [check.at.get(), check.word]),
    }
}

fn decode(stack: &HostStack) -> Stack {
    let frame = |&word: &u64| Frame {
        pc: Avma::new(word & ((1 << 56) - 1)),
        found_by: FoundBy::from_number(u32::try_from(word >> 56 & 0x7f).expect("7 bits"))
            .expect("a known way"),
        exact: word >> 63 == 1,
    };
    let count = usize::try_from(stack.frame_count).expect("it is small");
    let by_place: Vec<_> = stack.frames[..count.min(MAX_FRAMES)].iter().map(frame).collect();
    let (frames, left_out) = in_order(&by_place, count).expect("all that are kept");
    Stack {
        frames,
        left_out,
        end: End::from_number(stack.end).expect("a known end"),
        end_pc: Avma::new(stack.end_pc),
        saves_wanted: Some(Avma::new(stack.saves_wanted)).filter(|address| address.get() != 0),
    }
}
