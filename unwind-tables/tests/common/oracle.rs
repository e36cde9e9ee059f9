//! Evaluates call frame information with gimli alone, and compares what an image says with it.
//!
//! Both sides are evaluated to numbers - caller's stack pointer, return address, frame pointer - on made-up
//! machine states whose memory is a hash of the address, so that agreeing by accident takes a 64-bit collision.

use gimli::{BaseAddresses, EhFrame, EndianSlice, LittleEndian, Register, RegisterRule, UnwindSection};
use gimli::{CfaRule as GimliCfa, EvaluationResult, Location, Piece, UnwindExpression, Value};
use object::{Object, ObjectSection};
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::coverage::MAX_PADDING;
use unwind_tables::image::{Image, ImageView};
use unwind_tables::mapping::Identity;
use unwind_tables::rule::{self, CfaRule, FrameRule, Reason, UnwindRule};
use unwind_tables::saves::{self, Saved};
use unwind_tables::walk::{
    self, ADDRESS_BITS, End, Mapping, MappingKind, Registers, ReturnProbes, Tables, Unwind,
};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type GimliRow = gimli::UnwindTableRow<usize>;
type Fde<'a> = gimli::FrameDescriptionEntry<Slice<'a>>;

const RBP: Register = gimli::X86_64::RBP;
const RSP: Register = gimli::X86_64::RSP;
const RA: Register = gimli::X86_64::RA;
const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// Values of registers; memory is a hash of the address.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// By their DWARF numbers.
    pub general: [u64; 16],
    /// `rip`
    pub pc: u64,
}

impl State {
    fn register(self, register: Register) -> Option<u64> {
        match register {
            RA => Some(self.pc),
            _ => self.general.get(usize::from(register.0)).copied(),
        }
    }

    fn sp(self) -> u64 {
        self.general[usize::from(RSP.0)]
    }

    fn fp(self) -> u64 {
        self.general[usize::from(RBP.0)]
    }
}

