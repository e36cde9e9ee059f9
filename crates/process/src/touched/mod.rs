//! Pages of a process's own memory that were touched since tracing began, and the stacks that touched them,
//! until they are discarded (`--faults`).
//!
//! Pure: faults, [`RegionEvent`]s and states of pages from `/proc/PID/pagemap` in, pages per stack out.
//!
//! A page belongs to the stack of its first fault. Later faults (a write after a read, a copy after fork, the
//! kernel's own reasons) are not growth until a call has discarded the page; `mremap` moves pages along.
//! Pages that a call discards are taken out when it begins, since another thread can touch the addresses
//! again before it has ended, and put back if it fails.
//!
//! Faults tell which stack touches a page, but not whether the page becomes resident. So all pages are
//! compared with the resident ones, now and then and for each report: [`Pages::mark`], read, apply all events
//! up to then, [`Pages::settle`]. That removes pages that are not resident, finds the other pages of huge
//! ones, of which the first touch is the only fault, and counts resident pages for which no fault was seen.

mod choice;
mod effect;
mod resident;
mod scan;
mod settle;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::{AddAssign, Range};

use unwind_tables::addr::Avma;

use super::maps::{MapsEntry, MapsName};
use super::regions::intervals::Intervals;
use super::regions::{CallMoment, RegionEvent, has_failed};
use leak_report::model::RegionCall;
use memleak_base::pages;

pub use choice::Choice;
use effect::{Backing, Effect, PageShift, mapped};
pub use resident::{HugePages, PageState, ResidentPages, Scan};
pub use scan::Found;
pub use settle::{ToRead, Unexplained};
use table::{CHUNK_PAGES, Entry, PageTable};

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Instance that took it.
    pub instance: u32,
    /// Address that was to be accessed.
    pub address: Avma,
    /// Index of its stack record.
    pub stack: u32,
}

/// Numbers of pages of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageTotals {
    /// Touched since tracing began.
    pub touched: u64,
    /// Discarded since.
    pub gone: u64,
    /// Sum over faults of the square of the number of pages that one made resident: more than `touched` with
    /// huge pages.
    pub squares: u64,
    /// Not recorded, as there were too many.
    pub lost: u64,
}

impl AddAssign for PageTotals {
    fn add_assign(&mut self, more: Self) {
        self.touched += more.touched;
        self.gone += more.gone;
        self.squares += more.squares;
        self.lost += more.lost;
    }
}

/// Pages that a call in progress has taken out.
#[derive(Clone, Debug)]
struct Begun {
    call: RegionCall,
    arguments: [u64; 5],
    discarded: Vec<(u64, Entry)>,
    moved: Vec<(u64, Entry)>,
}

/// The pages of one instance.
#[derive(Debug)]
pub struct Pages {
    shift: PageShift,
    choice: Choice,
    table: PageTable,
    /// Maximum number of chunks.
    capacity: usize,
    /// Pages whose memory is not private from the start. Page numbers are stored as addresses.
    backing: Intervals<Backing>,
    totals: BTreeMap<u32, PageTotals>,
    /// Calls in progress, by thread.
    in_progress: HashMap<u32, Begun>,
    /// Ranges that changed since the mark; `None` without one.
    changed: Option<Vec<Range<u64>>>,
    /// Number of resident pages for which no fault was seen.
    unexplained: u64,
    /// Number of pages that are gone although no call was seen that discarded them.
    ends_not_seen: u64,
}

impl Pages {
    /// Creates an empty state of at most about `capacity` pages.
    pub fn new(choice: Choice, capacity: usize) -> Self {
        Self::with_page_bytes(choice, capacity, pages::bytes())
    }

    fn with_page_bytes(choice: Choice, capacity: usize, page_bytes: u64) -> Self {
        Self {
            shift: PageShift(page_bytes.trailing_zeros()),
            choice,
            table: PageTable::default(),
            capacity: capacity.div_ceil(usize::try_from(CHUNK_PAGES).unwrap_or(1)),
            backing: Intervals::default(),
            totals: BTreeMap::new(),
            in_progress: HashMap::new(),
            changed: None,
            unexplained: 0,
            ends_not_seen: 0,
        }
    }

