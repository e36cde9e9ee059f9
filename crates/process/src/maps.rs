//! Parser of `/proc/PID/maps`: bytes in, entries out.
//!
//! Pure: opening a mapping's file is in [`modules`](super::modules), the meaning of its code in
//! [`mappings`](super::mappings).

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use unwind_tables::addr::{Avma, FileOffset};

/// One line of the file: a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapsEntry {
    pub range: Range<Avma>,
    pub executable: bool,
    pub writable: bool,
    pub readable: bool,
    /// True if others can map the same memory and see writes to it.
    pub shared: bool,
    /// Offset in the file at which the mapping starts; 0 without a file.
    pub offset: FileOffset,
    /// Major and minor number of the file's device; 0:0 without a file.
    pub device: (u32, u32),
    /// The file's inode number; 0 without a file.
    pub inode: u64,
    pub name: MapsName,
}

/// Content of the last column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapsName {
    Anonymous,
    /// A file, as named in the target's mount namespace.
    File {
        path: PathBuf,
        /// Set if the kernel marks the path as no longer leading to the file.
        deleted: bool,
    },
    /// `[vdso]`, `[stack]`, `[uprobes]`, `[anon:…]`, `anon_inode:…`: a name, but no file.
    Special(String),
}

impl MapsEntry {
    /// True for memory without a file, to which the kernel has given a path that leads to no file.
    pub(super) fn is_memory(&self) -> bool {
        let MapsName::File { path, deleted } = &self.name else {
            return false;
        };
        // Shared anonymous memory and private mappings of `/dev/zero`; anonymous huge pages; System V shared
        // memory.
        match path.as_os_str().as_bytes() {
            b"/dev/zero" => true,
            b"/anon_hugepage" => *deleted,
            name => *deleted && name.starts_with(b"/SYSV"),
        }
    }
}

