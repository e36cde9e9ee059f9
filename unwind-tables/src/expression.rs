//! DWARF expressions in call frame information, as the ops of a program.
//!
//! Supports all operations that an expression in CFI can use (DWARF 5 §6.4.2) except branches, division and
//! fixed addresses, which no object of a stock distribution has there: an expression with one of these is
//! unsupported.

use gimli::{Operation, UnwindExpression, UnwindSection};

use crate::architecture::Architecture;
use crate::program::{MAX_OPS, Op, Opcode};
use crate::translate::{RowContext, Slice};

/// Returns the ops of `expression`; `None` if it is malformed, too long, or uses an unsupported operation.
pub(crate) fn ops<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    context: RowContext,
    expression: UnwindExpression<usize>,
) -> Option<Vec<Op>> {
    let expression = expression.get(section).ok()?;
    let mut operations = expression.operations(context.encoding);
    let mut ops = Vec::new();
    while let Some(operation) = operations.next().ok()? {
        push(&mut ops, &operation, context.architecture)?;
        if ops.len() > MAX_OPS {
            return None;
        }
    }
    Some(ops)
}

/// Appends the ops of `operation`.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "whatever gimli learns later is not one of the operations that are known"
)]
fn push(ops: &mut Vec<Op>, operation: &Operation<Slice<'_>>, architecture: Architecture) -> Option<()> {
    let op = match *operation {
        Operation::Nop => return Some(()),
        Operation::UnsignedConstant { value } => return push_constant(ops, value),
        Operation::SignedConstant { value } => return push_constant(ops, value.cast_unsigned()),
        Operation::RegisterOffset {
            register,
            offset,
            base_type,
        } if base_type.0 == 0 => Op::register(architecture.number(register)?, i32::try_from(offset).ok()?),
        Operation::PlusConstant { value } => Op::with(Opcode::Add, 0, i32::try_from(value).ok()?),
        Operation::Deref {
            base_type,
            size: size @ (1 | 2 | 4 | 8),
            space: false,
        } if base_type.0 == 0 => Op::with(Opcode::Deref, size, 0),
        Operation::Pick { index } => Op::with(Opcode::Pick, index, 0),
        _ => Op::plain(opcode(operation)?),
    };
    ops.push(op);
    Some(())
}

fn push_constant(ops: &mut Vec<Op>, value: u64) -> Option<()> {
    if let Ok(small) = i32::try_from(value.cast_signed()) {
        ops.push(Op::with(Opcode::Constant, 0, small));
        return Some(());
    }
    let half = |shift: u32| {
        u32::try_from(value >> shift & u64::from(u32::MAX))
            .ok()
            .map(u32::cast_signed)
    };
    ops.push(Op::with(Opcode::Constant, 0, half(0)?));
    ops.push(Op::with(Opcode::High, 0, half(32)?));
    Some(())
}

/// Returns the opcode of an operation without immediate operands.
#[allow(clippy::wildcard_enum_match_arm, reason = "as of `push`")]
fn opcode(operation: &Operation<Slice<'_>>) -> Option<Opcode> {
    Some(match operation {
        Operation::Drop => Opcode::Drop,
        Operation::Swap => Opcode::Swap,
        Operation::Rot => Opcode::Rotate,
        Operation::Abs => Opcode::Absolute,
        Operation::Neg => Opcode::Negate,
        Operation::Not => Opcode::Not,
        Operation::And => Opcode::And,
        Operation::Or => Opcode::Or,
        Operation::Xor => Opcode::Xor,
        Operation::Plus => Opcode::Plus,
        Operation::Minus => Opcode::Minus,
        Operation::Mul => Opcode::Multiply,
        Operation::Shl => Opcode::ShiftLeft,
        Operation::Shr => Opcode::ShiftRight,
        Operation::Shra => Opcode::ShiftArithmetic,
        Operation::Eq => Opcode::Equal,
        Operation::Ne => Opcode::NotEqual,
        Operation::Lt => Opcode::Less,
        Operation::Le => Opcode::LessEqual,
        Operation::Gt => Opcode::Greater,
        Operation::Ge => Opcode::GreaterEqual,
        _ => return None,
    })
}
