//! Compares an image with gimli's evaluation of the same CFI, at every address of every function.
//!
//! A check of `translate`, `build`, `encode` and `walk` together, which it shares nothing with but where the sections
//! are and which code an executable segment holds: functions and rows are gimli's, evaluated by gimli, and what the
//! image says is what a step of the reference walker does. Both start from the same made-up registers and memory, which
//! are hashes, so that agreeing by accident takes a collision of 64 bits. Which function counts where several overlap
//! is as `build` documents it.

mod evaluate;
mod saves;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use gimli::{BaseAddresses, DebugFrame, EhFrame, EndianSlice, LittleEndian};
use gimli::{UnwindContext, UnwindSection};

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::elf::{CfiSection, ElfView, Segment};
use crate::error::TableError;
use crate::image::Image;
use crate::mapping::Mapping;
use crate::ranges;
use crate::rule::{CfaRule, Reason, UnwindRule};
use crate::walk::{self, ADDRESS_BITS, End, ReturnProbes, Tables, Unwind};
use evaluate::{Cie, Evaluator, Fde, Row, State};

/// The most differences that are kept in full; all are counted.
pub const MAX_EXAMPLES: usize = 16;
/// Made-up machine states that each address is tried with.
const SEEDS: [u64; 2] = [1, 2];
/// As in `cfi`: linkers share one CIE of 24 bytes among FDEs of about 40.
const CIE_BUDGET_PER_BYTE: u64 = 8;
const CIE_BUDGET_FLOOR: u64 = 1 << 16;
/// The most addresses of a gap that are asked for.
const MAX_GAP_PROBES: u64 = 4096;

/// What stands for one address and machine state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A caller with these registers.
    Caller(walk::Caller),
    /// The outermost frame.
    EndOfStack,
    /// No function here.
    Gap,
    /// The caller's value of a register; `None` when nothing is said of it.
    Register {
        /// By its DWARF number.
        number: u8,
        /// The value.
        value: Option<u64>,
    },
    /// Something that is no caller: malformed, or it cannot be computed.
    Nothing,
    /// A step of the walker that ended.
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
                let how = if *interrupted { "interrupted" } else { "calling" };
                write!(f, "caller {how} at {pc:#x}, sp {sp:#x}, fp {fp:#x}")
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
pub struct Wrong {
    /// The address.
    pub at: Svma,
    /// What the image says.
    pub image: Outcome,
    /// What gimli says.
    pub cfi: Outcome,
}

/// Places that cannot be expressed, for one reason: addresses in a row, as far as they are of one function's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// How many.
    pub places: u64,
    /// Where the first of them starts.
    pub first: Svma,
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Rows of gimli's.
    pub rows: u64,
    /// Addresses compared.
    pub addresses: u64,
    /// Places at which the two sides differ: addresses in a row, as far as the image has one rule for them.
    pub wrong: u64,
    /// The first of them.
    pub examples: Vec<Wrong>,
    /// Places that the image cannot express, by reason.
    pub unsupported: BTreeMap<Reason, Unsupported>,
    /// Registers of which the image says where they are saved, at all places.
    pub saved: u64,
    /// Addresses without CFI that the image answers for by their code: signal trampolines.
    pub trampolines: u64,
    /// Entries that gimli cannot read; gaps are not compared then.
    pub malformed: u64,
    /// The code that functions describe: ascending, not overlapping.
    pub functions: Vec<Range<Svma>>,
}

