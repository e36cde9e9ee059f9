//! Code of AArch64, where the thread pointer is `tpidr_el0`: computes what a short function without branches
//! returns, by the values of its registers.

use unwind_tables::addr::Svma;

use super::Noted;

/// Bytes at the thread pointer that belong to the loader. The variables of a program follow (variant I).
const LOADERS_OWN: i64 = 16;
/// Bytes of a page, as `adrp` counts.
const PAGE: u64 = 1 << 12;
/// Number of a register whose value is not followed: the stack pointer, or zero.
const NO_REGISTER: usize = 31;

/// A register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    Number(u64),
    Address(Svma),
    /// `thread pointer + distance`
    Thread(i64),
    /// The word at an address.
    Word(Svma),
    /// The distance from the thread pointer that the loader's function returns for the descriptor at an
    /// address.
    Described(Svma),
    /// The address of a variable of the thread.
    Variable(Noted),
    /// The content of such a variable.
    Content(Noted),
}

/// Finds the place from which a function's code reads its result.
pub(super) fn by_code(code: &[u8], start: Svma) -> Option<Noted> {
    let Value::Content(noted) = returned(code, start)? else {
        return None;
    };
    Some(noted)
}

/// Distance below the thread pointer of the address that a function's code returns: glibc's `pthread_self`.
pub(in super::super) fn distance_below(code: &[u8]) -> Option<u64> {
    let Value::Thread(distance) = returned(code, Svma::new(0))? else {
        return None;
    };
    (distance < 0).then_some(distance.unsigned_abs())
}

/// The value that a function returns; `None` if the effect of an instruction is unknown, or the code does not
/// end in a return.
fn returned(code: &[u8], start: Svma) -> Option<Value> {
    const RET: u32 = 0xd65f_03c0;
    const RETAA: u32 = 0xd65f_0bff;
    const RETAB: u32 = 0xd65f_0fff;
    let mut registers = Registers([Value::Unknown; NO_REGISTER]);
    let (words, _) = code.as_chunks::<4>();
    for (number, word) in (0..).zip(words) {
        let word = u32::from_le_bytes(*word);
        if [RET, RETAA, RETAB].contains(&word) {
            return Some(registers.get(0));
        }
        registers.execute(word, start.wrapping_add(4 * number))?;
    }
    None
}

/// The registers `x0` to `x30`.
struct Registers([Value; NO_REGISTER]);

impl Registers {
    fn get(&self, number: usize) -> Value {
        self.0.get(number).copied().unwrap_or(Value::Unknown)
    }

    fn set(&mut self, number: usize, value: Value) {
        if let Some(register) = self.0.get_mut(number) {
            *register = value;
        }
    }

    /// Executes an instruction (Arm ARM, C4.1); `None` if it is not one of those that such functions have.
    fn execute(&mut self, word: u32, at: Svma) -> Option<()> {
        let register = |low: u32| (word >> low & 31) as usize;
        let (to, from, other) = (register(0), register(5), register(16));
        let immediate = u64::from(word >> 10 & 0xfff);
        let value = match word {
            // Hints, as `bti` and `paciasp`; `stp x29, x30, [sp, #n]!` and `ldp x29, x30, [sp], #n`.
            _ if word & 0xffff_f01f == 0xd503_201f => return Some(()),
            _ if [0xa980_7bfd, 0xa8c0_7bfd].contains(&(word & 0xffc0_7fff)) => return Some(()),
            // mrs tpidr_el0; adrp
            _ if word & 0xffff_ffe0 == 0xd53b_d040 => Value::Thread(0),
            _ if word & 0x9f00_0000 == 0x9000_0000 => Value::Address(page(word, at)),
            // add and sub with an immediate, add and mov (orr) of registers
            _ if word & 0xbf80_0000 == 0x9100_0000 => {
                let added = immediate << (12 * (word >> 22 & 1));
                let is_sub = word >> 30 & 1 == 1;
                let added = if is_sub { added.wrapping_neg() } else { added };
                sum(self.get(from), Value::Number(added))
            }
            _ if word & 0xffe0_fc00 == 0x8b00_0000 => sum(self.get(from), self.get(other)),
            _ if word & 0xffe0_ffe0 == 0xaa00_03e0 => self.get(other),
            // movz, movk
            _ if word & 0xff80_0000 == 0xd280_0000 => Value::Number(half(word)),
            _ if word & 0xff80_0000 == 0xf280_0000 => {
                let Value::Number(before) = self.get(to) else {
                    return None;
                };
                Value::Number(before & !mask(word) | half(word))
            }
            // ldr with an immediate, and with a register
            _ if word & 0xffc0_0000 == 0xf940_0000 => {
                content(sum(self.get(from), Value::Number(8 * immediate)))
            }
            _ if word & 0xffe0_fc00 == 0xf860_6800 => content(sum(self.get(from), self.get(other))),
            // blr: the function of a descriptor, which preserves all registers but the one of its result.
            _ if word & 0xffff_fc1f == 0xd63f_0000 => {
                return match (self.get(from), self.get(0)) {
                    (Value::Word(function), Value::Address(descriptor)) if function == descriptor => {
                        self.set(0, Value::Described(descriptor));
                        Some(())
                    }
                    _ => None,
                };
            }
            _ => return None,
        };
        self.set(to, value);
        Some(())
    }
}

