//! Compares an image with gimli's evaluation of the same CFI, at every address of every function.
//!
//! Checks `translate`, `build`, `encode` and `walk` together, and shares with them only the location of
//! sections and the code of executable segments: gimli reads and evaluates functions and rows, and a step of
//! the reference walker evaluates the image. Both start from the same made-up registers and memory, which are
//! hashes, so that accidental agreement takes a collision of 64 bits. Overlapping functions are resolved as
//! `build` documents.

mod evaluate;
mod saves;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use gimli::{BaseAddresses, DebugFrame, EhFrame, EndianSlice, LittleEndian};
use gimli::{UnwindContext, UnwindSection};

use crate::addr::{self, Svma};
use crate::architecture::Architecture;
use crate::elf::{CfiSection, ElfView, Segment};
use crate::entry;
use crate::error::TableError;
use crate::go_table;
use crate::image::Image;
use crate::mapping::Mapping;
use crate::ranges;
use crate::rule::{CfaRule, Reason, UnwindRule};
use crate::walk::{self, ADDRESS_BITS, End, ReturnProbes, Tables, Unwind};
use evaluate::{Cie, Evaluator, Fde, Row, State};

/// Maximum number of differences that are kept as examples; all are counted.
pub const MAX_EXAMPLES: usize = 16;
/// Seeds of the made-up machine states that each address is evaluated with.
const SEEDS: [u64; 2] = [1, 2];
/// Maximum number of CIE bytes processed per byte of the section, as in `cfi`: linkers share one CIE of 24
/// bytes among FDEs of about 40.
const CIE_BUDGET_PER_BYTE: u64 = 8;
const CIE_BUDGET_FLOOR: u64 = 1 << 16;
/// Maximum number of addresses that are checked in each part of a gap that is code.
const MAX_GAP_PROBES: u64 = 4096;

/// Result of an evaluation for one address and machine state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A caller with these registers.
    Caller(walk::Caller),
    /// The outermost frame.
    EndOfStack,
    /// No function covers the address.
    Gap,
    /// The caller's value of a register.
    Register {
        /// DWARF number of the register.
        number: u8,
        /// Value; `None` if unknown.
        value: Option<u64>,
    },
    /// No caller: malformed, or not computable.
    Nothing,
    /// The step of the walker ended with a cause.
    Stopped(End),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller(caller) => {
                let walk::Caller {
                    pc,
                    sp,
                    fp,
                    interrupted,
                } = caller;
                let kind = if *interrupted { "interrupted" } else { "calling" };
                write!(f, "caller {kind} at {pc:#x}, sp {sp:#x}, fp {fp:#x}")
            }
            Self::EndOfStack => f.write_str("end of stack"),
            Self::Gap => f.write_str("no CFI"),
            Self::Register { number, value } => write!(f, "register {number} {value:x?}"),
            Self::Nothing => f.write_str("nothing that can be evaluated"),
            Self::Stopped(end) => write!(f, "a walk that ends with {}", end.name()),
        }
    }
}

/// An address at which the two sides differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The address.
    pub at: Svma,
    /// Result by the image.
    pub image: Outcome,
    /// Result by gimli.
    pub cfi: Outcome,
}

/// Unsupported places, for one reason. A place is a range of addresses of one row of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Number of places.
    pub places: u64,
    /// Start of the first place.
    pub first: Svma,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of rows that gimli read.
    pub rows: u64,
    /// Number of addresses compared.
    pub addresses: u64,
    /// Number of places at which the two sides differ: ranges of addresses with one rule in the image.
    pub wrong: u64,
    /// First differences, at most [`MAX_EXAMPLES`].
    pub examples: Vec<Mismatch>,
    /// Places that the image marks as unsupported, by reason.
    pub unsupported: BTreeMap<Reason, Unsupported>,
    /// Number of locations of saved registers compared, over all places.
    pub saved: u64,
    /// Number of addresses without CFI that the image has a rule for: signal trampolines.
    pub trampolines: u64,
    /// Number of entries that gimli cannot read; if not 0, gaps are not compared.
    pub malformed: u64,
    /// Code that functions cover: ascending, not overlapping.
    pub functions: Vec<Range<Svma>>,
}