fn memory(address: u64) -> u64 {
    let mixed = (address ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Three states with unrelated registers, at `pc`. The stack pointer is low, so that callers are above it.
fn states(pc: u64) -> [State; 3] {
    [1, 2, 3].map(|seed: u64| {
        let mut general = std::array::from_fn(|number| memory(seed + 100 * number as u64));
        general[usize::from(RSP.0)] >>= 30;
        State { general, pc }
    })
}

/// A caller's registers: stack pointer, return address, frame pointer.
pub type Caller = (u64, u64, u64);

/// What an [`UnwindRule`]'s equations, as documented, give for `state`.
pub fn evaluate_rule(frame: FrameRule, state: State) -> Caller {
    let base = |register| match register {
        rule::Register::Sp => state.sp(),
        rule::Register::Fp => state.fp(),
    };
    let cfa = match frame.cfa {
        CfaRule::Offset { register, offset } => plus(base(register), offset),
        CfaRule::Deref { register, at, offset } => plus(memory(plus(base(register), at)), offset),
        CfaRule::Plt { threshold } => {
            let pushed = state.pc & 15 >= u64::from(threshold);
            state.sp().wrapping_add(if pushed { 16 } else { 8 })
        }
    };
    let saved = |saved, same| match saved {
        rule::Saved::Same => same,
        rule::Saved::AtCfa(offset) => memory(plus(cfa, offset)),
        rule::Saved::At { register, offset } => memory(plus(base(register), offset)),
    };
    (cfa, saved(frame.ra, state.pc), saved(frame.fp, state.fp()))
}

/// What a step of the reference walker gives for `state`, and whether its caller was interrupted.
fn walked(image: &Image, state: State) -> Result<(Caller, bool), End> {
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
        return_probes: ReturnProbes::default(),
    };
    let frame = Registers {
        pc: Avma::new(state.pc),
        general: state.general,
    };
    let caller = walk::caller(tables, frame, |address| Some(memory(address.get())))?;
    let registers = (caller.sp.get(), caller.pc.get(), caller.fp.get());
    Ok((registers, caller.interrupted))
}

fn plus(base: u64, offset: i32) -> u64 {
    base.wrapping_add_signed(offset.into())
}

/// Everything compared so far.
#[derive(Debug, Default)]
pub struct Compared {
    /// Rows of gimli's.
    pub rows: u64,
    /// Addresses asked for.
    pub addresses: u64,
    /// Of these, bytes of padding between functions.
    pub padding: u64,
    /// Addresses that a program answers for.
    pub programs: u64,
    /// Slots of registers.
    pub saves: u64,
    /// Registers of which the image does not say where they are, though the row does.
    pub unknown_saves: u64,
    /// Addresses that the table cannot answer for.
    pub unsupported: u64,
}

/// Compares what `image` says and the reference walker does with gimli's own evaluation at, before, behind and between all row boundaries.
pub fn compare(elf: &[u8], image: &Image) -> Compared {
    let file = object::File::parse(elf).expect("an ELF file");
    let section = file.section_by_name(".eh_frame").expect("a file with .eh_frame");
    let eh_frame = EhFrame::from(EndianSlice::new(section.data().expect("its data"), LittleEndian));
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let fdes = sorted_fdes(&eh_frame, &bases);
    assert!(!fdes.is_empty(), "no FDE to compare with");
    let oracle = Oracle {
        eh_frame: &eh_frame,
        bases: &bases,
        image,
    };
    let mut compared = Compared::default();
    assert_eq!(oracle.rule_at(fdes[0].initial_address() - 1), UnwindRule::Gap);
    for (number, fde) in fdes.iter().enumerate() {
        let next = fdes.get(number + 1).map(|next| next.initial_address());
        let end = fde.end_address().min(next.unwrap_or(u64::MAX));
        oracle.compare_fde(fde, end, &mut compared);
        oracle.compare_gap(end, next, &mut compared);
    }
    compared
}

fn sorted_fdes<'a>(eh_frame: &EhFrame<Slice<'a>>, bases: &BaseAddresses) -> Vec<Fde<'a>> {
    let mut entries = eh_frame.entries(bases);
    let mut fdes = Vec::new();
    while let Some(entry) = entries.next().expect("well-formed entries") {
        if let gimli::CieOrFde::Fde(partial) = entry {
            let fde = partial
                .parse(EhFrame::cie_from_offset)
                .expect("a well-formed FDE");
            fdes.extend((fde.len() > 0).then_some(fde));
        }
    }
    fdes.sort_by_key(gimli::FrameDescriptionEntry::initial_address);
    fdes.dedup_by_key(|fde| fde.initial_address());
    fdes
}

struct Oracle<'a, 'd> {
    eh_frame: &'a EhFrame<Slice<'d>>,
    bases: &'a BaseAddresses,
    image: &'a Image,
}

impl Oracle<'_, '_> {
    fn rule_at(&self, address: u64) -> UnwindRule {
        self.image.rule_at(Svma::new(address))
    }

    /// Each row, up to `end`, where another FDE begins or this one ends.
    fn compare_fde(&self, fde: &Fde<'_>, end: u64, compared: &mut Compared) {
        let mut context = gimli::UnwindContext::new();
        let mut rows = fde
            .rows(self.eh_frame, self.bases, &mut context)
            .expect("well-formed CIE");
        let mut covered = fde.initial_address();
        while covered < end {
            let Ok(row) = rows.next_row() else {
                // Malformed from here on.
                let expected = UnwindRule::Unsupported(Reason::Malformed);
                assert_eq!(self.rule_at(covered), expected, "at {covered:#x}");
                assert_eq!(self.rule_at(end - 1), expected, "at {:#x}", end - 1);
                return;
            };
            let row = row.expect("rows up to the end of the FDE");
            let (start, row_end) = (row.start_address(), row.end_address().min(end));
            covered = row.end_address();
            if start >= row_end {
                continue;
            }
            compared.rows += 1;
            let middle = start + (row_end - start) / 2;
            self.compare_saves(row, start, compared);
            for address in [start, (start + 1).min(row_end - 1), middle, row_end - 1] {
                let rule = self.rule_at(address);
                compared.addresses += 1;
                compared.programs += u64::from(matches!(rule, UnwindRule::Program(_)));
                compared.unsupported += u64::from(matches!(rule, UnwindRule::Unsupported(_)));
                self.compare_row(fde, row, rule, address);
            }
        }
    }

