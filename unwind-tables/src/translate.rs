//! Translates a row of call frame information, as gimli evaluated it, to a packed
//! [`UnwindRule`](crate::rule::UnwindRule).
//!
//! The rule is always exactly equivalent to the row: one of the known forms if possible, else a program. A
//! row that is neither becomes a counted [`Reason`]. `cfi` reads rows, `expression` translates expressions.
//!
//! Register numbers are in `architecture`. An unmentioned frame pointer is unchanged, as is every
//! callee-saved register (x86-64 psABI, §3.6.2; AADWARF64, "Call frame information"). DWARF 5 §6.4.2 defines
//! the register rules: an *expression* gives the address of the slot, a *val_expression* the value itself.

use gimli::{Encoding, EndianSlice, LittleEndian, UnwindExpression, UnwindSection};

use crate::architecture::Architecture;
use crate::expression;
use crate::packed::PackedRule;
use crate::plain::{PlainRow, PlainSave};
use crate::program::{self, FP, LR, Op, Opcode, PC, Programs, SP};
use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved};

/// Bytes of a CFI section.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;
type GimliRule = gimli::RegisterRule<usize>;

/// Properties of a CIE that apply to all its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowContext {
    /// Column of the return address.
    pub(crate) return_address: gimli::Register,
    /// True for signal frames (augmentation `S`), whose caller was interrupted.
    pub(crate) signal_frame: bool,
    /// Encoding of expressions.
    pub(crate) encoding: Encoding,
    /// Architecture of the code.
    pub(crate) architecture: Architecture,
}

impl RowContext {
    /// Returns whether a return address without a rule is in the link register.
    fn has_link_register(&self) -> bool {
        self.architecture == Architecture::Aarch64
            && self.architecture.number(self.return_address) == Some(LR)
    }
}

/// Rules of a row for the registers that walks need; `None` if unmentioned.
#[derive(Default)]
struct Registers {
    ra: Option<GimliRule>,
    fp: Option<GimliRule>,
    sp: Option<GimliRule>,
    sign_state: Option<GimliRule>,
}

/// Returns the packed rule that is equivalent to `row`, or an unsupported one with its reason.
pub(crate) fn translate<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    context: RowContext,
    row: &gimli::UnwindTableRow<usize>,
    programs: &mut Programs,
) -> PackedRule {
    let mut registers = Registers::default();
    for (register, rule) in row.registers() {
        // The return address is checked first: a file can name rbp as its column.
        if *register == context.return_address {
            registers.ra = Some(rule.clone());
        } else if *register == context.architecture.frame_pointer() {
            registers.fp = Some(rule.clone());
        } else if *register == context.architecture.stack_pointer() {
            registers.sp = Some(rule.clone());
        } else if Some(*register) == context.architecture.sign_state() {
            registers.sign_state = Some(rule.clone());
        }
    }
    if registers.ra == Some(GimliRule::Undefined) {
        return PackedRule::END_OF_STACK;
    }
    let expressions = Expressions { section, context };
    let rule = match expressions.frame(row.cfa(), &registers) {
        Ok(frame) => programs.packed_rule(frame),
        Err(_) => expressions
            .program(row.cfa(), &registers)
            .and_then(|ops| programs.intern(ops))
            .and_then(|program| PackedRule::wide(program.0).ok_or(Reason::CfaExpression)),
    };
    rule.unwrap_or_else(PackedRule::unsupported)
}

