//! Code without a caller, whose own CFI does not say so.
//!
//! glibc's loader begins with assembly without CFI. It calls the function that calls the constructors of
//! libraries, so it is the outermost frame of all allocations that these make. Code without CFI is taken for
//! such assembly if it reaches from the entry point to the next function with CFI, and is short.
//!
//! The first function on a stack of makecontext returns to the first instruction of a glibc function, whose
//! CFI claims a caller. Return addresses are looked up one byte lower, in the call before them. Here there is
//! no call: the byte is padding.

use std::ops::Range;

use memchr::memmem;

use crate::addr::{FileOffset, Svma};
use crate::architecture::Architecture;
use crate::elf::ElfView;

/// Maximum length in bytes of the code at the entry point; glibc's has 61 on x86-64.
pub(crate) const MAX_BYTES: u64 = 128;

/// Alignment of that code in glibc, and the largest alignment of functions.
const ALIGNMENT: u64 = 64;

/// Returns the part of `gap`, code without CFI, that begins at the entry point of its file; `None` if there
/// may be other code in it.
pub(crate) fn outermost(gap: &Range<Svma>, entry: Svma) -> Option<Range<Svma>> {
    let begins = gap.start <= entry && entry < gap.end && entry.offset_from(gap.start) < ALIGNMENT;
    (begins && gap.end.offset_from(entry) <= MAX_BYTES).then_some(entry..gap.end)
}

/// Maximum length in bytes of the function that a stack of makecontext returns to; glibc's has 26.
const MAX_CONTEXT_BYTES: u64 = 64;

/// Returns those of `functions` that a stack of makecontext returns to, each with the end of the padding
/// before it. Such a function leaves the stack that it is on by its first instructions, and does not return.
pub(crate) fn of_contexts<'f>(
    view: &ElfView<'_>,
    functions: impl Iterator<Item = &'f Range<Svma>>,
) -> Vec<Range<Svma>> {
    let (begins, padding): (fn(&[u8]) -> bool, u64) = match view.architecture() {
        Architecture::X86_64 => (begins_a_context, 1),
        Architecture::Aarch64 => (begins_a_context_of_aarch64, 4),
    };
    if !names_makecontext(view) {
        return Vec::new();
    }
    let mut bytes_of = view.code_bytes();
    let is_short = |function: &&Range<Svma>| function.end.offset_from(function.start) <= MAX_CONTEXT_BYTES;
    let short = functions
        .filter(is_short)
        .filter(|function| function.start.get() >= padding);
    let mut found: Vec<_> = short
        .map(|function| function.start.wrapping_sub(padding)..function.end)
        .filter(|range| bytes_of(range).is_some_and(begins))
        .collect();
    found.sort_by_key(|range| range.start);
    found
}

/// Maximum number of bytes of the names that a library exports and imports: glibc's have some 30 thousand.
const MAX_DYNAMIC_NAMES: u64 = 128 << 10;
/// Maximum number of bytes of the names of a static program; large programs have some millions.
const MAX_STATIC_NAMES: u64 = 16 << 20;
/// Bytes of a `.dynsym` that has only the null symbol, as in a static program that is position-independent.
const NO_SYMBOLS: u64 = 24;

/// Returns true if makecontext is among the names of the file: those that it exports or imports, or all names
/// of a static program.
fn names_makecontext(view: &ElfView<'_>) -> bool {
    let length = |range: Range<FileOffset>| range.end.offset_from(range.start);
    let is_static = view
        .section_range(b".dynsym")
        .is_none_or(|symbols| length(symbols) <= NO_SYMBOLS);
    let (section, max_bytes) = match is_static {
        true => (&b".strtab"[..], MAX_STATIC_NAMES),
        false => (&b".dynstr"[..], MAX_DYNAMIC_NAMES),
    };
    let Some(range) = view.section_range(section) else {
        return false;
    };
    let start = range.start.get();
    let names = Some(length(range)).filter(|&length| length <= max_bytes);
    let names = names.and_then(|length| view.bytes().at(start, length));
    names.is_some_and(|names| memmem::find(names.0, b"makecontext").is_some())
}