/// Compares `image`, which `elf` was compiled to, with the CFI in `elf`. `None` for an object without CFI.
///
/// # Errors
///
/// Fails as [`compile`](crate::compile) does.
pub fn verify(elf: &[u8], image: Option<&Image>) -> Result<Verified, TableError> {
    let view = ElfView::parse_any(elf)?;
    let architecture = view.architecture();
    let executable = view.segments().iter().filter(|segment| segment.executable);
    let code = ranges::merge(executable.map(Segment::file_backed));
    let mut comparison = Comparison {
        image,
        view: &view,
        architecture,
        outermost: outermost(&view),
        found: Verified::default(),
    };
    if let Some(section) = view.eh_frame() {
        let data = EndianSlice::new(&section.data, LittleEndian);
        let mut frames = EhFrame::from(data);
        frames.set_vendor(architecture.vendor());
        comparison.compare_section(frames, &section, &code);
    }
    if let Some(section) = view.debug_frame() {
        let data = EndianSlice::new(&section.data, LittleEndian);
        let mut frames = DebugFrame::from(data);
        frames.set_vendor(architecture.vendor());
        comparison.compare_section(frames, &section, &code);
    }
    comparison.compare_gaps(&code);
    Ok(comparison.found)
}

/// Code that may be the outermost of a stack: Go's functions by its own table, and code at the file's entry
/// point. Functions that stacks of makecontext return to are added when they are known.
fn outermost(view: &ElfView<'_>) -> Vec<Range<Svma>> {
    let of_go = go_table::ends(view).map_or_else(Vec::new, |ends| ends.outermost);
    let entry = view.entry()..view.entry().wrapping_add(entry::MAX_BYTES);
    of_go.into_iter().chain([entry]).collect()
}

/// Remaining budget of CIE bytes to process: each function repeats its CIE's instructions.
struct Budget(u64);

impl Budget {
    fn of(source: &CfiSection<'_>) -> Self {
        let bytes = source.data.len() as u64;
        Self(bytes.saturating_mul(CIE_BUDGET_PER_BYTE).max(CIE_BUDGET_FLOOR))
    }

    fn spend(&mut self, bytes: u64) -> gimli::Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(gimli::Error::TooManyIterations)?;
        Ok(())
    }
}

/// Returns the length of the entry at `offset`, for the time budget.
fn length_at(section: &[u8], offset: usize) -> u64 {
    let rest = section.get(offset..).unwrap_or_default();
    let length = rest
        .first_chunk()
        .map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
    u64::from(length).min(rest.len() as u64)
}

struct Comparison<'a> {
    image: Option<&'a Image>,
    view: &'a ElfView<'a>,
    architecture: Architecture,
    /// Code without a caller, whatever its CFI says: determined as `build` does.
    outermost: Vec<Range<Svma>>,
    found: Verified,
}

/// A section, and the addresses that its pointers are relative to.
struct Based<'s, S> {
    section: &'s S,
    bases: &'s BaseAddresses,
}

