//! Divides a process's resident memory into parts that add up to the whole: traced memory, the rest of the
//! allocator's, and everything else by kind. Pure: the census's portions and numbers in, parts out.
//!
//! The allocator's memory minus the outstanding blocks is either blocks from before the attach, or free
//! memory and the allocator's own data. Only the allocator could distinguish the two: the resident size at
//! the attach is the maximum for the former.

mod beside;
mod place;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use unwind_tables::addr::Avma;

use self::place::{Place, place};
use crate::census::Divided;
use crate::census::huge::Sampled;
use crate::census::portions::Portion;
use crate::maps::MapsName;
use crate::smaps::{Resident, share};
use leak_report::model::{Beside, Elsewhere, KindBytes, MemoryGroup, MemoryKind, NamedBytes, Parts};

pub use beside::of as beside;

/// Maximum number of names of shared memory that are told apart.
const MAX_NAMES: usize = 1 << 12;

/// Resident bytes by the purpose of the memory; without tracked pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Memory of the allocator.
    allocator: Sum,
    /// All other memory.
    kinds: BTreeMap<MemoryKind, Sum>,
    /// Shared memory by name.
    names: HashMap<String, u64>,
    swapped: u64,
    hugetlb: u64,
    /// Outstanding bytes in the memory of each tracked kind, at most the resident bytes of each portion.
    covered: u64,
    /// All outstanding bytes in it.
    live: u64,
}

/// Memory of one kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    resident: u64,
    /// Resident bytes that are tracked.
    covered: u64,
    /// Pages of zeros in huge pages, estimated.
    zeros: u64,
}

/// Kind of memory that the trace accounts for. It decides which portions have outstanding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracks {
    /// Blocks of an allocator.
    Blocks,
    /// Anonymous mappings.
    Mappings,
    /// Pages, of all mappings.
    Pages,
}

/// Outstanding bytes as accounted by the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Per portion, as given to [`Sums::of`].
    ByPortion,
    /// Bytes in total; their distribution is not known.
    Total(u64),
}

impl Sums {
    /// Sums up the memory of a process. `live_in` returns the outstanding bytes in the range of a portion;
    /// `sampled` is what is known of zeros in huge pages.
    pub fn of(
        divided: &Divided,
        sampled: &[Sampled],
        tracks: Tracks,
        live_in: impl Fn(&Range<Avma>) -> u64,
    ) -> Self {
        let mut sums = Self::default();
        for portion in &divided.portions {
            if let Some(mapping) = divided.mapping(portion) {
                sums.add((portion, mapping), sampled, tracks, live_in(&portion.range));
            }
        }
        sums
    }

    fn add(
        &mut self,
        (portion, mapping): (&Portion, &Resident),
        sampled: &[Sampled],
        tracks: Tracks,
        live: u64,
    ) {
        let amounts = &portion.amounts;
        let place = place(portion, mapping, tracks, live > 0);
        let covered = live.min(amounts.resident);
        let sum = match place {
            Place::Allocator => &mut self.allocator,
            Place::Kind(kind) => self.kinds.entry(kind).or_default(),
        };
        self.swapped = self.swapped.saturating_add(amounts.swapped);
        self.hugetlb = self.hugetlb.saturating_add(amounts.hugetlb);
        let is_tracked = match (tracks, place) {
            (Tracks::Pages, Place::Allocator | Place::Kind(_)) => true,
            // Reserved address space (no access) is not expected to be resident.
            (Tracks::Blocks, Place::Allocator) => is_accessible(mapping),
            (Tracks::Mappings, Place::Kind(kind)) => may_be_traced(kind) && is_accessible(mapping),
            (Tracks::Blocks, Place::Kind(_)) | (Tracks::Mappings, Place::Allocator) => false,
        };
        let untracked = match tracks {
            Tracks::Pages => amounts.resident - covered,
            Tracks::Blocks | Tracks::Mappings => amounts.resident,
        };
        sum.resident = sum.resident.saturating_add(untracked);
        let zeros = zeros(portion, mapping, sampled);
        sum.zeros = sum.zeros.saturating_add(match (place, is_tracked) {
            // What is tracked is told as that.
            (Place::Kind(_), true) => zeros.min(amounts.resident - covered),
            (Place::Kind(_), false) | (Place::Allocator, true | false) => zeros,
        });
        if is_tracked {
            if tracks != Tracks::Pages {
                sum.covered = sum.covered.saturating_add(covered);
            }
            self.live = self.live.saturating_add(live);
            self.covered = self.covered.saturating_add(covered);
        }
        if place == Place::Kind(MemoryKind::Shared) {
            self.note_name(mapping, untracked);
        }
    }

