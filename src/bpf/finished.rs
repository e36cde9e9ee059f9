//! Stacks of walks that user space has finished, and which stand-in stands for which of them.
//!
//! A stand-in belongs to one walk, and so to one block. Its totals count for the stack that it stands for.
//! Once its block is freed, they are added to the carried sums of that stack, and the stand-in can be used
//! for another walk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, Frame, LeftOut};

use super::block_facts::LIFE_SPANS;
use super::skeleton::types::{stack_record, stack_totals, stack_variance};
use super::stand_ins::StandIns;
use super::store::Recorded;

const TOTALS_WORDS: usize = size_of::<stack_totals>() / size_of::<u64>();
const VARIANCE_WORDS: usize = size_of::<stack_variance>() / size_of::<u64>();
const RECORD_WORDS: usize = size_of::<stack_record>() / size_of::<u64>();
/// Words of the allocated half of totals, and of variance; the freed half follows.
const HALF: usize = TOTALS_WORDS / 2;
const BLOCKS: usize = std::mem::offset_of!(super::types::sums, blocks) / size_of::<u64>();
const LOST_AT: usize = std::mem::offset_of!(stack_record, lost_bytes) / size_of::<u64>();

/// Maximum number of stacks that are kept.
const MAX_FINISHED: usize = 1 << 16;

/// A stack that user space has found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FinishedStack {
    pub instance: u32,
    pub epoch: u32,
    pub function: u8,
    pub frames: Vec<Frame>,
    pub left_out: Option<LeftOut>,
    pub end: End,
    pub end_pc: Avma,
    /// Number of the chain of Python frames; 0 for none.
    pub python: u32,
}

/// Sums of a stack record, as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    totals: [u64; TOTALS_WORDS],
    /// Unused if every block is recorded.
    variance: [u64; VARIANCE_WORDS],
    pub(super) lost_bytes: u64,
    pub(super) lost_blocks: u64,
    /// Freed blocks by the class of their age.
    pub(super) spans: [u64; LIFE_SPANS],
}

/// Words of `struct sums`, and of `struct variance`.
pub(super) type Half<'a> = (&'a [u64; HALF], &'a [u64; HALF]);

impl Sums {
    /// Sums of the allocated blocks, and of those of them that were freed.
    pub(super) fn halves(&self) -> [Half<'_>; 2] {
        let halves = |words| -> [&[u64; HALF]; 2] {
            let words: &[u64; 2 * HALF] = words;
            let (halves, _) = words.as_chunks::<HALF>();
            [&halves[0], &halves[1]]
        };
        let ([allocated, freed], [of_allocated, of_freed]) = (halves(&self.totals), halves(&self.variance));
        [(allocated, of_allocated), (freed, of_freed)]
    }

    /// Adds the sums of another record of the same stack.
    fn add(&mut self, more: &Self) {
        for (sum, more) in self.totals.iter_mut().zip(more.totals) {
            *sum = sum.wrapping_add(more);
        }
        let (pairs, _) = self.variance.as_chunks_mut::<2>();
        let (more_pairs, _) = more.variance.as_chunks::<2>();
        for ([low, high], [more_low, more_high]) in pairs.iter_mut().zip(more_pairs) {
            let (sum, carried) = low.overflowing_add(*more_low);
            *low = sum;
            *high = high.wrapping_add(*more_high).wrapping_add(carried.into());
        }
        for (sum, more) in self.spans.iter_mut().zip(more.spans) {
            *sum = sum.wrapping_add(more);
        }
        self.lost_bytes = self.lost_bytes.wrapping_add(more.lost_bytes);
        self.lost_blocks = self.lost_blocks.wrapping_add(more.lost_blocks);
    }

    /// Returns whether the one block of a stand-in is gone: it was freed, or never recorded. The kernel side
    /// counts the number of blocks first of its sums, and the number of lost ones last.
    fn is_over(&self) -> bool {
        let [(allocated, _), (freed, _)] = self.halves();
        self.lost_blocks > 0 || allocated[BLOCKS] > 0 && allocated == freed
    }
}

