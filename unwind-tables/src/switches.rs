//! Code of Go's runtime at which walks end, whatever its CFI says: it is on another stack, or has no caller.
//!
//! Go calls C on another stack, by the function `asmcgocall` of its runtime, whose CFI describes the stack
//! that it left. Applied during the call, that CFI would read data of earlier calls on the other stack. Other
//! functions do the same (`systemstack`, `mcall`, `cgocallback`, `nanotime1`); Go's table of functions says
//! which (`go_table`). In each of them, all code behind the first instruction that moves the stack pointer
//! elsewhere is marked: it may be on the other stack. Without such a table, calls are recognized by the
//! instructions that restore the stack.
//!
//! A goroutine's first function returns to `goexit`. Its CFI would lead to whatever is above it on the stack.
//! The table says that it is the outermost function of its stack.

use std::ops::Range;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::elf::ElfView;
use crate::go_table;
use crate::packed::PackedRule;
use crate::ranges;
use crate::rule::Reason;
use crate::table::{Row, mark};

/// Sections that Go's linker makes in every program, or in every object. The latter remain if another linker
/// has put the object into a program, and has removed everything that is not referred to.
const GO: [&[u8]; 3] = [b".go.buildinfo", b".gopclntab", b".noptrdata"];
/// `call *%rax`.
const X86_64_CALL: &[u8] = &[0xff, 0xd0];
/// Position-independent code loads the offset of the goroutine's descriptor first, by an instruction of 7
/// bytes: `mov $-8, %rcx` or `mov x(%rip), %rcx`.
const X86_64_LOADS: [&[u8]; 2] = [&[0x48, 0xc7, 0xc1], &[0x48, 0x8b, 0x0d]];
const X86_64_LOAD_BYTES: usize = 7;
/// Instructions behind the call, which restore the stack.
const X86_64: [&[u8]; 2] = [
    // From the goroutine's descriptor: the stack's upper end (at 8) minus the saved depth.
    &[
        0x48, 0x8b, 0x7c, 0x24, 0x30, // mov 0x30(%rsp), %rdi
        0x48, 0x8b, 0x77, 0x08, // mov 0x8(%rdi), %rsi
        0x48, 0x2b, 0x74, 0x24, 0x28, // sub 0x28(%rsp), %rsi
    ],
    // Without a switch: the stack pointer before it was aligned.
    &[
        0x48, 0x8b, 0x74, 0x24, 0x28, // mov 0x28(%rsp), %rsi
        0x48, 0x89, 0xf4, // mov %rsi, %rsp
    ],
];
/// `blr x1`.
const AARCH64_CALL: &[u8] = &[0x20, 0x00, 0x3f, 0xd6];
/// Instructions behind the call, on AArch64.
const AARCH64: [&[u8]; 2] = [
    &[
        0xe9, 0x03, 0x00, 0xaa, // mov x9, x0
        0xfc, 0x03, 0x40, 0xf9, // ldr x28, [sp]
    ],
    &[
        0xe2, 0x07, 0x40, 0xf9, // ldr x2, [sp, #8]
        0x5f, 0x00, 0x00, 0x91, // mov sp, x2
    ],
];

/// Addresses at which the CFI does not apply: merged ranges.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Code that may be on another stack than the one that the CFI describes.
    switched: Vec<Range<Svma>>,
    /// Code that has no caller.
    outermost: Vec<Range<Svma>>,
}

/// Finds these addresses in the code of an object; there are none if it is not Go's.
pub(crate) fn find(view: &ElfView<'_>, code: &[Range<Svma>]) -> Ends {
    if !GO.iter().any(|name| view.has_section(name)) {
        return Ends::default();
    }
    let (switched, outermost) = match go_table::ends(view) {
        Some(ends) => (behind_switches(view, ends.sp_writers), ends.outermost),
        None => (calls(view, code), Vec::new()),
    };
    Ends {
        switched: ranges::merge(switched),
        outermost: ranges::merge(outermost),
    }
}

/// Returns the part of each function behind the first instruction that moves the stack pointer; the whole
/// function if there is no known one.
fn behind_switches(view: &ElfView<'_>, functions: Vec<Range<Svma>>) -> Vec<Range<Svma>> {
    let find = match view.architecture() {
        Architecture::X86_64 => x86_64_switch,
        Architecture::Aarch64 => aarch64_switch,
    };
    let mut bytes_of = view.code_bytes();
    let part = |function: Range<Svma>| {
        let bytes = bytes_of(&function)?;
        let start = find(bytes).map_or(function.start, |at| function.start.wrapping_add(at as u64 + 1));
        Some(start..function.end)
    };
    functions.into_iter().filter_map(part).collect()
}

