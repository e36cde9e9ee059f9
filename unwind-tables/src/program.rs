//! Rule programs: straight-line programs that compute the caller's registers, for rules that do not pack.
//!
//! Any row of CFI is a set of expressions over registers and memory (DWARF 5 §6.4.2), so one small stack
//! machine covers all of it: a CFA in any register, a return address in a register, `val_offset`, and DWARF
//! expressions without branches. Both walkers run these programs (`walk`, `bpf/walk/program.h`); `translate`
//! and `expression` make them. A program has at most [`MAX_OPS`] ops and needs at most [`MAX_OPERANDS`]
//! operands at a time; both are checked when it is made, so that running it needs no checks.
//!
//! An op is two words: opcode and, above its 8 bits, an operand; then an immediate.

use std::collections::HashMap;

use crate::architecture::Architecture;
use crate::packed::PackedRule;
use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};

/// Maximum number of ops of one program, including the last one.
pub const MAX_OPS: usize = 64;
/// Maximum number of operands on a program's stack.
pub const MAX_OPERANDS: usize = 8;
/// Number of words of one op.
pub const OP_WORDS: usize = 2;
/// Number of general registers, with x86-64's DWARF numbers (psABI, figure 3.36). On AArch64 a walk knows
/// three: the stack and frame pointer have the numbers of x86-64's, the link register has that of `r8`.
pub const REGISTERS: u8 = 16;
/// Column of the program counter.
pub const PC: u8 = 16;
/// Number of `rsp`, and of AArch64's `sp`.
pub const SP: u8 = 7;
/// Number of `rbp`, and of AArch64's `x29`.
pub const FP: u8 = 6;
/// Number of AArch64's `x30`.
pub const LR: u8 = 8;

/// Ops, by their effect on the operand stack. `x` is the topmost operand, `y` the one below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Ends the program: the caller's `sp` is the CFA unless `SetSp` has set it.
    End = 0,
    /// Marks the caller as interrupted by a signal, not in a call. Only as the first op.
    Signal = 1,
    /// `push register + immediate`, the register being the operand
    Register = 2,
    /// `push cfa + immediate`
    Cfa = 3,
    /// `push immediate`
    Constant = 4,
    /// `x = low half of x | immediate << 32`
    High = 5,
    /// `x = *x`, zero-extended; the operand is the number of bytes (1, 2, 4, 8)
    Deref = 6,
    /// `x = x + immediate`
    Add = 7,
    /// `push` a copy of an operand; the op's operand is its distance below `x`
    Pick = 8,
    /// `pop`
    Drop = 9,
    /// `x, y = y, x`
    Swap = 10,
    /// Moves `x` below the next two operands
    Rotate = 11,
    /// `x = |x|`, signed
    Absolute = 12,
    /// `x = -x`
    Negate = 13,
    /// `x = !x`, bit by bit
    Not = 14,
    /// `x = y & x`
    And = 15,
    /// `x = y | x`
    Or = 16,
    /// `x = y ^ x`
    Xor = 17,
    /// `x = y + x`
    Plus = 18,
    /// `x = y - x`
    Minus = 19,
    /// `x = y * x`
    Multiply = 20,
    /// `x = y << x`, 0 for shifts of 64 and more
    ShiftLeft = 21,
    /// `x = y >> x`, 0 for shifts of 64 and more
    ShiftRight = 22,
    /// `x = y >> x`, signed
    ShiftArithmetic = 23,
    /// `x = y == x`
    Equal = 24,
    /// `x = y != x`
    NotEqual = 25,
    /// `x = y < x`, signed
    Less = 26,
    /// `x = y <= x`, signed
    LessEqual = 27,
    /// `x = y > x`, signed
    Greater = 28,
    /// `x = y >= x`, signed
    GreaterEqual = 29,
    /// `cfa = pop`
    SetCfa = 30,
    /// `caller's pc = pop`
    SetRa = 31,
    /// `caller's fp = pop`
    SetFp = 32,
    /// `caller's sp = pop`
    SetSp = 33,
    /// `caller's lr = pop`, on AArch64, for an interrupted caller
    SetLr = 34,
}

impl Opcode {
    /// Every opcode, in the order of their numbers.
    pub const ALL: [Self; 35] = [
        Self::End,
        Self::Signal,
        Self::Register,
        Self::Cfa,
        Self::Constant,
        Self::High,
        Self::Deref,
        Self::Add,
        Self::Pick,
        Self::Drop,
        Self::Swap,
        Self::Rotate,
        Self::Absolute,
        Self::Negate,
        Self::Not,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::Plus,
        Self::Minus,
        Self::Multiply,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::ShiftArithmetic,
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessEqual,
        Self::Greater,
        Self::GreaterEqual,
        Self::SetCfa,
        Self::SetRa,
        Self::SetFp,
        Self::SetSp,
        Self::SetLr,
    ];