/// All stacks that user space has found.
#[derive(Debug)]
pub(super) struct FinishedStacks {
    /// Record number of the first one: beyond all records of the kernel side.
    first: u32,
    stacks: Vec<(Arc<FinishedStack>, Carried)>,
    numbers: HashMap<Arc<FinishedStack>, usize>,
    /// Number of the stack that each stand-in stands for.
    standing: HashMap<u32, usize>,
    /// Walks that could not be finished, and have the frames of the kernel side.
    unfinished: u64,
}

/// Amounts of a stack from stand-ins that were given back.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    sums: Sums,
    /// Walks that have found it in user space.
    walks: u64,
}

/// A finished stack, its number among stack records and its sums.
pub(super) struct Finished<'a> {
    pub(super) record: u32,
    pub(super) stack: &'a FinishedStack,
    pub(super) sums: Sums,
    pub(super) walks: u64,
}

impl FinishedStacks {
    /// Creates an empty set, whose record numbers begin with `first`.
    pub(super) fn from(first: u32) -> Self {
        Self {
            first,
            stacks: Vec::new(),
            numbers: HashMap::new(),
            standing: HashMap::new(),
            unfinished: 0,
        }
    }

    /// Number of walks that could not be finished.
    pub(super) fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Record number of a stack by its number among these.
    fn record(&self, number: usize) -> Option<u32> {
        self.first.checked_add(u32::try_from(number).ok()?)
    }

    /// Notes the stack that a stand-in stands for. If there is no room for it, only the function and the
    /// instance are kept.
    fn note(&mut self, stand_in: u32, stack: FinishedStack, is_finished: bool) {
        let is_full = self.stacks.len() >= MAX_FINISHED && !self.numbers.contains_key(&stack);
        let stack = match is_full {
            true => FinishedStack {
                frames: Vec::new(),
                left_out: None,
                end: End::StackTableFull,
                end_pc: Avma::new(0),
                epoch: 0,
                ..stack
            },
            false => stack,
        };
        let number = *self.numbers.entry(Arc::new(stack)).or_insert_with_key(|stack| {
            self.stacks.push((Arc::clone(stack), Carried::default()));
            self.stacks.len() - 1
        });
        if let Some((_, carried)) = self.stacks.get_mut(number) {
            carried.walks += u64::from(is_finished);
        }
        self.unfinished += u64::from(!is_finished);
        self.standing.insert(stand_in, number);
    }

    /// Record number of the stack that each stand-in stands for.
    pub(super) fn records(&self) -> HashMap<u32, u32> {
        let standing = self.standing.iter();
        standing
            .filter_map(|(&stand_in, &number)| Some((stand_in, self.record(number)?)))
            .collect()
    }

    /// Stack with this record number, or that this stand-in stands for, and its record number.
    pub(super) fn stack_of(&self, index: u32) -> Option<(u32, &FinishedStack)> {
        let number = match self.standing.get(&index) {
            Some(&number) => number,
            None => usize::try_from(index.checked_sub(self.first)?).ok()?,
        };
        let (stack, _) = self.stacks.get(number)?;
        Some((self.record(number)?, stack))
    }

