//! Calls in machine code: the places that a stack's return addresses can come from. Pure: bytes in, addresses out.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use unwind_tables::addr::Svma;

/// The addresses behind the calls in `code`, whose first instruction is at `start`.
///
/// Bytes that are no instruction are skipped one by one; data between functions can hide a call or feign one.
pub fn return_addresses(code: &[u8], start: Svma) -> impl Iterator<Item = Svma> + '_ {
    let mut decoder = Decoder::with_ip(64, code, start.get(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    std::iter::from_fn(move || {
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            ) && !instruction.is_invalid()
            {
                return Some(Svma::new(instruction.next_ip()));
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direct and indirect calls are found, whatever stands between them; jumps and system calls are none.
    #[test]
    fn calls_are_found() {
        let code = [
            0xe8, 1, 0, 0, 0, // call rel32, up to 0x1005
            0xeb, 0, // jmp
            0x0f, 0x05, // syscall
            0xff, 0xd0, // call *%rax, up to 0x100b
            0x06, // no instruction
            0x41, 0xff, 0x54, 0x24, 0x08, // call *8(%r12), up to 0x1011
            0xff, 0xe0, // jmp *%rax
            0xe8, 1, // cut short
        ];
        let found: Vec<_> = return_addresses(&code, Svma::new(0x1000)).collect();
        assert_eq!(found, [0x1005, 0x100b, 0x1011].map(Svma::new));
    }
}
