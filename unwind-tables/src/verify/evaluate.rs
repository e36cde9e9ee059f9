//! Evaluates a row of CFI for a made-up machine state, by gimli alone.

use gimli::{CfaRule, CommonInformationEntry, Encoding, EndianSlice, Evaluation, EvaluationResult};
use gimli::{Format, FrameDescriptionEntry, LittleEndian, Location, Piece, Register, RegisterRule};
use gimli::{UnwindExpression, UnwindSection, UnwindTableRow, Value};

use super::Outcome;
use crate::addr::{Avma, Svma};
use crate::architecture::Architecture;
use crate::program::REGISTERS;
use crate::saves::PRESERVED;
use crate::walk::{Caller, Registers};

/// Bytes of a section.
pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Cie<'a> = CommonInformationEntry<Slice<'a>>;
pub(super) type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;
pub(super) type Row = UnwindTableRow<usize>;

/// Number of general registers and, on AArch64, the stack pointer: the first in DWARF's numbering.
const GENERAL: usize = 32;
/// Maximum number of operations of an expression: those in CFI have about ten, but one can have an endless
/// loop.
const MAX_ITERATIONS: u32 = 1000;

/// A made-up machine state: registers and memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Values by DWARF number.
    pub(super) general: [u64; GENERAL],
    architecture: Architecture,
    pc: u64,
    seed: u64,
}

impl State {
    /// Returns a state at `pc` whose registers and memory are hashes of `seed`.
    ///
    /// The stack pointer is low, so that callers are above it.
    pub(super) fn new(architecture: Architecture, seed: u64, pc: Svma) -> Self {
        let mut general = std::array::from_fn(|number| hash(seed << 32 | number as u64));
        general[usize::from(architecture.stack_pointer().0)] >>= 30;
        Self {
            general,
            architecture,
            pc: pc.get(),
            seed,
        }
    }

