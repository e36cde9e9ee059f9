//! The log of the running kernel. Needs root.

#![allow(unsafe_code, reason = "maps memory, as the traced do")]

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use std::{fs, thread};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use unwind_tables::addr::Avma;

use super::super::*;
use crate::base::pages;
use crate::process::maps::MapsName;
use crate::process::{MappedCode, Modules, Unreadable};

/// Files of one page that are mapped as code, in a separate directory.
struct Files {
    directory: tempfile::TempDir,
    files: [File; 2],
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = ["a", "b"].map(|name| {
            let path = directory.path().join(name);
            fs::write(&path, vec![0; page().get()]).expect("a file");
            File::open(path).expect("just written")
        });
        Self { directory, files }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.path().join(["a", "b"][number])
    }

    /// Maps a file as code over whatever is at `address`.
    fn map(&self, number: usize, address: NonZero<usize>) {
        let code = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        let over = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        // SAFETY: the address is one of `reserve`, which nothing else uses.
        let mapped = unsafe { mmap(Some(address), page(), code, over, &self.files[number], 0) };
        mapped.expect("a file can be mapped");
    }
}

fn page() -> NonZero<usize> {
    let bytes = usize::try_from(pages::bytes()).expect("small");
    NonZero::new(bytes).expect("pages are not empty")
}

/// Reserves a page where nothing else is mapped.
fn reserve() -> NonZero<usize> {
    // SAFETY: new memory, where the kernel finds room.
    let memory = unsafe { mmap_anonymous(None, page(), ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) };
    memory.expect("memory").addr()
}

/// Removes a mapping. The page stays reserved: other tests map memory at the same time.
fn clear(address: NonZero<usize>) {
    let over = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // SAFETY: the address is one of `reserve`, which nothing else uses.
    let cleared = unsafe { mmap_anonymous(Some(address), page(), ProtFlags::PROT_NONE, over) };
    cleared.expect("memory");
}

fn unmap(address: NonZero<usize>) {
    let pointer = std::ptr::without_provenance_mut(address.get());
    // SAFETY: the address is one of `reserve`, which nothing else uses.
    unsafe { munmap(std::ptr::NonNull::new(pointer).expect("not null"), page().get()) }
        .expect("it was mapped");
}