    /// Returns the opcode with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Returns the number of operands that the op needs, and its change of the stack's depth.
    fn effect(self, operand: u8) -> (usize, isize) {
        match self {
            Self::End | Self::Signal => (0, 0),
            Self::Register | Self::Cfa | Self::Constant => (0, 1),
            Self::High | Self::Deref | Self::Add | Self::Absolute | Self::Negate | Self::Not => (1, 0),
            Self::Pick => (usize::from(operand) + 1, 1),
            Self::Swap => (2, 0),
            Self::Rotate => (3, 0),
            Self::Drop | Self::SetCfa | Self::SetRa | Self::SetFp | Self::SetSp | Self::SetLr => (1, -1),
            Self::And
            | Self::Or
            | Self::Xor
            | Self::Plus
            | Self::Minus
            | Self::Multiply
            | Self::ShiftLeft
            | Self::ShiftRight
            | Self::ShiftArithmetic
            | Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::LessEqual
            | Self::Greater
            | Self::GreaterEqual => (2, -1),
        }
    }
}

/// One op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// Opcode.
    pub code: Opcode,
    /// Register, number of bytes, or distance, by opcode.
    pub operand: u8,
    /// Immediate, sign-extended where it is used.
    pub immediate: i32,
}

impl Op {
    /// Returns an op without operand and immediate.
    pub const fn plain(code: Opcode) -> Self {
        Self::with(code, 0, 0)
    }

    /// Returns an op with operand and immediate.
    pub const fn with(code: Opcode, operand: u8, immediate: i32) -> Self {
        Self {
            code,
            operand,
            immediate,
        }
    }

    /// `push register + offset`
    pub const fn register(register: u8, offset: i32) -> Self {
        Self::with(Opcode::Register, register, offset)
    }

    /// `push cfa + offset`
    pub const fn cfa(offset: i32) -> Self {
        Self::with(Opcode::Cfa, 0, offset)
    }

    /// `x = *x`, of 8 bytes
    pub const fn deref() -> Self {
        Self::with(Opcode::Deref, 8, 0)
    }

    /// Encodes the op as words of an image.
    pub fn words(self) -> [u32; OP_WORDS] {
        [
            self.code as u32 | u32::from(self.operand) << 8,
            self.immediate.cast_unsigned(),
        ]
    }

    /// Decodes words of an image; `None` if they are not a valid op.
    pub fn from_words([first, immediate]: [u32; OP_WORDS]) -> Option<Self> {
        let [code, operand, 0, 0] = first.to_le_bytes() else {
            return None;
        };
        let code = Opcode::from_number(code.into())?;
        let sensible = (code != Opcode::Register || operand <= PC)
            && (code != Opcode::Deref || matches!(operand, 1 | 2 | 4 | 8));
        sensible.then_some(Self::with(code, operand, immediate.cast_signed()))
    }
}

/// Identifies a program within one [`Programs`]: the number of its first op there, and in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub(crate) u32);

/// The distinct programs of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    architecture: Architecture,
    ops: Vec<Op>,
    known: HashMap<Box<[Op]>, ProgramId>,
}

impl Programs {
    /// Returns an empty set of programs, for a table of code for `architecture`.
    pub fn new(architecture: Architecture) -> Self {
        Self {
            architecture,
            ..Self::default()
        }
    }

    /// Returns the architecture of the table's code.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Returns the ops of all programs, concatenated.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns whether a program uses a register that walkers do not know in every frame.
    pub fn use_registers(&self) -> bool {
        let elsewhere = |op: &Op| op.code == Opcode::Register && ![SP, FP, PC].contains(&op.operand);
        self.architecture == Architecture::X86_64 && self.ops.iter().any(elsewhere)
    }

    /// Returns whether the program is of a signal frame, whose caller was interrupted.
    pub fn is_signal_frame(&self, program: ProgramId) -> bool {
        let first = usize::try_from(program.0)
            .ok()
            .and_then(|first| self.ops.get(first));
        first.is_some_and(|op| op.code == Opcode::Signal)
    }

    /// Returns the program of these ops, adding it if it is new; appends [`Opcode::End`].
    ///
    /// # Errors
    ///
    /// [`Reason::CfaExpression`] if it is too long or needs too many operands, or if the table has too many
    /// programs.
    pub fn intern(&mut self, mut ops: Vec<Op>) -> Result<ProgramId, Reason> {
        ops.push(Op::plain(Opcode::End));
        if let Some(&known) = self.known.get(ops.as_slice()) {
            return Ok(known);
        }
        if !is_sound(&ops, self.architecture) {
            return Err(Reason::CfaExpression);
        }
        let number = u32::try_from(self.ops.len()).map_err(|_| Reason::CfaExpression)?;
        PackedRule::wide(number).ok_or(Reason::CfaExpression)?;
        self.ops.extend_from_slice(&ops);
        self.known.insert(ops.into(), ProgramId(number));
        Ok(ProgramId(number))
    }