    fn note_name(&mut self, mapping: &Resident, bytes: u64) {
        let name = match &mapping.entry.name {
            MapsName::File { path, .. } if path.as_path() != Path::new("/dev/zero") => path.to_string_lossy(),
            MapsName::Special(name) => name.into(),
            MapsName::File { .. } | MapsName::Anonymous => return,
        };
        let mut end = name.len().min(Parts::MAX_NAME);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let name = name.get(..end).unwrap_or_default();
        if self.names.len() < MAX_NAMES || self.names.contains_key(name) {
            let sum = self.names.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Resident bytes of all kinds in a group.
    fn group(&self, group: MemoryGroup) -> u64 {
        let kinds = self.kinds.iter().filter(|(kind, _)| kind.group() == group);
        kinds.fold(0, |bytes, (_, sum)| bytes.saturating_add(sum.resident))
    }

    /// Computes the parts, given those at the attach; `None` if all memory in the allocator's mappings may be
    /// from before it.
    pub fn parts(&self, tracks: Tracks, live: Live, at_attach: Option<&Self>) -> Parts {
        let groups = [
            MemoryGroup::ThreadStacks,
            MemoryGroup::Files,
            MemoryGroup::Shared,
            MemoryGroup::Unexplained,
        ];
        let [thread_stacks, files, shared, other] = groups.map(|group| self.group(group));
        let (live, resident) = match (live, tracks) {
            (Live::ByPortion, _) => (self.live, self.covered),
            (Live::Total(live), Tracks::Blocks) => (live, live.min(self.allocator.resident)),
            (Live::Total(live), Tracks::Mappings) => (live, live.min(other)),
            (Live::Total(live), Tracks::Pages) => (live, self.covered),
        };
        let (in_allocator, in_other) = match tracks {
            Tracks::Blocks => (resident, 0),
            Tracks::Mappings => (0, resident),
            // Pages are in no sum.
            Tracks::Pages => (0, 0),
        };
        let pages = if tracks == Tracks::Pages { resident } else { 0 };
        let rest = self.allocator.resident - in_allocator;
        let before = at_attach.map_or(rest, |sums| sums.allocator.resident.min(rest));
        let all = [
            self.allocator.resident,
            thread_stacks,
            files,
            shared,
            other,
            pages,
        ];
        Parts {
            rss: all.into_iter().fold(0, u64::saturating_add),
            tracked: resident,
            before_attach_at_most: before,
            slack_at_least: rest - before,
            thread_stacks,
            files,
            shared,
            unexplained: other - in_other,
            not_resident: live - resident,
            growth_elsewhere: at_attach
                .filter(|_| tracks == Tracks::Blocks)
                .map(|sums| self.growth_elsewhere(sums)),
            kinds: self.by_kind(in_other),
            named_shared: self.named(),
            beside: Beside {
                swapped: self.swapped,
                hugetlb: self.hugetlb,
                allocator_zeros: self.allocator.zeros.min(self.allocator.resident),
                ..Beside::default()
            },
        }
    }

    fn growth_elsewhere(&self, at_attach: &Self) -> Elsewhere {
        let grown = |group| self.group(group).saturating_sub(at_attach.group(group));
        Elsewhere {
            thread_stacks: grown(MemoryGroup::ThreadStacks),
            files: grown(MemoryGroup::Files),
            shared: grown(MemoryGroup::Shared),
            unexplained: grown(MemoryGroup::Unexplained),
        }
    }

    /// Memory by kind, without `tracked` bytes in kinds that the trace follows. These are taken from where
    /// they are known to be, and as far as that is not known, from mappings of the program first.
    fn by_kind(&self, tracked: u64) -> Vec<KindBytes> {
        let mut kinds: BTreeMap<_, _> = self
            .kinds
            .iter()
            .map(|(kind, sum)| (*kind, sum.resident))
            .collect();
        let mut left = tracked;
        let mut take = |kinds: &mut BTreeMap<_, u64>, kind: MemoryKind, most: u64| {
            if let Some(bytes) = kinds.get_mut(&kind) {
                let taken = most.min(*bytes).min(left);
                *bytes -= taken;
                left -= taken;
            }
        };
        for (kind, sum) in &self.kinds {
            take(&mut kinds, *kind, sum.covered);
        }
        let likely = [MemoryKind::Mappings, MemoryKind::AllocatorMappings];
        let others = MemoryKind::ALL.into_iter().filter(|kind| may_be_traced(*kind));
        for kind in likely.into_iter().chain(others) {
            take(&mut kinds, kind, u64::MAX);
        }
        let mut zeros = 0_u64;
        for (kind, sum) in self.kinds.iter().filter(|(kind, _)| may_be_traced(**kind)) {
            if let Some(bytes) = kinds.get_mut(kind) {
                let taken = sum.zeros.min(*bytes);
                *bytes -= taken;
                zeros = zeros.saturating_add(taken);
            }
        }
        kinds.insert(MemoryKind::HugeZeros, zeros);
        let some = kinds.into_iter().filter(|&(_, bytes)| bytes > 0);
        some.map(|(kind, bytes)| KindBytes { kind, bytes }).collect()
    }

    /// The largest shared memory with a name.
    fn named(&self) -> Vec<NamedBytes> {
        let some = self.names.iter().filter(|&(_, &bytes)| bytes > 0);
        let mut named: Vec<_> = some
            .map(|(name, &bytes)| NamedBytes {
                name: name.clone(),
                bytes,
            })
            .collect();
        named.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        named.truncate(Parts::MAX_NAMED);
        named
    }
}

/// Pages of zeros in the huge pages of a portion, by those of its mapping that were read; 0 if none were.
fn zeros(portion: &Portion, mapping: &Resident, sampled: &[Sampled]) -> u64 {
    let at = sampled.binary_search_by_key(&mapping.entry.range.start, |sampled| sampled.start);
    let seen = at.ok().and_then(|at| sampled.get(at));
    seen.map_or(0, |seen| share(portion.amounts.huge, (seen.zero, seen.read)))
}

/// Returns whether memory of this kind can be made by calls that `--mmap` traces, and can have huge pages.
fn may_be_traced(kind: MemoryKind) -> bool {
    kind.group() == MemoryGroup::Unexplained
}

fn is_accessible(mapping: &Resident) -> bool {
    mapping.entry.readable || mapping.entry.writable
}
