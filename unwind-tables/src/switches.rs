//! Calls on another stack that the CFI does not describe, recognized by their code.
//!
//! Go calls C on another stack, by the function `asmcgocall` of its runtime, whose CFI describes the stack that it left.
//! Applied during the call, it would read data of earlier calls on the other stack.

use std::ops::Range;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::elf::ElfView;
use crate::packed::PackedRule;
use crate::rule::Reason;
use crate::table::Row;

/// Section that Go's linker makes in every program.
const GO: &[u8] = b".go.buildinfo";
/// Instructions from the call on, which restore the stack.
const X86_64: [&[u8]; 2] = [
    // From the goroutine's descriptor: the stack's upper end (at 8) minus the saved depth.
    &[
        0xff, 0xd0, // call *%rax
        0x48, 0x8b, 0x7c, 0x24, 0x30, // mov 0x30(%rsp), %rdi
        0x48, 0x8b, 0x77, 0x08, // mov 0x8(%rdi), %rsi
        0x48, 0x2b, 0x74, 0x24, 0x28, // sub 0x28(%rsp), %rsi
    ],
    // Without a switch: the stack pointer before it was aligned.
    &[
        0xff, 0xd0, // call *%rax
        0x48, 0x8b, 0x74, 0x24, 0x28, // mov 0x28(%rsp), %rsi
        0x48, 0x89, 0xf4, // mov %rsi, %rsp
    ],
];
/// Instructions from the call on, on AArch64.
const AARCH64: [&[u8]; 2] = [
    &[
        0x20, 0x00, 0x3f, 0xd6, // blr x1
        0xe9, 0x03, 0x00, 0xaa, // mov x9, x0
        0xfc, 0x03, 0x40, 0xf9, // ldr x28, [sp]
    ],
    &[
        0x20, 0x00, 0x3f, 0xd6, // blr x1
        0xe2, 0x07, 0x40, 0xf9, // ldr x2, [sp, #8]
        0x5f, 0x00, 0x00, 0x91, // mov sp, x2
    ],
];

/// Returns the address of each such call's last byte, where its return address is looked up.
pub(crate) fn find(view: &ElfView<'_>, code: &[Range<Svma>]) -> Vec<Svma> {
    if !view.has_section(GO) {
        return Vec::new();
    }
    let (codes, call_bytes) = match view.architecture() {
        Architecture::X86_64 => (X86_64, 2),
        Architecture::Aarch64 => (AARCH64, 4),
    };
    let mut bytes_of = view.code_bytes();
    let mut found = Vec::new();
    for range in code {
        let Some(bytes) = bytes_of(range) else { continue };
        let is_call = |at: &usize| codes.iter().any(|code| bytes[*at..].starts_with(code));
        let calls = (0..bytes.len()).filter(is_call);
        found.extend(calls.map(|at| range.start.wrapping_add((at + call_bytes - 1) as u64)));
    }
    found
}

/// Marks each of `calls` as unsupported in `rows`; both must ascend.
pub(crate) fn mark(rows: &mut Vec<Row<PackedRule>>, calls: &[Svma]) {
    for &call in calls {
        let behind = call.wrapping_add(1);
        let at = rows.partition_point(|row| row.start < call);
        let end = rows.partition_point(|row| row.start <= behind);
        let Some(rule_behind) = end.checked_sub(1).map(|last| rows[last].rule) else {
            continue;
        };
        let row = |start, rule| Row { start, rule };
        let marked = [
            row(call, PackedRule::unsupported(Reason::StackSwitch)),
            row(behind, rule_behind),
        ];
        rows.splice(at..end, marked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: u64, rule: PackedRule) -> Row<PackedRule> {
        Row {
            start: Svma::new(start),
            rule,
        }
    }

    /// Returns the rule of rows for an address.
    fn rule_at(rows: &[Row<PackedRule>], address: u64) -> PackedRule {
        let after = rows.partition_point(|row| row.start.get() <= address);
        after
            .checked_sub(1)
            .map_or(PackedRule::GAP, |last| rows[last].rule)
    }

    /// Marked rows ascend, have unchanged rules except at the calls, and start at the same addresses otherwise.
    #[test]
    fn marks_change_rules_only_at_calls() {
        let rows = [
            row(10, PackedRule::END_OF_STACK),
            row(20, PackedRule::unsupported(Reason::Malformed)),
            row(30, PackedRule::GAP),
        ];
        for calls in [
            &[15_u64][..],
            &[10],
            &[19],
            &[20],
            &[29],
            &[15, 16, 25],
            &[5],
            &[],
        ] {
            let mut marked = rows.to_vec();
            mark(
                &mut marked,
                &calls.iter().copied().map(Svma::new).collect::<Vec<_>>(),
            );
            assert!(marked.windows(2).all(|pair| pair[0].start < pair[1].start));
            for address in 0..40 {
                let covered = address >= 10 && calls.contains(&address);
                let expected = if covered {
                    PackedRule::unsupported(Reason::StackSwitch)
                } else {
                    rule_at(&rows, address)
                };
                assert_eq!(rule_at(&marked, address), expected, "{address} of {calls:?}");
            }
        }
    }
}
