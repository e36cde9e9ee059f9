//! Call instructions in machine code, whose return addresses a stack can contain. Pure: bytes in, addresses
//! out.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use unwind_tables::Architecture;
use unwind_tables::addr::{Svma, contains};
use unwind_tables::elf::Segment;
use unwind_tables::walk::is_branch_with_link;

/// Return addresses of the calls in `code`, whose first instruction is at `start`.
///
/// Bytes that are not an instruction are skipped one by one; data between functions can hide a call or look
/// like one.
pub fn return_addresses(
    architecture: Architecture,
    code: &[u8],
    start: Svma,
) -> Box<dyn Iterator<Item = Svma> + '_> {
    match architecture {
        Architecture::X86_64 => Box::new(x86_64(code, start)),
        Architecture::Aarch64 => Box::new(aarch64(code, start)),
    }
}

fn aarch64(code: &[u8], start: Svma) -> impl Iterator<Item = Svma> + '_ {
    let (instructions, _) = code.as_chunks::<4>();
    let behind = (1..).map(move |number: u64| start.wrapping_add(4 * number));
    let calls = instructions
        .iter()
        .zip(behind)
        .filter(|&(&instruction, _)| is_branch_with_link(u32::from_le_bytes(instruction)));
    calls.map(|(_, behind)| behind)
}

fn x86_64(code: &[u8], start: Svma) -> impl Iterator<Item = Svma> + '_ {
    let mut decoder = Decoder::with_ip(64, code, start.get(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    std::iter::from_fn(move || {
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            // Not by `flow_control()`: it counts a system call as a call, too.
            if instruction.is_call_near() || instruction.is_call_near_indirect() {
                return Some(Svma::new(instruction.next_ip()));
            }
        }
        None
    })
}

/// Bytes of the code in `range`, up to the end of the segment that contains its start; empty if none does.
pub fn code_at<'a>(elf: &'a [u8], segments: &[Segment], range: &Range<Svma>) -> &'a [u8] {
    let holds = |segment: &&Segment| segment.executable && contains(&segment.file_backed(), range.start);
    let code = segments.iter().find(holds).and_then(|segment| {
        let into = range.start.offset_from(segment.svma.start);
        let length = range.end.min(segment.file_backed().end).offset_from(range.start);
        let from = usize::try_from(segment.offset.start.get().checked_add(into)?).ok()?;
        elf.get(from..from.checked_add(usize::try_from(length).ok()?)?)
    });
    code.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direct and indirect calls are found, with any instructions between them; jumps and system calls are
    /// not calls.
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
        let found: Vec<_> = return_addresses(Architecture::X86_64, &code, Svma::new(0x1000)).collect();
        assert_eq!(found, [0x1005, 0x100b, 0x1011].map(Svma::new));
    }

    /// AArch64 calls are found, with and without authentication; a jump by a register is not a call.
    #[test]
    fn calls_of_aarch64_are_found() {
        let code = [
            0x9400_0001_u32, // bl, up to 0x1004
            0x1400_0001,     // b
            0xd63f_0100,     // blr x8, up to 0x100c
            0xd61f_0100,     // br x8
            0xd73f_0909,     // blraa x8, x9, up to 0x1014
            0xd63f_0d1f,     // blrabz x8, up to 0x1018
            0xd65f_03c0,     // ret
        ];
        let code = code.map(u32::to_le_bytes);
        let found = return_addresses(Architecture::Aarch64, code.as_flattened(), Svma::new(0x1000));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [0x1004, 0x100c, 0x1014, 0x1018].map(Svma::new));
    }
}
