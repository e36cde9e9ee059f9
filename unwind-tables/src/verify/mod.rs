//! Compares an image with gimli's evaluation of the same CFI, at every row of every function.
//!
//! A check of `translate`, `build`, `encode` and `walk` together, which it shares nothing with but where the sections
//! are and which code an executable segment holds: functions and rows are gimli's, evaluated by gimli, and what the
//! image says is what a step of the reference walker does. Both start from the same made-up registers and memory, which
//! are hashes, so that agreeing by accident takes a collision of 64 bits. Which function counts where several overlap,
//! and what answers for padding, is as `build` documents it.

mod evaluate;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, DebugFrame, EhFrame, EndianSlice, LittleEndian};
use gimli::{UnwindContext, UnwindSection};

use crate::addr::{Avma, Bias, Svma};
use crate::build::MAX_PADDING;
use crate::elf::{CfiSection, ElfView, Segment};
use crate::error::TableError;
use crate::image::{BLOCK_SHIFT, Image};
use crate::mapping::{Identity, Mapping, MappingKind};
use crate::ranges;
use crate::rule::{Reason, UnwindRule};
use crate::walk::{self, ADDRESS_BITS, End, Registers, Tables, Unwind};
use evaluate::{Evaluator, Fde, Row, State};

/// The most differences that are kept in full; all are counted.
pub const MAX_EXAMPLES: usize = 16;
/// Made-up machine states that each address is tried with.
const SEEDS: [u64; 2] = [1, 2];
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

/// Rows that cannot be expressed, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// How many.
    pub rows: u64,
    /// Where the first of them starts.
    pub first: Svma,
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Rows of gimli's.
    pub rows: u64,
    /// Addresses compared, each with every machine state.
    pub addresses: u64,
    /// Addresses at which the two sides differ.
    pub wrong: u64,
    /// The first of them.
    pub examples: Vec<Wrong>,
    /// Rows that the image cannot express, by reason.
    pub unsupported: BTreeMap<Reason, Unsupported>,
    /// Gaps that are padding, which the row before answers for.
    pub paddings: u64,
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
    let view = ElfView::parse(elf)?;
    let executable = view.segments().iter().filter(|segment| segment.executable);
    let code = ranges::merge(executable.map(Segment::file_backed));
    let mut comparison = Comparison {
        image,
        found: Verified::default(),
    };
    if let Some(section) = view.eh_frame() {
        let data = EndianSlice::new(&section.data, LittleEndian);
        comparison.compare_section(EhFrame::from(data), &section, &code);
    }
    if let Some(section) = view.debug_frame() {
        let data = EndianSlice::new(&section.data, LittleEndian);
        comparison.compare_section(DebugFrame::from(data), &section, &code);
    }
    comparison.compare_gaps(&code);
    Ok(comparison.found)
}

