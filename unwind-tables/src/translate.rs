//! One row of call frame information, as gimli evaluated it, into an [`UnwindRule`].
//!
//! A row is translated only when the rule says exactly the same; everything else becomes a counted
//! [`Reason`]. Which rows there are is `cfi`. Together with `cfi` the only file that knows gimli.
//!
//! Register numbers and the default of an unmentioned rbp ("same value", as for every callee-saved
//! register) are the x86-64 psABI's, §3.6.2. DWARF 5 §6.4.2 defines the register rules: an *expression* gives
//! the address of the slot, a *val_expression* the value itself.

use gimli::{Encoding, EndianSlice, LittleEndian, Operation, UnwindExpression, UnwindSection};

use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};

/// Bytes of a CFI section.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;
type GimliRule = gimli::RegisterRule<usize>;

const RBP: gimli::Register = gimli::X86_64::RBP;
const RSP: gimli::Register = gimli::X86_64::RSP;
const RIP: gimli::Register = gimli::X86_64::RA;
const SLOT: u64 = 8;

/// What a row's CIE says about all its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowContext {
    /// The column that holds the return address.
    pub(crate) return_address: gimli::Register,
    /// The frames were interrupted, not called from (augmentation `S`).
    pub(crate) signal_frame: bool,
    /// How expressions are encoded.
    pub(crate) encoding: Encoding,
}

/// What a row says about the registers that matter, `None` where it says nothing.
#[derive(Default)]
struct Registers {
    ra: Option<GimliRule>,
    fp: Option<GimliRule>,
    sp: Option<GimliRule>,
}

/// The rule that says what `row` says.
pub(crate) fn translate<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    context: RowContext,
    row: &gimli::UnwindTableRow<usize>,
) -> UnwindRule {
    let mut registers = Registers::default();
    for (register, rule) in row.registers() {
        // The return address first: nothing keeps a file from naming rbp as its column.
        if *register == context.return_address {
            registers.ra = Some(rule.clone());
        } else if *register == RBP {
            registers.fp = Some(rule.clone());
        } else if *register == RSP {
            registers.sp = Some(rule.clone());
        }
    }
    if registers.ra == Some(GimliRule::Undefined) {
        return UnwindRule::EndOfStack;
    }
    let expressions = Expressions { section, context };
    match expressions.frame(row.cfa(), &registers) {
        Ok(frame) => UnwindRule::Frame(frame),
        Err(reason) => UnwindRule::Unsupported(reason),
    }
}

struct Expressions<'s, S> {
    section: &'s S,
    context: RowContext,
}