    fn compare_row(&self, fde: &Fde<'_>, row: &GimliRow, rule: UnwindRule, address: u64) {
        let end_of_stack = row.register(RA) == Some(RegisterRule::Undefined);
        match rule {
            UnwindRule::Frame(_) | UnwindRule::Program(_) => {
                assert!(!end_of_stack, "{address:#x}: no return address, but {rule:?}");
                for state in states(address) {
                    let expected = self
                        .evaluate_row(row, state)
                        .expect("a row that can be evaluated");
                    if let UnwindRule::Frame(frame) = rule {
                        assert_eq!(
                            evaluate_rule(frame, state),
                            expected,
                            "at {address:#x}: {frame:?} for {row:?}"
                        );
                    }
                    let expected = Ok((expected, fde.is_signal_trampoline()));
                    assert_eq!(
                        walked(self.image, state),
                        expected,
                        "at {address:#x}: {rule:?} for {row:?}"
                    );
                }
            }
            UnwindRule::EndOfStack => assert!(end_of_stack, "{address:#x}: not the end: {row:?}"),
            UnwindRule::Gap => panic!("{address:#x}: a gap, but there is {row:?}"),
            UnwindRule::Unsupported(reason) => {
                assert!(
                    explains(reason, row),
                    "{address:#x}: {reason} does not explain {row:?}"
                );
            }
        }
    }

    /// Where registers are saved, if the image says that: never elsewhere than gimli says.
    fn compare_saves(&self, row: &GimliRow, address: u64, compared: &mut Compared) {
        let words = ImageView {
            words: self.image.words(),
            at: 0,
        };
        let Some(saves) = words.saves() else { return };
        let rule = saves.rule_at(Svma::new(address));
        for number in (0..16_u8).filter(|number| ![RSP.0, RBP.0].contains(&u16::from(*number))) {
            let found = saves::saved(words, rule, number);
            let preserved = saves::PRESERVED.contains(&number);
            let said = row.register(Register(number.into()));
            let state = states(address)[0];
            let cfa = self
                .evaluate_cfa(row, state)
                .expect("a CFA that can be evaluated");
            let slot = match found {
                Saved::Slot(saves::long::AT_CFA, offset) => plus(cfa, offset),
                Saved::Slot(saves::long::AT_SP, offset) => plus(state.sp(), offset),
                Saved::Slot(_, offset) => plus(state.fp(), offset),
                Saved::Same => {
                    let same = matches!(said, Some(RegisterRule::SameValue)) || (said.is_none() && preserved);
                    assert!(same, "at {address:#x}: {number} is not saved, but {row:?}");
                    continue;
                }
                Saved::Unknown => {
                    compared.unknown_saves += u64::from(preserved || said.is_some());
                    continue;
                }
            };
            let expected = match said {
                Some(RegisterRule::Offset(offset)) => Some(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::Expression(expression)) => self.evaluate(expression, state, Some(cfa)),
                _ => None,
            };
            assert_eq!(
                Some(slot),
                expected,
                "at {address:#x}: {number} is at {found:?}, but {row:?}"
            );
            compared.saves += 1;
        }
    }

