//! Names of code generated at run time, from the dump that the program writes for `perf inject --jit`:
//! `jit-PID.dump`, which it maps as code, so that others find it (Linux,
//! `tools/perf/Documentation/jitdump-specification.txt`).
//!
//! The file is untrusted, and read by the rules for maps ([`PerfMap`]). Only its records with names are
//! parsed: the parser of lines would rely on the number of lines in the file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord, JitDumpRecordHeader, JitDumpRecordType};

use super::PerfMap;
use super::perf_map::MAX_BYTES;
use memleak_process::foreign::{LastLink, open_in_root};

/// Maximum size of a record: a function, with its code.
const MAX_RECORD: u32 = 16 << 20;
/// Place of the header's size, and maximum of that size.
const HEADER_SIZE: std::ops::Range<usize> = 8..12;
const MAX_HEADER: u32 = 1024;

impl PerfMap {
    /// Adds the code in the dump that a process with this root and this user has mapped as `path`.
    ///
    /// # Errors
    ///
    /// The file does not exist, is a link, belongs to another user, or is no dump.
    pub fn add_jit_dump(&mut self, root: &Path, path: &Path, user: u32) -> io::Result<()> {
        let file = open_in_root(root, path, LastLink::Refuse, u64::MAX)?.file;
        if user != file.metadata()?.uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.add_jit_dump_from(&bytes_of(file)?)
    }

    /// Adds the code in a dump; the last record may be incomplete.
    pub fn add_jit_dump_from(&mut self, bytes: &[u8]) -> io::Result<()> {
        let header = bytes.get(HEADER_SIZE).and_then(|size| size.first_chunk());
        let header = header.map_or(u32::MAX, |&size| u32::from_ne_bytes(size));
        if header > MAX_HEADER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut reader = JitDumpReader::new(bytes).map_err(io::Error::other)?;
        while let Some(JitDumpRecordHeader {
            record_type,
            total_size,
            ..
        }) = reader.next_record_header()?
            && (JitDumpRecordHeader::SIZE as u64..=MAX_RECORD.into()).contains(&total_size.into())
            && let Some(record) = reader.next_record()?
        {
            if ![JitDumpRecordType::JIT_CODE_LOAD, JitDumpRecordType::JIT_CODE_MOVE].contains(&record_type) {
                continue;
            }
            // A malformed record does not affect the next one.
            let Ok(parsed) = record.parse() else { continue };
            if let JitDumpRecord::CodeLoad(load) = &parsed {
                let name = load.function_name.as_slice();
                self.add_named(load.code_addr, load.code_bytes.len() as u64, &name);
            } else if let JitDumpRecord::CodeMove(moved) = &parsed {
                self.move_piece(moved.old_code_addr, moved.new_code_addr, moved.code_size);
            }
        }
        Ok(())
    }
}

fn bytes_of(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use unwind_tables::addr::Avma;

    use super::*;

    /// A record of a dump: type, and what follows its header.
    fn record(kind: u32, body: &[u64], bytes: &[u8]) -> Vec<u8> {
        let body: Vec<u8> = body
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .chain(bytes.iter().copied())
            .collect();
        let size = u32::try_from(JitDumpRecordHeader::SIZE + body.len()).expect("small");
        [
            &kind.to_ne_bytes()[..],
            &size.to_ne_bytes(),
            &1_u64.to_ne_bytes(),
            &body,
        ]
        .concat()
    }

    fn load(at: u64, name: &str, code: usize) -> Vec<u8> {
        let bytes = [name.as_bytes(), &[0], &vec![0x90; code]].concat();
        record(0, &[0, at, at, code as u64, 1], &bytes)
    }

    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let header: Vec<u8> = [u32::from_ne_bytes(*b"DTiJ"), 1, 40, 62, 0, 7, 1, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        [header, records.concat()].concat()
    }

    fn names(dump: &[u8], addresses: &[u64]) -> Vec<Option<String>> {
        let mut map = PerfMap::default();
        _ = map.add_jit_dump_from(dump);
        let name = |&at: &u64| map.find(Avma::new(at)).map(|(name, _)| name.to_owned());
        addresses.iter().map(name).collect()
    }

    /// Functions are found where they were generated last, or moved to; malformed records and those of other
    /// kinds are skipped.
    #[test]
    fn functions_of_a_dump() {
        let lines = record(2, &[0x1000, u64::MAX], &[]);
        let cut = record(0, &[0, 0x9000, 0x9000, 100, 1], b"cut\0");
        let moved = record(1, &[0, 0x3000, 0x3000, 0x5000, 16, 1], &[]);
        let records = [
            load(0x1000, "first", 16),
            lines,
            cut,
            load(0x2000, "second", 16),
            load(0x2000, "again", 8),
            load(0x3000, "moved", 16),
            moved,
            load(0x6000, "", 16),
        ];
        let whole = dump(&records);
        let addresses = [
            0xfff, 0x1000, 0x100f, 0x1010, 0x2000, 0x2008, 0x3000, 0x500f, 0x6000, 0x9000,
        ];
        let expected = [
            None,
            Some("first"),
            Some("first"),
            None,
            Some("again"),
            None,
            None,
            Some("moved"),
            None,
            None,
        ];
        let expected: Vec<_> = expected.map(|name| name.map(str::to_owned)).into();
        assert_eq!(names(&whole, &addresses), expected);
        // While it is written, the last record is incomplete.
        let cut = &whole[..whole.len() - 3];
        assert_eq!(names(cut, &addresses), expected);
    }

    /// A record with an impossible size ends the dump, and does no other harm.
    #[test]
    fn impossible_sizes() {
        for size in [0, 15, MAX_RECORD + 1, u32::MAX] {
            let mut bad = load(0x2000, "bad", 16);
            bad[4..8].copy_from_slice(&size.to_ne_bytes());
            let dump = dump(&[load(0x1000, "first", 16), bad]);
            assert_eq!(
                names(&dump, &[0x1000, 0x2000]),
                [Some("first".to_owned()), None],
                "{size}"
            );
        }
        let whole = dump(&[load(0x1000, "first", 16)]);
        for size in [0, 39, MAX_HEADER, MAX_HEADER + 1, u32::MAX] {
            let mut dump = whole.clone();
            dump[HEADER_SIZE].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(names(&dump, &[0x1000]), [None], "{size}");
        }
        for length in 0..whole.len() {
            names(&whole[..length], &[0x1000]);
        }
    }

    /// A file of another user, even root, is not read, nor one that is reached by a link.
    #[test]
    fn other_users_dumps_are_refused_as_root() {
        const USER: u32 = 4711;
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name);
        for (name, owner) in [("jit-7.dump", USER), ("jit-8.dump", 0)] {
            std::fs::write(path(name), dump(&[load(0x1000, "f", 16)])).expect("a file");
            chown(path(name), Some(owner), None).expect("as root");
        }
        symlink("jit-7.dump", path("jit-9.dump")).expect("a link");
        let read = |pid, user| {
            let dump = format!("/jit-{pid}.dump");
            PerfMap::default().add_jit_dump(root.path(), Path::new(&dump), user)
        };
        assert!(read(7, USER).is_ok() && read(8, 0).is_ok());
        for (pid, user) in [(7, USER + 1), (7, 0), (8, USER), (9, USER), (10, USER)] {
            assert!(read(pid, user).is_err(), "{pid} {user}");
        }
    }
}
