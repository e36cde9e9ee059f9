//! Functions without CFI whose first instructions set up a frame, as compilers write them: they push the
//! frame pointer, and make it point there. From then on, the frame pointer is their own, and leads to their
//! caller (V8's builtins, assembly, C without unwind tables).
//!
//! The file's symbols say which function an address is in. They are read only if there is such code.

use std::ops::Range;

use memchr::memmem;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::coverage::MAX_PADDING;
use crate::elf::ElfView;
use crate::packed::PackedRule;
use crate::ranges;
use crate::table::Row;

/// `push %rbp; mov %rsp, %rbp`.
const X86_64: &[u8] = &[0x55, 0x48, 0x89, 0xe5];
/// `endbr64`, which a function can begin with.
const X86_64_LANDING: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// `mov x29, sp`, behind `stp x29, x30, [sp, -N]!`.
const AARCH64: &[u8] = &[0xfd, 0x03, 0x00, 0x91];
/// `bti c` or `paciasp`, which a function can begin with.
const AARCH64_LANDINGS: [&[u8]; 2] = [&[0x5f, 0x24, 0x03, 0xd5], &[0x3f, 0x23, 0x03, 0xd5]];

/// Returns the parts of `gaps`, code without CFI, where the frame pointer is the function's own, as merged
/// ranges.
pub(crate) fn find(view: &ElfView<'_>, gaps: &[Range<Svma>]) -> Vec<Range<Svma>> {
    let mut bytes_of = view.code_bytes();
    let mut begun = Vec::new();
    for gap in gaps {
        if let Some(code) = bytes_of(gap) {
            let found = setups(view.architecture(), code);
            begun.extend(
                found.map(|(entry, set)| (gap.start.wrapping_add(entry), gap.start.wrapping_add(set))),
            );
        }
    }
    let (Some(&(first, _)), Some(&(last, _))) = (begun.first(), begun.last()) else {
        return Vec::new();
    };
    // Most functions have CFI, and lie outside.
    let near = view
        .function_symbols()
        .filter(|function| (first..=last).contains(&function.start));
    let functions = near.filter_map(|function| {
        let (_, set) = begun[begun
            .binary_search_by_key(&function.start, |&(entry, _)| entry)
            .ok()?];
        let gap = ranges::find(gaps, set)?;
        Some(set..function.end.min(gap.end))
    });
    ranges::merge(functions)
}

/// Returns pairs of offsets in code, ascending: where a function that sets up a frame may begin, and the end
/// of the instructions that set it up.
fn setups(architecture: Architecture, code: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let setup = match architecture {
        Architecture::X86_64 => X86_64,
        Architecture::Aarch64 => AARCH64,
    };
    memmem::find_iter(code, setup).filter_map(move |at| {
        let entry = match architecture {
            Architecture::X86_64 => without_landing(&code[..at], &[X86_64_LANDING]),
            Architecture::Aarch64 => {
                let (before, push) = code[..at].split_last_chunk::<4>()?;
                let pushes = at % 4 == 0 && u32::from_le_bytes(*push) & 0xffc0_7fff == 0xa980_7bfd;
                pushes.then(|| without_landing(before, &AARCH64_LANDINGS))?
            }
        };
        Some((entry as u64, (at + setup.len()) as u64))
    })
}

/// Length of `code` without one of these instructions at its end.
fn without_landing(code: &[u8], landings: &[&[u8]]) -> usize {
    let mut stripped = landings.iter().filter_map(|landing| code.strip_suffix(*landing));
    stripped.next().unwrap_or(code).len()
}

/// Returns the code in which `rows`, which ascend, have gaps, except padding. None if there are no rows,
/// since there is no table then.
pub(crate) fn gaps(rows: &[Row<PackedRule>], code: &[Range<Svma>]) -> Vec<Range<Svma>> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Vec::new();
    };
    let inside = rows
        .windows(2)
        .filter(|pair| pair[0].rule == PackedRule::GAP)
        .map(|pair| pair[0].start..pair[1].start);
    let before = Svma::new(0)..first.start;
    let behind = last.start..Svma::new(u64::MAX);
    let mut gaps = Vec::new();
    let mut code = code;
    for gap in [before].into_iter().chain(inside).chain([behind]) {
        if gap.end.offset_from(gap.start) <= MAX_PADDING {
            continue;
        }
        let passed = code.partition_point(|range| range.end <= gap.start);
        code = &code[passed..];
        let touched = code.iter().take_while(|range| range.start < gap.end);
        gaps.extend(touched.map(|range| range.start.max(gap.start)..range.end.min(gap.end)));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(architecture: Architecture, code: &[&[u8]]) -> Vec<(u64, u64)> {
        setups(architecture, &code.concat()).collect()
    }

    /// A function may begin with a landing instruction for indirect jumps; other instructions before the
    /// frame is set up belong to another function.
    #[test]
    fn functions_that_set_up_a_frame() {
        let x86_64 = |code: &[&[u8]]| found(Architecture::X86_64, code);
        assert_eq!(x86_64(&[X86_64]), [(0, 4)]);
        assert_eq!(x86_64(&[&[0xc3], X86_64_LANDING, X86_64]), [(1, 9)]);
        assert_eq!(x86_64(&[&[0xcc; 3], X86_64, &[0x90], X86_64]), [(3, 7), (8, 12)]);
        assert_eq!(x86_64(&[&X86_64[..3]]), []);
        let aarch64 = |code: &[&[u8]]| found(Architecture::Aarch64, code);
        let push = 0xa9be_7bfd_u32.to_le_bytes();
        assert_eq!(aarch64(&[&push, AARCH64]), [(0, 8)]);
        assert_eq!(
            aarch64(&[AARCH64, AARCH64_LANDINGS[1], &push, AARCH64]),
            [(4, 16)]
        );
        assert_eq!(aarch64(&[AARCH64_LANDINGS[0], AARCH64]), []);
        assert_eq!(aarch64(&[&[1, 2], &push, AARCH64]), []);
    }

    /// Gaps are those between rows, before the first and behind the last, as far as there is code.
    #[test]
    fn gaps_in_code() {
        let range = |(start, end)| Svma::new(start)..Svma::new(end);
        let row = |(start, rule)| Row {
            start: Svma::new(start),
            rule,
        };
        let (gap, end) = (PackedRule::GAP, PackedRule::END_OF_STACK);
        let rows = [
            (0x100, end),
            (0x200, gap),
            (0x300, end),
            (0x308, gap),
            (0x310, end),
            (0x400, gap),
        ]
        .map(row);
        let code = [
            (0x80, 0x110),
            (0x150, 0x220),
            (0x240, 0x320),
            (0x3f0, 0x410),
            (0x500, 0x508),
        ]
        .map(range);
        let expected = [
            (0x80, 0x100),
            (0x200, 0x220),
            (0x240, 0x300),
            (0x400, 0x410),
            (0x500, 0x508),
        ];
        assert_eq!(gaps(&rows, &code), expected.map(range));
        assert_eq!(gaps(&[], &code), []);
    }
}
