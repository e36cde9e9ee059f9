//! Code of x86-64, where the thread pointer is the base of `fs`.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use unwind_tables::addr::Svma;

use super::Noted;

/// State while a function's code is read: the value that it has loaded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Nothing,
    /// A register has the word at an address.
    Word(Register, Svma),
    /// The first argument is an address.
    Argument(Svma),
    /// `__tls_get_addr` has returned the address of the variables that the two words at an address name.
    Variables(Svma),
}

/// Finds the place from which a function's code reads its result. `word` returns the file's word at an
/// address, if the loader does not change it.
pub(super) fn by_code(code: &[u8], start: Svma, word: impl Fn(Svma) -> Option<u64>) -> Option<Noted> {
    let mut decoder = Decoder::with_ip(64, code, start.get(), DecoderOptions::NONE);
    let mut loaded = Loaded::Nothing;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if let Some(found) = returned(&instruction, loaded, &word) {
            return Some(found);
        }
        loaded = after(&instruction, loaded)?;
    }
    None
}

/// Place from which an instruction reads the variable, if it does.
fn returned(instruction: &Instruction, loaded: Loaded, word: impl Fn(Svma) -> Option<u64>) -> Option<Noted> {
    let reads = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == Register::RAX
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None;
    if !reads {
        return None;
    }
    let is_of_thread = instruction.segment_prefix() == Register::FS;
    let displacement = instruction.memory_displacement64();
    let base = instruction.memory_base();
    match loaded {
        Loaded::Nothing => {
            // The variables of a program end at the thread pointer (variant II). At 0 is the pointer itself.
            let distance = displacement.cast_signed();
            let is_variable = is_of_thread && base == Register::None && distance < 0;
            is_variable.then_some(Noted::Fixed { distance })
        }
        Loaded::Word(register, distance) => {
            let is_variable = is_of_thread && base == register && displacement == 0;
            is_variable.then_some(Noted::Distance { distance })
        }
        Loaded::Variables(object) if !is_of_thread && base == Register::RAX => {
            // An offset is in the code if other variables of the object are found by the same words.
            let more = word(object.wrapping_add(8))?;
            let offset = u32::try_from(displacement.checked_add(more)?).ok()?;
            Some(Noted::Object { object, offset })
        }
        Loaded::Variables(_) | Loaded::Argument(_) => None,
    }
}

/// The state after an instruction; `None` if its effect, or the next instruction, is unknown.
fn after(instruction: &Instruction, loaded: Loaded) -> Option<Loaded> {
    /// Instructions with which any function begins and ends.
    const FRAME: [Mnemonic; 4] = [Mnemonic::Endbr64, Mnemonic::Push, Mnemonic::Pop, Mnemonic::Nop];
    let flow = instruction.flow_control();
    if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
        let Loaded::Argument(object) = loaded else {
            return None;
        };
        return Some(Loaded::Variables(object));
    }
    if flow != FlowControl::Next || instruction.is_invalid() {
        return None;
    }
    let mnemonic = instruction.mnemonic();
    if instruction.is_ip_rel_memory_operand() {
        let at = Svma::new(instruction.ip_rel_memory_address());
        let to = instruction.op0_register();
        let is_argument = mnemonic == Mnemonic::Lea && to == Register::RDI;
        let word = (mnemonic == Mnemonic::Mov).then_some(Loaded::Word(to, at));
        return word.or(is_argument.then_some(Loaded::Argument(at)));
    }
    let is_pointer = [instruction.op0_register(), instruction.op1_register()].contains(&Register::RSP);
    let moves = is_pointer && [Mnemonic::Mov, Mnemonic::Sub, Mnemonic::Add].contains(&mnemonic);
    (FRAME.contains(&mnemonic) || moves).then_some(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;
    /// The word behind the object's number, in the tests' files.
    const MORE: u64 = 16;

    fn found(code: &[u8]) -> Option<Noted> {
        by_code(code, Svma::new(START), |at| (at.get() > START).then_some(MORE))
    }

    /// A program's variable: `endbr64; mov rax, fs:[-40]; ret` of Debian's python3.15.
    #[test]
    fn of_a_program() {
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff, 0xc3,
        ];
        assert_eq!(found(&code), Some(Noted::Fixed { distance: -40 }));
        assert_eq!(found(&code[..9]), None);
        // The thread pointer itself.
        assert_eq!(found(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0xc3]), None);
    }

    /// A variable of a library that is loaded at the start: `mov rax, [rip+9]; mov rax, fs:[rax]; ret`.
    #[test]
    fn of_a_library_from_the_start() {
        let code = [0x48, 0x8b, 0x05, 9, 0, 0, 0, 0x64, 0x48, 0x8b, 0x00, 0xc3];
        let distance = Svma::new(START + 7 + 9);
        assert_eq!(found(&code), Some(Noted::Distance { distance }));
        // Another register than the loaded one.
        let other = [0x48, 0x8b, 0x15, 9, 0, 0, 0, 0x64, 0x48, 0x8b, 0x00, 0xc3];
        assert_eq!(found(&other), None);
    }

    /// A variable of any library: `endbr64; push rbp; mov rbp, rsp; lea rdi, [rip+0x100]; call; pop rbp; mov
    /// rax, [rax+0x28]; ret` of Debian's libpython3.15.
    #[test]
    fn of_any_library() {
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x3d, 0, 1, 0, 0, 0xe8, 1, 2, 3, 0,
            0x5d, 0x48, 0x8b, 0x80, 0x28, 0, 0, 0, 0xc3,
        ];
        let object = Svma::new(START + 15 + 0x100);
        let offset = 0x28 + 16;
        assert_eq!(found(&code), Some(Noted::Object { object, offset }));
        // Without the call, it is something else.
        let without = [&code[..15], &code[20..]].concat();
        assert_eq!(found(&without), None);
    }

    /// A function that branches on the way is not known, nor is one that ends before it has read the
    /// variable: 3.14's asks for a pthread key.
    #[test]
    fn others_are_not_known() {
        let old = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x83, 0x3d, 0x59, 0x90, 0x76, 0, 0, 0x74, 0x0a, 0xbf, 0xe0, 0x50, 0xb9, 0,
        ];
        assert_eq!(found(&old), None);
        for code in [&[][..], &[0xc3], &[0x31, 0xc0, 0xc3], &[0x06]] {
            assert_eq!(found(code), None, "{code:x?}");
        }
    }
}