impl<'a, S: UnwindSection<Slice<'a>>> Expressions<'_, S> {
    fn frame(&self, cfa: &gimli::CfaRule<usize>, registers: &Registers) -> Result<FrameRule, Reason> {
        let frame = FrameRule {
            cfa: self.cfa(cfa)?,
            ra: self.return_address(registers.ra.as_ref())?,
            fp: self.frame_pointer(registers.fp.as_ref())?,
            signal_frame: self.context.signal_frame,
        };
        self.check_stack_pointer(registers.sp.as_ref(), frame.cfa)?;
        // The packed form of a table entry has no room for anything but what linkers write.
        let plain = frame.ra == Saved::AtCfa(-8) && frame.fp == Saved::Same && !frame.signal_frame;
        if matches!(frame.cfa, CfaRule::Plt { .. }) && !plain {
            return Err(Reason::CfaExpression);
        }
        Ok(frame)
    }

    fn cfa(&self, rule: &gimli::CfaRule<usize>) -> Result<CfaRule, Reason> {
        match rule {
            gimli::CfaRule::RegisterAndOffset { register, offset } => Ok(CfaRule::Offset {
                register: known_register(*register).ok_or(Reason::CfaRegister)?,
                offset: narrow(*offset)?,
            }),
            gimli::CfaRule::Expression(expression) => self.cfa_expression(*expression),
        }
    }

    fn cfa_expression(&self, expression: UnwindExpression<usize>) -> Result<CfaRule, Reason> {
        use Op::{Add, And, Constant, Deref, GreaterEqual, Plus, Register, ShiftLeft};
        let base = |register| known_register(register).ok_or(Reason::CfaRegister);
        match *self.decode(expression).as_slice() {
            [Register(from, at), Deref] => Ok(CfaRule::Deref {
                register: base(from)?,
                at: narrow(at)?,
                offset: 0,
            }),
            [Register(from, at), Deref, Add(offset)]
            | [Register(from, at), Deref, Constant(offset), Plus] => Ok(CfaRule::Deref {
                register: base(from)?,
                at: narrow(at)?,
                offset: narrow(offset)?,
            }),
            // GNU ld's PLT (`elf_x86_64_eh_frame_plt`); the threshold differs between PLT layouts.
            [
                Register(RSP, 8),
                Register(RIP, 0),
                Constant(15),
                And,
                Constant(threshold),
                GreaterEqual,
                Constant(3),
                ShiftLeft,
                Plus,
            ] => match u8::try_from(threshold) {
                Ok(threshold) => Ok(CfaRule::Plt { threshold }),
                Err(_) => Err(Reason::CfaExpression),
            },
            _ => Err(Reason::CfaExpression),
        }
    }

    fn return_address(&self, rule: Option<&GimliRule>) -> Result<Saved, Reason> {
        match rule {
            Some(GimliRule::Offset(offset)) => narrow(*offset).map(Saved::AtCfa),
            Some(GimliRule::Expression(expression)) => self
                .slot_expression(*expression)
                .unwrap_or(Err(Reason::RaExpression)),
            Some(GimliRule::ValOffset(_) | GimliRule::ValExpression(_)) => Err(Reason::ValueRule),
            // Unmentioned means still in the register itself, which is where no x86-64 call leaves it.
            None | Some(_) => Err(Reason::RaRegister),
        }
    }

    fn frame_pointer(&self, rule: Option<&GimliRule>) -> Result<Saved, Reason> {
        match rule {
            None | Some(GimliRule::SameValue | GimliRule::Register(RBP)) => Ok(Saved::Same),
            Some(GimliRule::Offset(offset)) => narrow(*offset).map(Saved::AtCfa),
            Some(GimliRule::Expression(expression)) => self
                .slot_expression(*expression)
                .unwrap_or(Err(Reason::FpExpression)),
            Some(GimliRule::ValOffset(_) | GimliRule::ValExpression(_)) => Err(Reason::ValueRule),
            // Also an explicit "undefined": callers that need rbp cannot be unwound past this frame.
            Some(_) => Err(Reason::FpRegister),
        }
    }

    /// A slot at an offset from a known register; the outer `None` is any other expression.
    fn slot_expression(&self, expression: UnwindExpression<usize>) -> Option<Result<Saved, Reason>> {
        match *self.decode(expression).as_slice() {
            [Op::Register(register, offset)] => {
                let register = known_register(register)?;
                Some(narrow(offset).map(|offset| Saved::At { register, offset }))
            }
            _ => None,
        }
    }

    /// Refuses a row whose caller's stack pointer is not its CFA.
    ///
    /// `__restore_rt` of glibc says so twice: the CFA is `*(rsp + 160)`, and so is rsp.
    fn check_stack_pointer(&self, rule: Option<&GimliRule>, cfa: CfaRule) -> Result<(), Reason> {
        match (rule, cfa) {
            (None | Some(GimliRule::ValOffset(0)), _) => Ok(()),
            (
                Some(GimliRule::Expression(expression)),
                CfaRule::Deref {
                    register,
                    at,
                    offset: 0,
                },
            ) if self.slot_expression(*expression) == Some(Ok(Saved::At { register, offset: at })) => Ok(()),
            (Some(GimliRule::Expression(_)), _) => Err(Reason::CfaExpression),
            (Some(_), _) => Err(Reason::ValueRule),
        }
    }

    fn decode(&self, expression: UnwindExpression<usize>) -> Ops {
        let mut ops = Ops::default();
        let Ok(expression) = expression.get(self.section) else {
            return Ops::unknown();
        };
        let mut operations = expression.operations(self.context.encoding);
        loop {
            match operations.next() {
                Ok(None) => return ops,
                Ok(Some(operation)) if ops.push(Op::from(operation)) => {}
                Ok(Some(_)) | Err(_) => return Ops::unknown(),
            }
        }
    }
}

/// An expression operation of the known forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Register(gimli::Register, i64),
    Constant(i64),
    Add(i64),
    Deref,
    Plus,
    And,
    GreaterEqual,
    ShiftLeft,
    Other,
}

impl From<Operation<Slice<'_>>> for Op {
    // The forms that are known are listed; whatever gimli learns later is not one of them.
    #[allow(clippy::wildcard_enum_match_arm)]
    fn from(operation: Operation<Slice<'_>>) -> Self {
        match operation {
            Operation::RegisterOffset {
                register,
                offset,
                base_type,
            } if base_type.0 == 0 => Self::Register(register, offset),
            Operation::UnsignedConstant { value } => i64::try_from(value).map_or(Self::Other, Self::Constant),
            Operation::SignedConstant { value } => Self::Constant(value),
            Operation::PlusConstant { value } => i64::try_from(value).map_or(Self::Other, Self::Add),
            Operation::Deref {
                base_type,
                size,
                space: false,
            } if base_type.0 == 0 && u64::from(size) == SLOT => Self::Deref,
            Operation::Plus => Self::Plus,
            Operation::And => Self::And,
            Operation::Ge => Self::GreaterEqual,
            Operation::Shl => Self::ShiftLeft,
            _ => Self::Other,
        }
    }
}

/// The operations of one expression; longer ones than any known form are one unknown operation.
struct Ops {
    ops: [Op; Self::CAPACITY],
    length: usize,
}

impl Default for Ops {
    fn default() -> Self {
        Self {
            ops: [Op::Other; Self::CAPACITY],
            length: 0,
        }
    }
}

impl Ops {
    /// Operations of the longest known form, a procedure linkage table's.
    const CAPACITY: usize = 9;

    fn unknown() -> Self {
        Self {
            length: 1,
            ..Self::default()
        }
    }

    fn push(&mut self, op: Op) -> bool {
        match self.ops.get_mut(self.length) {
            Some(slot) => {
                *slot = op;
                self.length += 1;
                true
            }
            None => false,
        }
    }

    fn as_slice(&self) -> &[Op] {
        &self.ops[..self.length]
    }
}

fn known_register(register: gimli::Register) -> Option<Register> {
    match register {
        RSP => Some(Register::Sp),
        RBP => Some(Register::Fp),
        _ => None,
    }
}

fn narrow(offset: i64) -> Result<i32, Reason> {
    i32::try_from(offset).map_err(|_| Reason::OffsetRange)
}