    /// Returns the 8 bytes at an address.
    pub(super) fn memory(&self, address: u64) -> u64 {
        hash(address ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn sp(&self) -> u64 {
        self.general[usize::from(self.architecture.stack_pointer().0)]
    }

    pub(super) fn pc(&self) -> Svma {
        Svma::new(self.pc)
    }

    /// Returns whether a return address is the link register's, with or without its authentication code.
    pub(super) fn is_in_link_register(&self, pc: Avma) -> bool {
        let link = self.general[usize::from(gimli::AArch64::X30.0)];
        self.architecture == Architecture::Aarch64 && (pc.get() ^ link) << 16 == 0
    }

    /// Returns the registers for the start of a walk.
    pub(super) fn registers(&self) -> Registers {
        let mut general = [0; REGISTERS as usize];
        for (column, &value) in (0..).zip(&self.general) {
            let number = self.architecture.number(Register(column)).map(usize::from);
            if let Some(register) = number.and_then(|number| general.get_mut(number)) {
                *register = value;
            }
        }
        Registers {
            pc: Avma::new(self.pc),
            general,
        }
    }

    fn frame_pointer(&self) -> Register {
        self.architecture.frame_pointer()
    }

    fn register(&self, register: Register, return_address: Register) -> Option<u64> {
        let general = match self.architecture {
            Architecture::X86_64 if register == return_address => return Some(self.pc),
            Architecture::X86_64 => &self.general[..16],
            Architecture::Aarch64 => &self.general,
        };
        general.get(usize::from(register.0)).copied()
    }
}

/// Hashes by one step of SplitMix64 and its finalizer.
fn hash(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Evaluates rows of one function.
pub(super) struct Evaluator<'s, 'a, S> {
    pub(super) section: &'s S,
    pub(super) fde: &'s Fde<'a>,
}

impl<'a, S: UnwindSection<Slice<'a>>> Evaluator<'_, 'a, S> {
    /// Evaluates the caller by `row` for `state`.
    pub(super) fn outcome(&self, row: &Row, state: State) -> Outcome {
        let cie = self.fde.cie();
        if row.register(cie.return_address_register()) == Some(RegisterRule::Undefined) {
            return Outcome::EndOfStack;
        }
        let Some([pc, sp, fp]) = self.caller(row, state) else {
            return Outcome::Nothing;
        };
        Outcome::Caller(Caller {
            pc: Avma::new(pc),
            sp: Avma::new(sp),
            fp: Avma::new(fp),
            interrupted: cie.is_signal_trampoline(),
        })
    }

    /// Evaluates the CFA by `row` for `state`.
    pub(super) fn cfa(&self, row: &Row, state: State) -> Option<u64> {
        match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some(self.register(register, state)?.wrapping_add_signed(offset))
            }
            CfaRule::Expression(expression) => self.evaluate(expression, state, None),
        }
    }

    /// Returns the caller's value of a general register; `None` if neither `row` nor the psABI defines it.
    pub(super) fn saved(&self, row: &Row, number: u8, state: State) -> Option<u64> {
        let register = Register(number.into());
        match row.register(register) {
            None if !PRESERVED.contains(&number) => None,
            None | Some(RegisterRule::SameValue) => self.register(register, state),
            Some(rule) => self.value(rule, self.cfa(row, state)?, state),
        }
    }

    fn caller(&self, row: &Row, state: State) -> Option<[u64; 3]> {
        let return_address = self.fde.cie().return_address_register();
        let cfa = self.cfa(row, state)?;
        // Unmentioned, a callee-saved register keeps its value, and the stack pointer is the CFA (x86-64
        // psABI). An unmentioned return address is unknown, except on AArch64, where it is in its register.
        let pc = match row.register(return_address) {
            None | Some(RegisterRule::SameValue) if state.architecture == Architecture::Aarch64 => {
                self.register(return_address, state)?
            }
            rule => self.value(rule?, cfa, state)?,
        };
        let pc = match row.register(gimli::AArch64::RA_SIGN_STATE) {
            Some(RegisterRule::Constant(1)) if state.architecture == Architecture::Aarch64 => pc << 16 >> 16,
            _ => pc,
        };
        let sp = match row.register(state.architecture.stack_pointer()) {
            None => cfa,
            Some(RegisterRule::SameValue) => state.sp(),
            Some(rule) => self.value(rule, cfa, state)?,
        };
        let fp = match row.register(state.frame_pointer()) {
            None | Some(RegisterRule::SameValue) => self.register(state.frame_pointer(), state)?,
            Some(rule) => self.value(rule, cfa, state)?,
        };
        Some([pc, sp, fp])
    }

    fn register(&self, register: Register, state: State) -> Option<u64> {
        state.register(register, self.fde.cie().return_address_register())
    }

    fn value(&self, rule: RegisterRule<usize>, cfa: u64, state: State) -> Option<u64> {
        match rule {
            RegisterRule::Offset(offset) => Some(state.memory(cfa.wrapping_add_signed(offset))),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(offset)),
            RegisterRule::Register(register) => self.register(register, state),
            RegisterRule::Expression(slot) => Some(state.memory(self.evaluate(slot, state, Some(cfa))?)),
            RegisterRule::ValExpression(value) => self.evaluate(value, state, Some(cfa)),
            RegisterRule::Undefined
            | RegisterRule::SameValue
            | RegisterRule::Architectural
            | RegisterRule::Constant(_) => None,
        }
    }

    fn evaluate(
        &self,
        expression: UnwindExpression<usize>,
        state: State,
        initial: Option<u64>,
    ) -> Option<u64> {
        let encoding = Encoding {
            address_size: 8,
            format: Format::Dwarf32,
            version: self.fde.cie().version().into(),
        };
        let mut evaluation = expression.get(self.section).ok()?.evaluation(encoding);
        evaluation.set_max_iterations(MAX_ITERATIONS);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut result = evaluation.evaluate().ok()?;
        while let Some(next) = self.resume(&mut evaluation, result, state)? {
            result = next;
        }
        match evaluation.as_result() {
            [
                Piece {
                    location: Location::Address { address },
                    ..
                },
            ] => Some(*address),
            _ => None,
        }
    }

    /// Provides an evaluation with the value that it requires. The inner `None` if it is complete, the outer
    /// if it requires something that CFI does not have.
    #[allow(
        clippy::wildcard_enum_match_arm,
        clippy::type_complexity,
        reason = "call frame information has none of what else gimli can ask for; the outcomes are for one caller"
    )]
    fn resume(
        &self,
        evaluation: &mut Evaluation<Slice<'a>>,
        result: EvaluationResult<Slice<'a>>,
        state: State,
    ) -> Option<Option<EvaluationResult<Slice<'a>>>> {
        match result {
            EvaluationResult::Complete => Some(None),
            EvaluationResult::RequiresMemory {
                address,
                size,
                space: None,
                ..
            } => {
                let unread = 64_u32.checked_sub(8 * u32::from(size))?;
                let value = state.memory(address).checked_shl(unread)? >> unread;
                evaluation
                    .resume_with_memory(Value::Generic(value))
                    .ok()
                    .map(Some)
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = self.register(register, state)?;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()
                    .map(Some)
            }
            _ => None,
        }
    }
}