    /// All stacks, each with the sums of its stand-ins, which `sums_of` reads.
    pub(super) fn all(&self, sums_of: impl Fn(u32) -> Option<Sums>) -> Vec<Finished<'_>> {
        let mut all: Vec<_> = self
            .stacks
            .iter()
            .enumerate()
            .filter_map(|(number, (stack, carried))| {
                Some(Finished {
                    record: self.record(number)?,
                    stack,
                    sums: carried.sums,
                    walks: carried.walks,
                })
            })
            .collect();
        for (&stand_in, &number) in &self.standing {
            if let (Some(finished), Some(sums)) = (all.get_mut(number), sums_of(stand_in)) {
                finished.sums.add(&sums);
            }
        }
        all
    }

    /// Takes over the sums of the stand-ins whose block is gone, and of all stand-ins of instances that have
    /// ended. Returns these stand-ins.
    fn carry(
        &mut self,
        sums_of: impl Fn(u32) -> Option<Sums>,
        spans_of: impl Fn(u32) -> [u64; LIFE_SPANS],
        has_ended: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut over = Vec::new();
        let Self { stacks, standing, .. } = self;
        standing.retain(|&stand_in, &mut number| {
            let (Some((stack, carried)), Some(sums)) = (stacks.get_mut(number), sums_of(stand_in)) else {
                return true;
            };
            let is_over = sums.is_over() || has_ended(stack.instance);
            if is_over {
                carried.sums.add(&Sums {
                    spans: spans_of(stand_in),
                    ..sums
                });
                over.push(stand_in);
            }
            !is_over
        });
        over
    }
}

impl Recorded {
    /// Reads the sums of a stack record, freed first, so that it is never larger than allocated.
    pub(super) fn sums_of(&self, index: u32) -> Option<Sums> {
        let at = usize::try_from(index).ok()?;
        let load = |word: &AtomicU64| word.load(Ordering::Acquire);
        let mut sums = Sums::default();
        let [lost_bytes, lost_blocks] = self.lost_words(at)?;
        (sums.lost_bytes, sums.lost_blocks) = (load(lost_bytes), load(lost_blocks));
        if let Some(words) = self.variances.words().as_chunks::<VARIANCE_WORDS>().0.get(at) {
            sums.variance = std::array::from_fn(|word| load(&words[word]));
        }
        let words = self.totals.words().as_chunks::<TOTALS_WORDS>().0.get(at)?;
        for word in (HALF..TOTALS_WORDS).chain(0..HALF) {
            sums.totals[word] = load(&words[word]);
        }
        Some(sums)
    }

    /// [`Recorded::sums_of`] with the life spans of freed blocks, whose reading is a system call.
    pub(super) fn all_sums_of(&self, index: u32) -> Option<Sums> {
        Some(Sums {
            spans: self.spans_of(index),
            ..self.sums_of(index)?
        })
    }

    /// Freed blocks of a stack record by the class of their age.
    pub(super) fn spans_of(&self, index: u32) -> [u64; LIFE_SPANS] {
        let facts = self.facts.as_ref();
        facts.map_or([0; LIFE_SPANS], |facts| facts.spans(index))
    }

    /// Notes the stack that a stand-in stands for, and whether the walk was finished.
    pub(crate) fn note_found(&self, stand_in: u32, stack: FinishedStack, is_finished: bool) {
        self.finished().note(stand_in, stack, is_finished);
    }

    fn lost_words(&self, at: usize) -> Option<[&AtomicU64; 2]> {
        let record = self.stacks.words().as_chunks::<RECORD_WORDS>().0.get(at)?;
        Some([&record[LOST_AT], &record[LOST_AT + 1]])
    }

    /// Gives back the stand-ins whose block is gone, and all of instances that have ended, whose blocks must
    /// have been removed from the block table. Single blocks must not be read meanwhile.
    pub(crate) fn give_back(
        &self,
        stand_ins: &StandIns,
        has_ended: impl Fn(u32) -> bool,
    ) -> Result<(), libbpf_rs::Error> {
        let mut finished = self.finished();
        let sums_of = |index| self.sums_of(index);
        for index in finished.carry(sums_of, |index| self.spans_of(index), has_ended) {
            self.clear(index)?;
            stand_ins.give_back(index)?;
        }
        Ok(())
    }

