//! Made-up rules of every kind.

use unwind_tables::Architecture;
use unwind_tables::program::{FP, LR, Op, Opcode, Programs, SP};
use unwind_tables::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};

use super::random::Random;

fn random_saved(random: &mut Random) -> Saved {
    match random.below(4) {
        0 => Saved::Same,
        1 => Saved::At {
            register: random_register(random),
            offset: random.slots(-8, 64),
        },
        _ => Saved::AtCfa(random.slots(-16, -1)),
    }
}

fn random_register(random: &mut Random) -> Register {
    if random.below(2) == 0 {
        Register::Sp
    } else {
        Register::Fp
    }
}

fn random_frame_rule(random: &mut Random) -> FrameRule {
    let cfa = match random.below(8) {
        0 => CfaRule::Plt { threshold: 11 },
        1 => CfaRule::Deref {
            register: random_register(random),
            at: random.slots(-16, 16),
            offset: random.slots(0, 2),
        },
        2 => CfaRule::Offset {
            register: Register::Fp,
            offset: random.slots(0, 64),
        },
        _ => CfaRule::Offset {
            register: Register::Sp,
            offset: random.slots(1, 512),
        },
    };
    let ra = match random.below(8) {
        0 => Saved::At {
            register: random_register(random),
            offset: random.slots(0, 32),
        },
        _ => Saved::AtCfa(-8),
    };
    if matches!(cfa, CfaRule::Plt { .. }) {
        return FrameRule {
            cfa,
            ra: Saved::AtCfa(-8),
            ra_signed: false,
            fp: Saved::Same,
            signal_frame: false,
        };
    }
    FrameRule {
        cfa,
        ra,
        ra_signed: false,
        fp: random_saved(random),
        signal_frame: random.below(32) == 0,
    }
}

/// Draws a rule that code of the programs' architecture can have.
pub fn random_rule(random: &mut Random, programs: &mut Programs) -> UnwindRule {
    match random.below(40) {
        0 => UnwindRule::EndOfStack,
        1 | 2 => UnwindRule::Gap,
        3 => UnwindRule::Unsupported(Reason::CfaExpression),
        4..8 => random_program(random, programs),
        _ => {
            let frame = match programs.architecture() {
                Architecture::X86_64 => random_frame_rule(random),
                Architecture::Aarch64 => random_record(random),
            };
            programs.rule(frame).unwrap_or_else(UnwindRule::Unsupported)
        }
    }
}

/// Draws a rule program: arbitrary operations after a CFA in any register, up to a return address in any
/// register or slot.
fn random_program(random: &mut Random, programs: &mut Programs) -> UnwindRule {
    loop {
        let architecture = programs.architecture();
        let register = |random: &mut Random| {
            let number = match architecture {
                Architecture::X86_64 => u8::try_from(random.below(17)).expect("it is small"),
                Architecture::Aarch64 => [SP, SP, FP, LR][random.index(4)],
            };
            Op::register(number, random.slots(0, 16))
        };
        let mut ops = vec![register(random), Op::plain(Opcode::SetCfa)];
        if architecture == Architecture::Aarch64 && random.below(3) == 0 {
            ops.insert(0, Op::plain(Opcode::Signal));
            ops.extend([register(random), Op::deref(), Op::plain(Opcode::SetLr)]);
        }
        let start = if random.below(2) == 0 {
            register(random)
        } else {
            Op::cfa(random.slots(-4, 4))
        };
        ops.push(start);
        for _ in 0..random.below(6) {
            let code = Opcode::ALL[2 + random.index(28)];
            let operand = if code == Opcode::Deref {
                1 << random.below(4)
            } else {
                u8::try_from(random.below(4)).expect("it is small")
            };
            let immediate = random.slots(-8, 8);
            ops.push(Op::with(code, operand, immediate));
        }
        if random.below(2) == 0 {
            ops.push(Op::deref());
        }
        ops.push(Op::plain(Opcode::SetRa));
        let more = [Opcode::SetFp, Opcode::SetSp, Opcode::SetFp][random.index(3)];
        if random.below(3) == 0 {
            ops.extend([register(random), Op::plain(more)]);
        }
        if let Ok(program) = programs.intern(ops) {
            return UnwindRule::Program(program);
        }
    }
}

/// Draws a rule as AArch64's compilers make it, or nearly so.
fn random_record(random: &mut Random) -> FrameRule {
    let register = [Register::Sp, Register::Sp, Register::Fp][random.index(3)];
    let offset = random.slots(0, 512);
    let at = random.slots(0, 600) - offset;
    let (ra, fp) = match random.below(12) {
        0 => (Saved::Same, Saved::Same),
        1 | 2 => (Saved::AtCfa(at), Saved::Same),
        3 => (Saved::AtCfa(at), Saved::AtCfa(random.slots(-16, 16))),
        _ => (Saved::AtCfa(at + 8), Saved::AtCfa(at)),
    };
    FrameRule {
        cfa: CfaRule::Offset { register, offset },
        ra,
        ra_signed: random.below(4) == 0,
        fp,
        signal_frame: random.below(32) == 0,
    }
}