/// The page that an `adrp` names.
fn page(word: u32, at: Svma) -> Svma {
    let number = (word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3;
    // The sign is its bit 20.
    let pages = i64::from((number << 11).cast_signed() >> 11);
    let here = at.get() & !(PAGE - 1);
    Svma::new(here.wrapping_add(pages.cast_unsigned().wrapping_mul(PAGE)))
}

/// Number of bits by which a `movz` or `movk` shifts its half word.
fn shift(word: u32) -> u32 {
    16 * (word >> 21 & 3)
}

fn half(word: u32) -> u64 {
    u64::from(word >> 5 & 0xffff) << shift(word)
}

fn mask(word: u32) -> u64 {
    0xffff << shift(word)
}

fn sum(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => Value::Number(one.wrapping_add(other)),
        (Value::Address(address), Value::Number(number)) => Value::Address(address.wrapping_add(number)),
        (Value::Thread(distance), Value::Number(number))
        | (Value::Number(number), Value::Thread(distance)) => {
            Value::Thread(distance.wrapping_add(number.cast_signed()))
        }
        (Value::Thread(0), Value::Word(distance)) | (Value::Word(distance), Value::Thread(0)) => {
            Value::Variable(Noted::Distance { distance })
        }
        (Value::Thread(0), Value::Described(descriptor))
        | (Value::Described(descriptor), Value::Thread(0)) => {
            Value::Variable(Noted::Descriptor { descriptor })
        }
        (value, Value::Number(0)) => value,
        _ => Value::Unknown,
    }
}

