//! Words that the kernel keeps for a process and gives back to it, as far as it shows them: data of epoll,
//! values of timers, and entries of io_uring in `/proc`; values of signals by an iterator ([`InKernel`]). A
//! block whose only pointer is among them is still reachable.
//!
//! Places that can hold pointers, but do not show their content, are counted by kind, with the number of
//! words in them: requests under way, unread bytes. Empty places do not count, nor those that only others can
//! write to: a pipe or a socket of which the process has one end. Without an iterator, all places count.
//!
//! No file of the process is opened: an open end of a pipe would keep the other end from noticing that the
//! process has closed it. Only the descriptors of the process's first thread are read. Files, bytes and words
//! are bounded, since the process decides how many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use leak_report::model::Hidden;
use memleak_base::proc_fields::ProcFields;

/// Maximum number of descriptors, and of threads, that are looked at.
const MAX_ENTRIES: usize = 1 << 16;
/// Maximum bytes read of all files together: some three million descriptors in epolls.
const MAX_BYTES: u64 = 256 << 20;

/// Words that the kernel keeps for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Ascending, each once, without 0.
    pub words: Vec<u64>,
    /// Places that may hold further words, with the number of each kind; kinds without any are left out.
    pub hidden: BTreeMap<Hidden, u64>,
    /// Words in these places; `u64::MAX` if that is not known.
    pub hidden_words: u64,
}

/// Words, or a place for them, that the kernel's structures keep for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InKernel {
    /// Words that can be read: values of a signal.
    Words(Vec<u64>),
    Place(Place),
}

/// A place whose content is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: Hidden,
    /// Identifier, equal for all descriptors of the place.
    pub id: u64,
    /// Id of the socket that a socket is connected to; 0 if none is.
    pub peer: u64,
    pub is_readable: bool,
    pub is_writable: bool,
    /// Number of words in it.
    pub words: u64,
}

/// Places with words which the process itself can have put there, each once.
fn own_places(all: &[InKernel]) -> Vec<Place> {
    let places = all.iter().filter_map(|found| match found {
        InKernel::Place(place) => Some(place),
        InKernel::Words(_) => None,
    });
    // By id: the union of what the descriptors of each permit.
    let mut by_id: BTreeMap<u64, Place> = BTreeMap::new();
    for &place in places {
        let known = by_id.entry(place.id).or_insert(place);
        known.is_readable |= place.is_readable;
        known.is_writable |= place.is_writable;
        known.words = known.words.max(place.words);
    }
    let has_both_ends = |place: &&Place| match place.kind {
        Hidden::Pipes => place.is_readable && place.is_writable,
        Hidden::Sockets => by_id.contains_key(&place.peer),
        Hidden::Queues | Hidden::Signals | Hidden::AioContexts | Hidden::IoUrings | Hidden::Unread => true,
    };
    let own = by_id
        .values()
        .filter(has_both_ends)
        .filter(|place| place.words > 0);
    own.copied().collect()
}

/// A descriptor's kind, by the link in `/proc/PID/fd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    Epoll,
    IoUring,
    /// With its inode number.
    Pipe(u64),
    Socket(u64),
    Other,
}

impl Descriptor {
    fn of(link: &[u8]) -> Self {
        let number = |prefix: &[u8]| {
            let number = link.strip_prefix(prefix)?.strip_suffix(b"]")?;
            str::from_utf8(number).ok()?.parse().ok()
        };
        match link {
            b"anon_inode:[eventpoll]" => Self::Epoll,
            b"anon_inode:[io_uring]" => Self::IoUring,
            _ => number(b"pipe:[")
                .map(Self::Pipe)
                .or_else(|| number(b"socket:[").map(Self::Socket))
                .unwrap_or(Self::Other),
        }
    }
}

/// Data in the lines of an epoll's fdinfo: `tfd: 4 events: 19 data: 55d0 pos:0 ino:7a sdev:f`.
///
/// Format: `ep_show_fdinfo` of the kernel's `fs/eventpoll.c`.
fn epoll_data(text: &str) -> impl Iterator<Item = u64> {
    let lines = text.lines().filter(|line| line.starts_with("tfd:"));
    lines.filter_map(|line| {
        let (_, data) = line.split_once("data:")?;
        u64::from_str_radix(data.split_ascii_whitespace().next()?, 16).ok()
    })
}

