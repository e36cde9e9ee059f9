//! The highest total of outstanding memory, found by looks at the totals in place, and how much of it was
//! each stack's.
//!
//! The kernel side counts nothing for this. Between two looks the total can have been higher, within a bound:
//! between two readings of a stack, its outstanding bytes are at most those allocated by the second reading
//! less those freed by the first. The total was never above the sum of these bounds over all stacks.
//!
//! Memory of an instance counts while the instance runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bpf::clock::thread_nanoseconds;
use crate::bpf::types::{limits, stack_record, stack_totals, weight_shape};
use crate::bpf::{Kernel, Recorded};
use leak_report::model::{Amount, Peak, Sampling, Snapshot};

const RECORD_WORDS: usize = size_of::<stack_record>() / size_of::<u64>();
const TOTALS_WORDS: usize = size_of::<stack_totals>() / size_of::<u64>();
/// Word of a stack record whose upper half is the number of the instance.
const INSTANCE_WORD: usize = std::mem::offset_of!(stack_record, instance) / size_of::<u64>();

/// Bytes, blocks and weight of one of a stack's sums; a fourth word, which is unused, follows.
type Words = [u64; TOTALS_WORDS / 2 - 1];

/// Memory of a stack from one look to the next.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Instance; `None` until the stack has allocated, since its record may not be written before.
    instance: Option<u32>,
    /// Bytes freed by the last look.
    freed: u64,
    /// Upper bound of its outstanding bytes from the look before the last one to the last one.
    limit: u64,
}

/// Result of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Bytes allocated since the look before.
    pub(crate) allocated: u64,
    /// The highest total so far.
    pub(crate) peak: Amount,
    /// CPU time that it took.
    pub(crate) cost: Duration,
}

/// Looks for the peak.
pub(crate) struct PeakFinder {
    recorded: Arc<Recorded>,
    sums: Sums,
}

/// Tells whether an instance has ended.
type HasEnded = Box<dyn Fn(u32) -> bool + Send>;

/// Findings of the looks, without the source of the totals.
struct Sums {
    /// True if blocks have no weight.
    is_exact: bool,
    /// Rows of stack records, by index, and (`found`) of stacks that user space has found, by number.
    stored: Vec<Row>,
    found: Vec<Row>,
    instances: Instances,
    allocated: u64,
    peak: Peak,
    /// Outstanding amounts by stack record at the peak, and at the current look; stacks without any are
    /// omitted.
    at_peak: Vec<(u32, Amount)>,
    now: Vec<(u32, Amount)>,
}

impl PeakFinder {
    /// Looks at what `kernel` records.
    pub(crate) fn new(kernel: &Kernel<'_>) -> Self {
        let recorded = Arc::clone(&kernel.recorded);
        let endings = kernel.processes.endings();
        Self {
            sums: Sums::new(
                Box::new(move |instance| endings.has_ended(instance)),
                recorded.sampling == Sampling::All,
            ),
            recorded,
        }
    }

    /// Looks at all totals; `elapsed` is the time since the attach.
    pub(crate) fn look(&mut self, elapsed: Duration) -> Look {
        let began = thread_nanoseconds();
        let Self { recorded, sums } = self;
        let mut pass = sums.begin();
        let used = recorded.usage.words().first();
        let used = used.map_or(0, |word| word.load(Ordering::Acquire));
        let used = used.min(recorded.stack_capacity.into());
        let (totals, _) = recorded.totals.words().as_chunks::<TOTALS_WORDS>();
        for (words, index) in totals.iter().zip(0..used) {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let [allocated @ .., _, freed_bytes, freed_blocks, freed_weight, _] = words;
            // Freed first, so that it is never the larger.
            let freed = [freed_bytes, freed_blocks, freed_weight].map(load);
            let allocated = allocated.each_ref().map(load);
            pass.see(Place::Stored(index), allocated, freed, || {
                instance_of(recorded, index)
            });
        }
        let finished = recorded.finished();
        for (stack, number) in finished.all(|index| recorded.sums_of(index)).iter().zip(0..) {
            let [([allocated @ .., _], _), ([freed @ .., _], _)] = stack.sums.halves();
            let place = Place::Found(number, stack.record);
            pass.see(place, *allocated, *freed, || stack.stack.instance);
        }
        drop(finished);
        let allocated = pass.end(elapsed);
        Look {
            allocated,
            peak: sums.peak.total,
            cost: Duration::from_nanos(thread_nanoseconds().saturating_sub(began)),
        }
    }

