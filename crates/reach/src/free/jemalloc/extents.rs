//! Records of extents (`edata_t`, `include/jemalloc/internal/edata.h`).
//!
//! A record is 16 words: bits, the first block's address, the size in bytes of the whole pages, five words of
//! links, and eight that have a bit for each free region of a slab. A slab has the number of these, too, so
//! that a record that changes while it is read is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::End;
use super::super::records;
use super::super::records::PAGE;
use super::caches::Cached;
use super::tree::{Element, Tree};
use super::{base, classes};
use crate::Memory;

/// Words of a record, and index of the first word with bits of regions.
const WORDS: usize = 16;
const REGIONS: usize = 8;
const BYTES: u64 = 8 * WORDS as u64;
const MAX_REGIONS: u64 = 512;
/// Size of the first class whose blocks have their own extents. Sampled blocks of smaller classes can have
/// one, too.
const LARGE: u64 = 4 * PAGE;

const ARENA: u64 = 0xfff;
const SLAB: u64 = 1 << 12;
const STATE_SHIFT: u64 = 17;
const CLASS_SHIFT: u64 = 20;
const FREE_SHIFT: u64 = 28;
/// Mask of the number of free regions.
const FREE: u64 = 0x3ff;
/// States: in use; free with contents, perhaps with contents, and without. All others are transitional.
const ACTIVE: u64 = 0;
const FREE_STATES: Range<u64> = 1..4;

/// Number of attempts to read a record before a contradiction counts: the program may have changed it
/// meanwhile.
const TRIES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Slab,
    /// One block.
    Large,
    Free,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    bits: u64,
    /// Address of the first block.
    first: u64,
    size: u64,
    kind: Kind,
    /// Size of a block.
    block: u64,
    /// Index in `Extents::free` of the first word of its free regions.
    free: usize,
}

/// All extents, by address, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Extents {
    all: Vec<Extent>,
    /// Words of all slabs, a bit for each free region.
    free: Vec<u64>,
    /// Number of records that contradict themselves, or others, or that change.
    malformed: u64,
}

/// A region of a slab.
pub(super) struct Region {
    pub range: Range<u64>,
    pub is_free: bool,
}

/// The first page of the extent of a record, if there is one.
pub(super) fn first_page(memory: &dyn Memory, base: &[Range<u64>], record: u64) -> Option<u64> {
    let mut words = [0; WORDS];
    let is_read = is_record(base, record) && memory.read(Avma::new(record), &mut words);
    let read = Extent::read(&words).filter(|_| is_read)?;
    Some(read.0.range().start)
}

fn is_record(base: &[Range<u64>], at: u64) -> bool {
    at.is_multiple_of(BYTES) && base::has(base, at, BYTES)
}

impl Extent {
    /// Returns the extent, whose `free` is not set, and the words of its free regions; `None` if the record
    /// contradicts itself.
    fn read(words: &[u64; WORDS]) -> Option<(Self, &[u64])> {
        let [bits, first, size, ..] = *words;
        let size = Some(size & !(PAGE - 1)).filter(|size| *size > 0)?;
        let start = first & !(PAGE - 1);
        let end = start.checked_add(size).filter(|end| *end <= 1 << 57)?;
        let state = bits >> STATE_SHIFT & 7;
        let is_slab = bits & SLAB != 0;
        let kind = match state {
            ACTIVE if is_slab => Kind::Slab,
            ACTIVE => Kind::Large,
            state if FREE_STATES.contains(&state) => Kind::Free,
            _ => return None,
        };
        let block = match kind {
            Kind::Free => size,
            Kind::Slab | Kind::Large => classes::size(bits >> CLASS_SHIFT & 0xff)?,
        };
        let extent = Self {
            bits,
            first,
            size,
            kind,
            block,
            free: 0,
        };
        let count = size / block;
        let groups = usize::try_from(count.div_ceil(64)).ok()?;
        let free = words.get(REGIONS..).unwrap_or_default();
        let (is_right, free) = match kind {
            Kind::Free => (first == start, &[][..]),
            Kind::Large => (
                block >= LARGE || first.checked_add(block).is_some_and(|block| block <= end),
                &[][..],
            ),
            Kind::Slab => {
                let free = free.get(..groups).unwrap_or_default();
                let is_free_count = |word: &[u64]| {
                    let free: u64 = word.iter().map(|word| u64::from(word.count_ones())).sum();
                    free == bits >> FREE_SHIFT & FREE
                };
                let has_no_more =
                    count.is_multiple_of(64) || free.last().is_some_and(|last| last >> (count % 64) == 0);
                let is_right = first == start && (1..=MAX_REGIONS).contains(&count) && has_no_more;
                (is_right && is_free_count(free), free)
            }
        };
        is_right.then_some((extent, free))
    }