    /// Sets the sums of an unreferenced record to 0.
    fn clear(&self, index: u32) -> Result<(), libbpf_rs::Error> {
        let Ok(at) = usize::try_from(index) else {
            return Ok(());
        };
        let totals = self.totals.words().as_chunks::<TOTALS_WORDS>().0.get(at);
        let variance = self.variances.words().as_chunks::<VARIANCE_WORDS>().0.get(at);
        let words = totals.into_iter().flatten().chain(variance.into_iter().flatten());
        for word in words.chain(self.lost_words(at).into_iter().flatten()) {
            word.store(0, Ordering::Release);
        }
        let facts = self.facts.as_ref();
        facts.map_or(Ok(()), |facts| facts.clear_spans(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(instance: u32, pc: u64) -> FinishedStack {
        FinishedStack {
            instance,
            epoch: 0,
            function: 1,
            frames: Vec::new(),
            left_out: None,
            end: End::Complete,
            end_pc: Avma::new(pc),
            python: 0,
        }
    }

    fn sums(bytes: u64, allocated: u64, freed: u64) -> Sums {
        let mut sums = Sums::default();
        (sums.totals[0], sums.totals[BLOCKS]) = (bytes * allocated, allocated);
        (sums.totals[HALF], sums.totals[HALF + BLOCKS]) = (bytes * freed, freed);
        sums
    }

    /// A stack has the sums of all of its stand-ins, whether they still stand for it or not.
    #[test]
    fn stand_ins_add_up() {
        const FIRST: u32 = 1000;
        let mut finished = FinishedStacks::from(FIRST);
        for (stand_in, instance) in [(600, 1), (601, 1), (602, 2)] {
            finished.note(stand_in, stack(instance, 7), true);
        }
        let totals = |finished: &FinishedStacks, sums_of: &dyn Fn(u32) -> Option<Sums>| -> Vec<_> {
            let all = finished.all(sums_of);
            all.iter()
                .map(|one| {
                    (
                        one.record,
                        one.walks,
                        one.sums.totals[BLOCKS],
                        one.sums.totals[HALF + BLOCKS],
                    )
                })
                .collect()
        };
        let of = |index| Some(sums(10, 1, u64::from(index == 600)));
        assert_eq!(totals(&finished, &of), [(1000, 2, 2, 1), (1001, 1, 1, 0)]);
        assert_eq!(finished.carry(of, |_| [0; LIFE_SPANS], |_| false), [600]);
        assert_eq!(finished.stack_of(600), None);
        assert_eq!(finished.stack_of(601).map(|(record, _)| record), Some(1000));
        assert_eq!(finished.stack_of(1001).map(|(_, stack)| stack.instance), Some(2));
        // Another walk takes it, and its totals begin again.
        finished.note(600, stack(2, 9), false);
        let again = |index| Some(sums(10, u64::from(index != 600), 0));
        assert_eq!(
            totals(&finished, &again),
            [(1000, 2, 2, 1), (1001, 1, 1, 0), (1002, 0, 0, 0)]
        );
        assert_eq!(finished.unfinished(), 1);
        let mut ended = finished.carry(again, |_| [0; LIFE_SPANS], |instance| instance == 2);
        ended.sort_unstable();
        assert_eq!(ended, [600, 602]);
        assert_eq!(finished.records(), HashMap::from([(601, 1000)]));
        assert_eq!(
            totals(&finished, &again),
            [(1000, 2, 2, 1), (1001, 1, 1, 0), (1002, 0, 0, 0)]
        );
    }

    /// A stand-in's block is gone once it is freed or lost, not before it is counted; sums have 128 bits.
    #[test]
    fn sums_are_exact() {
        assert!(!Sums::default().is_over() && !sums(10, 1, 0).is_over() && sums(10, 1, 1).is_over());
        let lost = Sums {
            lost_blocks: 1,
            ..Sums::default()
        };
        assert!(lost.is_over());
        let mut wide = Sums::default();
        wide.variance[..2].copy_from_slice(&[u64::MAX, 3]);
        let mut more = Sums::default();
        more.variance[..2].copy_from_slice(&[2, 4]);
        wide.add(&more);
        assert_eq!(wide.variance[..2], [1, 8]);
    }
}