impl MapsName {
    /// Path of a file, or a special name as if it were a path.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Anonymous => None,
            Self::File { path, .. } => Some(path),
            Self::Special(name) => Some(Path::new(name)),
        }
    }

    /// Reads a name as the kernel has it, with nothing escaped.
    pub fn from_kernel(name: &[u8]) -> Self {
        if name.is_empty() {
            return Self::Anonymous;
        }
        if !name.starts_with(b"/") {
            return Self::Special(String::from_utf8_lossy(name).into_owned());
        }
        // A file whose name ends in " (deleted)" reads the same; the file is opened by its inode, so the flag
        // is only a hint.
        let (path, deleted) = match name.strip_suffix(b" (deleted)") {
            Some(path) => (path, true),
            None => (name, false),
        };
        Self::File {
            path: PathBuf::from(OsStr::from_bytes(path)),
            deleted,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MapsError {
    #[error("the {0} column is missing")]
    Missing(&'static str),
    #[error("the {0} column is malformed")]
    Malformed(&'static str),
}

/// Parses each line; a malformed line does not affect its neighbours.
///
/// Format: `proc_pid_maps(5)`.
pub fn parse(text: &[u8]) -> impl Iterator<Item = Result<MapsEntry, MapsError>> + '_ {
    text.split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(parse_line)
}

/// Parses a text of which at most `max` bytes were read; `None` if it may be truncated, since an address that
/// it does not list may be mapped.
pub(super) fn parse_whole(text: &[u8], max: u64) -> Option<Vec<MapsEntry>> {
    let is_whole = u64::try_from(text.len()).is_ok_and(|bytes| bytes < max);
    is_whole.then(|| parse(text).filter_map(Result::ok).collect())
}

fn parse_line(line: &[u8]) -> Result<MapsEntry, MapsError> {
    let mut rest = line;
    let range = parse_range(column(&mut rest, "address")?)?;
    let permissions = column(&mut rest, "permissions")?;
    if permissions.len() != 4 {
        return Err(MapsError::Malformed("permissions"));
    }
    let offset = hex(column(&mut rest, "offset")?, "offset")?;
    let device = parse_device(column(&mut rest, "device")?)?;
    let inode = decimal(column(&mut rest, "inode")?)?;
    let name = parse_name(rest.trim_ascii_start());
    Ok(MapsEntry {
        range,
        readable: permissions.starts_with(b"r"),
        writable: permissions.get(1) == Some(&b'w'),
        executable: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        offset: FileOffset::new(offset),
        device,
        inode,
        name,
    })
}

/// Takes the next blank-separated column off `rest`.
fn column<'a>(rest: &mut &'a [u8], name: &'static str) -> Result<&'a [u8], MapsError> {
    let start = rest.trim_ascii_start();
    let end = start.iter().position(|&byte| byte == b' ').unwrap_or(start.len());
    let (column, after) = start.split_at(end);
    *rest = after;
    if column.is_empty() {
        Err(MapsError::Missing(name))
    } else {
        Ok(column)
    }
}

fn parse_range(column: &[u8]) -> Result<Range<Avma>, MapsError> {
    let (start, end) = split_once(column, b'-').ok_or(MapsError::Malformed("address"))?;
    let (start, end) = (hex(start, "address")?, hex(end, "address")?);
    if start >= end {
        return Err(MapsError::Malformed("address"));
    }
    Ok(Avma::new(start)..Avma::new(end))
}

fn parse_device(column: &[u8]) -> Result<(u32, u32), MapsError> {
    let malformed = MapsError::Malformed("device");
    let (major, minor) = split_once(column, b':').ok_or(malformed)?;
    let number = |digits| u32::try_from(hex(digits, "device")?).map_err(|_| malformed);
    Ok((number(major)?, number(minor)?))
}

fn parse_name(name: &[u8]) -> MapsName {
    // The kernel escapes paths, but no other names.
    if name.starts_with(b"/") {
        MapsName::from_kernel(&unescape(name))
    } else {
        MapsName::from_kernel(name)
    }
}

/// Decodes `\012`: the kernel writes a newline in a path so and escapes nothing else (`show_map_vma`).
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(br"\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&byte| byte == separator)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

fn hex(digits: &[u8], name: &'static str) -> Result<u64, MapsError> {
    number(digits, 16).ok_or(MapsError::Malformed(name))
}

fn decimal(digits: &[u8]) -> Result<u64, MapsError> {
    number(digits, 10).ok_or(MapsError::Malformed("inode"))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` accepts a leading sign, which the kernel never writes.
    let text = std::str::from_utf8(digits)
        .ok()
        .filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> MapsEntry {
        let mut entries = parse(line.as_bytes());
        let entry = entries.next().expect("a line").expect("a valid line");
        assert_eq!(entries.next(), None);
        entry
    }

    /// A text that may be truncated proves nothing about addresses that it does not list.
    #[test]
    fn truncated_maps_prove_nothing() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0 \n";
        let bytes = u64::try_from(text.len()).expect("small");
        assert_eq!(parse_whole(text, bytes + 1).map(|entries| entries.len()), Some(2));
        assert_eq!(parse_whole(text, bytes), None);
    }

    fn file(path: &str, deleted: bool) -> MapsName {
        MapsName::File {
            path: PathBuf::from(path),
            deleted,
        }
    }

    /// Every column of a file mapping is read.
    #[test]
    fn file_mapping() {
        let entry = one(
            "7f1b6d428000-7f1b6d57d000 r-xp 00026000 fe:01 1445                       /usr/lib/x86_64-linux-gnu/libc.so.6\n",
        );
        assert_eq!(
            entry.range,
            Avma::new(0x7f1b_6d42_8000)..Avma::new(0x7f1b_6d57_d000)
        );
        assert!(entry.readable && !entry.writable && entry.executable);
        assert_eq!(entry.offset, FileOffset::new(0x26000));
        assert_eq!((entry.device, entry.inode), ((0xfe, 1), 1445));
        assert_eq!(entry.name, file("/usr/lib/x86_64-linux-gnu/libc.so.6", false));
    }

    /// The last column is distinguished: empty, a path with blanks, a deleted file, a newline, special names.
    #[test]
    fn names() {
        let name = |text: &str| one(&format!("1000-2000 rw-p 00000000 00:00 0{text}\n")).name;
        assert_eq!(name(""), MapsName::Anonymous);
        assert_eq!(name(" "), MapsName::Anonymous);
        assert_eq!(name("    /opt/my app/a b.so"), file("/opt/my app/a b.so", false));
        assert_eq!(name("    /tmp/gone.so (deleted)"), file("/tmp/gone.so", true));
        assert_eq!(name("    /memfd:jit (deleted)"), file("/memfd:jit", true));
        assert_eq!(name(r"    /tmp/a\012b"), file("/tmp/a\nb", false));
        for special in [
            "[vdso]",
            "[stack]",
            "[uprobes]",
            "[anon:my pool]",
            "anon_inode:[perf_event]",
        ] {
            assert_eq!(
                name(&format!("   {special}")),
                MapsName::Special(special.to_owned())
            );
        }
    }

    /// Each malformed line is one error, and its neighbours are still read.
    #[test]
    fn malformed_lines() {
        let cases: &[(&str, MapsError)] = &[
            ("zz-2000 r-xp 0 00:00 0", MapsError::Malformed("address")),
            ("1000 r-xp 0 00:00 0", MapsError::Malformed("address")),
            ("2000-1000 r-xp 0 00:00 0", MapsError::Malformed("address")),
            (
                "1000-10000000000000000 r-xp 0 00:00 0",
                MapsError::Malformed("address"),
            ),
            ("1000-2000 r-x 0 00:00 0", MapsError::Malformed("permissions")),
            ("1000-2000 r-xp +1 00:00 0", MapsError::Malformed("offset")),
            ("1000-2000 r-xp 0 0000 0", MapsError::Malformed("device")),
            ("1000-2000 r-xp 0 100000000:0 0", MapsError::Malformed("device")),
            ("1000-2000 r-xp 0 00:00 x", MapsError::Malformed("inode")),
            ("1000-2000 r-xp 0 00:00", MapsError::Missing("inode")),
            ("1000-2000", MapsError::Missing("permissions")),
        ];
        let good = "3000-4000 rwxp 00000000 00:00 0 ";
        for (line, error) in cases {
            let text = format!("{line}\n{good}\n");
            let lines: Vec<_> = parse(text.as_bytes()).collect();
            assert_eq!(lines.len(), 2, "{line}");
            assert_eq!(lines[0], Err(*error), "{line}");
            assert_eq!(lines[1], Ok(one(good)), "{line}");
        }
    }

    /// The parser accepts every line of the running kernel.
    #[test]
    fn own_maps() {
        let text = std::fs::read("/proc/self/maps").expect("own maps");
        let entries: Vec<_> = parse(&text).collect::<Result<_, _>>().expect("only valid lines");
        assert!(entries.iter().any(|entry| entry.executable));
    }
}