/// Keeps the calling thread on one CPU.
fn stay_on(cpu: u32) {
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, and both functions stay inside of it.
    let result = unsafe {
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(result, 0, "the CPU is online");
}

/// Files below `directory` that this process mapped according to `changes`, each with time and address.
fn mapped_below(changes: &[Logged], directory: &Path) -> Vec<(u64, PathBuf, u64)> {
    let own = changes.iter().filter(|change| change.pid == std::process::id());
    own.filter_map(|change| match &change.what {
        Change::Mapped(entry) => match &entry.name {
            MapsName::File { path, .. } if path.starts_with(directory) => {
                Some((change.at, path.clone(), entry.range.start.get()))
            }
            MapsName::File { .. } | MapsName::Anonymous | MapsName::Special(_) => None,
        },
        Change::Executed | Change::Forked { .. } | Change::Lost(_) => None,
    })
    .collect()
}

fn losses(changes: &[Logged]) -> Vec<u64> {
    let lost = changes.iter().filter_map(|change| match change.what {
        Change::Lost(count) => Some(count),
        Change::Mapped(_) | Change::Executed | Change::Forked { .. } => None,
    });
    lost.collect()
}

/// Two threads on two CPUs take turns to map one of two files at one address, 2000 times, while the log is
/// read: it has each mapping, in order, at the time when it was made, and nothing is lost.
#[test]
fn files_that_alternate_at_one_address_as_root() {
    const TURNS: usize = 2000;
    let files = Files::new();
    let mut log = CodeLog::open().expect("the kernel tells (as root)");
    let cpus: Vec<u32> = log.rings.keys().copied().collect();
    let address = reserve();
    let (to_first, first) = mpsc::channel();
    let (to_second, second) = mpsc::channel();
    to_first.send(()).expect("it waits");
    let mut changes = Vec::new();
    let expected = thread::scope(|scope| {
        let threads = [(0, first, to_second), (1, second, to_first)].map(|(number, turn, other)| {
            let (files, cpu) = (&files, cpus[number % cpus.len()]);
            scope.spawn(move || {
                stay_on(cpu);
                let take_turn = |_| {
                    turn.recv().expect("the other still runs");
                    let before = monotonic_nanoseconds();
                    files.map(number, address);
                    let after = monotonic_nanoseconds();
                    clear(address);
                    // After the last turn, the other thread does not wait.
                    _ = other.send(());
                    (before, after)
                };
                (0..TURNS / 2).map(take_turn).collect::<Vec<_>>()
            })
        });
        while !threads.iter().all(ScopedJoinHandle::is_finished) {
            changes.extend(log.read());
            thread::sleep(Duration::from_millis(1));
        }
        threads.map(|thread| thread.join().expect("all turns"))
    });
    changes.extend(log.read());
    unmap(address);
    assert_eq!(losses(&changes), [0; 0]);
    assert!(changes.is_sorted_by_key(|change| change.at));
    let found = mapped_below(&changes, files.directory.path());
    assert_eq!(found.len(), TURNS);
    for (number, (at, path, start)) in found.into_iter().enumerate() {
        let (before, after) = expected[number % 2][number / 2];
        assert!((before..=after).contains(&at), "{number}: {before} {at} {after}");
        assert_eq!(
            (path, start),
            (files.path(number % 2), address.get() as u64),
            "{number}"
        );
    }
}

/// A mapping in the log equals the entry of `/proc/PID/maps`, also if its memory becomes executable later,
/// and if its file is deleted.
#[test]
fn entries_are_those_of_the_maps_as_root() {
    let files = Files::new();
    let mut log = CodeLog::open().expect("the kernel tells (as root)");
    let address = reserve();
    files.map(0, address);
    fs::remove_file(files.path(1)).expect("ours");
    let readable = reserve();
    // SAFETY: the address is one of `reserve`, which nothing else uses.
    let results = unsafe {
        let over = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        mmap(
            Some(readable),
            page(),
            ProtFlags::PROT_READ,
            over,
            &files.files[1],
            0,
        )
        .map(|memory| {
            nix::sys::mman::mprotect(memory, page().get(), ProtFlags::PROT_READ | ProtFlags::PROT_EXEC)
        })
    };
    results.expect("mapped").expect("executable");
    let changes = log.read();
    let maps = crate::process::maps_of(std::process::id()).expect("our own");
    for address in [address, readable] {
        let is_there = |entry: &MapsEntry| entry.range.start == Avma::new(address.get() as u64);
        let logged: Vec<_> = changes
            .iter()
            .filter_map(|change| match &change.what {
                Change::Mapped(entry) if change.pid == std::process::id() && is_there(entry) => Some(entry),
                Change::Mapped(_) | Change::Executed | Change::Forked { .. } | Change::Lost(_) => None,
            })
            .collect();
        let listed: Vec<_> = maps.iter().filter(|entry| is_there(entry)).collect();
        assert_eq!(logged, listed);
        assert_eq!(listed.len(), 1);
    }
    unmap(address);
    unmap(readable);
}

/// A library that was loaded, unloaded and deleted is not taken for the next one at its path and address,
/// though that file may have the same inode number; the next one is found.
#[test]
fn libraries_that_succeed_one_another_as_root() {
    let pid = std::process::id();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("plugin.so");
    let maps = crate::process::maps_of(pid).expect("our own");
    let libraries = maps.iter().find_map(|entry| match &entry.name {
        MapsName::File { path, .. } if path.ends_with("libc.so.6") => path.parent(),
        MapsName::File { .. } | MapsName::Anonymous | MapsName::Special(_) => None,
    });
    let libraries = libraries.expect("libc is loaded");
    let mut log = CodeLog::open().expect("the kernel tells (as root)");
    for library in ["libutil.so.1", "libdl.so.2"] {
        _ = fs::remove_file(&path);
        fs::copy(libraries.join(library), &path).expect("a library");
        // Longer than a tick of the clock for times of files.
        thread::sleep(Duration::from_millis(30));
        // SAFETY: a library of the system, whose initialization does nothing.
        drop(unsafe { libloading::Library::new(&path) }.expect("it can be loaded"));
    }
    let changes = log.read();
    let is_plugin =
        |entry: &MapsEntry| matches!(&entry.name, MapsName::File { path: other, .. } if *other == path);
    let mut modules = Modules::new();
    let mut codes = Vec::new();
    for change in &changes {
        match &change.what {
            Change::Mapped(entry) if change.pid == pid && is_plugin(entry) => {
                codes.push(modules.of_past(pid, None, entry, change.at).code);
            }
            Change::Mapped(_) | Change::Executed | Change::Forked { .. } | Change::Lost(_) => {}
        }
    }
    let first = codes.first().expect("it was loaded");
    let why = match first {
        MappedCode::Unreadable { why, .. } => why,
        other @ (MappedCode::Module { .. } | MappedCode::Generated { .. } | MappedCode::Trampoline) => {
            panic!("{other:?}")
        }
    };
    assert!(matches!(why, Unreadable::Changed | Unreadable::Gone), "{why:?}");
    assert!(
        matches!(codes.last(), Some(MappedCode::Module { .. })),
        "{codes:?}"
    );
    let module = modules.iter().next().expect("the second");
    assert_eq!(
        module.bytes(),
        fs::read(libraries.join("libdl.so.2")).expect("a library")
    );
}

/// A program that is started is logged as forked, executed and mapped, in this order; threads are not logged.
#[test]
fn programs_that_start_as_root() {
    let mut log = CodeLog::open().expect("the kernel tells (as root)");
    let mut child = Command::new("/bin/true").spawn().expect("a program");
    let pid = child.id();
    child.wait().expect("it ends");
    thread::spawn(|| ()).join().expect("a thread");
    let changes = log.read();
    let of_child: Vec<_> = changes.iter().filter(|change| change.pid == pid).collect();
    let own = std::process::id();
    assert_eq!(of_child[0].what, Change::Forked { parent: own });
    assert_eq!(of_child[1].what, Change::Executed);
    let names: Vec<_> = of_child[2..]
        .iter()
        .map(|change| match &change.what {
            Change::Mapped(entry) => entry.name.clone(),
            other @ (Change::Executed | Change::Forked { .. } | Change::Lost(_)) => panic!("{other:?}"),
        })
        .collect();
    let program = fs::canonicalize("/bin/true").expect("a program");
    let is_named = |ends: &dyn Fn(&Path) -> bool| {
        let mut names = names.iter();
        names.any(|name| matches!(name, MapsName::File { path, .. } if ends(path)))
    };
    assert!(is_named(&|path| path == program), "{names:?}");
    assert!(is_named(&|path| path.ends_with("libc.so.6")), "{names:?}");
    assert!(
        names.contains(&MapsName::Special("[vdso]".to_owned())),
        "{names:?}"
    );
    let forked = |change: &&Logged| change.pid == own && matches!(change.what, Change::Forked { .. });
    assert_eq!(changes.iter().find(forked), None);
}

/// A full ring loses changes: a possible loss is reported at once, the number of lost changes with the next
/// one. Other tests and processes fill the ring, too.
#[test]
fn losses_are_counted_as_root() {
    const TURNS: usize = 500;
    const MAX_ATTEMPTS: usize = 100;
    let files = Files::new();
    let mut log = CodeLog::with_rings(1).expect("the kernel tells (as root)");
    let address = reserve();
    let cpu = *log.rings.keys().next().expect("a CPU");
    let map = |times: usize| {
        thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(cpu);
                (0..times).for_each(|turn| files.map(turn % 2, address));
            });
        });
    };
    let missing = |changes: &[Logged], made: usize| {
        let found = mapped_below(changes, files.directory.path()).len();
        let missing = u64::try_from(made - found).expect("small");
        missing.saturating_sub(losses(changes).into_iter().sum())
    };
    map(TURNS);
    let mut changes = log.read();
    assert!(losses(&changes).contains(&0), "{changes:?}");
    assert!(mapped_below(&changes, files.directory.path()).len() < TURNS);
    let mut made = TURNS;
    while missing(&changes, made) > 0 {
        assert!(made < TURNS + MAX_ATTEMPTS, "{changes:?}");
        map(1);
        made += 1;
        changes.extend(log.read());
    }
    assert!(losses(&changes).iter().any(|count| *count > 0), "{changes:?}");
    unmap(address);
}

/// A CPU that comes online is logged from then on; a possible loss of earlier changes is reported.
#[test]
fn cpus_that_come_online_as_root() {
    let files = Files::new();
    let mut log = CodeLog::open().expect("the kernel tells (as root)");
    let (cpu, ring) = log.rings.pop_last().expect("a CPU");
    assert_eq!(ring.pages(), RING_PAGES);
    drop(ring);
    assert_eq!(losses(&log.read()), [0]);
    let address = reserve();
    thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(cpu);
            files.map(0, address);
        });
    });
    let changes = log.read();
    assert_eq!(losses(&changes), [0; 0]);
    assert_eq!(mapped_below(&changes, files.directory.path()).len(), 1);
    unmap(address);
}