    /// Copies the state of a process for its child by fork: all that is resident is older than the child.
    #[must_use]
    pub fn forked(&self) -> Self {
        let mut child = Self::with_page_bytes(self.choice, 0, 1 << self.shift.0);
        child.capacity = self.capacity;
        child.backing = self.backing.clone();
        for (page, _) in self.table.iter() {
            child.table.set(page, Entry::BEFORE);
        }
        child
    }

    /// Totals by stack.
    pub fn totals(&self) -> impl Iterator<Item = (u32, PageTotals)> + '_ {
        self.totals.iter().map(|(&stack, &totals)| (stack, totals))
    }

    /// Number of pages in `range` that stacks have touched.
    pub fn count_in(&self, range: &Range<Avma>) -> u64 {
        let pages = range.start.get() >> self.shift.0..range.end.get() >> self.shift.0;
        let counted = self
            .table
            .within(&pages)
            .filter(|(_, entry)| entry.counted().is_some());
        counted.count() as u64
    }

    /// Number of resident pages for which no fault was seen.
    pub fn unexplained(&self) -> u64 {
        self.unexplained
    }

    /// Number of pages that are gone although no call was seen that discarded them.
    pub fn ends_not_seen(&self) -> u64 {
        self.ends_not_seen
    }

    /// Forgets single pages of an instance that has ended; totals stay.
    pub fn end(&mut self) {
        self.table = PageTable::default();
        self.backing = Intervals::default();
        self.in_progress.clear();
    }

    /// Reads from the process's maps which memory is shared, or is backed by files.
    pub fn enter_maps(&mut self, maps: &[MapsEntry]) {
        self.backing = Intervals::default();
        for entry in maps {
            let backing = match &entry.name {
                _ if entry.shared => Backing::Shared,
                MapsName::File { .. } => Backing::PrivateFile,
                MapsName::Anonymous | MapsName::Special(_) => continue,
            };
            let length = entry.range.end.offset_from(entry.range.start);
            let pages = self.shift.pages(entry.range.start.get(), length);
            self.backing.fill(&as_addresses(&pages), backing);
        }
    }

    /// Applies a fault.
    pub fn touch(&mut self, fault: &Fault) {
        let page = fault.address.get() >> self.shift.0;
        self.change(&(page..page + 1));
        let backing = self.backing.at(Avma::new(page));
        let known = self.table.get(page);
        if backing == Some(Backing::Shared) || (known != Entry::NONE && !known.is_discarded()) {
            return;
        }
        if let Some(stack) = known.counted() {
            self.total(stack).gone += 1;
        }
        self.enter(page, fault.stack, backing);
    }

    /// Enters a page as touched by a stack, if there is room.
    fn enter(&mut self, page: u64, stack: u32, backing: Option<Backing>) {
        let is_counted = backing.is_none();
        if !self.has_room(page) {
            self.total(stack).lost += u64::from(is_counted);
            return;
        }
        self.table.set(page, Entry::touched(stack, is_counted));
        if is_counted {
            self.count(stack, 1);
        }
    }

    fn has_room(&self, page: u64) -> bool {
        let first = page - page % CHUNK_PAGES;
        self.table.len() < self.capacity || self.table.chunk(first).is_some()
    }

    /// Adds pages to a stack's totals, each made resident by its own fault.
    fn count(&mut self, stack: u32, pages: u64) {
        let totals = self.total(stack);
        totals.touched += pages;
        totals.squares += pages;
    }

    fn total(&mut self, stack: u32) -> &mut PageTotals {
        self.totals.entry(stack).or_default()
    }

    /// Applies an event of a call.
    pub fn apply(&mut self, event: &RegionEvent) {
        match event.moment {
            CallMoment::Begins { program_break } => {
                let program_break = (event.call == RegionCall::Brk).then_some(program_break);
                let begun = self.begin(event, program_break);
                if let Some(earlier) = self.in_progress.insert(event.thread, begun) {
                    // Its end was not seen.
                    self.put_back(earlier.discarded);
                    self.put_back(earlier.moved);
                }
            }
            CallMoment::Ended { result, stack } => {
                let begun = self.in_progress.remove(&event.thread);
                let begun =
                    begun.filter(|begun| begun.call == event.call && begun.arguments == event.arguments);
                if has_failed(event) {
                    let begun = begun.into_iter();
                    begun.for_each(|begun| self.put_back([begun.discarded, begun.moved].concat()));
                } else {
                    let begun = begun.unwrap_or_else(|| self.begin(event, None));
                    self.succeed(event, begun, result, stack);
                }
            }
        }
    }

    fn begin(&mut self, event: &RegionEvent, program_break: Option<u64>) -> Begun {
        let effect = Effect::of(event, program_break, self.shift);
        let mut discarded = Vec::new();
        for range in &effect.discards {
            self.change(range);
            discarded.append(&mut self.table.take(range));
        }
        let moved = effect.moves.map(|range| {
            self.change(&range);
            self.table.take(&range)
        });
        Begun {
            call: event.call,
            arguments: event.arguments,
            discarded,
            moved: moved.unwrap_or_default(),
        }
    }

    fn succeed(&mut self, event: &RegionEvent, begun: Begun, result: u64, stack: u32) {
        self.discard(&begun.discarded);
        if event.call == RegionCall::Mremap {
            self.moved(event, begun.moved, result);
        }
        if event.call == RegionCall::Munmap {
            for range in Effect::of(event, None, self.shift).discards {
                self.backing.take(&as_addresses(&range));
            }
        }
        if let Some(range) = Effect::of(event, None, self.shift).frees {
            self.change(&range);
            for (page, entry) in self.table.take(&range) {
                self.table.set(page, entry.discarded());
            }
        }
        if let Some(mapped) = mapped(event, self.shift) {
            self.mapped(&mapped, stack);
        }
    }

    /// Enters pages that `mremap` moved along; those beyond the new length are discarded.
    fn moved(&mut self, event: &RegionEvent, moved: Vec<(u64, Entry)>, result: u64) {
        let [old, old_length, new_length, ..] = event.arguments;
        let source = self.shift.pages(old, old_length);
        let target = self.shift.pages(result, new_length);
        self.change(&target);
        let backing = self.backing.at(Avma::new(source.start));
        if source.start != target.start {
            self.backing.take(&as_addresses(&source));
        }
        if let Some(backing) = backing {
            self.backing.take(&as_addresses(&target));
            self.backing.fill(&as_addresses(&target), backing);
        }
        let place = |page: u64| target.start + (page - source.start);
        let (kept, cut): (Vec<_>, Vec<_>) =
            moved.into_iter().partition(|&(page, _)| place(page) < target.end);
        self.discard(&cut);
        self.put_back(
            kept.into_iter()
                .map(|(page, entry)| (place(page), entry))
                .collect(),
        );
    }

    /// Applies a successful `mmap`: only pages that it has populated itself are resident there.
    fn mapped(&mut self, mapped: &effect::Mapped, stack: u32) {
        self.backing.take(&as_addresses(&mapped.pages));
        if mapped.is_new {
            self.change(&mapped.pages);
            let stale = self.table.take(&mapped.pages);
            self.discard(&stale);
        }
        if let Some(backing) = mapped.backing {
            self.backing.fill(&as_addresses(&mapped.pages), backing);
        }
        if mapped.is_populated && mapped.backing != Some(Backing::Shared) {
            self.change(&mapped.pages);
            let choice = self.choice;
            for page in mapped.pages.clone().filter(|&page| choice.is_chosen(page)) {
                if self.table.get(page) == Entry::NONE {
                    self.enter(page, stack, mapped.backing);
                }
            }
        }
    }

    /// Adds pages that were taken out to those that are gone.
    fn discard(&mut self, taken: &[(u64, Entry)]) {
        for stack in taken.iter().filter_map(|(_, entry)| entry.counted()) {
            self.total(stack).gone += 1;
        }
    }

    /// Enters pages again that were taken out. Where a page was touched since, the one taken out is gone.
    fn put_back(&mut self, taken: Vec<(u64, Entry)>) {
        for (page, entry) in taken {
            self.change(&(page..page + 1));
            if self.table.get(page) == Entry::NONE {
                self.table.set(page, entry);
            } else if let Some(stack) = entry.counted() {
                self.total(stack).gone += 1;
            }
        }
    }

    fn change(&mut self, pages: &Range<u64>) {
        if let Some(changed) = &mut self.changed {
            changed.push(pages.clone());
        }
    }
}

/// Page numbers in the type of addresses, for [`Intervals`].
fn as_addresses(pages: &Range<u64>) -> Range<Avma> {
    Avma::new(pages.start)..Avma::new(pages.end)
}