    pub(super) fn range(&self) -> Range<u64> {
        let start = self.first & !(PAGE - 1);
        start..start + self.size
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn arena(&self) -> u64 {
        self.bits & ARENA
    }

    /// Size of a block.
    pub(super) fn block_size(&self) -> u64 {
        self.block
    }

    pub(super) fn class(&self) -> u64 {
        self.bits >> CLASS_SHIFT & 0xff
    }

    /// Memory of the block of a large extent.
    pub(super) fn block(&self) -> Range<u64> {
        self.first..self.range().end.min(self.first + self.block)
    }

    fn is_of_large_class(&self) -> bool {
        self.kind == Kind::Large && self.block >= LARGE && self.size > PAGE
    }

    /// Region that contains an address; for a large extent, the block.
    pub(super) fn region_at(&self, address: u64) -> Option<Range<u64>> {
        match self.kind {
            Kind::Free => None,
            Kind::Large => Some(self.block()).filter(|block| block.contains(&address)),
            Kind::Slab => {
                let start = address - (address - self.first) % self.block;
                let region = start..start + self.block;
                (region.end <= self.range().end).then_some(region)
            }
        }
    }
}

impl Extents {
    /// Reads the records that trees lead to.
    pub(super) fn read<'a>(
        memory: &dyn Memory,
        trees: impl Iterator<Item = &'a Tree>,
        base: &[Range<u64>],
    ) -> Self {
        let elements = trees.flat_map(|tree| tree.elements(memory, base));
        let mut elements: Vec<Element> = elements.collect();
        elements.sort_unstable();
        elements.dedup();
        let all = elements.len();
        // Records of memory that the program gives by its own functions are elsewhere.
        elements.retain(|element| is_record(base, element.record));
        let mut places: Vec<u64> = elements.iter().map(|element| element.record).collect();
        places.dedup();
        let mut found = Self {
            malformed: (all - elements.len()) as u64,
            ..Self::default()
        };
        let mut again = Vec::new();
        let add = |found: &mut Self, at: u64, words: &[u64; WORDS]| {
            let read = Extent::read(words).filter(|(extent, _)| {
                let page = extent.range().start;
                elements.binary_search(&Element { record: at, page }).is_ok()
            });
            read.map(|(extent, free)| found.push(extent, free)).is_some()
        };
        records::visit(memory, &places, &mut |at, words| {
            if !add(&mut found, at, words) {
                again.push(at);
            }
        });
        for at in again {
            let mut words = [0; WORDS];
            let mut read = || memory.read(Avma::new(at), &mut words) && add(&mut found, at, &words);
            let is_read = (0..TRIES).any(|_| read());
            found.malformed += u64::from(!is_read);
        }
        found.leave_apart(base);
        found.measure_large();
        found
    }

    /// Sets the sizes of large blocks. Since 5.3.1, these can be between those of the classes, and the block
    /// is all of its extent. With `cache_oblivious`, that has one page more, and blocks begin anywhere in the
    /// first.
    fn measure_large(&mut self) {
        let mut large = self.all.iter().filter(|extent| extent.is_of_large_class());
        let has_more = large.any(|extent| !extent.first.is_multiple_of(PAGE));
        for extent in self.all.iter_mut().filter(|extent| extent.is_of_large_class()) {
            if has_more {
                extent.block = extent.size - PAGE;
            } else if extent.block + PAGE != extent.size {
                extent.block = extent.size;
            }
        }
    }