struct Comparison<'a> {
    image: Option<&'a Image>,
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
        let described = std::mem::take(&mut self.found.functions);
        let functions = self.functions(&section, &bases, code);
        for (range, fde) in &functions {
            let overlapping = described.partition_point(|before| before.end <= range.start);
            let taken = described[overlapping..]
                .iter()
                .take_while(|before| before.start < range.end);
            for left in ranges::without(std::slice::from_ref(range), taken) {
                self.found.functions.push(left.clone());
                self.compare_function(&section, &bases, &mut context, fde, &left);
            }
        }
        self.found.functions.extend(described);
        self.found.functions.sort_by_key(|range| range.start);
    }

    /// The functions of a section that count, each up to where the next begins.
    fn functions<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        code: &[Range<Svma>],
    ) -> Vec<(Range<Svma>, Fde<'a>)> {
        let mut functions = Vec::new();
        let mut entries = section.entries(bases);
        loop {
            let partial = match entries.next() {
                Ok(None) => break,
                Ok(Some(CieOrFde::Cie(_))) => continue,
                Ok(Some(CieOrFde::Fde(partial))) => partial,
                Err(_) => {
                    self.found.malformed += 1;
                    break;
                }
            };
            match partial.parse(S::cie_from_offset) {
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

    fn compare_function<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        context: &mut UnwindContext<usize>,
        fde: &Fde<'a>,
        range: &Range<Svma>,
    ) {
        let evaluator = Evaluator { section, fde };
        let mut covered = range.start;
        let Ok(mut rows) = fde.rows(section, bases, context) else {
            return self.compare_malformed(range.clone());
        };
        while covered < range.end {
            match rows.next_row() {
                Ok(Some(row)) => {
                    let start = Svma::new(row.start_address()).max(range.start);
                    let end = Svma::new(row.end_address()).min(range.end);
                    covered = covered.max(Svma::new(row.end_address()));
                    if start < end {
                        self.compare_row(&evaluator, row, &(start..end));
                    }
                }
                Ok(None) => return,
                Err(_) => return self.compare_malformed(covered..range.end),
            }
        }
    }

    /// What gimli cannot read, the image must not answer for.
    fn compare_malformed(&mut self, range: Range<Svma>) {
        self.found.rows += 1;
        for at in [range.start, range.end.wrapping_sub(1)] {
            let rule = self.rule_at(at);
            if rule != UnwindRule::Unsupported(Reason::Malformed) {
                self.differ(
                    at,
                    self.outcome(rule, at, State::new(SEEDS[0], at)),
                    Outcome::Nothing,
                );
            }
        }
        self.count_unsupported(Reason::Malformed, range.start);
    }

    fn count_unsupported(&mut self, reason: Reason, first: Svma) {
        let none = Unsupported { rows: 0, first };
        self.found.unsupported.entry(reason).or_insert(none).rows += 1;
    }

    fn compare_row<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        evaluator: &Evaluator<'_, 'a, S>,
        row: &Row,
        range: &Range<Svma>,
    ) {
        self.found.rows += 1;
        if let UnwindRule::Unsupported(reason) = self.rule_at(range.start) {
            self.count_unsupported(reason, range.start);
        }
        for at in addresses_of(range) {
            self.found.addresses += 1;
            let rule = self.rule_at(at);
            if matches!(rule, UnwindRule::Unsupported(_)) {
                continue;
            }
            for seed in SEEDS {
                let state = State::new(seed, at);
                let (image, cfi) = (self.outcome(rule, at, state), evaluator.outcome(row, state));
                if !agree(image, cfi, state) {
                    self.differ(at, image, cfi);
                    break;
                }
            }
        }
    }

    /// Where no function is, the image must say so, but for padding and what is known by its code.
    fn compare_gaps(&mut self, code: &[Range<Svma>]) {
        if self.found.malformed > 0 {
            return;
        }
        let functions = ranges::merge(self.found.functions.iter().cloned());
        let everything = Svma::new(0)..Svma::new(1 << ADDRESS_BITS);
        let mut gap_start = None;
        for gap in ranges::without(std::slice::from_ref(&everything), functions.iter()) {
            let is_between = gap_start.replace(gap.end).is_some() && gap.end < everything.end;
            let length = gap.end.offset_from(gap.start);
            let before = self.rule_at(gap.start.wrapping_sub(1));
            let may_answer = matches!(before, UnwindRule::Frame(_)) && length <= MAX_PADDING;
            if is_between && may_answer && self.rule_at(gap.start) == before {
                self.found.paddings += 1;
                continue;
            }
            for at in gap_probes(&gap, code) {
                let rule = self.rule_at(at);
                match rule {
                    UnwindRule::Gap => {}
                    UnwindRule::Program(_) => self.found.trampolines += 1,
                    UnwindRule::Frame(_) | UnwindRule::EndOfStack | UnwindRule::Unsupported(_) => {
                        self.differ(at, self.outcome(rule, at, State::new(SEEDS[0], at)), Outcome::Gap);
                    }
                }
            }
        }
    }

    fn rule_at(&self, at: Svma) -> UnwindRule {
        self.image.map_or(UnwindRule::Gap, |image| image.rule_at(at))
    }

    /// What the image says for `state`.
    fn outcome(&self, rule: UnwindRule, at: Svma, state: State) -> Outcome {
        let Some(image) = self.image else {
            return Outcome::Gap;
        };
        match rule {
            UnwindRule::Gap => Outcome::Gap,
            UnwindRule::EndOfStack => Outcome::EndOfStack,
            UnwindRule::Unsupported(_) => Outcome::Nothing,
            UnwindRule::Frame(_) | UnwindRule::Program(_) => step(image, at, state),
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
fn step(image: &Image, at: Svma, state: State) -> Outcome {
    let everything = Mapping {
        start: Avma::new(0),
        end: Avma::new(1 << ADDRESS_BITS),
        bias: Bias::default(),
        image_at: 0,
        kind: MappingKind::Table,
        identity: Identity::SETTLED,
    };
    let tables = Tables {
        words: image.words(),
        mappings: &[everything],
        unwind: Unwind::Dwarf,
        changing: false,
    };
    let frame = Registers {
        pc: Avma::new(at.get()),
        general: state.general,
    };
    match walk::caller(tables, frame, |slot| Some(state.memory(slot.get()))) {
        Ok(caller) => Outcome::Caller(caller),
        Err(end) => Outcome::Stopped(end),
    }
}

/// A walk stops where a CFA does not lie above its frame: right, whatever the CFI says.
fn agree(image: Outcome, cfi: Outcome, state: State) -> bool {
    match (image, cfi) {
        (Outcome::Stopped(End::NoProgress), Outcome::Caller(caller)) => caller.sp.get() <= state.sp(),
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

/// The first and the last byte of a row, and where the image's index has an entry in it.
fn addresses_of(range: &Range<Svma>) -> impl Iterator<Item = Svma> {
    let (start, last) = (range.start, range.end.wrapping_sub(1));
    let blocks = (start.get() >> BLOCK_SHIFT) + 1..=last.get() >> BLOCK_SHIFT;
    let blocks = blocks.map(|block| Svma::new(block << BLOCK_SHIFT));
    let last = (last > start).then_some(last);
    [start].into_iter().chain(blocks).chain(last)
}

/// Addresses all over the parts of a gap that are code, and its first and last.
fn gap_probes(gap: &Range<Svma>, code: &[Range<Svma>]) -> Vec<Svma> {
    let mut probes = vec![gap.start, gap.end.wrapping_sub(1)];
    for range in code {
        let (start, end) = (range.start.max(gap.start), range.end.min(gap.end));
        if start < end {
            let length = end.offset_from(start);
            let stride = length.div_ceil(MAX_GAP_PROBES);
            probes.extend((0..length.div_ceil(stride)).map(|number| start.wrapping_add(number * stride)));
        }
    }
    probes
}