/// Returns true if code is the end of padding, then `mov %rbx, %rsp`, possibly behind `endbr64`, and ends in
/// `hlt`, behind a call that does not return.
fn begins_a_context(code: &[u8]) -> bool {
    let Some((padding, function)) = code.split_first() else {
        return false;
    };
    let begun = function
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(function);
    // Assemblers write nops of several bytes whose last byte is 0.
    [0x90, 0xcc, 0].contains(padding) && begun.starts_with(&[0x48, 0x89, 0xdc]) && begun.ends_with(&[0xf4])
}

/// Returns true if AArch64 code is the end of padding, then `mov x0, x19; cbnz x0, …; b …`, possibly behind
/// `bti` or a `nop` for unwinders. This code continues with the next context, or ends the thread.
fn begins_a_context_of_aarch64(code: &[u8]) -> bool {
    const NOP: u32 = 0xd503_201f;
    /// `bti`, `bti c`, `bti j` and `bti jc`.
    const BTI: [u32; 4] = [0xd503_241f, 0xd503_245f, 0xd503_249f, 0xd503_24df];
    let (words, rest) = code.as_chunks::<4>();
    let words: Vec<_> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let Some((&padding, function)) = words.split_first() else {
        return false;
    };
    let begun = match function {
        [first, begun @ ..] if *first == NOP || BTI.contains(first) => begun,
        _ => function,
    };
    let &[next, goes_on, ends] = begun else {
        return false;
    };
    let is_padding = padding == NOP || padding == 0;
    let (goes_on, ends) = (goes_on & 0xff00_001f, ends & 0xfc00_0000);
    rest.is_empty() && is_padding && (next, goes_on, ends) == (0xaa13_03e0, 0xb500_0000, 0x1400_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc 2.36's function is recognized, also behind `endbr64`. Functions that return, that keep their
    /// stack, or that have no padding before them are not.
    #[test]
    fn functions_that_contexts_return_to() {
        let start = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24];
        let call = [0xe8, 1, 2, 3, 4, 0xf4];
        let is = |parts: &[&[u8]]| begins_a_context(&parts.concat());
        assert!(is(&[&[0], &start, &call]) && is(&[&[0x90], &[0xf3, 0x0f, 0x1e, 0xfa], &start, &call]));
        assert!(!is(&[&[0], &start, &[0xc3]]) && !is(&[&[0], &call]));
        assert!(!is(&[&[0xe8], &start, &call]) && !is(&[]));
    }

    /// glibc 2.36's function for AArch64 is recognized, also behind `bti c`. Code behind a call, and code
    /// that is longer or shorter, is not.
    #[test]
    fn functions_that_contexts_of_aarch64_return_to() {
        const START: [u32; 3] = [0xaa13_03e0, 0xb5ff_f9c0, 0x17ff_f579];
        let is = |parts: &[&[u32]]| {
            let bytes = parts.concat().into_iter().flat_map(u32::to_le_bytes);
            begins_a_context_of_aarch64(&bytes.collect::<Vec<_>>())
        };
        assert!(
            is(&[&[0xd503_201f; 2], &START])
                && is(&[&[0xd503_201f], &START])
                && is(&[&[0], &[0xd503_245f], &START])
        );
        assert!(!is(&[&[0x9400_0001], &START]) && !is(&[&[0], &START, &[0]]) && !is(&[&[0], &START[..2]]));
    }

    /// There may be only padding before the entry point, and the code must not be too long.
    #[test]
    fn gaps_at_the_entry_point() {
        let outermost = |start, end, entry| {
            let found = outermost(&(Svma::new(start)..Svma::new(end)), Svma::new(entry));
            found.map(|range| (range.start.get(), range.end.get()))
        };
        assert_eq!(outermost(0x100, 0x140, 0x100), Some((0x100, 0x140)));
        assert_eq!(outermost(0x101, 0x1c0, 0x140), Some((0x140, 0x1c0)));
        assert_eq!(outermost(0x100, 0x150, 0x140), None);
        assert_eq!(outermost(0x100, 0x181, 0x100), None);
        assert_eq!(outermost(0x100, 0x140, 0x140), None);
        assert_eq!(outermost(0x100, 0x140, 0xff), None);
    }
}