/// Returns the packed rule of a plain row; `None` if the row must go through [`translate`].
pub(crate) fn translate_plain(row: &PlainRow, programs: &mut Programs) -> Option<PackedRule> {
    let architecture = programs.architecture();
    let kept = |register: u8| row.kept[usize::from(register)];
    let ra = match kept(PC) {
        PlainSave::Undefined => return Some(PackedRule::END_OF_STACK),
        PlainSave::AtCfa(offset) => Saved::AtCfa(offset),
        PlainSave::Unmentioned | PlainSave::Same if architecture == Architecture::Aarch64 => Saved::Same,
        PlainSave::Unmentioned | PlainSave::Same => return None,
    };
    if kept(SP) != PlainSave::Unmentioned {
        return None;
    }
    let fp = match kept(FP) {
        PlainSave::Unmentioned | PlainSave::Same => Saved::Same,
        PlainSave::AtCfa(offset) => Saved::AtCfa(offset),
        PlainSave::Undefined => return None,
    };
    let frame = FrameRule {
        cfa: CfaRule::Offset {
            register: architecture.base(row.cfa_register.into())?,
            offset: row.cfa_offset,
        },
        ra,
        ra_signed: row.signed,
        fp,
        signal_frame: false,
    };
    programs.packed_rule(frame).ok()
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
            ra_signed: is_signed(registers)?,
            fp: self.frame_pointer(registers.fp.as_ref())?,
            signal_frame: self.context.signal_frame,
        };
        self.check_stack_pointer(registers.sp.as_ref(), frame.cfa)?;
        // The packed form of a PLT only expresses the rows that linkers write.
        let plain = frame.ra == Saved::AtCfa(-8) && frame.fp == Saved::Same && !frame.signal_frame;
        if matches!(frame.cfa, CfaRule::Plt { .. }) && !plain {
            return Err(Reason::CfaExpression);
        }
        Ok(frame)
    }

    fn cfa(&self, rule: &gimli::CfaRule<usize>) -> Result<CfaRule, Reason> {
        match rule {
            gimli::CfaRule::RegisterAndOffset { register, offset } => Ok(CfaRule::Offset {
                register: self
                    .context
                    .architecture
                    .base(register.0)
                    .ok_or(Reason::CfaRegister)?,
                offset: narrow(*offset)?,
            }),
            gimli::CfaRule::Expression(expression) => self.cfa_expression(*expression),
        }
    }

    fn cfa_expression(&self, expression: UnwindExpression<usize>) -> Result<CfaRule, Reason> {
        let ops = self.ops(expression).ok_or(Reason::CfaExpression)?;
        let base = |op: Op| base(op).ok_or(Reason::CfaRegister);
        let codes: Vec<Opcode> = ops.iter().map(|op| op.code).collect();
        match (codes.as_slice(), ops.as_slice()) {
            ([Opcode::Register, Opcode::Deref], &[from, deref]) if deref == Op::deref() => {
                Ok(CfaRule::Deref {
                    register: base(from)?,
                    at: from.immediate,
                    offset: 0,
                })
            }
            (
                [Opcode::Register, Opcode::Deref, Opcode::Add]
                | [Opcode::Register, Opcode::Deref, Opcode::Constant, Opcode::Plus],
                &[from, deref, add, ..],
            ) if deref == Op::deref() => Ok(CfaRule::Deref {
                register: base(from)?,
                at: from.immediate,
                offset: add.immediate,
            }),
            _ => plt(&ops).ok_or(Reason::CfaExpression),
        }
    }

    fn return_address(&self, rule: Option<&GimliRule>) -> Result<Saved, Reason> {
        match rule {
            Some(GimliRule::Offset(offset)) => narrow(*offset).map(Saved::AtCfa),
            Some(GimliRule::Expression(expression)) => self
                .slot_expression(*expression)
                .unwrap_or(Err(Reason::RaExpression)),
            Some(GimliRule::ValOffset(_) | GimliRule::ValExpression(_)) => Err(Reason::ValueRule),
            // Unmentioned means unchanged: on AArch64 in the link register, on x86-64 never the case after a
            // call.
            None | Some(GimliRule::SameValue) if self.context.has_link_register() => Ok(Saved::Same),
            None | Some(_) => Err(Reason::RaRegister),
        }
    }

    fn frame_pointer(&self, rule: Option<&GimliRule>) -> Result<Saved, Reason> {
        match rule {
            None | Some(GimliRule::SameValue) => Ok(Saved::Same),
            Some(GimliRule::Register(of)) if *of == self.context.architecture.frame_pointer() => {
                Ok(Saved::Same)
            }
            Some(GimliRule::Offset(offset)) => narrow(*offset).map(Saved::AtCfa),
            Some(GimliRule::Expression(expression)) => self
                .slot_expression(*expression)
                .unwrap_or(Err(Reason::FpExpression)),
            Some(GimliRule::ValOffset(_) | GimliRule::ValExpression(_)) => Err(Reason::ValueRule),
            // Includes an explicit "undefined": callers that need rbp cannot be unwound past this frame.
            Some(_) => Err(Reason::FpRegister),
        }
    }

    /// Returns a slot at an offset from a known register; the outer `None` for any other expression.
    fn slot_expression(&self, expression: UnwindExpression<usize>) -> Option<Result<Saved, Reason>> {
        match *self.ops(expression)?.as_slice() {
            [
                Op {
                    code: Opcode::Register,
                    operand,
                    immediate: offset,
                },
            ] => {
                let register = base(Op::register(operand, 0))?;
                Some(Ok(Saved::At { register, offset }))
            }
            _ => None,
        }
    }

    /// Rejects a row whose caller's stack pointer is not its CFA.
    ///
    /// `__restore_rt` of glibc gives both, equal: the CFA is `*(rsp + 160)`, and so is rsp.
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

    /// Returns the ops of a program for any row.
    fn program(&self, cfa: &gimli::CfaRule<usize>, registers: &Registers) -> Result<Vec<Op>, Reason> {
        let mut ops = Vec::new();
        if self.context.signal_frame {
            ops.push(Op::plain(Opcode::Signal));
        }
        match cfa {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                let number = self.context.architecture.number(*register);
                let register = number.ok_or(Reason::CfaRegister)?;
                ops.push(Op::register(register, narrow(*offset)?));
            }
            gimli::CfaRule::Expression(expression) => {
                ops.extend(self.ops(*expression).ok_or(Reason::CfaExpression)?);
            }
        }
        ops.push(Op::plain(Opcode::SetCfa));
        let ra = registers.ra.as_ref().unwrap_or(&GimliRule::SameValue);
        ops.extend(self.value(ra, Opcode::SetRa).ok_or(Reason::RaExpression)??);
        if is_signed(registers)? {
            let set = ops.pop();
            ops.extend(program::strip(self.context.architecture));
            ops.extend(set);
        }
        if let Some(fp) = &registers.fp {
            ops.extend(self.value(fp, Opcode::SetFp).ok_or(Reason::FpExpression)??);
        }
        if let Some(sp) = &registers.sp {
            ops.extend(self.value(sp, Opcode::SetSp).ok_or(Reason::ValueRule)??);
        }
        Ok(ops)
    }

    /// Returns ops that compute a register rule's value and pass it to `set`. The outer `None` is an
    /// unsupported expression.
    fn value(&self, rule: &GimliRule, set: Opcode) -> Option<Result<Vec<Op>, Reason>> {
        let cfa_plus = |offset: i64| narrow(offset).map(Op::cfa);
        // An expression starts with the CFA on its stack, which one that is a single push does not use.
        let expression = |expression: UnwindExpression<usize>| match self.ops(expression)?.as_slice() {
            [op] if op.code == Opcode::Register => Some(vec![*op]),
            ops => Some([&[Op::cfa(0)], ops].concat()),
        };
        let mut ops = match *rule {
            GimliRule::SameValue => return Some(self.same(set)),
            GimliRule::Offset(offset) | GimliRule::ValOffset(offset) => match cfa_plus(offset) {
                Ok(op) => vec![op],
                Err(reason) => return Some(Err(reason)),
            },
            GimliRule::Register(register) => {
                vec![Op::register(self.context.architecture.number(register)?, 0)]
            }
            GimliRule::Expression(slot) | GimliRule::ValExpression(slot) => expression(slot)?,
            GimliRule::Undefined | GimliRule::Architectural | GimliRule::Constant(_) => {
                return Some(Err(undefined(set)));
            }
        };
        if matches!(rule, GimliRule::Offset(_) | GimliRule::Expression(_)) {
            ops.push(Op::deref());
        }
        ops.push(Op::plain(set));
        Some(Ok(ops))
    }

    fn ops(&self, expression: UnwindExpression<usize>) -> Option<Vec<Op>> {
        expression::ops(self.section, self.context, expression)
    }

    /// Returns the ops of "same value". An error for the return address on x86-64, where calls do not leave
    /// it in a register.
    fn same(&self, set: Opcode) -> Result<Vec<Op>, Reason> {
        if set == Opcode::SetFp {
            Ok(Vec::new())
        } else if set == Opcode::SetSp {
            Ok(vec![Op::register(SP, 0), Op::plain(Opcode::SetSp)])
        } else if self.context.has_link_register() {
            Ok(vec![Op::register(LR, 0), Op::plain(Opcode::SetRa)])
        } else {
            Err(Reason::RaRegister)
        }
    }
}

