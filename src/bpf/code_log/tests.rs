//! Records made by hand.

mod kernel;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_sys as sys;
use unwind_tables::addr::{Avma, FileOffset};

use super::*;
use crate::process::maps::MapsName;

const PID: u32 = 4711;
const AT: u64 = 123_456_789_012;

/// A record as the kernel writes it: header, `body`, and the trailer of another thread.
fn record(kind: sys::perf_event_type, misc: u32, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(body.len() + 24).expect("a small record");
    let misc = u16::try_from(misc).expect("16 bits");
    let mut record = kind.to_ne_bytes().to_vec();
    record.extend(misc.to_ne_bytes());
    record.extend(size.to_ne_bytes());
    record.extend(body);
    record.extend([99_u32, 98].into_iter().flat_map(u32::to_ne_bytes));
    record.extend(AT.to_ne_bytes());
    record
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Body of a mapping of 12 KiB at 0x7f00_0000_1000, of a file of device 8:1 from its byte 0x2000 on.
fn mapping(pid: u32, protection: i32, name: &[u8]) -> Vec<u8> {
    let mut body = words(&[pid, pid + 1]);
    body.extend(
        [0x7f00_0000_1000_u64, 0x3000, 0x2000]
            .iter()
            .flat_map(|word| word.to_ne_bytes()),
    );
    body.extend(words(&[8, 1]));
    body.extend([77_u64, 3].iter().flat_map(|word| word.to_ne_bytes()));
    body.extend(words(&[
        protection.cast_unsigned(),
        libc::MAP_PRIVATE.cast_unsigned(),
    ]));
    body.extend(name);
    body.resize((body.len() + 8) / 8 * 8, 0);
    body
}

fn of_name(name: &[u8]) -> MapsEntry {
    let body = mapping(PID, libc::PROT_READ | libc::PROT_EXEC, name);
    let logged = record::parse(&record(sys::PERF_RECORD_MMAP2, 2, &body)).expect("a mapping");
    assert_eq!((logged.at, logged.pid), (AT, PID));
    match logged.what {
        Change::Mapped(entry) => entry,
        other @ (Change::Executed | Change::Forked { .. } | Change::Lost(_)) => panic!("{other:?}"),
    }
}

/// Every field of a mapping is read, and a name means the same as in `/proc/PID/maps`.
#[test]
fn mappings() {
    let path = b"/opt/a b\n\xff.so";
    let expected = MapsEntry {
        range: Avma::new(0x7f00_0000_1000)..Avma::new(0x7f00_0000_4000),
        executable: true,
        writable: false,
        readable: true,
        shared: false,
        offset: FileOffset::new(0x2000),
        device: (8, 1),
        inode: 77,
        name: MapsName::File {
            path: PathBuf::from(std::ffi::OsStr::from_bytes(path)),
            deleted: false,
        },
    };
    assert_eq!(of_name(path), expected);
    let deleted = MapsName::File {
        path: PathBuf::from("/memfd:jit"),
        deleted: true,
    };
    assert_eq!(of_name(b"/memfd:jit (deleted)").name, deleted);
    // Without a file, the kernel gives the address in place of the offset.
    let anonymous = of_name(b"//anon");
    assert_eq!(
        (anonymous.name, anonymous.offset),
        (MapsName::Anonymous, FileOffset::new(0))
    );
    assert_eq!(of_name(b"[vdso]").name, MapsName::Special("[vdso]".to_owned()));
}

/// Other changes are read; threads, new names, and processes of other namespaces are left out.
#[test]
fn other_changes() {
    const EXEC: u32 = sys::PERF_RECORD_MISC_COMM_EXEC;
    const OUTSIDE: u32 = u32::MAX;
    let fork = |pid: u32, parent: u32| words(&[pid, parent, pid, parent, 1, 2]);
    let comm = words(&[PID, PID, u32::from_ne_bytes(*b"java"), 0]);
    let executable = mapping(PID, libc::PROT_EXEC, b"/a");
    let logged = |pid, what| Some(Logged { at: AT, pid, what });
    let cases = [
        (
            sys::PERF_RECORD_COMM,
            EXEC,
            comm.clone(),
            logged(PID, Change::Executed),
        ),
        (sys::PERF_RECORD_COMM, 0, comm.clone(), None),
        (sys::PERF_RECORD_COMM, EXEC, words(&[0, 0, 0, 0]), None),
        (
            sys::PERF_RECORD_FORK,
            0,
            fork(PID, 7),
            logged(PID, Change::Forked { parent: 7 }),
        ),
        (
            sys::PERF_RECORD_FORK,
            0,
            fork(PID, 0),
            logged(PID, Change::Forked { parent: 0 }),
        ),
        (
            sys::PERF_RECORD_FORK,
            0,
            fork(PID, OUTSIDE),
            logged(PID, Change::Forked { parent: 0 }),
        ),
        (sys::PERF_RECORD_FORK, 0, fork(PID, PID), None),
        (sys::PERF_RECORD_FORK, 0, fork(0, 7), None),
        (sys::PERF_RECORD_FORK, 0, fork(OUTSIDE, 7), None),
        (sys::PERF_RECORD_EXIT, 0, fork(PID, 7), None),
        (
            sys::PERF_RECORD_LOST,
            0,
            words(&[1, 2, 300, 0]),
            logged(0, Change::Lost(300)),
        ),
        (
            sys::PERF_RECORD_MMAP2,
            0,
            mapping(PID, libc::PROT_READ, b"/a"),
            None,
        ),
        (
            sys::PERF_RECORD_MMAP2,
            0,
            mapping(0, libc::PROT_EXEC, b"/a"),
            None,
        ),
        (
            sys::PERF_RECORD_MMAP2,
            sys::PERF_RECORD_MISC_MMAP_DATA,
            executable.clone(),
            None,
        ),
        (
            sys::PERF_RECORD_MMAP2,
            sys::PERF_RECORD_MISC_MMAP_BUILD_ID,
            executable,
            None,
        ),
        (4242, 0, comm, None),
    ];
    for (kind, misc, body, expected) in cases {
        assert_eq!(
            record::parse(&record(kind, misc, &body)),
            expected,
            "{kind} {misc:#x} {body:?}"
        );
    }
}

/// A record that is cut anywhere, or has an impossible range, is left out; the record after an unknown one is
/// still read.
#[test]
fn malformed_records() {
    let whole = record(sys::PERF_RECORD_MMAP2, 2, &mapping(PID, libc::PROT_EXEC, b"/a"));
    assert!(record::parse(&whole).is_some());
    for length in 0..whole.len() {
        let cut = &whole[..length];
        assert_eq!(record::take_record(&mut &*cut), None, "{length}");
        if length < whole.len() - 8 {
            assert_eq!(record::parse(cut), None, "{length}");
        }
    }
    let mut endless = mapping(PID, libc::PROT_EXEC, b"/a");
    endless[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
    assert_eq!(record::parse(&record(sys::PERF_RECORD_MMAP2, 2, &endless)), None);
    let mut empty = mapping(PID, libc::PROT_EXEC, b"/a");
    empty[16..24].fill(0);
    assert_eq!(record::parse(&record(sys::PERF_RECORD_MMAP2, 2, &empty)), None);
    let mut unending = mapping(PID, libc::PROT_EXEC, b"12345678");
    unending.truncate(72);
    assert_eq!(record::parse(&record(sys::PERF_RECORD_MMAP2, 2, &unending)), None);
    for size in 0..8_u16 {
        let mut small = whole.clone();
        small[6..8].copy_from_slice(&size.to_ne_bytes());
        assert_eq!(record::take_record(&mut small.as_slice()), None, "{size}");
    }
    let two = [record(4242, 0, &[]), whole.clone()].concat();
    let mut rest = two.as_slice();
    assert_eq!(record::take_record(&mut rest).and_then(record::parse), None);
    assert_eq!(record::take_record(&mut rest), Some(whole.as_slice()));
    assert_eq!(rest, [0; 0]);
}

/// A record that continues at the start of the ring is whole; positions are not limited by the ring's size.
#[test]
fn wrapped_records() {
    let record = record(
        sys::PERF_RECORD_COMM,
        sys::PERF_RECORD_MISC_COMM_EXEC,
        &words(&[PID, PID, 0, 0]),
    );
    let chunks = || record.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
    let size = 64;
    for start in (0..2 * size).step_by(8).chain([u64::MAX - 15]) {
        let data: Vec<AtomicU64> = (0..size / 8).map(|_| AtomicU64::new(u64::MAX)).collect();
        for (place, word) in (start / 8 % 8..).zip(chunks()) {
            let place = usize::try_from(place % 8).expect("small");
            data[place].store(word, Ordering::Relaxed);
        }
        let end = start.wrapping_add(u64::try_from(record.len()).expect("small"));
        assert_eq!(ring::copy(&data, start, end), record, "{start}");
        assert_eq!(ring::copy(&data, start, start), [0; 0], "{start}");
        assert_eq!(
            ring::copy(&data, start, start.wrapping_add(size + 8)),
            [0; 0],
            "{start}"
        );
        assert_eq!(ring::copy(&data, end, start), [0; 0], "{start}");
    }
}

/// A ring of more memory than the user may lock is halved until it is permitted; other errors are returned.
#[test]
fn rings_that_are_permitted() {
    let permits = |most: usize, refusal: i32| {
        let mut asked = Vec::new();
        let result = ring::largest(64, |pages| {
            asked.push(pages);
            (pages <= most)
                .then_some(pages)
                .ok_or(io::Error::from_raw_os_error(refusal))
        });
        (result.ok(), asked)
    };
    assert_eq!(permits(64, libc::EPERM), (Some(64), vec![64]));
    assert_eq!(permits(17, libc::EPERM), (Some(16), vec![64, 32, 16]));
    assert_eq!(permits(0, libc::EPERM), (None, vec![64, 32, 16, 8, 4, 2, 1]));
    assert_eq!(permits(17, libc::EACCES), (None, vec![64]));
}

/// Lists of CPUs, as in sysfs.
#[test]
fn lists_of_cpus() {
    assert_eq!(parse_cpus("0"), Some(vec![0]));
    assert_eq!(parse_cpus("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
    assert_eq!(parse_cpus("0-4294967295").map(|cpus| cpus.len()), Some(8192));
    for text in ["", "a", "0-", "1,,2", "-1"] {
        assert_eq!(parse_cpus(text), None, "{text}");
    }
}