/// Values that timers pass with their signals: `signal: 60/00007fff86e452a8`.
///
/// Format: `proc_pid_timers(5)`.
fn timer_values(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| {
        let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
        u64::from_str_radix(value.trim(), 16).ok()
    })
}

/// Words of an io_uring's entries that the kernel or the process has not taken yet, and of its registered
/// buffers: `addr:0x7f00`, `user_data:94000` or `user_data=94000`, and `0: 0x7f00/4096`.
///
/// Format: `io_uring/fdinfo.c` of the kernel, from 5.10 to 6.18.
fn io_uring_words(text: &str) -> impl Iterator<Item = u64> {
    let parts = text.split(|character: char| character.is_ascii_whitespace() || character == ',');
    parts.filter_map(|part| {
        let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let decimal = part
            .strip_prefix("user_data:")
            .or_else(|| part.strip_prefix("user_data="));
        if let Some(decimal) = decimal {
            return decimal.parse().ok();
        }
        if let Some(address) = part.strip_prefix("addr:0x") {
            return hexadecimal(address);
        }
        hexadecimal(part.strip_prefix("0x")?.split_once('/')?.0)
    })
}

/// True if the flags in a descriptor's fdinfo, in octal, let it be read.
fn can_be_read(fields: &ProcFields) -> bool {
    let flags = fields.words("flags").next();
    let flags = flags.and_then(|flags| i32::from_str_radix(flags, 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_WRONLY)
}

/// Number of pending signals, of a thread (`SigPnd`) or of its process (`ShdPnd`).
fn pending(status: &ProcFields, name: &str) -> u64 {
    u64::from(status.bits(name).unwrap_or(0).count_ones())
}

/// Number of contexts of asynchronous I/O: each is mapped as `/[aio]`.
fn aio_contexts(maps: &str) -> u64 {
    let is_context = |line: &&str| line.ends_with(" /[aio] (deleted)") || line.ends_with(" /[aio]");
    maps.lines().filter(is_context).count() as u64
}

/// Reads the words that the kernel keeps for process `pid`. `in_kernel` is what an iterator has read of the
/// kernel's structures for it; `None` without an iterator.
///
/// # Errors
///
/// The kernel's error if the process's descriptors cannot be listed: it is gone, or rights are missing.
pub fn read(pid: u32, in_kernel: Option<&[InKernel]>) -> io::Result<Kept> {
    let directory = format!("/proc/{pid}");
    let mut reader = Reader {
        directory: Path::new(&directory),
        budget: MAX_BYTES,
        words: BTreeSet::new(),
        hidden: BTreeMap::new(),
        counted: BTreeSet::new(),
        counts_all: in_kernel.is_none(),
    };
    reader.read_descriptors()?;
    if let Some(text) = reader.text("timers") {
        reader.words.extend(timer_values(&text));
    }
    let own = in_kernel.map(own_places);
    match &own {
        None => {
            if let Some(text) = reader.text("maps") {
                reader.count(Hidden::AioContexts, aio_contexts(&text));
            }
            reader.count_signals();
        }
        Some(own) => own.iter().for_each(|place| reader.count(place.kind, 1)),
    }
    for found in in_kernel.unwrap_or_default() {
        if let InKernel::Words(words) = found {
            reader.words.extend(words);
        }
    }
    reader.words.remove(&0);
    let words = own.iter().flatten().map(|place| place.words);
    let is_known = own.is_some() && !reader.hidden.contains_key(&Hidden::Unread);
    Ok(Kept {
        words: reader.words.into_iter().collect(),
        hidden_words: match is_known || reader.hidden.is_empty() {
            true => words.fold(0, u64::saturating_add),
            false => u64::MAX,
        },
        hidden: reader.hidden,
    })
}

/// Files of one process, with the words and places found in them.
struct Reader<'a> {
    directory: &'a Path,
    /// Bytes that may still be read.
    budget: u64,
    words: BTreeSet<u64>,
    hidden: BTreeMap<Hidden, u64>,
    /// Inode numbers of pipes and sockets that were counted.
    counted: BTreeSet<u64>,
    /// Set if the contents of places are unknown, so that all places count.
    counts_all: bool,
}