    /// Enters the peak into `snapshot`, which is newer than the last look, and into each of its stacks the
    /// amount at the peak.
    pub(crate) fn describe(&mut self, snapshot: &mut Snapshot) {
        self.sums.see_snapshot(snapshot);
        let at_peak: HashMap<_, _> = self.sums.at_peak.iter().copied().collect();
        for stack in &mut snapshot.stacks {
            stack.peak = at_peak.get(&stack.record).copied().unwrap_or_default();
        }
        snapshot.peak = Some(self.sums.peak);
    }
}

/// Life of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No stack of it was seen.
    #[default]
    New,
    Running,
    /// Has ended, perhaps only during the look in which it was first seen.
    EndedInLook,
    /// Has ended after the last look began, and before this one did.
    Ending,
    Ended,
}

/// Instances that have stacks.
struct Instances {
    has_ended: HasEnded,
    /// States by number of the instance; each look reads the one of every stack's instance.
    states: Vec<State>,
    /// Numbers of instances that had not ended by the look before the last one.
    open: Vec<u32>,
}

impl Instances {
    /// Notes which have ended since the last time.
    fn update(&mut self) {
        let Self {
            has_ended,
            states,
            open,
        } = self;
        open.retain(|&number| {
            let Some(state) = states.get_mut(number as usize) else {
                return false;
            };
            *state = match (*state, has_ended(number)) {
                (State::Ending | State::Ended, _) => State::Ended,
                (State::EndedInLook, _) => State::Ending,
                (State::New | State::Running, true) => State::Ending,
                (State::New | State::Running, false) => State::Running,
            };
            *state != State::Ended
        });
    }

    /// State of an instance that has a stack. One that has begun since the last look can have ended, too.
    fn state(&mut self, number: u32) -> State {
        let at = number as usize;
        if self.states.len() <= at {
            self.states.resize(at + 1, State::New);
        }
        let state = &mut self.states[at];
        if *state == State::New {
            *state = if (self.has_ended)(number) {
                State::EndedInLook
            } else {
                State::Running
            };
            self.open.push(number);
        }
        *state
    }
}

/// A stack: the index of its record, or its number among those that user space has found with the number of
/// its record.
#[derive(Clone, Copy)]
enum Place {
    Stored(u32),
    Found(usize, u32),
}

/// One look.
struct Pass<'a> {
    sums: &'a mut Sums,
    total: Amount,
    limit: u64,
    allocated: u64,
}

impl Sums {
    fn new(has_ended: HasEnded, is_exact: bool) -> Self {
        Self {
            is_exact,
            stored: Vec::new(),
            found: Vec::new(),
            instances: Instances {
                has_ended,
                states: Vec::new(),
                open: Vec::new(),
            },
            allocated: 0,
            peak: Peak::default(),
            at_peak: Vec::new(),
            now: Vec::new(),
        }
    }

