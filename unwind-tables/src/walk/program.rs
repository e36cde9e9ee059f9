//! Interpreter of rule programs. Mirrors `bpf/walk/program.h`.

use super::{End, Walk};
use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::program::{FP, LR, MAX_OPERANDS, MAX_OPS, OP_WORDS, Op, Opcode, PC, SP};

/// State of a running program.
#[derive(Default)]
struct Run {
    operands: [u64; MAX_OPERANDS],
    depth: usize,
    cfa: u64,
    ra: u64,
    fp: u64,
    sp: Option<u64>,
    lr: Option<u64>,
    is_signal_frame: bool,
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Goes to the caller by the program that starts at word `at`.
    pub(super) fn apply_program(&mut self, at: u32) -> Result<(), End> {
        let mut run = Run {
            fp: self.fp.get(),
            ..Run::default()
        };
        let mut at = at;
        for _ in 0..MAX_OPS {
            let words: [u32; OP_WORDS] = [at, at.wrapping_add(1)].map(|at| self.image(0).word(at));
            let op = Op::from_words(words).ok_or(End::UnsupportedRule)?;
            if op.code == Opcode::End {
                return self.finish(&run);
            }
            self.run_op(&mut run, op)?;
            at = at.wrapping_add(2);
        }
        Err(End::UnsupportedRule)
    }

    fn finish(&mut self, run: &Run) -> Result<(), End> {
        let sp = Avma::new(run.sp.unwrap_or(run.cfa));
        // Equal stack pointers are progress: a callee whose return address is in a register need not use the
        // stack. The frame that a signal interrupted can be on another stack, so its stack pointer can have
        // any value.
        if sp < self.sp && !run.is_signal_frame && !self.may_switch_stack() {
            return Err(End::NoProgress);
        }
        self.go_to(Avma::new(run.ra), sp, Avma::new(run.fp));
        self.pc_adjust = u64::from(!run.is_signal_frame);
        self.lr = run.lr.filter(|_| run.is_signal_frame);
        Ok(())
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "what is not listed has two operands"
    )]
    fn run_op(&mut self, run: &mut Run, op: Op) -> Result<(), End> {
        let depth = run.depth;
        let below = |distance: usize| depth.wrapping_sub(distance) % MAX_OPERANDS;
        let [x, y, z] = [1, 2, 3].map(|distance| run.operands[below(distance)]);
        let immediate = i64::from(op.immediate).cast_unsigned();
        let set = |register: &mut u64| {
            *register = x;
            y
        };
        // New topmost operand, and the change of the stack's depth.
        let (top, change): (u64, isize) = match op.code {
            Opcode::End => return Ok(()),
            Opcode::Signal => {
                run.is_signal_frame = true;
                (x, 0)
            }
            Opcode::Register => (self.register(op.operand)?.wrapping_add(immediate), 1),
            Opcode::Cfa => (run.cfa.wrapping_add(immediate), 1),
            Opcode::Constant => (immediate, 1),
            Opcode::High => (x & u64::from(u32::MAX) | immediate << 32, 0),
            Opcode::Deref => {
                let unread = 64 - 8 * u32::from(op.operand);
                (self.read_slot(Avma::new(x))? << unread >> unread, 0)
            }
            Opcode::Add => (x.wrapping_add(immediate), 0),
            Opcode::Pick => (run.operands[below(usize::from(op.operand) + 1)], 1),
            Opcode::Drop => (y, -1),
            Opcode::Swap => {
                run.operands[below(2)] = x;
                (y, 0)
            }
            Opcode::Rotate => {
                run.operands[below(3)] = x;
                run.operands[below(2)] = z;
                (y, 0)
            }
            Opcode::SetCfa => (set(&mut run.cfa), -1),
            Opcode::SetRa => (set(&mut run.ra), -1),
            Opcode::SetFp => (set(&mut run.fp), -1),
            Opcode::SetSp => {
                run.sp = Some(x);
                (y, -1)
            }
            Opcode::SetLr => {
                run.lr = Some(x);
                (y, -1)
            }
            Opcode::Absolute => (x.cast_signed().unsigned_abs(), 0),
            Opcode::Negate => (x.wrapping_neg(), 0),
            Opcode::Not => (!x, 0),
            _ => (binary(op.code, y, x), -1),
        };
        run.depth = depth.wrapping_add_signed(change);
        run.operands[run.depth.wrapping_sub(1) % MAX_OPERANDS] = top;
        Ok(())
    }

    /// Returns the value of a register in the current frame.
    fn register(&mut self, number: u8) -> Result<u64, End> {
        match number {
            SP if self.sp_is_known() => Ok(self.sp.get()),
            SP => Err(End::UnsupportedRule),
            FP => Ok(self.fp.get()),
            LR if self.tables.architecture == Architecture::Aarch64 => self.lr.ok_or(End::UnsupportedRule),
            PC => Ok(self.pc.get()),
            _ => self.find_register(number),
        }
    }
}

/// Returns `y OP x`, for ops with two operands.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "what is not listed is the last comparison"
)]
fn binary(code: Opcode, y: u64, x: u64) -> u64 {
    let (signed_y, signed_x) = (y.cast_signed(), x.cast_signed());
    let shift = u32::try_from(x).unwrap_or(u32::MAX);
    match code {
        Opcode::And => y & x,
        Opcode::Or => y | x,
        Opcode::Xor => y ^ x,
        Opcode::Plus => y.wrapping_add(x),
        Opcode::Minus => y.wrapping_sub(x),
        Opcode::Multiply => y.wrapping_mul(x),
        Opcode::ShiftLeft => y.checked_shl(shift).unwrap_or(0),
        Opcode::ShiftRight => y.checked_shr(shift).unwrap_or(0),
        Opcode::ShiftArithmetic => (signed_y >> shift.min(63)).cast_unsigned(),
        Opcode::Equal => u64::from(y == x),
        Opcode::NotEqual => u64::from(y != x),
        Opcode::Less => u64::from(signed_y < signed_x),
        Opcode::LessEqual => u64::from(signed_y <= signed_x),
        Opcode::Greater => u64::from(signed_y > signed_x),
        _ => u64::from(signed_y >= signed_x),
    }
}