/// Offset of the first bytes that move the stack pointer: `mov REGISTER, %rsp`, `mov MEMORY, %rsp`, or `and
/// NUMBER, %rsp`. The match can be too early, within another instruction, but not too late.
fn x86_64_switch(code: &[u8]) -> Option<usize> {
    const WITH_W: u8 = 0x48;
    const W_AND_R: u8 = 0x4c;
    const W_AND_B: u8 = 0x49;
    code.windows(3).position(|bytes| match *bytes {
        [WITH_W | W_AND_R, 0x89, modrm] => modrm & 0xc7 == 0xc4,
        [WITH_W | W_AND_B, 0x8b, modrm] => modrm & 0x38 == 0x20,
        [WITH_W, 0x81 | 0x83, modrm] => modrm == 0xe4,
        _ => false,
    })
}

/// Offset of the first instruction that moves the stack pointer: it adds or subtracts a number to or from
/// another register (0 for `mov`), or a register, or it masks one.
fn aarch64_switch(code: &[u8]) -> Option<usize> {
    const SP: u32 = 31;
    let moves = |bytes: &[u8]| {
        let word = bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
        let (to, from) = (word & 31, word >> 5 & 31);
        let adds_number = word & 0xbf80_0000 == 0x9100_0000 && from != SP;
        let adds_register = word & 0xbfe0_0000 == 0x8b20_0000;
        let masks = word & 0xff80_0000 == 0x9200_0000;
        to == SP && (adds_number || adds_register || masks)
    };
    code.chunks_exact(4).position(moves).map(|at| 4 * at)
}

/// Returns the last byte of each call that is followed by instructions that restore the stack: the byte where
/// its return address is looked up.
fn calls(view: &ElfView<'_>, code: &[Range<Svma>]) -> Vec<Range<Svma>> {
    let (call, codes) = match view.architecture() {
        Architecture::X86_64 => (X86_64_CALL, X86_64),
        Architecture::Aarch64 => (AARCH64_CALL, AARCH64),
    };
    let is_call = |bytes: &[u8]| {
        let Some(behind) = bytes.strip_prefix(call) else {
            return false;
        };
        let loads = call == X86_64_CALL && X86_64_LOADS.iter().any(|load| behind.starts_with(load));
        let behind = behind.get(if loads { X86_64_LOAD_BYTES } else { 0 }..);
        behind.is_some_and(|behind| codes.iter().any(|code| behind.starts_with(code)))
    };
    let mut bytes_of = view.code_bytes();
    let mut found = Vec::new();
    for range in code {
        let Some(bytes) = bytes_of(range) else { continue };
        let calls = (0..bytes.len()).filter(|at| is_call(&bytes[*at..]));
        found.extend(calls.map(|at| {
            let end = range.start.wrapping_add((at + call.len()) as u64);
            range.start.wrapping_add((at + call.len() - 1) as u64)..end
        }));
    }
    found
}

impl Ends {
    /// Marks these addresses in `rows`, which ascend. Rows that end the stack stay: they are right on any
    /// stack.
    pub(crate) fn mark(&self, rows: &mut Vec<Row<PackedRule>>) {
        mark(rows, &self.switched, PackedRule::unsupported(Reason::StackSwitch));
        mark(rows, &self.outermost, PackedRule::END_OF_STACK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions that move the stack pointer elsewhere are recognized; instructions that step or read it
    /// are not taken for them.
    #[test]
    fn moves_of_the_stack_pointer_are_known() {
        let x86_64: [(&[u8], bool); 8] = [
            (&[0x48, 0x8b, 0x66, 0x38], true),                    // mov 0x38(%rsi), %rsp
            (&[0x48, 0x89, 0xdc], true),                          // mov %rbx, %rsp
            (&[0x4c, 0x89, 0xe4], true),                          // mov %r12, %rsp
            (&[0x48, 0x83, 0xe4, 0xf0], true),                    // and $-16, %rsp
            (&[0x48, 0x83, 0xec, 0x40], false),                   // sub $0x40, %rsp
            (&[0x48, 0x89, 0xe3], false),                         // mov %rsp, %rbx
            (&[0x48, 0x8b, 0x44, 0x24, 0x08], false),             // mov 0x8(%rsp), %rax
            (&[0x48, 0x81, 0xc4, 0x00, 0x01, 0x00, 0x00], false), // add $0x100, %rsp
        ];
        for (code, moves) in x86_64 {
            assert_eq!(
                x86_64_switch(&[&[0x90], code].concat()),
                moves.then_some(1),
                "{code:x?}"
            );
        }
        let aarch64 = [
            (0x9100_001f_u32, true), // mov sp, x0
            (0xd100_43bf, true),     // sub sp, x29, #16
            (0x927c_ed9f, true),     // and sp, x12, #~15
            (0xcb21_63ff, true),     // sub sp, sp, x1
            (0xd100_83ff, false),    // sub sp, sp, #32
            (0x9100_03e2, false),    // mov x2, sp
            (0xa9be_7bfd, false),    // stp x29, x30, [sp, #-32]!
        ];
        for (word, moves) in aarch64 {
            let code = [0xd503_201f_u32.to_le_bytes(), word.to_le_bytes()].concat();
            assert_eq!(aarch64_switch(&code), moves.then_some(4), "{word:x}");
        }
    }
}