/// The content of memory at an address.
fn content(address: Value) -> Value {
    match address {
        Value::Address(address) => Value::Word(address),
        Value::Thread(distance) if distance >= LOADERS_OWN => Value::Content(Noted::Fixed { distance }),
        Value::Variable(noted) => Value::Content(noted),
        Value::Unknown
        | Value::Number(_)
        | Value::Thread(_)
        | Value::Word(_)
        | Value::Described(_)
        | Value::Content(_) => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x3c_4ca0;
    const RET: u32 = 0xd65f_03c0;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn found(words: &[u32]) -> Option<Noted> {
        by_code(&code(words), Svma::new(START))
    }

    /// A program's variable: `add x0, x0, #0, lsl #12; add x0, x0, #0x20; ldr x0, [x0]` of Debian's
    /// python3.15.
    #[test]
    fn of_a_program() {
        let words = [
            0xd503_245f,
            0xd53b_d040,
            0xd503_233f,
            0xa9bf_7bfd,
            0x9140_0000,
            0x9100_8000,
            0x9100_03fd,
            0xa8c1_7bfd,
            0xd503_23bf,
            0xf940_0000,
            RET,
        ];
        assert_eq!(found(&words), Some(Noted::Fixed { distance: 0x20 }));
        assert_eq!(found(&words[..10]), None, "it does not return");
        // `mrs x1, tpidr_el0; movz x0, #1, lsl #16; movk x0, #0x10; nop; ldr x0, [x1, x0]`: what linkers make
        // of a library's code.
        let relaxed = [
            0xd53b_d041,
            0xd2a0_0020,
            0xf280_0200,
            0xd503_201f,
            0xf860_6820,
            RET,
        ];
        assert_eq!(found(&relaxed), Some(Noted::Fixed { distance: 0x1_0010 }));
        // The loader's own words: `mrs x0, tpidr_el0; ldr x0, [x0, #8]`.
        assert_eq!(found(&[0xd53b_d040, 0xf940_0400, RET]), None);
    }

    /// A variable of a library that is loaded at the start: `adrp x0, …; ldr x0, [x0, #4024]; mrs x1,
    /// tpidr_el0; ldr x0, [x1, x0]`.
    #[test]
    fn of_a_library_from_the_start() {
        let words = [
            0xd503_245f,
            0xf000_00e0,
            0xf947_dc00,
            0xd53b_d041,
            0xf860_6820,
            RET,
        ];
        let distance = Svma::new(0x3c_4000 + 0x1_f000 + 4024);
        assert_eq!(found(&words), Some(Noted::Distance { distance }));
        // Another register than the loaded one.
        let other = [0xf000_00e0, 0xf947_dc00, 0xd53b_d041, 0xf862_6820, RET];
        assert_eq!(found(&other), None);
        // The word itself.
        assert_eq!(found(&[0xf000_00e0, 0xf947_dc00, RET]), None);
    }

    /// A variable of any library: `adrp x0, 881000; ldr x2, [x0, #720]; add x0, x0, #720; blr x2; ldr x0,
    /// [x1, x0]` of Debian's libpython3.15.
    #[test]
    fn of_any_library() {
        let words = [
            0xd503_233f,
            0xd53b_d041,
            0xa9bf_7bfd,
            0x9100_03fd,
            0xb000_25e0,
            0xf941_6802,
            0x910b_4000,
            0xd63f_0040,
            0xf860_6820,
            0xa8c1_7bfd,
            0xd503_23bf,
            RET,
        ];
        let descriptor = Svma::new(0x88_12d0);
        assert_eq!(found(&words), Some(Noted::Descriptor { descriptor }));
        // Not optimized: `mrs x1, tpidr_el0; add x0, x1, x0; ldr x0, [x0]` behind the call.
        let plain = [&words[4..8], &[0xd53b_d041, 0x8b00_0020, 0xf940_0000, RET]].concat();
        assert!(matches!(found(&plain), Some(Noted::Descriptor { .. })));
        // Without the call, and with that of another descriptor's function, it is something else.
        let without = [&words[..7], &words[8..]].concat();
        assert_eq!(found(&without), None);
        let mut other = words;
        other[6] = 0x910b_6000;
        assert_eq!(found(&other), None);
    }

    /// glibc's `pthread_self`, of Debian 11, 12 and 13: `mrs x0, tpidr_el0; sub x0, x0, #n`.
    #[test]
    fn of_threads() {
        let below = |words: &[u32]| distance_below(&code(words));
        assert_eq!(below(&[0xd53b_d040, 0xd11c_0000, RET]), Some(0x700));
        assert_eq!(below(&[0xd53b_d040, 0xd11d_0000, RET]), Some(0x740));
        assert_eq!(below(&[0xd503_245f, 0xd53b_d040, 0xd11c_8000, RET]), Some(0x720));
        // The thread pointer itself, and what is above it.
        assert_eq!(below(&[0xd53b_d040, RET]), None);
        assert_eq!(below(&[0xd53b_d040, 0x911c_8000, RET]), None);
        assert_eq!(below(&[]), None);
    }

    /// A function that branches on the way is not known, nor is a word that is no instruction.
    #[test]
    fn others_are_not_known() {
        // `mrs x0, tpidr_el0` and then `cbz`, `bl`, `b`, `ldr w0, [x0, #32]`, zeros.
        for word in [0xb400_0040, 0x9400_0010, 0x1400_0010, 0xb940_2000, 0] {
            assert_eq!(found(&[0xd53b_d040, word, 0xf940_1000, RET]), None, "{word:#x}");
        }
        assert_eq!(found(&[RET]), None);
        assert_eq!(by_code(&[0xc0, 0x03, 0x5f], Svma::new(START)), None);
    }
}