impl Comparison<'_> {
    /// Compares all functions of a section, except code that an earlier section covers.
    fn compare_section<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        section: S,
        source: &CfiSection<'_>,
        code: &[Range<Svma>],
    ) {
        let bases = BaseAddresses::default().set_eh_frame(source.svma.get());
        let mut context = UnwindContext::new();
        let mut budget = Budget::of(source);
        let described = std::mem::take(&mut self.found.functions);
        let entries = self.entries(source);
        let based = Based {
            section: &section,
            bases: &bases,
        };
        let functions = self.functions(&based, &entries, code, &mut budget);
        let ranges = functions.iter().map(|(range, _)| range);
        self.outermost.extend(entry::of_contexts(self.view, ranges));
        for (range, fde) in &functions {
            let overlapping = described.partition_point(|before| before.end <= range.start);
            let taken = described[overlapping..]
                .iter()
                .take_while(|before| before.start < range.end);
            let left = ranges::without(std::slice::from_ref(range), taken);
            self.found.functions.extend_from_slice(&left);
            if budget.spend(fde.cie().entry_len() as u64).is_err() {
                self.found.malformed += 1;
                break;
            }
            self.compare_function(&based, &mut context, fde, &left);
        }
        self.found.functions.extend(described);
        self.found.functions.sort_by_key(|range| range.start);
    }

    /// Returns the offsets of a section's entries. gimli ends the section at a length of zero; if the
    /// section's size is known, that is only the end of one object file's part of it.
    fn entries(&mut self, source: &CfiSection<'_>) -> Vec<usize> {
        let data = &source.data;
        let mut starts = Vec::new();
        let mut at = 0;
        while let Some(&length) = data.get(at..).and_then(<[u8]>::first_chunk::<4>) {
            let first = u32::from_le_bytes(length);
            let (start, length) = match first {
                0 if !source.exact => break,
                u32::MAX => {
                    let length = data.get(at + 4..).and_then(<[u8]>::first_chunk);
                    (
                        at + 12,
                        length.map_or(u64::MAX, |&length| u64::from_le_bytes(length)),
                    )
                }
                length => (at + 4, u64::from(length)),
            };
            let length = usize::try_from(length).ok();
            let end = length.and_then(|length| start.checked_add(length));
            let Some(end) = end.filter(|&end| end <= data.len()) else {
                self.found.malformed += 1;
                break;
            };
            if first != 0 {
                starts.push(at);
            }
            at = end;
        }
        starts
    }

    /// Returns the functions of a section that apply, each up to the start of the next.
    fn functions<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        &Based { section, bases }: &Based<'_, S>,
        entries: &[usize],
        code: &[Range<Svma>],
        budget: &mut Budget,
    ) -> Vec<(Range<Svma>, Fde<'a>)> {
        let mut functions = Vec::new();
        let mut cies: HashMap<usize, Option<Cie<'a>>> = HashMap::new();
        for &at in entries {
            let partial = match section.partial_fde_from_offset(bases, at.into()) {
                Ok(partial) => partial,
                // A CIE.
                Err(gimli::Error::NotCiePointer(_)) => continue,
                Err(_) => {
                    self.found.malformed += 1;
                    continue;
                }
            };
            let fde = partial.parse(|section, bases, offset| {
                let number = gimli::UnwindOffset::into(offset);
                if let Some(cie) = cies.get(&number) {
                    return cie.clone().ok_or(gimli::Error::NotCieId(0));
                }
                budget.spend(length_at(section.section(), number))?;
                let cie = section.cie_from_offset(bases, offset);
                cies.insert(number, cie.as_ref().ok().cloned());
                cie
            });
            match fde {
                Ok(fde) => functions.extend(code_of(&fde, code).map(|range| (range, fde))),
                Err(_) => self.found.malformed += 1,
            }
        }
        functions.sort_by_key(|(range, _)| range.start);
        functions.dedup_by_key(|(range, _)| range.start);
        for number in 1..functions.len() {
            let next = functions[number].0.start;
            let range = &mut functions[number - 1].0;
            range.end = range.end.min(next);
        }
        functions
    }

    /// Compares a function in those of its `ranges` that no other describes. They ascend.
    fn compare_function<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        &Based { section, bases }: &Based<'_, S>,
        context: &mut UnwindContext<usize>,
        fde: &Fde<'a>,
        ranges: &[Range<Svma>],
    ) {
        let evaluator = Evaluator { section, fde };
        let Some(end) = ranges.last().map(|range| range.end) else {
            return;
        };
        let mut covered = Svma::new(fde.initial_address());
        let Ok(mut rows) = fde.rows(section, bases, context) else {
            return self.compare_malformed(covered, ranges);
        };
        let mut ranges = ranges;
        while covered < end {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => return,
                Err(_) => return self.compare_malformed(covered, ranges),
            };
            let (start, row_end) = (Svma::new(row.start_address()), Svma::new(row.end_address()));
            covered = covered.max(row_end);
            let behind = ranges.partition_point(|range| range.end <= start);
            ranges = &ranges[behind..];
            for range in ranges.iter().take_while(|range| range.start < row_end) {
                let part = start.max(range.start)..row_end.min(range.end);
                // A row at the same address as the next one applies to no address.
                if part.start < part.end {
                    self.compare_row(&evaluator, row, &part);
                }
            }
        }
    }

    /// Checks that the image has no caller from `from` on, where gimli cannot read the CFI.
    fn compare_malformed(&mut self, from: Svma, ranges: &[Range<Svma>]) {
        self.found.rows += 1;
        for range in ranges.iter().filter(|range| range.end > from) {
            let start = range.start.max(from);
            for at in [start, range.end.wrapping_sub(1)] {
                let rule = self.rule_at(at);
                if rule != UnwindRule::Unsupported(Reason::Malformed) {
                    let image = self.outcome(rule, self.state(SEEDS[0], at));
                    self.differ(at, image, Outcome::Nothing);
                }
            }
            self.count_unsupported(Reason::Malformed, start);
        }
    }

    fn count_unsupported(&mut self, reason: Reason, first: Svma) {
        let none = Unsupported { places: 0, first };
        self.found.unsupported.entry(reason).or_insert(none).places += 1;
    }

    /// Compares each address; a rule equal to the previous address's is evaluated again only if it can depend
    /// on the address.
    fn compare_row<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        evaluator: &Evaluator<'_, 'a, S>,
        row: &Row,
        range: &Range<Svma>,
    ) {
        self.found.rows += 1;
        self.compare_saves(evaluator, row, range.start);
        self.compare_saves(evaluator, row, range.end.wrapping_sub(1));
        let mut evaluated = None;
        for at in addresses(range) {
            self.found.addresses += 1;
            let rule = self.rule_at(at);
            if evaluated == Some(rule) && !depends_on_address(rule) {
                continue;
            }
            if let UnwindRule::Unsupported(reason) = rule {
                self.count_unsupported(reason, at);
            } else if rule != UnwindRule::EndOfStack || !self.is_outermost(at) {
                self.compare_address(evaluator, row, rule, at);
            }
            evaluated = Some(rule);
        }
    }

    fn compare_address<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        evaluator: &Evaluator<'_, 'a, S>,
        row: &Row,
        rule: UnwindRule,
        at: Svma,
    ) {
        for seed in SEEDS {
            let state = self.state(seed, at);
            let (image, cfi) = (self.outcome(rule, state), evaluator.outcome(row, state));
            if !agree(image, cfi, state) {
                return self.differ(at, image, cfi);
            }
        }
    }

    /// Checks that the image has gaps where no function is, except for signal trampolines, Go functions that
    /// its own table marks, and code at the file's entry point.
    fn compare_gaps(&mut self, code: &[Range<Svma>]) {
        if self.found.malformed > 0 {
            return;
        }
        let functions = ranges::merge(self.found.functions.iter().cloned());
        let everything = Svma::new(0)..Svma::new(1 << ADDRESS_BITS);
        for gap in ranges::without(std::slice::from_ref(&everything), functions.iter()) {
            for at in gap_probes(&gap, code) {
                let rule = self.rule_at(at);
                match rule {
                    UnwindRule::Gap | UnwindRule::Unsupported(Reason::StackSwitch) => {}
                    UnwindRule::EndOfStack if self.is_outermost(at) => {}
                    UnwindRule::Program(_) => self.found.trampolines += 1,
                    UnwindRule::Frame(_) | UnwindRule::EndOfStack | UnwindRule::Unsupported(_) => {
                        let found = self.outcome(rule, self.state(SEEDS[0], at));
                        self.differ(at, found, Outcome::Gap);
                    }
                }
            }
        }
    }

    fn is_outermost(&self, at: Svma) -> bool {
        self.outermost.iter().any(|range| addr::contains(range, at))
    }

    fn state(&self, seed: u64, at: Svma) -> State {
        State::new(self.architecture, seed, at)
    }

    fn rule_at(&self, at: Svma) -> UnwindRule {
        self.image.map_or(UnwindRule::Gap, |image| image.rule_at(at))
    }

    /// Returns the result by the image for `state`.
    fn outcome(&self, rule: UnwindRule, state: State) -> Outcome {
        let Some(image) = self.image else {
            return Outcome::Gap;
        };
        match rule {
            UnwindRule::Gap => Outcome::Gap,
            UnwindRule::EndOfStack => Outcome::EndOfStack,
            UnwindRule::Unsupported(_) => Outcome::Nothing,
            UnwindRule::Frame(_) | UnwindRule::Program(_) => step(image, state),
        }
    }

    fn differ(&mut self, at: Svma, image: Outcome, cfi: Outcome) {
        self.found.wrong += 1;
        if self.found.examples.len() < MAX_EXAMPLES {
            self.found.examples.push(Mismatch { at, image, cfi });
        }
    }
}

