//! Decoder for AArch64: control flow and written registers only (Arm ARM, C4.1: the encoding index). Unknown
//! encodings are reported as unknown, so that a register which could be written never counts as preserved.

use unwind_tables::addr::Svma;

use super::{Flow, Instruction, Target};

/// Bit of the stack pointer in a set of registers; the bit of a general register is its number.
pub const SP: u32 = 1 << 31;
/// Bit of the link register.
pub const LR: u32 = 1 << 30;

/// Size of an instruction in bytes.
pub const BYTES: u64 = 4;

/// The words of `code`, the first of which is at `start`, with their addresses.
pub fn words(code: &[u8], start: Svma) -> impl Iterator<Item = (Svma, u32)> + '_ {
    let (words, _) = code.as_chunks::<4>();
    let addresses = (0u64..).map(move |number| start.wrapping_add(BYTES * number));
    addresses.zip(words.iter().map(|&word| u32::from_le_bytes(word)))
}

/// Decodes the instructions of `code`, the first of which is at `start`.
pub(super) fn instructions(code: &[u8], start: Svma) -> impl Iterator<Item = Instruction> + '_ {
    let mut known = KnownRegisters::default();
    words(code, start).map(move |(at, word)| {
        let flow = known.target(flow(word, at), word);
        known.execute(word, at);
        Instruction {
            at,
            next: at.wrapping_add(BYTES),
            flow,
        }
    })
}

/// Control flow of an instruction.
pub fn flow(word: u32, at: Svma) -> Flow {
    if let Some(target) = branch_target(word, at) {
        return match word >> 26 {
            0b00_0101 => Flow::Jump(Target::Code(target)),
            0b10_0101 => Flow::Call(Target::Code(target)),
            _ => Flow::Branch(target),
        };
    }
    match word >> 24 {
        // Branches by a register, with or without authentication.
        0xd6 | 0xd7 => by_register(word),
        // retaasppc, retabsppc
        0x55 if word & 0x00c0_001f == 0x1f => Flow::Return,
        // svc; brk and similar
        0xd4 if word & 0x00e0_001f == 1 => Flow::Next,
        0xd4 => Flow::Ends,
        // Hints, barriers, system registers.
        0xd5 => Flow::Next,
        // udf
        0x00 if word >> 16 == 0 => Flow::Ends,
        // The rest of the branches.
        _ if group(word) & 0b1110 == 0b1010 => Flow::Unknown,
        _ => Flow::Next,
    }
}

fn by_register(word: u32) -> Flow {
    // Without authentication, or by key A or B; other encodings are unallocated.
    let is_plain = word & 0xff1f_fc1f == 0xd61f_0000;
    let is_authenticated = word & 0x001f_f800 == 0x001f_0800;
    if !is_plain && !is_authenticated {
        return Flow::Unknown;
    }
    match word >> 21 & 7 {
        0 => Flow::Jump(Target::Computed),
        1 => Flow::Call(Target::Computed),
        // `ret` by another register than the link register is a jump.
        2 if matches!(field(word, 5), 30 | 31) => Flow::Return,
        2 => Flow::Jump(Target::Computed),
        _ => Flow::Unknown,
    }
}

/// Target of a direct branch or call.
pub fn branch_target(word: u32, at: Svma) -> Option<Svma> {
    let (low, bits) = match word {
        // b, bl
        _ if word & 0x7c00_0000 == 0x1400_0000 => (0, 26),
        // b.cond, bc.cond; cbz, cbnz
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => (5, 19),
        // tbz, tbnz
        _ if word & 0x7e00_0000 == 0x3600_0000 => (5, 14),
        // cb, cbb, cbh
        _ if word & 0x7e00_0000 == 0x7400_0000 => (5, 9),
        _ => return None,
    };
    // The field is moved to the top of the word, so that the arithmetic shift back extends its sign.
    let distance = (word << (32 - low - bits)).cast_signed() >> (32 - bits);
    Some(at.wrapping_add((4 * i64::from(distance)).cast_unsigned()))
}

/// `op0` of the encoding index.
fn group(word: u32) -> u32 {
    word >> 25 & 15
}

/// Number of the register whose field starts at bit `low`.
fn field(word: u32, low: u32) -> u32 {
    word >> low & 31
}

/// The set of one register, where 31 encodes the zero register.
fn register(number: u32) -> u32 {
    1 << number & !SP
}

/// The set of one register, where 31 encodes the stack pointer.
fn register_or_sp(number: u32) -> u32 {
    1 << number
}

/// Registers that a non-branch instruction can write: a superset. `None` if not known.
pub fn written(word: u32) -> Option<u32> {
    let result = field(word, 0);
    match group(word) {
        // Immediate: add and sub, logical ones; those that set flags cannot write the stack pointer.
        0b1000 | 0b1001 => Some(match word >> 23 & 7 {
            2 | 3 if word >> 29 & 1 == 0 => register_or_sp(result),
            4 if word >> 29 & 3 != 3 => register_or_sp(result),
            _ => register(result),
        }),
        // By registers: only add and sub of extended registers, and irg, can write the stack pointer.
        0b0101 | 0b1101 if word & 0x3fe0_0000 == 0x0b20_0000 => Some(register_or_sp(result)),
        0b0101 | 0b1101 if word & 0xffe0_fc00 == 0x9ac0_1000 => Some(register_or_sp(result)),
        0b0101 | 0b1101 => Some(register(result)),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => written_by_access(word),
        // Some SIMD instructions write a general register.
        0b0111 | 0b1111 => Some(register(result)),
        0b1010 | 0b1011 => written_by_system(word),
        _ => None,
    }
}

