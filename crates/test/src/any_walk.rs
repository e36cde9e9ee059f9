//! A walk that arbitrary bytes describe: architecture, tables, mappings, memory, registers. The C walk and
//! the reference walker must agree on it.

#[path = "../../../src/fuzzing/choices.rs"]
mod choices;

use choices::Choices;
use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::build::SavesTable;
use unwind_tables::encode::{encode, encode_with_saves};
use unwind_tables::image::Image;
use unwind_tables::mapping::{Check, Identity, Trust};
use unwind_tables::packed::aarch64::SIGNED;
use unwind_tables::packed::{A_BITS, KIND_BITS, PackedRule};
use unwind_tables::program::{FP, LR, Op, Opcode, Programs, SP};
use unwind_tables::rule::UnwindRule;
use unwind_tables::saves::{LongSaves, Saved, SavesRule, long};
use unwind_tables::table::{Row, RowRule, Rows, UnwindTable};
use unwind_tables::walk::{End, Mapping, MappingKind, Registers, ReturnProbes, Stack, Tables, Unwind};

use super::host::{HostWalk, Memory};

const CODE: u64 = 0x5555_0000_0000;
const CODE_BYTES: u64 = 0x1000;
const STACK: u64 = 0x7fff_ff00_0000;
const STACK_WORDS: u64 = 1024;
/// Address of a word with nothing to read around it.
const ALONE: u64 = 0x7000_0000_0000;