    fn evaluate_cfa(&self, row: &GimliRow, state: State) -> Option<u64> {
        match *row.cfa() {
            GimliCfa::RegisterAndOffset { register, offset } => {
                Some(state.register(register)?.wrapping_add_signed(offset))
            }
            GimliCfa::Expression(expression) => self.evaluate(expression, state, None),
        }
    }

    fn evaluate_row(&self, row: &GimliRow, state: State) -> Option<Caller> {
        let cfa = self.evaluate_cfa(row, state)?;
        let value = |register| match row.register(register) {
            None | Some(RegisterRule::SameValue) => state.register(register),
            Some(RegisterRule::Offset(offset)) => Some(memory(cfa.wrapping_add_signed(offset))),
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(other)) => state.register(other),
            Some(RegisterRule::Expression(slot)) => Some(memory(self.evaluate(slot, state, Some(cfa))?)),
            Some(RegisterRule::ValExpression(value)) => self.evaluate(value, state, Some(cfa)),
            Some(other) => panic!("{other:?} on x86-64"),
        };
        let sp = if row.register(RSP).is_some() {
            value(RSP)?
        } else {
            cfa
        };
        Some((sp, value(RA)?, value(RBP)?))
    }

    fn evaluate(
        &self,
        expression: UnwindExpression<usize>,
        state: State,
        initial: Option<u64>,
    ) -> Option<u64> {
        let mut evaluation = expression
            .get(self.eh_frame)
            .expect("inside the section")
            .evaluation(ENCODING);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            // Of the other requests none makes sense in call frame information.
            #[allow(clippy::wildcard_enum_match_arm)]
            let next = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, .. } => evaluation
                    .resume_with_memory(Value::Generic(memory(address)))
                    .ok()?,
                EvaluationResult::RequiresRegister { register, .. } => evaluation
                    .resume_with_register(Value::Generic(state.register(register)?))
                    .ok()?,
                other => panic!("{other:?} in call frame information"),
            };
            result = next;
        }
        match evaluation.as_result() {
            [
                Piece {
                    location: Location::Address { address },
                    ..
                },
            ] => Some(*address),
            other => panic!("{other:?} is not an address"),
        }
    }

    /// Between FDEs: a gap.
    fn compare_gap(&self, end: u64, next: Option<u64>, compared: &mut Compared) {
        let length = next.map_or(u64::MAX - end, |next| next - end);
        let is_padding = length <= MAX_PADDING;
        let asked = if is_padding {
            (0..length).collect()
        } else {
            vec![0, 1, length / 2, length - 1]
        };
        for offset in asked {
            compared.addresses += 1;
            compared.padding += u64::from(is_padding);
            assert_eq!(
                self.rule_at(end + offset),
                UnwindRule::Gap,
                "gap at {end:#x} + {offset}"
            );
        }
    }
}

/// Whether a row really has what `reason` says the table cannot express.
fn explains(reason: Reason, row: &GimliRow) -> bool {
    let has_expression = |rule: Option<RegisterRule<usize>>| {
        matches!(
            rule,
            Some(RegisterRule::Expression(_) | RegisterRule::ValExpression(_))
        )
    };
    match reason {
        Reason::CfaRegister => {
            matches!(row.cfa(), GimliCfa::RegisterAndOffset { register, .. } if register.0 > RA.0)
        }
        Reason::CfaExpression => {
            matches!(row.cfa(), GimliCfa::Expression(_))
                || [RA, RBP, RSP]
                    .into_iter()
                    .any(|r| has_expression(row.register(r)))
        }
        Reason::RaRegister => row.register(RA).is_none(),
        Reason::RaExpression => has_expression(row.register(RA)),
        Reason::FpRegister => row.register(RBP) == Some(RegisterRule::Undefined),
        Reason::FpExpression => has_expression(row.register(RBP)),
        Reason::ValueRule => row.register(RSP).is_some(),
        Reason::OffsetRange | Reason::Malformed | Reason::StackSwitch => false,
    }
}