/// Compares `image`, which `elf` was compiled to, with the CFI in `elf`. Without any CFI there is no image.
///
/// # Errors
///
/// As [`compile`](crate::compile).
pub fn verify(elf: &[u8], image: Option<&Image>) -> Result<Verified, TableError> {
    let view = ElfView::parse_any(elf)?;
    let architecture = view.architecture();
    let executable = view.segments().iter().filter(|segment| segment.executable);
    let code = ranges::merge(executable.map(Segment::file_backed));
    let mut comparison = Comparison {
        image,
        architecture,
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

/// Bytes of CIEs that may still be gone through: each function repeats its CIE's instructions.
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

/// Length of the entry at `offset`, as far as time is concerned.
fn length_at(section: &[u8], offset: usize) -> u64 {
    let rest = section.get(offset..).unwrap_or_default();
    let length = rest
        .first_chunk()
        .map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
    u64::from(length).min(rest.len() as u64)
}

struct Comparison<'a> {
    image: Option<&'a Image>,
    architecture: Architecture,
    found: Verified,
}

impl Comparison<'_> {
    /// Compares all functions of a section, as far as no section before it describes their code.
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
        let functions = self.functions(&section, &entries, &bases, code, &mut budget);
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
            self.compare_function(&section, &bases, &mut context, fde, &left);
        }
        self.found.functions.extend(described);
        self.found.functions.sort_by_key(|range| range.start);
    }

    /// Where the entries of a section start. gimli takes a length of zero for the section's end, but where that is known
    /// it can only be the end of one that linkers joined others to.
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

    /// The functions of a section that count, each up to where the next begins.
    fn functions<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        section: &S,
        entries: &[usize],
        bases: &BaseAddresses,
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
        section: &S,
        bases: &BaseAddresses,
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
                // A row that the next one replaces at once holds nowhere.
                if part.start < part.end {
                    self.compare_row(&evaluator, row, &part);
                }
            }
        }
    }

    /// What gimli cannot read from `from` on, the image must not answer for.
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

    /// Asks for each address; a rule that is the one before is not evaluated again, unless it can depend on the address.
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
            } else {
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

    /// Where no function is, the image must say so, but for what is known by its code.
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
                    UnwindRule::Gap => {}
                    UnwindRule::Program(_) => self.found.trampolines += 1,
                    UnwindRule::Frame(_) | UnwindRule::EndOfStack | UnwindRule::Unsupported(_) => {
                        let found = self.outcome(rule, self.state(SEEDS[0], at));
                        self.differ(at, found, Outcome::Gap);
                    }
                }
            }
        }
    }

    fn state(&self, seed: u64, at: Svma) -> State {
        State::new(self.architecture, seed, at)
    }

    fn rule_at(&self, at: Svma) -> UnwindRule {
        self.image.map_or(UnwindRule::Gap, |image| image.rule_at(at))
    }

    /// What the image says for `state`.
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
            self.found.examples.push(Wrong { at, image, cfi });
        }
    }
}

/// One step of the reference walker, the image being mapped over all addresses without bias.
fn step(image: &Image, state: State) -> Outcome {
    let tables = Tables {
        architecture: image.architecture(),
        words: image.words(),
        mappings: &[Mapping::everywhere()],
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    match walk::caller(tables, state.registers(), |slot| Some(state.memory(slot.get()))) {
        Ok(caller) => Outcome::Caller(caller),
        Err(end) => Outcome::Stopped(end),
    }
}

/// A walk stops where a CFA does not lie above its frame: right, whatever the CFI says, unless nothing is on the stack and
/// the return address is in the link register.
fn agree(image: Outcome, cfi: Outcome, state: State) -> bool {
    match (image, cfi) {
        (Outcome::Stopped(End::NoProgress), Outcome::Caller(caller)) => {
            let sp = caller.sp.get();
            sp < state.sp() || (sp == state.sp() && !state.is_in_link_register(caller.pc))
        }
        (image, cfi) => image == cfi,
    }
}

/// The code of an FDE: what an executable segment holds of it.
fn code_of(fde: &Fde<'_>, code: &[Range<Svma>]) -> Option<Range<Svma>> {
    let (start, end) = (Svma::new(fde.initial_address()), Svma::new(fde.end_address()));
    let segment = ranges::find(code, start)?;
    let range = start..end.min(segment.end);
    (range.start < range.end).then_some(range)
}

fn addresses(range: &Range<Svma>) -> impl Iterator<Item = Svma> {
    (range.start.get()..range.end.get()).map(Svma::new)
}

/// Entries of procedure linkage tables differ half-way, and a program can start from the program counter.
fn depends_on_address(rule: UnwindRule) -> bool {
    match rule {
        UnwindRule::Frame(frame) => matches!(frame.cfa, CfaRule::Plt { .. }),
        UnwindRule::Program(_) => true,
        UnwindRule::EndOfStack | UnwindRule::Gap | UnwindRule::Unsupported(_) => false,
    }
}

/// Addresses all over the parts of a gap that are code, and its first and last.
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
