//! Places that nothing has called, though their own CFI does not say so.
//!
//! glibc's loader begins by assembly without CFI, which calls what calls the constructors of libraries: the outermost frame of all that
//! these allocate. Such code is taken for that if it reaches from the entry point to the next function with CFI, and is short.
//!
//! A stack of makecontext returns to the first instruction of a function of glibc, to which its CFI ascribes a caller. Return addresses
//! are looked up one byte lower, as those that calls have left are in the calling function only there: in padding.

use std::ops::Range;

use memchr::memmem;

use crate::addr::{FileOffset, Svma};
use crate::architecture::Architecture;
use crate::elf::ElfView;

/// MAX bytes of such code; glibc's has 61 on x86-64.
pub(crate) const MAX_BYTES: u64 = 128;

/// To what glibc aligns such code, and functions at most are aligned.
const ALIGNMENT: u64 = 64;

/// Returns the part of a gap, code without CFI, that begins at the entry point of its file; `None` if it may be more than that.
pub(crate) fn outermost(gap: &Range<Svma>, entry: Svma) -> Option<Range<Svma>> {
    let begins = gap.start <= entry && entry < gap.end && entry.offset_from(gap.start) < ALIGNMENT;
    (begins && gap.end.offset_from(entry) <= MAX_BYTES).then_some(entry..gap.end)
}

/// MAX bytes of the function that a stack of makecontext returns to; glibc's has 26.
const MAX_CONTEXT_BYTES: u64 = 64;

/// Returns the functions, of these, that a stack of makecontext returns to, each with the end of the padding in front of it. Such a
/// function leaves the stack that it is on by its first instructions, and does not return.
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

/// MAX bytes of the names that a library exports and imports: glibc's have some 30 thousand.
const MAX_DYNAMIC_NAMES: u64 = 128 << 10;
/// MAX bytes of names of a static program, of which large ones have some millions.
const MAX_STATIC_NAMES: u64 = 16 << 20;
/// Bytes of `.dynsym` with the null symbol alone, as in a static program that is position-independent.
const NO_SYMBOLS: u64 = 24;

/// Returns whether the file has names, and makecontext is one of them: of those that it exports; of all in a static program.
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

/// Returns whether code is the end of padding, `mov %rbx, %rsp`, perhaps behind `endbr64`, and at its end `hlt`, behind a call that does not
/// return.
fn begins_a_context(code: &[u8]) -> bool {
    let Some((padding, function)) = code.split_first() else {
        return false;
    };
    let begun = function
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(function);
    // The last byte of a nop of several bytes is 0 in what assemblers write.
    [0x90, 0xcc, 0].contains(padding) && begun.starts_with(&[0x48, 0x89, 0xdc]) && begun.ends_with(&[0xf4])
}

/// Returns whether code of AArch64 is the end of padding, `mov x0, x19; cbnz x0, …; b …`, perhaps behind `bti` or a `nop` for
/// unwinders: it goes on with the next context, or ends the thread.
fn begins_a_context_of_aarch64(code: &[u8]) -> bool {
    const NOP: u32 = 0xd503_201f;
    /// `bti` without, with one of, and with all of its marks.
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

    /// glibc 2.36's, and with a mark for indirect jumps; not what returns, nor what keeps its stack, nor what is called at its end.
    #[test]
    fn functions_that_contexts_return_to() {
        let start = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24];
        let call = [0xe8, 1, 2, 3, 4, 0xf4];
        let is = |parts: &[&[u8]]| begins_a_context(&parts.concat());
        assert!(is(&[&[0], &start, &call]) && is(&[&[0x90], &[0xf3, 0x0f, 0x1e, 0xfa], &start, &call]));
        assert!(!is(&[&[0], &start, &[0xc3]]) && !is(&[&[0], &call]));
        assert!(!is(&[&[0xe8], &start, &call]) && !is(&[]));
    }

    /// glibc 2.36's of AArch64, and with a mark for indirect jumps; not behind a call, nor what is longer.
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

    /// Only padding may be before the entry point, and the code be no longer than such code is.
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