/// Registers written by loads and stores of the common forms.
fn written_by_access(word: u32) -> Option<u32> {
    let base = register_or_sp(field(word, 5));
    let one = if is_load_of_one(word) {
        register(field(word, 0))
    } else {
        0
    };
    match word {
        // An unsigned offset; a register as the offset.
        _ if word & 0x3b00_0000 == 0x3900_0000 => Some(one),
        _ if word & 0x3b20_0c00 == 0x3820_0800 => Some(one),
        // An immediate offset, with or without writing back the base.
        _ if word & 0x3b20_0000 == 0x3800_0000 => Some(if word >> 10 & 1 == 1 { one | base } else { one }),
        // A literal; opcode 3 is a prefetch.
        _ if word & 0x3f00_0000 == 0x1800_0000 => Some(register(field(word, 0))),
        _ if word & 0x3f00_0000 == 0x1c00_0000 => Some(0),
        // A pair.
        _ if word & 0x3a00_0000 == 0x2800_0000 => {
            let loads_general = word >> 22 & 1 == 1 && word >> 26 & 1 == 0;
            let both = register(field(word, 0)) | register(field(word, 10));
            let loaded = if loads_general { both } else { 0 };
            Some(if word >> 23 & 1 == 1 {
                loaded | base
            } else {
                loaded
            })
        }
        _ => None,
    }
}

/// True for a load of a general register.
fn is_load_of_one(word: u32) -> bool {
    let is_general = word >> 26 & 1 == 0;
    let is_store = word >> 22 & 3 == 0;
    is_general && !is_store
}

fn written_by_system(word: u32) -> Option<u32> {
    const PACIA1716: [u32; 4] = [8, 10, 12, 14];
    const XPACLRI: u32 = 7;
    match word {
        _ if is_hint(word) => Some(match hint(word) {
            // paciaz to autibsp
            XPACLRI | 24..=31 => LR,
            number if PACIA1716.contains(&number) => register(17),
            _ => 0,
        }),
        // Barriers; mrs.
        _ if word & 0xffff_f01f == 0xd503_301f => Some(0),
        _ if word & 0xfff0_0000 == 0xd530_0000 => Some(register(field(word, 0))),
        _ => None,
    }
}

/// True for a `hint`, which does nothing on machines that do not implement it.
pub fn is_hint(word: u32) -> bool {
    word & 0xffff_f01f == 0xd503_201f
}

pub fn hint(word: u32) -> u32 {
    word >> 5 & 0x7f
}

/// Register contents that are known in straight code: addresses in the object, and slots whose values were
/// loaded.
#[derive(Default)]
struct KnownRegisters {
    addresses: [Option<Svma>; 31],
    loaded_from: [Option<Svma>; 31],
}

impl KnownRegisters {
    /// Resolves a jump or call by a register that was loaded from a slot: `adrp`, `ldr`, `br`.
    fn target(&self, flow: Flow, word: u32) -> Flow {
        let slot = self.loaded_from.get(field(word, 5) as usize).copied().flatten();
        match (flow, slot) {
            (Flow::Jump(Target::Computed), Some(slot)) => Flow::Jump(Target::Slot(slot)),
            (Flow::Call(Target::Computed), Some(slot)) => Flow::Call(Target::Slot(slot)),
            _ => flow,
        }
    }

    fn execute(&mut self, word: u32, at: Svma) {
        let to = field(word, 0) as usize;
        let from = self.addresses.get(field(word, 5) as usize).copied().flatten();
        let address = match word {
            // adrp
            _ if word & 0x9f00_0000 == 0x9000_0000 => Some(page(word, at)),
            // add x, x, #imm
            _ if word & 0xffc0_0000 == 0x9100_0000 => {
                from.map(|from| from.wrapping_add(u64::from(word >> 10 & 0xfff)))
            }
            _ => None,
        };
        // ldr x, [x, #imm]
        let slot = from.filter(|_| word & 0xffc0_0000 == 0xf940_0000);
        let slot = slot.map(|from| from.wrapping_add(8 * u64::from(word >> 10 & 0xfff)));
        let is_call = matches!(flow(word, at), Flow::Call(_));
        let forgotten = if is_call {
            u32::MAX
        } else {
            written(word).unwrap_or(u32::MAX)
        };
        for number in 0..31 {
            if forgotten >> number & 1 == 1 {
                self.addresses[number] = None;
                self.loaded_from[number] = None;
            }
        }
        if to < 31 {
            self.addresses[to] = address.or(self.addresses[to]);
            self.loaded_from[to] = slot.or(self.loaded_from[to]);
        }
    }
}

/// Result of an `adrp`.
fn page(word: u32, at: Svma) -> Svma {
    const PAGE_SHIFT: u32 = 12;
    let pages = word >> 5 & 0x7_ffff;
    // The 21-bit number of pages (immhi:immlo), at the top of the word: the shift back extends its sign.
    let pages = (pages << 2 | word >> 29 & 3) << 11;
    let distance = i64::from(pages.cast_signed()) >> 11 << PAGE_SHIFT;
    let page = at.get() >> PAGE_SHIFT << PAGE_SHIFT;
    Svma::new(page.wrapping_add_signed(distance))
}

#[cfg(test)]
mod tests;