impl Choices<'_> {
    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn is(&mut self, one_in: u8) -> bool {
        self.byte() % one_in == 1
    }

    fn of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[usize::from(self.byte()) % N]
    }

    /// Draws an address of code, of the stack, or any.
    fn address(&mut self) -> u64 {
        let near = u64::from(u16::from_le_bytes(self.take()));
        match near >> 13 {
            0..=5 => CODE + near % CODE_BYTES,
            6 => STACK + 8 * (near % STACK_WORDS),
            _ if near & 1 == 0 => near & 0xfff,
            _ => u64::from_le_bytes(self.take()),
        }
    }

    fn op(&mut self) -> Op {
        let code = Opcode::from_number(self.below(34).into()).expect("there are more");
        let operand = if code == Opcode::Deref {
            1 << self.below(4)
        } else {
            self.below(18)
        };
        let immediate = match self.below(4) {
            0 => self.word().cast_signed(),
            _ => 8 * i32::from(self.byte().cast_signed()),
        };
        Op::with(code, operand, immediate)
    }

    /// Draws a register that a rule program can start from.
    fn register(&mut self, architecture: Architecture) -> u8 {
        match architecture {
            Architecture::X86_64 => self.below(17),
            Architecture::Aarch64 => self.of([SP, SP, FP, LR]),
        }
    }

    /// Draws operations that set a CFA and a return address, and others; `None` if they make no rule program.
    fn program(&mut self, programs: &mut Programs) -> Option<UnwindRule> {
        let architecture = programs.architecture();
        let register = self.register(architecture);
        let mut ops = Vec::new();
        if self.is(4) {
            ops.push(Op::plain(Opcode::Signal));
        }
        ops.extend([
            Op::register(register, 8 * i32::from(self.byte())),
            Op::plain(Opcode::SetCfa),
        ]);
        if architecture == Architecture::Aarch64 && self.is(3) {
            // Code that a signal interrupted had its own link register: restore it.
            let register = self.register(architecture);
            ops.extend([Op::register(register, 0), Op::deref(), Op::plain(Opcode::SetLr)]);
        }
        ops.push(Op::cfa(-8));
        for _ in 0..self.below(8) {
            ops.push(self.op());
        }
        if self.is(2) {
            ops.push(Op::deref());
        }
        ops.push(Op::plain(Opcode::SetRa));
        programs.intern(ops).ok().map(UnwindRule::Program)
    }

    fn rule(&mut self, programs: &mut Programs) -> UnwindRule {
        let architecture = programs.architecture();
        let rule = match self.below(16) {
            0..3 => self.program(programs),
            3 => Some(UnwindRule::EndOfStack),
            4..14 => self.packed_rule(architecture).unpack(architecture),
            _ => {
                let bits = PackedRule::from_bits(self.word() & 0x7fff_ffff);
                let rule = bits.unpack(architecture);
                rule.filter(|rule| !matches!(rule, UnwindRule::Program(_)))
            }
        };
        // Bits can also encode a rule that `pack` never makes.
        rule.filter(|&rule| PackedRule::pack(rule, architecture).is_some())
            .unwrap_or(UnwindRule::Gap)
    }

    /// Draws rules with small offsets, mostly from the stack pointer: others would hardly ever stay on the
    /// stack.
    fn packed_rule(&mut self, architecture: Architecture) -> PackedRule {
        let kind = match architecture {
            Architecture::X86_64 => self.of([1, 1, 1, 1, 1, 2, 3, 4]),
            Architecture::Aarch64 => self.of([1, 1, 1, 1, 2, 2, 3, 3]),
        };
        let [a, b] = [1 + self.below(16), self.below(8)].map(u32::from);
        let signed = match architecture {
            Architecture::Aarch64 if self.is(4) => SIGNED,
            Architecture::X86_64 | Architecture::Aarch64 => 0,
        };
        PackedRule::from_bits(kind | a << KIND_BITS | (b | signed) << (KIND_BITS + A_BITS))
    }

    fn saved(&mut self) -> Saved {
        match self.below(4) {
            0 => Saved::Unknown,
            1 => Saved::Same,
            2 => Saved::Slot(long::AT_CFA, -8 * i32::from(self.below(34))),
            _ => {
                let offset = match self.is(4) {
                    true => self.word().cast_signed() >> 3,
                    false => 8 * i32::from(self.byte().cast_signed()),
                };
                Saved::Slot(self.of([long::AT_CFA, long::AT_SP, long::AT_FP]), offset)
            }
        }
    }

    /// Draws rows at ascending addresses, with rules drawn by `rule`.
    fn rows<R: RowRule>(&mut self, mut rule: impl FnMut(&mut Self) -> R) -> Rows<R> {
        let mut start = u64::from(self.byte());
        let mut rows = Vec::new();
        for _ in 0..1 + self.below(24) {
            rows.push(Row {
                start: Svma::new(start),
                rule: rule(self),
            });
            start += 1 + u64::from(self.byte()) * u64::from(1 + self.below(4));
        }
        rows.push(Row {
            start: Svma::new(start),
            rule: R::GAP,
        });
        Rows::new(rows).expect("rows ascend and end in a gap")
    }

    /// Draws rules for where registers are saved.
    fn saves(&mut self) -> SavesTable {
        let mut long = LongSaves::default();
        let rows = self.rows(|choices| -> SavesRule {
            let mut saved = [Saved::Unknown; 16];
            let preserved = choices.is(2);
            for number in if preserved {
                vec![3, 12, 13, 14, 15]
            } else {
                (0..16).collect()
            } {
                saved[number] = choices.saved();
            }
            long.pack(&saved)
        });
        SavesTable { rows, long }
    }

    /// Draws an image, some words of which are replaced by arbitrary ones. `None` if it is not accepted.
    fn image(&mut self, architecture: Architecture) -> Option<Image> {
        let mut programs = Programs::new(architecture);
        let rows = self
            .rows(|choices| choices.rule(&mut programs))
            .as_slice()
            .to_vec();
        let table = UnwindTable::with_programs(rows, programs)?;
        let image = match architecture {
            Architecture::X86_64 => encode_with_saves(&table, &self.saves()),
            // Saves of AArch64 are not followed.
            Architecture::Aarch64 => encode(&table),
        };
        let mut words = image.ok()?.words().to_vec();
        for _ in 0..self.below(8).saturating_sub(4) {
            let at = usize::from(u16::from_le_bytes(self.take())) % words.len();
            words[at] = self.word();
        }
        let image = Image::from_words(words).ok()?;
        (image.architecture() == architecture).then_some(image)
    }

    fn identity(&mut self) -> Identity {
        let settled = Trust::Settled;
        let trust = self.of([
            settled,
            settled,
            settled,
            Trust::Checked,
            Trust::Unchanged,
            Trust::CheckedUnchanged,
        ]);
        let check = |choices: &mut Self| Check {
            at: Avma::new(choices.of([ALONE, ALONE, ALONE, ALONE, ALONE, STACK, CODE])),
            word: u64::from(!choices.is(16)),
        };
        Identity {
            trust,
            checks: [check(self), check(self)],
        }
    }

    /// Draws mappings of parts of the code, in ascending order.
    fn mappings(&mut self) -> Vec<Mapping> {
        let mut mappings = Vec::new();
        let mut start = CODE;
        while start < CODE + CODE_BYTES && mappings.len() < 7 {
            let end = start + 0x80 * (1 + u64::from(self.byte() % 32));
            mappings.push(Mapping {
                start: Avma::new(start),
                end: Avma::new(end),
                bias: Bias::between(Avma::new(CODE + u64::from(self.byte() & 0x80)), Svma::new(0)),
                image_at: 0,
                kind: self.of([
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::Table,
                    MappingKind::NoTable,
                    MappingKind::Pending,
                    MappingKind::NoCfi,
                    MappingKind::Anonymous,
                    MappingKind::AnonymousLinked,
                    MappingKind::AnonymousMethods,
                    MappingKind::AnonymousStub,
                    MappingKind::AnonymousPushed,
                    MappingKind::Trampoline,
                ]),
                identity: self.identity(),
            });
            start = end + 0x10 * u64::from(self.byte() & 1);
        }
        mappings
    }

    /// Draws code of calls and other bytes.
    fn code(&mut self, architecture: Architecture) -> Vec<u8> {
        let pattern: [u8; 24] = self.take();
        if architecture == Architecture::Aarch64 {
            return instructions(&pattern);
        }
        let calls = [0xe8, 0xff, 0x10, 0xd0, 0x14, 0x25];
        let byte = |at: usize| match pattern[at % 24] {
            byte if byte & 1 == 0 => calls[usize::from(byte >> 1) % calls.len()],
            byte => byte.wrapping_add(u8::try_from(at % 251).expect("it is below")),
        };
        (0..usize::try_from(CODE_BYTES).expect("it is small"))
            .map(byte)
            .collect()
    }
}