    fn push(&mut self, extent: Extent, free: &[u64]) {
        self.all.push(Extent {
            free: self.free.len(),
            ..extent
        });
        self.free.extend(free);
    }

    /// Drops extents that overlap with others, or with the memory of records: they were split or joined while
    /// they were read.
    fn leave_apart(&mut self, base: &[Range<u64>]) {
        self.all.sort_unstable_by_key(|extent| extent.first);
        let mut overlapping = BTreeSet::new();
        let mut end = (0, 0);
        for extent in &self.all {
            let range = extent.range();
            let within = base.partition_point(|block| block.end <= range.start);
            if base.get(within).is_some_and(|block| block.start < range.end) {
                overlapping.insert(extent.first);
            }
            if range.start < end.0 {
                overlapping.extend([end.1, extent.first]);
            }
            end = end.max((range.end, extent.first));
        }
        self.malformed += overlapping.len() as u64;
        self.all.retain(|extent| !overlapping.contains(&extent.first));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.all.iter()
    }

    /// Number of records that contradict themselves, or others, or that change.
    pub(super) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Sorts all extents by their arenas, and by address within each. They are not found by address then.
    pub(super) fn sort_by_arena(&mut self) {
        self.all
            .sort_unstable_by_key(|extent| (extent.arena(), extent.first));
    }

    pub(super) fn add_ends(&self, ends: &mut BTreeMap<End, u64>) {
        if self.malformed > 0 {
            ends.insert(End::Malformed, self.malformed);
        }
    }

    /// Extent that contains an address.
    pub(super) fn of(&self, address: u64) -> Option<&Extent> {
        let candidate = self.all.partition_point(|extent| extent.range().end <= address);
        self.all
            .get(candidate)
            .filter(|extent| extent.range().contains(&address))
    }

    /// Regions of a slab, ascending; none of another extent.
    pub(super) fn regions(&self, extent: &Extent) -> impl Iterator<Item = Region> {
        let count = match extent.kind {
            Kind::Slab => extent.size / extent.block,
            Kind::Large | Kind::Free => 0,
        };
        let &Extent { first, block, .. } = extent;
        let words = self.free.get(extent.free..).unwrap_or_default();
        let bits = words
            .iter()
            .flat_map(|word| (0..64).map(move |bit| word >> bit & 1 != 0));
        bits.zip(0..count).map(move |(is_free, number)| {
            let start = first + number * block;
            Region {
                range: start..start + block,
                is_free,
            }
        })
    }

    /// Blocks of an extent that are in use or in caches.
    pub(super) fn blocks(&self, extent: &Extent) -> impl Iterator<Item = Range<u64>> {
        let large = (extent.kind == Kind::Large).then(|| extent.block());
        let regions = self.regions(extent).filter(|region| !region.is_free);
        large.into_iter().chain(regions.map(|region| region.range))
    }

    /// Memory of the block or region in use that begins at an address.
    pub(super) fn block_at(&self, address: u64) -> Option<Range<u64>> {
        let extent = self.of(address)?;
        let region = extent.region_at(address)?;
        let number = (address - extent.first) / extent.block;
        let is_free = extent.kind == Kind::Slab && {
            let word = extent.free + usize::try_from(number / 64).ok()?;
            self.free.get(word)? >> (number % 64) & 1 != 0
        };
        (region.start == address && !is_free).then_some(region)
    }

    /// Memory of a cached block, if it is a block in use of the class of its bin.
    pub(super) fn cached(&self, cached: &Cached) -> Option<Range<u64>> {
        let is_of_class = self.of(cached.address)?.class() == cached.class;
        self.block_at(cached.address).filter(|_| is_of_class)
    }
}