    fn begin(&mut self) -> Pass<'_> {
        // Before anything is read: an instance that ends during the look still counts.
        self.instances.update();
        self.now.clear();
        Pass {
            sums: self,
            total: Amount::default(),
            limit: 0,
            allocated: 0,
        }
    }

    /// Takes the snapshot as the peak if it is higher: it includes what was allocated since the last look.
    /// Each ended instance is compared by itself, with its amount at its end, which can have come before any
    /// look.
    fn see_snapshot(&mut self, snapshot: &Snapshot) {
        // Running instances count together; each ended one counts by itself.
        let mut moments: BTreeMap<Option<u32>, Vec<(u32, Amount)>> = BTreeMap::new();
        for stack in &snapshot.stacks {
            let held = stack.outstanding().amount;
            if held != Amount::default() {
                let ended = Some(stack.instance).filter(|&instance| (self.instances.has_ended)(instance));
                moments.entry(ended).or_default().push((stack.record, held));
            }
        }
        for held in moments.into_values() {
            let total = held.iter().map(|&(_, held)| held).sum();
            self.take(snapshot.elapsed, total, held);
            self.peak.never_above = self.peak.never_above.max(total.bytes);
        }
    }

    /// Makes this the peak if it is higher; returns the list that is not needed, for reuse.
    fn take(&mut self, elapsed: Duration, total: Amount, held: Vec<(u32, Amount)>) -> Vec<(u32, Amount)> {
        let key = |total: Amount| (total.bytes, total.blocks);
        if key(total) <= key(self.peak.total) {
            return held;
        }
        self.peak = Peak {
            elapsed,
            total,
            ..self.peak
        };
        std::mem::replace(&mut self.at_peak, held)
    }
}