/// Returns whether the return address has an authentication code.
fn is_signed(registers: &Registers) -> Result<bool, Reason> {
    match registers.sign_state {
        None | Some(GimliRule::Constant(0)) => Ok(false),
        Some(GimliRule::Constant(1)) => Ok(true),
        Some(_) => Err(Reason::RaRegister),
    }
}

/// Returns the reason for a register that cannot be restored, so that callers that need it cannot be unwound.
fn undefined(set: Opcode) -> Reason {
    if set == Opcode::SetFp {
        Reason::FpRegister
    } else if set == Opcode::SetSp {
        Reason::ValueRule
    } else {
        Reason::RaRegister
    }
}

/// Recognizes GNU ld's PLT (`elf_x86_64_eh_frame_plt`); the threshold differs between PLT layouts.
fn plt(ops: &[Op]) -> Option<CfaRule> {
    let constant = |value| Op::with(Opcode::Constant, 0, value);
    let threshold = ops.get(4)?.immediate;
    let form = [
        Op::register(SP, 8),
        Op::register(PC, 0),
        constant(15),
        Op::plain(Opcode::And),
        constant(threshold),
        Op::plain(Opcode::GreaterEqual),
        constant(3),
        Op::plain(Opcode::ShiftLeft),
        Op::plain(Opcode::Plus),
    ];
    let threshold = u8::try_from(threshold).ok()?;
    (ops == form).then_some(CfaRule::Plt { threshold })
}

/// Returns the register that an op uses, if walkers know it in every frame.
fn base(op: Op) -> Option<Register> {
    match op.operand {
        SP => Some(Register::Sp),
        FP => Some(Register::Fp),
        _ => None,
    }
}

fn narrow(offset: i64) -> Result<i32, Reason> {
    i32::try_from(offset).map_err(|_| Reason::OffsetRange)
}