impl Reader<'_> {
    fn count(&mut self, kind: Hidden, more: u64) {
        if more > 0 {
            let count = self.hidden.entry(kind).or_default();
            *count = count.saturating_add(more);
        }
    }

    /// Reads the text of a file, as far as the budget goes; `None` if the file is gone or the kernel does not
    /// have it. A file that cannot be read for another reason, or not to its end, is counted as unread.
    fn text(&mut self, name: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let read = File::open(self.directory.join(name)).and_then(|file| {
            let mut file = file.take(self.budget);
            file.read_to_end(&mut bytes)
        });
        self.budget = self.budget.saturating_sub(bytes.len() as u64);
        match read {
            Ok(_) if self.budget > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Ok(_) | Err(_) => self.count(Hidden::Unread, 1),
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn read_descriptors(&mut self) -> io::Result<()> {
        let entries = fs::read_dir(self.directory.join("fd"))?;
        for (number, entry) in entries.flatten().enumerate() {
            if number >= MAX_ENTRIES {
                self.count(Hidden::Unread, 1);
                break;
            }
            let name = entry.file_name();
            let Ok(link) = fs::read_link(entry.path()) else {
                continue;
            };
            let info = Path::new("fdinfo").join(&name);
            self.read_descriptor(
                Descriptor::of(link.as_os_str().as_encoded_bytes()),
                &info.to_string_lossy(),
            );
        }
        Ok(())
    }

    /// Reads the words in a descriptor's file `info`, and counts its place.
    fn read_descriptor(&mut self, descriptor: Descriptor, info: &str) {
        match descriptor {
            Descriptor::Epoll => {
                let text = self.text(info).unwrap_or_default();
                self.words.extend(epoll_data(&text));
            }
            Descriptor::IoUring => {
                let text = self.text(info).unwrap_or_default();
                self.words.extend(io_uring_words(&text));
                self.count(Hidden::IoUrings, u64::from(self.counts_all));
            }
            Descriptor::Pipe(_) | Descriptor::Socket(_) if !self.counts_all => {}
            Descriptor::Pipe(inode) => {
                let text = self.text(info).unwrap_or_default();
                if can_be_read(&ProcFields::from(text.as_bytes())) && self.counted.insert(inode) {
                    self.count(Hidden::Pipes, 1);
                }
            }
            Descriptor::Socket(inode) => {
                if self.counted.insert(inode) {
                    self.count(Hidden::Sockets, 1);
                }
            }
            Descriptor::Other => {}
        }
    }

    fn count_signals(&mut self) {
        let status = |text: Option<String>| ProcFields::from(text.unwrap_or_default().as_bytes());
        let shared = pending(&status(self.text("status")), "ShdPnd");
        self.count(Hidden::Signals, shared);
        let threads = fs::read_dir(self.directory.join("task"));
        for (number, thread) in threads.into_iter().flatten().flatten().enumerate() {
            if number >= MAX_ENTRIES {
                self.count(Hidden::Unread, 1);
                return;
            }
            let name = Path::new("task").join(thread.file_name()).join("status");
            let own = pending(&status(self.text(&name.to_string_lossy())), "SigPnd");
            self.count(Hidden::Signals, own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(found: impl Iterator<Item = u64>) -> Vec<u64> {
        found.collect()
    }

    /// Data of each watched descriptor is read; truncated lines, and values that are no numbers, are left
    /// out.
    #[test]
    fn epoll() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t1038\n\
                    tfd:        4 events:       19 data:     55d0a1b2c3d4  pos:0 ino:7a7dd sdev:f\n\
                    tfd:        5 events: 80000019 data: ffffffffffffffff  pos:0 ino:7a sdev:f\n\
                    tfd:        6 events: 80000019 data: 1ffffffffffffffff  pos:0\ntfd: 7 data:\ntfd: 8 data: x\ntfd: 9";
        assert_eq!(words(epoll_data(text)), [0x55d0_a1b2_c3d4, u64::MAX]);
        assert!(words(epoll_data("data: 12\n")).is_empty());
    }

    /// The value of each timer, however it notifies.
    #[test]
    fn timers() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n\
                    ID: 0\nsignal: 0/0000000000000007\nnotify: none/pid.2634\nClockID: 1\nsignal: 3\nsignal: 3/g\n";
        assert_eq!(words(timer_values(text)), [0x7fff_86e4_52a8, 7]);
    }

    /// Entries of both queues, of the list of those that did not fit, and registered buffers.
    #[test]
    fn io_uring() {
        let text = "SqMask:\t0x3\nSqHead:\t0\nSQEs:\t1\n\
                    \x20   0: opcode:READ, fd:3, flags:0, off:0, addr:0x7f0012345678, rw_flags:0x0, buf_index:0 user_data:94000\n\
                    CQEs:\t1\n    0: user_data:139637976727552, res:4, flag:0\nSqThread:\t-1\nUserFiles:\t0\n\
                    UserBufs:\t1\n    0: 0x7f0000001000/4096\nPollList:\nCqOverflowList:\n  user_data=77, res=0, flags=0\n";
        let found = [0x7f00_1234_5678, 94000, 139_637_976_727_552, 0x7f00_0000_1000, 77];
        assert_eq!(words(io_uring_words(text)), found);
        let malformed = words(io_uring_words("user_data:-1 user_data: addr:0x 0x/1 0x5"));
        assert_eq!(malformed, Vec::<u64>::new());
    }

    /// Descriptors are recognized by their links; a file with such a name is not one.
    #[test]
    fn descriptors() {
        for (link, kind) in [
            ("anon_inode:[eventpoll]", Descriptor::Epoll),
            ("anon_inode:[io_uring]", Descriptor::IoUring),
            ("pipe:[1234]", Descriptor::Pipe(1234)),
            ("socket:[9]", Descriptor::Socket(9)),
            ("/tmp/pipe:[1234]", Descriptor::Other),
            ("pipe:[x]", Descriptor::Other),
            ("anon_inode:[timerfd]", Descriptor::Other),
            ("", Descriptor::Other),
        ] {
            assert_eq!(Descriptor::of(link.as_bytes()), kind, "{link}");
        }
        let readable = |text: &str| can_be_read(&ProcFields::from(text.as_bytes()));
        assert!(readable("pos:\t0\nflags:\t02000000\n") && readable("flags:\t02\n") && readable(""));
        assert!(!readable("flags:\t01\n"));
    }

    /// Pending signals by number, contexts by their mappings.
    #[test]
    fn counts() {
        let status = ProcFields::from(&b"SigPnd:\t0000000000000200\nShdPnd:\t0000000200000003\n"[..]);
        assert_eq!((pending(&status, "SigPnd"), pending(&status, "ShdPnd")), (1, 3));
        let maps = "7f00-7f01 rw-s 00000000 00:10 5    /[aio] (deleted)\n7f02-7f03 rw-p 00000000 00:00 0  /tmp/[aio]\n";
        assert_eq!(aio_contexts(maps), 1);
    }

    /// A place counts if the process has both ends and something is in it, however many descriptors it has.
    #[test]
    fn places() {
        let place = |kind, id, peer, mode: u32, words| {
            InKernel::Place(Place {
                kind,
                id,
                peer,
                is_readable: mode & 1 != 0,
                is_writable: mode & 2 != 0,
                words,
            })
        };
        let counted = |all: &[InKernel]| {
            own_places(all)
                .iter()
                .map(|place| (place.id, place.words))
                .collect::<Vec<_>>()
        };
        let pipes = [
            place(Hidden::Pipes, 1, 0, 1, 4),
            place(Hidden::Pipes, 2, 0, 1, 5),
            place(Hidden::Pipes, 2, 0, 2, 5),
            place(Hidden::Pipes, 3, 0, 3, 0),
        ];
        assert_eq!(counted(&pipes), [(2, 5)]);
        let sockets = [
            place(Hidden::Sockets, 7, 8, 3, 2),
            place(Hidden::Sockets, 8, 7, 3, 0),
            place(Hidden::Sockets, 9, 10, 3, 6),
            InKernel::Words(vec![1]),
            place(Hidden::Sockets, 11, 0, 3, 6),
        ];
        assert_eq!(counted(&sockets), [(7, 2)]);
        let others = [
            place(Hidden::IoUrings, 20, 0, 3, 64),
            place(Hidden::AioContexts, 21, 0, 0, 0),
            place(Hidden::Queues, 22, 0, 1, 3),
        ];
        assert_eq!(counted(&others), [(20, 64), (22, 3)]);
    }

    /// This process's places can all be read; a process that is gone is an error.
    #[test]
    fn own() {
        let kept = read(std::process::id(), None).expect("it runs");
        assert!(
            kept.hidden
                .iter()
                .all(|(&kind, &count)| kind != Hidden::Unread && count > 0),
            "{kept:?}"
        );
        let gone = read(1 << 30, None).expect_err("beyond PID_MAX_LIMIT");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