    /// Returns the rule of `frame`: packed if it fits, else as a program.
    ///
    /// # Errors
    ///
    /// [`Reason::CfaExpression`] if the program is too long or the table has too many.
    pub fn rule(&mut self, frame: FrameRule) -> Result<UnwindRule, Reason> {
        let packed = self.packed_rule(frame)?;
        let unpacked = packed.unpack(self.architecture);
        Ok(unpacked.unwrap_or(UnwindRule::Frame(frame)))
    }

    /// Returns the packed rule of `frame`, which refers to a program if `frame` does not fit.
    pub(crate) fn packed_rule(&mut self, frame: FrameRule) -> Result<PackedRule, Reason> {
        if let Some(packed) = PackedRule::pack(UnwindRule::Frame(frame), self.architecture) {
            return Ok(packed);
        }
        let program = self.intern(ops_of(frame, self.architecture).ok_or(Reason::CfaExpression)?)?;
        PackedRule::wide(program.0).ok_or(Reason::CfaExpression)
    }
}

/// Returns ops that strip the authentication code from the address `x`.
pub(crate) fn strip(architecture: Architecture) -> [Op; 3] {
    let half = |shift: u32| {
        let bytes = (architecture.strip(u64::MAX) >> shift).to_le_bytes();
        i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    [
        Op::with(Opcode::Constant, 0, half(0)),
        Op::with(Opcode::High, 0, half(32)),
        Op::plain(Opcode::And),
    ]
}

/// Returns the ops of `frame`; `None` for a PLT with anything unusual, which linkers do not write.
fn ops_of(frame: FrameRule, architecture: Architecture) -> Option<Vec<Op>> {
    let number = |register| match register {
        Register::Sp => SP,
        Register::Fp => FP,
    };
    let mut ops = Vec::new();
    if frame.signal_frame {
        ops.push(Op::plain(Opcode::Signal));
    }
    match frame.cfa {
        CfaRule::Offset { register, offset } => ops.push(Op::register(number(register), offset)),
        CfaRule::Deref { register, at, offset } => {
            ops.extend([Op::register(number(register), at), Op::deref()]);
            ops.push(Op::with(Opcode::Add, 0, offset));
        }
        CfaRule::Plt { .. } => return None,
    }
    ops.push(Op::plain(Opcode::SetCfa));
    for (saved, set) in [(frame.ra, Opcode::SetRa), (frame.fp, Opcode::SetFp)] {
        match saved {
            Saved::Same if set == Opcode::SetFp => continue,
            Saved::Same if architecture == Architecture::X86_64 => return None,
            Saved::Same => ops.push(Op::register(LR, 0)),
            Saved::AtCfa(offset) => ops.extend([Op::cfa(offset), Op::deref()]),
            Saved::At { register, offset } => {
                ops.extend([Op::register(number(register), offset), Op::deref()]);
            }
        }
        if frame.ra_signed && set == Opcode::SetRa {
            ops.extend(strip(architecture));
        }
        ops.push(Op::plain(set));
    }
    Some(ops)
}

/// Returns whether a program can be run without checks: it ends within [`MAX_OPS`], never has too few or too
/// many operands, sets the CFA before it uses it, sets the return address, and uses only the architecture's
/// registers.
pub(crate) fn is_sound(ops: &[Op], architecture: Architecture) -> bool {
    let mut operands = 0_usize;
    let mut set = Vec::with_capacity(2);
    for (number, op) in ops.iter().take(MAX_OPS).enumerate() {
        let (needed, change) = op.code.effect(op.operand);
        let misplaced = op.code == Opcode::Signal && number > 0;
        let known = match (architecture, op.code) {
            (Architecture::X86_64, code) => code != Opcode::SetLr,
            (Architecture::Aarch64, Opcode::Register) => [SP, FP, LR].contains(&op.operand),
            (Architecture::Aarch64, _) => true,
        };
        if operands < needed
            || misplaced
            || !known
            || (op.code == Opcode::Cfa && !set.contains(&Opcode::SetCfa))
        {
            return false;
        }
        operands = operands.saturating_add_signed(change);
        if operands > MAX_OPERANDS {
            return false;
        }
        if op.code == Opcode::End {
            return set.contains(&Opcode::SetCfa) && set.contains(&Opcode::SetRa);
        }
        set.extend(
            [op.code]
                .into_iter()
                .filter(|code| matches!(code, Opcode::SetCfa | Opcode::SetRa)),
        );
    }
    false
}