/// Makes AArch64 code: calls of each kind, and other instructions.
fn instructions(pattern: &[u8]) -> Vec<u8> {
    let calls = [0x9400_0000_u32, 0xd63f_0000, 0xd63f_0800, 0xd73f_0800];
    let instruction = |number: usize| {
        let byte = pattern[number % pattern.len()];
        let call = calls[usize::from(byte >> 1) % calls.len()];
        match byte & 1 {
            0 => call | u32::from(byte) << 5 & 0x3e0,
            _ => call.wrapping_add(u32::from(byte) << 24),
        }
    };
    let count = usize::try_from(CODE_BYTES).expect("it is small") / 4;
    (0..count)
        .flat_map(|number| instruction(number).to_le_bytes())
        .collect()
}

/// A checked walk, for statistics about the cases.
pub struct Walked {
    /// Architecture whose rules it followed.
    pub architecture: Architecture,
    /// Frames and end of the walk.
    pub stack: Stack,
    /// End of the walk with one of its reads failing; `None` if it reads nothing.
    pub faulted: Option<End>,
}

/// Checks that both walks agree about the walk that these bytes make, and about the same walk with one of its
/// reads failing. `None` if the bytes make no tables. `hosts` are of all architectures, in the order of their
/// numbers.
pub fn check(hosts: &mut [HostWalk; 2], bytes: &[u8]) -> Option<Walked> {
    let mut choices = Choices(bytes);
    let architecture = choices.of([Architecture::X86_64, Architecture::Aarch64]);
    let host = &mut hosts[architecture as usize];
    let image = choices.image(architecture)?;
    let mappings = choices.mappings();
    let trampoline = Avma::new(choices.of([0, 0, CODE + 0x100, CODE + CODE_BYTES, ALONE]));
    let replaced: Vec<_> = (0..choices.below(4))
        .map(|_| {
            let slot = Avma::new(STACK + 8 * u64::from(choices.byte()));
            (slot, Avma::new(choices.address()))
        })
        .collect();
    let tables = Tables {
        architecture,
        words: image.words(),
        mappings: &mappings,
        unwind: choices.of([Unwind::Dwarf, Unwind::Dwarf, Unwind::Dwarf, Unwind::Fp]),
        changing: choices.is(8),
        return_probes: ReturnProbes {
            trampoline,
            replaced: &replaced,
        },
    };
    let general = std::array::from_fn(|number| match number {
        6 | 7 => STACK + 8 * u64::from(choices.byte()),
        _ => choices.address(),
    });
    let mut start = Registers {
        pc: Avma::new(CODE + u64::from(u16::from_le_bytes(choices.take())) % CODE_BYTES),
        general,
    };
    if choices.is(16) {
        // Stack and frame pointers that no program has.
        start.general[usize::from(choices.of([6_u8, 7]))] = choices.address();
    }
    let memory = memory(&mut choices, architecture, trampoline);
    let ends = [STACK + 8 * STACK_WORDS, choices.address()].map(Avma::new);
    let stack = host.check(tables, start, &memory, ends);
    let faulted = fault(host, &mut choices, tables, memory, (start, ends));
    Some(Walked {
        architecture,
        stack,
        faulted,
    })
}

