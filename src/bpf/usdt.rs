//! USDT probes by which a process announces blocks (`allocator::usdt`), as the kernel side knows them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use unwind_tables::addr::FileOffset;

use super::memory::SharedWords;
use super::skeleton::types::{limits, usdt_argument, usdt_kind, usdt_site};
use crate::allocator::usdt::{Argument, Place};

const SITE_WORDS: usize = size_of::<usdt_site>() / size_of::<u64>();
const ARGUMENT_WORDS: usize = size_of::<usdt_argument>() / size_of::<u64>();

/// Position and meaning of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// File to probe, as the kernel can open it.
    pub path: PathBuf,
    /// File name for messages.
    pub file: String,
    /// Position of the instruction.
    pub offset: FileOffset,
    /// Position of a [`NOP10`](crate::allocator::NOP10) that can be probed in its place.
    pub nop10: Option<FileOffset>,
    /// Position of the semaphore, the counter of attached tracers, if there is one.
    pub semaphore: Option<FileOffset>,
    /// Index into the caller's function table.
    pub function: u8,
    /// True if it announces the free of a block.
    pub frees: bool,
    /// Number of the set of its arguments' places, below [`UsdtProbe::MAX_SITES`]; equal sets have equal
    /// numbers.
    pub site: u32,
    /// Places of the arguments that are read.
    pub arguments: Vec<Argument>,
    /// Mean number of bytes between the blocks that it announces, a power of two, if that is known.
    pub distance: Option<u64>,
    /// Name for messages.
    pub name: String,
}

impl UsdtProbe {
    /// Maximum number of different sets of arguments' places.
    pub const MAX_SITES: u32 = limits::MAX_USDT_SITES.0;
}

/// Tells the kernel side where the arguments of `probes` are. Runs before any of them can be hit.
pub(super) fn describe(sites: &SharedWords<AtomicU64>, probes: &[UsdtProbe]) {
    let (sites, _) = sites.words().as_chunks::<SITE_WORDS>();
    for probe in probes {
        let Some(site) = sites.get(probe.site as usize) else {
            continue;
        };
        let (places, _) = site.as_chunks::<ARGUMENT_WORDS>();
        for (place, argument) in places.iter().zip(&probe.arguments) {
            for (word, value) in place.iter().zip(argument_words(*argument)) {
                word.store(value, Ordering::SeqCst);
            }
        }
    }
}

/// Words of `struct usdt_argument` of `bpf/shared.h`.
fn argument_words(argument: Argument) -> [u64; ARGUMENT_WORDS] {
    let (kind, value, register, index) = match argument.place {
        Place::Constant(value) => (usdt_kind::USDT_CONSTANT, value, 0, None),
        Place::Register(register) => (usdt_kind::USDT_REGISTER, 0, register.0, None),
        Place::Memory {
            base,
            displacement,
            index,
        } => (usdt_kind::USDT_MEMORY, displacement, base.0, index),
    };
    let (index_at, scale) = index.map_or((0, 0), |(index, shift)| (index.0 + 1, shift));
    let place = u64::from(register)
        | u64::from(index_at) << 16
        | u64::from(scale) << 32
        | u64::from(kind.0) << 40
        | u64::from(argument.bytes) << 48
        | u64::from(argument.is_signed) << 56;
    [value.cast_unsigned(), place]
}