impl Pass<'_> {
    /// Adds the sums of a stack; `instance` reads which instance it belongs to.
    fn see(&mut self, place: Place, allocated: Words, freed: Words, instance: impl FnOnce() -> u32) {
        let sums = &mut *self.sums;
        let [allocated_bytes, ..] = allocated;
        let [freed_bytes, ..] = freed;
        self.allocated = self.allocated.wrapping_add(allocated_bytes);
        let (rows, at, record) = match place {
            Place::Stored(index) => (&mut sums.stored, index as usize, index),
            Place::Found(number, record) => (&mut sums.found, number, record),
        };
        if rows.len() <= at {
            rows.resize(at + 1, Row::default());
        }
        let Some(row) = rows.get_mut(at).filter(|_| allocated_bytes > 0) else {
            return;
        };
        let state = sums.instances.state(*row.instance.get_or_insert_with(instance));
        if state == State::Ended {
            return;
        }
        let limit = allocated_bytes.saturating_sub(row.freed);
        // A look reads one stack after the other: at a moment during it, some are before their reading and
        // others after it, so that either bound can apply.
        self.limit = self.limit.saturating_add(limit.max(row.limit));
        (row.freed, row.limit) = (freed_bytes, limit);
        if state != State::Running {
            return;
        }
        let held = outstanding(&allocated, &freed, sums.is_exact);
        if held != Amount::default() {
            self.total = self.total + held;
            sums.now.push((record, held));
        }
    }

    /// Ends the look; returns the bytes allocated since the one before.
    fn end(self, elapsed: Duration) -> u64 {
        let Self {
            sums,
            total,
            limit,
            allocated,
        } = self;
        sums.peak.looks += 1;
        sums.peak.never_above = sums.peak.never_above.max(limit);
        let now = std::mem::take(&mut sums.now);
        sums.now = sums.take(elapsed, total, now);
        let since = allocated.saturating_sub(sums.allocated);
        sums.allocated = allocated;
        since
    }
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// Instance of a stack record that has totals; 0 for those with fixed meanings.
fn instance_of(recorded: &Recorded, index: u32) -> u32 {
    if index < limits::FIRST_STACK.0 {
        return 0;
    }
    let (records, _) = recorded.stacks.words().as_chunks::<RECORD_WORDS>();
    let record = records.get(index as usize);
    let word = record.map_or(0, |record| record[INSTANCE_WORD].load(Ordering::Acquire));
    let [.., a, b, c, d] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Outstanding amount of a stack. The number of blocks is the sum of their weights, rounded, unless all were
/// recorded.
fn outstanding(allocated: &Words, freed: &Words, is_exact: bool) -> Amount {
    let [bytes, blocks, weight] = *allocated;
    let [freed_bytes, freed_blocks, freed_weight] = *freed;
    let weight = weight.saturating_sub(freed_weight);
    let shift = weight_shape::WEIGHT_SHIFT.0;
    let weighted = weight.saturating_add(1 << (shift - 1)) >> shift;
    Amount {
        bytes: bytes.saturating_sub(freed_bytes),
        blocks: if is_exact {
            blocks.saturating_sub(freed_blocks)
        } else {
            weighted
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Stacks of the tests, two of each of two instances.
    const STACKS: usize = 4;

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Allocate(usize, u64),
        FreeAll(usize),
        /// The second instance ends.
        End,
        /// The look reads its next stack.
        Read,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0..STACKS, 1..1000_u64).prop_map(|(stack, bytes)| Event::Allocate(stack, bytes)),
            3 => (0..STACKS).prop_map(Event::FreeAll),
            6 => Just(Event::Read),
            1 => Just(Event::End),
        ];
        prop::collection::vec(event, 0..200)
    }

    #[derive(Default)]
    struct Program {
        /// Allocated and freed bytes by stack.
        sums: [[u64; 2]; STACKS],
        highest: u64,
    }

    impl Program {
        fn held(&self, has_ended: bool) -> u64 {
            let running = if has_ended { STACKS / 2 } else { STACKS };
            self.sums
                .iter()
                .take(running)
                .map(|[allocated, freed]| allocated - freed)
                .sum()
        }

        fn run(&mut self, event: Event, has_ended: &AtomicBool) {
            match event {
                Event::Allocate(stack, _) if stack >= STACKS / 2 && has_ended.load(Ordering::Relaxed) => {}
                Event::Allocate(stack, bytes) => self.sums[stack][0] += bytes,
                Event::FreeAll(stack) => self.sums[stack][1] = self.sums[stack][0],
                Event::End => has_ended.store(true, Ordering::Relaxed),
                Event::Read => {}
            }
            self.highest = self.highest.max(self.held(has_ended.load(Ordering::Relaxed)));
        }
    }

    proptest! {
        /// Whatever happens between two readings, and whenever an instance ends: the total was never above
        /// the bound, the amounts of stacks at the peak add up to it, and the peak is at least what a quiet
        /// look sees.
        #[test]
        fn totals_are_never_above_the_limit(events in events()) {
            let has_ended = Arc::new(AtomicBool::new(false));
            let asked = Arc::clone(&has_ended);
            let mut sums = Sums::new(Box::new(move |number| number == 2 && asked.load(Ordering::Relaxed)), true);
            let mut program = Program::default();
            let mut events = events.into_iter();
            for is_last in std::iter::repeat_n(false, 201).chain([true]) {
                let mut pass = sums.begin();
                for stack in 0..STACKS {
                    if !is_last {
                        events.by_ref().take_while(|event| !matches!(event, Event::Read)).for_each(|event| {
                            program.run(event, &has_ended);
                        });
                    }
                    let [allocated, freed] = program.sums[stack].map(|bytes| [bytes, bytes, 0]);
                    let instance = if stack < STACKS / 2 { 1 } else { 2 };
                    pass.see(Place::Stored(u32::try_from(stack).unwrap()), allocated, freed, || instance);
                }
                pass.end(Duration::ZERO);
            }
            let Peak { total, never_above, looks, .. } = sums.peak;
            prop_assert_eq!(looks, 202);
            prop_assert!(never_above >= program.highest && never_above >= total.bytes);
            prop_assert!(total.bytes >= program.held(has_ended.load(Ordering::Relaxed)));
            let kept: Amount = sums.at_peak.iter().map(|&(_, held)| held).sum();
            prop_assert_eq!(kept, total);
        }
    }
}