fn memory(choices: &mut Choices<'_>, architecture: Architecture, trampoline: Avma) -> Memory {
    let mut memory = Memory::default();
    memory.add(Avma::new(CODE), choices.code(architecture));
    memory.add_words(Avma::new(ALONE), &[1]);
    // The remaining bytes make 32 words, which are repeated along the stack.
    let length = u64::from(choices.byte()) * 4;
    let words: Vec<u64> = (0..32)
        .map(|_| match choices.is(8) {
            true => trampoline.get(),
            false => word(choices, architecture),
        })
        .collect();
    let stack: Vec<u64> = words
        .iter()
        .copied()
        .cycle()
        .take(usize::try_from(length).expect("it is small"))
        .collect();
    memory.add_words(Avma::new(STACK), &stack);
    memory
}

/// Draws the content of a stack slot.
fn word(choices: &mut Choices<'_>, architecture: Architecture) -> u64 {
    let address = choices.address();
    match architecture {
        Architecture::X86_64 => address,
        // Mostly an address of an instruction, some with an authentication code.
        Architecture::Aarch64 => match choices.below(8) {
            0 => address,
            1 | 2 => address & !3 | u64::from(choices.byte()) << 48,
            _ => address & !3,
        },
    }
}

/// Repeats a walk with a fault at one of the slots that it reads, and returns its end.
fn fault(
    host: &mut HostWalk,
    choices: &mut Choices<'_>,
    tables: Tables<'_>,
    mut memory: Memory,
    (start, ends): (Registers, [Avma; 2]),
) -> Option<End> {
    let mut slots = Vec::new();
    unwind_tables::walk::walk(tables, start, |address| {
        slots.push(address);
        memory.word(address)
    });
    let number = usize::from(choices.byte()).checked_rem(slots.len())?;
    memory.fault_at = Some(slots[number]);
    Some(host.check(tables, start, &memory, ends).end)
}