/// Takes one step of the reference walker, with the image mapped to all addresses.
fn step(image: &Image, state: State) -> Outcome {
    let tables = Tables {
        architecture: image.architecture(),
        words: image.words(),
        mappings: &[Mapping {
            bias: image.places().bias(state.pc()),
            ..Mapping::everywhere()
        }],
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    match walk::caller(tables, state.registers(), |slot| Some(state.memory(slot.get()))) {
        Ok(caller) => Outcome::Caller(caller),
        Err(end) => Outcome::Stopped(end),
    }
}

/// Returns whether two results agree. A walk stops where the CFA is not above its frame: correct for any CFI,
/// unless the frame is empty and the return address is in the link register.
fn agree(image: Outcome, cfi: Outcome, state: State) -> bool {
    match (image, cfi) {
        (Outcome::Stopped(End::NoProgress), Outcome::Caller(caller)) => {
            let sp = caller.sp.get();
            sp < state.sp() || (sp == state.sp() && !state.is_in_link_register(caller.pc))
        }
        (image, cfi) => image == cfi,
    }
}

/// Returns the part of an FDE's code that is in an executable segment.
fn code_of(fde: &Fde<'_>, code: &[Range<Svma>]) -> Option<Range<Svma>> {
    let (start, end) = (Svma::new(fde.initial_address()), Svma::new(fde.end_address()));
    let segment = ranges::find(code, start)?;
    let range = start..end.min(segment.end);
    (range.start < range.end).then_some(range)
}

fn addresses(range: &Range<Svma>) -> impl Iterator<Item = Svma> {
    (range.start.get()..range.end.get()).map(Svma::new)
}

/// Returns whether a rule depends on the address: PLT entries differ half-way, and a program can use the
/// program counter.
fn depends_on_address(rule: UnwindRule) -> bool {
    match rule {
        UnwindRule::Frame(frame) => matches!(frame.cfa, CfaRule::Plt { .. }),
        UnwindRule::Program(_) => true,
        UnwindRule::EndOfStack | UnwindRule::Gap | UnwindRule::Unsupported(_) => false,
    }
}

/// Returns addresses spread over the parts of a gap that are code, including its first and last.
fn gap_probes(gap: &Range<Svma>, code: &[Range<Svma>]) -> Vec<Svma> {
    let mut probes = vec![gap.start, gap.end.wrapping_sub(1)];
    let first = code.partition_point(|range| range.end <= gap.start);
    for range in code[first..].iter().take_while(|range| range.start < gap.end) {
        let (start, end) = (range.start.max(gap.start), range.end.min(gap.end));
        let length = end.offset_from(start);
        let stride = length.div_ceil(MAX_GAP_PROBES).max(1);
        probes.extend((0..length.div_ceil(stride)).map(|number| start.wrapping_add(number * stride)));
    }
    probes
}
