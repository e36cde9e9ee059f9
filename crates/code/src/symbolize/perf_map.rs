//! Names of code generated at run time, from the map that the program writes for `perf`: `/tmp/perf-PID.map`,
//! a line `START SIZE NAME` for each piece of code, in hexadecimal (Linux,
//! `tools/perf/Documentation/jit-interface.txt`).
//!
//! Later lines take precedence: a JIT compiler reuses memory. The file is untrusted: malformed lines are
//! skipped. It is read only if it belongs to the process's user, and is not a link: its content is shown, and
//! a link, or another user's file mounted there, would show a file that this user could not read.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use unwind_tables::addr::Avma;

use memleak_process::foreign::{LastLink, open_in_root};

/// Maximum number of bytes that are read; the rest of a longer file is ignored.
pub(super) const MAX_BYTES: u64 = 256 << 20;

/// Maximum number of pieces that are kept: some 100 bytes each, besides their names. Large programs have some
/// 100 thousand.
const MAX_PIECES: usize = 1 << 20;

/// Named pieces of generated code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PerfMap {
    /// By start address; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    end: u64,
    name: String,
}

impl PerfMap {
    /// Reads the map of a process with this root, this pid in its own pid namespace, and this user.
    ///
    /// # Errors
    ///
    /// The file does not exist, is a link, or belongs to another user.
    pub fn read(root: &Path, pid: u32, user: u32) -> io::Result<Self> {
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let file = open_in_root(root, &path, LastLink::Refuse, u64::MAX)?.file;
        if user != file.metadata()?.uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(Self::parse(&text))
    }

    pub fn parse(text: &[u8]) -> Self {
        let mut map = Self::default();
        // The last line may be incomplete, while the program writes it.
        let whole = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        for line in text[..whole].split(|&byte| byte == b'\n') {
            if let Some((start, piece)) = parse_line(line) {
                map.add(start, piece);
            }
        }
        map
    }

    /// Adds a piece, and removes the pieces that it overlaps.
    fn add(&mut self, start: u64, piece: Piece) {
        let before = self.pieces.range(..start).next_back();
        let overlapping = before.filter(|(_, before)| before.end > start);
        let first = overlapping.map_or(start, |(&first, _)| first);
        let gone: Vec<u64> = self
            .pieces
            .range(first..piece.end)
            .map(|(&start, _)| start)
            .collect();
        for start in gone {
            self.pieces.remove(&start);
        }
        if self.pieces.len() < MAX_PIECES {
            self.pieces.insert(start, piece);
        }
    }

    /// Adds a piece of `bytes` bytes, if it has some, and a name.
    pub(super) fn add_named(&mut self, start: u64, bytes: u64, name: &[u8]) {
        if let (Some(end), Some(name)) = (
            start.checked_add(bytes),
            shown_name(&String::from_utf8_lossy(name)),
        ) && start < end
        {
            self.add(start, Piece { end, name });
        }
    }

    /// Moves the piece at `from` to `to`, where it has `bytes` bytes.
    pub(super) fn move_piece(&mut self, from: u64, to: u64, bytes: u64) {
        if let Some(piece) = self.pieces.remove(&from) {
            self.add_named(to, bytes, piece.name.as_bytes());
        }
    }

    /// All pieces: start, end and name.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        let pieces = self.pieces.iter();
        pieces.map(|(&start, piece)| (start, piece.end, piece.name.as_str()))
    }

    /// Name and start address of the code at `address`.
    pub fn find(&self, address: Avma) -> Option<(&str, Avma)> {
        let (&start, piece) = self.pieces.range(..=address.get()).next_back()?;
        (address.get() < piece.end).then_some((piece.name.as_str(), Avma::new(start)))
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, Piece)> {
    let line = String::from_utf8_lossy(line);
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let start = number(start)?;
    let end = start.checked_add(number(size)?)?;
    let name = shown_name(name)?;
    (start < end).then_some((start, Piece { end, name }))
}

/// A name without control characters; `None` if nothing is left.
fn shown_name(name: &str) -> Option<String> {
    let name: String = name.chars().filter(|character| !character.is_control()).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// The last line that names an address counts; incomplete and malformed lines name nothing.
    #[test]
    fn last_line_of_an_address_counts() {
        let map = PerfMap::parse(
            b"1000 100 first\n2000 10 gone\n1080 20 LazyCompile:~f a.js:1\n0x3000 0x10 hex\n1ff8 20 over both\n\
              nonsense\n4000 zz no size\n5000 0 empty\nffffffffffffffff 2 beyond\n6000 10 unfinished",
        );
        let found = |address| {
            map.find(Avma::new(address))
                .map(|(name, start)| (name, start.get()))
        };
        for (address, expected) in [
            (0xfff, None),
            (0x1000, None),
            (0x107f, None),
            (0x1080, Some(("LazyCompile:~f a.js:1", 0x1080))),
            (0x109f, Some(("LazyCompile:~f a.js:1", 0x1080))),
            (0x10a0, None),
            (0x1ff8, Some(("over both", 0x1ff8))),
            (0x2017, Some(("over both", 0x1ff8))),
            (0x2018, None),
            (0x300f, Some(("hex", 0x3000))),
            (0x5000, None),
            (0x6000, None),
        ] {
            assert_eq!(found(address), expected, "{address:#x}");
        }
    }

    /// The memory for pieces is limited; a piece that is named again is still updated.
    #[test]
    fn pieces_are_limited() {
        let mut text: String = (0..=MAX_PIECES)
            .map(|number| format!("{:x} 1 f\n", 2 * number))
            .collect();
        text.push_str("0 1 again\n");
        let map = PerfMap::parse(text.as_bytes());
        assert_eq!(map.pieces.len(), MAX_PIECES);
        let name = |address: usize| map.find(Avma::new(address as u64)).map(|(name, _)| name);
        assert_eq!((name(0), name(2 * MAX_PIECES)), (Some("again"), None));
    }

    /// A file of another user, even root, is not read, nor one that is reached by a link.
    #[test]
    fn other_users_perf_maps_are_refused_as_root() {
        const USER: u32 = 4711;
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join("tmp").join(name);
        std::fs::create_dir(root.path().join("tmp")).expect("a directory");
        for (name, owner) in [("perf-7.map", USER), ("perf-8.map", 0)] {
            std::fs::write(path(name), "10 10 f\n").expect("a file");
            chown(path(name), Some(owner), None).expect("as root");
        }
        symlink("perf-7.map", path("perf-9.map")).expect("a link");
        let read = |pid, user| PerfMap::read(root.path(), pid, user).map(|map| map.pieces.len());
        assert_eq!(read(7, USER).ok(), Some(1));
        assert_eq!(read(8, 0).ok(), Some(1));
        for (pid, user) in [(7, USER + 1), (7, 0), (8, USER), (9, USER), (10, USER)] {
            assert!(read(pid, user).is_err(), "{pid} {user}");
        }
    }
}
