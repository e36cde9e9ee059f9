//! Code without CFI at which a program or its loader begins: nothing has called it.
//!
//! glibc's loader begins by assembly without CFI, which calls what calls the constructors of libraries: the outermost frame of all that
//! these allocate. Such code is taken for that if it reaches from the entry point to the next function with CFI, and is short.

use std::ops::Range;

use crate::addr::Svma;

/// MAX bytes of such code; glibc's has 61 on x86-64.
pub(crate) const MAX_BYTES: u64 = 128;

/// To what glibc aligns such code, and functions at most are aligned.
const ALIGNMENT: u64 = 64;

/// Returns the part of a gap, code without CFI, that begins at the entry point of its file; `None` if it may be more than that.
pub(crate) fn outermost(gap: &Range<Svma>, entry: Svma) -> Option<Range<Svma>> {
    let begins = gap.start <= entry && entry < gap.end && entry.offset_from(gap.start) < ALIGNMENT;
    (begins && gap.end.offset_from(entry) <= MAX_BYTES).then_some(entry..gap.end)
}

#[cfg(test)]
mod tests {
    use super::*;

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
