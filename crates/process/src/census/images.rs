//! Ends of ELF files in memory: what their variables need beyond the file is anonymous memory behind it, in
//! which the kernel can join other memory of the process.

use super::contents::{Contents, words};
use crate::maps::MapsEntry;
use crate::smaps::Resident;

/// Maximum number of mappings before its last one in which the first of a file is looked for.
const MOST_MAPPINGS: usize = 64;
/// Maximum number of program headers; all are in the file's first page.
const MOST_SEGMENTS: u64 = 64;
const PAGE: u64 = 4096;
/// First bytes: `\x7fELF`, 64 bits, little-endian.
const MAGIC: u64 = 0x0102_464c_457f;
/// Bytes of a program header, and its kind for what is loaded (`PT_LOAD`).
const HEADER: u64 = 56;
const LOADED: u64 = 1;

/// Address behind all memory that the file of mapping `index` needs, rounded up to a page; `None` if its
/// headers are not resident, or are those of no 64-bit ELF file.
pub(super) fn end(contents: &dyn Contents, mappings: &[Resident], index: usize) -> Option<u64> {
    let entry = &mappings.get(index)?.entry;
    let is_first =
        |other: &MapsEntry| (other.device, other.inode, other.offset.get()) == (entry.device, entry.inode, 0);
    let before = mappings.get(..=index)?.iter().rev().take(MOST_MAPPINGS);
    let mut entries = before.map(|mapping| &mapping.entry);
    let start = entries.find(|other| is_first(other))?.range.start.get();
    let [magic, _, _, _, headers, _, sizes, counts] = words::<8>(contents, start)?;
    let (size, count) = (sizes >> 48, counts & 0xffff);
    if magic & 0xffff_ffff_ffff != MAGIC || size != HEADER || headers > PAGE || count > MOST_SEGMENTS {
        return None;
    }
    let mut bias = None;
    let mut last = None;
    for number in 0..count {
        let at = start.checked_add(headers + number * HEADER)?;
        let [kind, offset, address, _, _, bytes] = words::<6>(contents, at)?;
        if kind & 0xffff_ffff != LOADED {
            continue;
        }
        if offset == 0 {
            bias = bias.or(Some(start.wrapping_sub(address)));
        }
        last = last.max(Some(address.checked_add(bytes)?));
    }
    bias?.wrapping_add(last?).checked_next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::super::contents::ProcessContents;
    use super::*;
    use crate::smaps;

    /// The end of each file that this process has mapped is behind its mappings, and within what follows
    /// them.
    #[test]
    fn own_images() {
        let pid = std::process::id();
        let contents = ProcessContents::open(pid).unwrap();
        let mappings = smaps::parse(&std::fs::read("/proc/self/smaps").unwrap());
        let mut known = 0;
        for (index, mapping) in mappings.iter().enumerate() {
            let entry = &mapping.entry;
            let next = mappings.get(index + 1).map(|next| &next.entry);
            let is_last = next.is_some_and(|next| next.inode != entry.inode);
            if entry.inode == 0 || !entry.writable || !is_last {
                continue;
            }
            let end = end(&contents, &mappings, index).unwrap();
            assert!(end >= entry.range.end.get(), "{entry:?} {end:x}");
            assert!(end < entry.range.end.get() + (1 << 20), "{entry:?} {end:x}");
            known += 1;
        }
        assert!(known >= 3, "program, C library and loader: {known}");
    }

    /// Headers that are none, or would overflow, have no end.
    #[test]
    fn hostile_headers() {
        let text = b"7f0000000000-7f0000001000 rw-p 00000000 fe:00 7 /a\n";
        let mappings = smaps::parse(text);
        let start = 0x7f00_0000_0000;
        let mut words = super::super::tests::Words::default();
        assert_eq!(end(&words, &mappings, 0), None);
        words.put(start, &[MAGIC, 0, 0, 0, 64, 0, HEADER << 48, 1]);
        words.put(start + 64, &[LOADED, 0, 0x40_0000, 0, 0, 0x1801]);
        assert_eq!(end(&words, &mappings, 0), Some(start + 0x2000));
        for wrong in [
            [LOADED, 0, u64::MAX, 0, 0, u64::MAX],
            [LOADED, 8, 0, 0, 0, 0],
            [0; 6],
            [LOADED, 0, 0, 0, 0, u64::MAX],
        ] {
            words.put(start + 64, &wrong);
            let found = end(&words, &mappings, 0);
            assert!(found.is_none_or(|end| end <= start), "{wrong:x?} {found:x?}");
        }
    }
}
