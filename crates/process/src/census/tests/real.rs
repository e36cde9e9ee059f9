//! Real programs, whose memory is known.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::census::descriptors::{FileKind, HeldFile};
use crate::census::kind::Kind;
use crate::census::sockets::Protocol;
use crate::census::stacks::ThreadState;
use crate::census::{Census, Divided, Known};
use crate::memory::{Live, Sums, Tracks};
use crate::smaps::Amounts;
use crate::stat::Stat;
use leak_report::model::{MemoryKind, Parts};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A program that waits. It ends with this value.
struct Running {
    child: Child,
    numbers: Vec<u64>,
}

impl Running {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let numbers = line.split_whitespace().map(|number| number.parse().unwrap());
        // On its way to the wait for its input, it can touch one more page.
        let stat = format!("/proc/{}/stat", child.id());
        while Stat::parse(&std::fs::read(&stat).unwrap()).unwrap().state != b'S' {
            std::thread::yield_now();
        }
        Self {
            numbers: numbers.collect(),
            child,
        }
    }

    /// Takes a census, whose sums agree with the kernel's.
    fn census(&self) -> Census {
        let census = Census::take(self.child.id(), &Known::default()).unwrap();
        let total = census.by_kind().total();
        let listed = census.mappings.iter().map(|mapping| mapping.amounts);
        let sum = listed.fold(Amounts::default(), |mut sum, amounts| {
            sum.add(&amounts);
            sum
        });
        assert_eq!(total, sum);
        assert_eq!(total.resident, census.quick.resident);
        assert_eq!(total.anonymous, census.quick.anonymous);
        assert_eq!(
            total.resident - total.anonymous,
            census.quick.of_files + census.quick.shared
        );
        assert_eq!(total.swapped, census.quick.swapped);
        census
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, compiled with a compiler once.
fn compiled(compiler: &str) -> PathBuf {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap());
    let path = tempfile::Builder::new()
        .tempfile_in(directory)
        .unwrap()
        .into_temp_path();
    let program = path.to_path_buf();
    path.close().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/census/tests/program.c");
    let mut command = Command::new(compiler);
    let made = command
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    assert!(made.unwrap().success(), "{compiler}");
    program
}

/// Asserts that an amount is within 2 %, and two pages, of the expected one.
#[track_caller]
fn assert_near(found: u64, expected: u64) {
    let allowed = expected / 50 + 8 * KIB;
    assert!(
        found.abs_diff(expected) <= allowed,
        "{found} instead of {expected}"
    );
}

/// Stacks of threads that run, that ended and were not joined, and that the C library keeps are told apart.
#[test]
fn stacks_of_glibc() {
    let running = Running::start(&compiled("gcc"), &["threads"]);
    let census = running.census();
    let states = [ThreadState::Running, ThreadState::Unjoined, ThreadState::Cached];
    let sums = states.map(|state| census.stacks_that(state));
    let counts: Vec<_> = sums.iter().map(|sum| sum.count).collect();
    assert_eq!(counts, running.numbers);
    for sum in sums {
        assert_eq!(sum.reserved, sum.count * 512 * KIB);
        assert_eq!(sum.guards, sum.count * 8 * KIB);
    }
    assert_near(sums[0].resident, sums[0].count * 208 * KIB);
    let kinds = census.by_kind();
    assert_eq!(kinds.get(Kind::RunningStack).resident, sums[0].resident);
    assert_eq!(kinds.get(Kind::UnjoinedStack).resident, sums[1].resident);
    assert_eq!(kinds.get(Kind::CachedStack).resident, sums[2].resident);
    assert!(sums[1].resident > 0 && sums[2].resident > 0);
}

/// musl keeps no stacks: those of ended threads wait to be joined, with all that they used.
#[test]
fn stacks_of_musl() {
    let running = Running::start(&compiled("musl-gcc"), &["threads"]);
    let census = running.census();
    let states = [ThreadState::Running, ThreadState::Unjoined, ThreadState::Cached];
    let sums = states.map(|state| census.stacks_that(state));
    let counts: Vec<_> = sums.iter().map(|sum| sum.count).collect();
    assert_eq!(counts, [running.numbers[0], running.numbers[1], 0]);
    assert_near(sums[1].resident, sums[1].count * 204 * KIB);
}

/// Each kind of memory has its amount, and what has none is unexplained.
#[test]
fn kinds_of_glibc() {
    let running = Running::start(&compiled("gcc"), &["kinds"]);
    let census = running.census();
    let kinds = census.by_kind();
    for (kind, bytes) in [
        (Kind::SharedAnonymous, 6 * MIB),
        (Kind::MemoryFile, 4 * MIB),
        (Kind::SystemV, 2 * MIB),
        (Kind::GeneratedCode, 3 * MIB),
        (Kind::Unexplained, 5 * MIB),
        (Kind::GlibcBlocks, 22 * MIB),
        (Kind::GlibcArena, 2048 * 1008),
        (Kind::BrkHeap, 3072 * 1008),
    ] {
        let found = kinds.get(kind).resident;
        assert!(
            found.abs_diff(bytes) <= bytes / 50 + 16 * KIB,
            "{kind:?}: {found} {bytes}"
        );
    }
    assert!(kinds.get(Kind::Reserved).reserved >= 64 * MIB);
    let files = census.largest_files(usize::MAX);
    let library = files
        .iter()
        .find(|file| file.path.ends_with("libm.so.6"))
        .unwrap();
    assert!(library.amounts.resident > 0 && library.kind == Kind::ProgramCode);
    let held = &census.descriptors.as_ref().unwrap().held;
    let [unmapped, mapped, others @ ..] = held.as_slice() else {
        panic!("{held:?}");
    };
    // A container may have no `/dev/shm`.
    let deleted: Vec<_> = others.iter().map(HeldFile::beyond_resident).collect();
    assert_eq!(deleted, vec![MIB; others.len()]);
    assert_eq!(others.len() as u64, running.numbers[0]);
    assert_eq!(unmapped.name, Path::new("/memfd:unmapped"));
    assert_eq!(
        (unmapped.allocated, unmapped.beyond_resident()),
        (8 * MIB, 8 * MIB)
    );
    assert_eq!((mapped.mapped, mapped.beyond_resident()), (4 * MIB, 0));
}

/// musl's blocks are known, large ones and small ones.
#[test]
fn kinds_of_musl() {
    let running = Running::start(&compiled("musl-gcc"), &["kinds"]);
    let census = running.census();
    let kinds = census.by_kind();
    let heap = kinds.get(Kind::MuslGroups).resident + kinds.get(Kind::BrkHeap).resident;
    let blocks = 22 * MIB + 5120 * 1000;
    assert!(heap.abs_diff(blocks) < blocks / 25, "{heap} {blocks}");
    assert_near(kinds.get(Kind::Unexplained).resident, 5 * MIB);
}

/// The caller's knowledge of heaps counts before all other evidence.
#[test]
fn heaps_that_the_caller_knows() {
    let running = Running::start(&compiled("gcc"), &["kinds"]);
    let census = running.census();
    let unexplained = census.unexplained()[0].range.clone();
    let (start, end) = (unexplained.start, unexplained.end);
    let middle = start.wrapping_add(2 * MIB);
    let known = Known {
        heaps: &[start..middle, middle.wrapping_add(MIB)..end],
        stack_pointers: &[],
    };
    let kinds = Census::take(running.child.id(), &known).unwrap().by_kind();
    assert_eq!(kinds.get(Kind::KnownHeap).resident, 4 * MIB);
    assert_eq!(kinds.get(Kind::Unexplained).resident, MIB);
}

/// Queues of sockets have the bytes that were sent; other objects of the kernel are counted.
#[test]
fn sockets_and_pipes() {
    let program = compiled("gcc");
    let running = Running::start(&program, &["files"]);
    let census = running.census();
    let sockets = &census.sockets;
    let [unix, tcp, udp] =
        [Protocol::Unix, Protocol::Tcp, Protocol::Udp].map(|protocol| sockets.by_protocol[&protocol]);
    assert_eq!((unix.count, unix.to_read), (2, running.numbers[0]));
    assert_eq!((tcp.count, tcp.to_read + tcp.unsent), (3, running.numbers[1]));
    assert_eq!((udp.count, sockets.others), (1, 0));
    assert!(sockets.has_memory && unix.memory >= unix.to_read && tcp.memory >= tcp.to_read);
    assert!(udp.memory > 5);
    let files = census.descriptors.as_ref().unwrap();
    // Standard input and output are pipes, too, and some are inherited.
    let other = Running::start(&program, &["threads"]).census();
    assert_eq!(files.pipes, running.numbers[2] + other.descriptors.unwrap().pipes);
    assert_eq!(files.pipe_capacity(), files.pipes * 64 * KIB);
    for (kind, count) in [
        (FileKind::Socket, 6),
        (FileKind::Epoll, 1),
        (FileKind::Eventfd, 2),
        (FileKind::Timerfd, 1),
        (FileKind::Inotify, 1),
    ] {
        assert_eq!(files.by_kind[&kind], count, "{kind:?}");
    }
    assert_eq!(Some(files.count()), census.quick.open_files);
    assert!(files.is_complete && files.limit.is_none_or(|limit| limit > files.count()));
}

/// Memory of huge pages that was never touched is found by a sample, if the machine has huge pages.
#[test]
fn surplus_of_huge_pages() {
    let running = Running::start(&compiled("gcc"), &["huge"]);
    let huge = running.census().huge;
    if huge.huge < 32 * MIB {
        // They are switched off, or memory is fragmented: what is not huge was touched.
        assert!(huge.zero <= huge.huge);
        return;
    }
    assert_eq!(huge.huge, 32 * MIB);
    assert_near(huge.zero, running.numbers[0]);
    assert!(huge.error <= huge.huge / 50, "{huge:?}");
}

/// A process that has ended has no census, also while it was not waited for; one that ends in the middle does
/// no harm.
#[test]
fn processes_that_end() {
    let program = compiled("gcc");
    let mut running = Running::start(&program, &["kinds"]);
    running.child.kill().unwrap();
    let pid = running.child.id();
    while std::fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        std::thread::yield_now();
    }
    assert!(Census::take(pid, &Known::default()).is_err(), "not waited for");
    running.child.wait().unwrap();
    assert!(Census::take(pid, &Known::default()).is_err(), "waited for");
    for _ in 0..20 {
        let mut running = Running::start(&program, &["threads"]);
        let pid = running.child.id();
        let reader = std::thread::spawn(move || while Census::take(pid, &Known::default()).is_ok() {});
        running.child.kill().unwrap();
        reader.join().unwrap();
    }
}

/// Parts of a process's memory in reports, without a trace.
fn parts(pid: u32) -> Parts {
    let divided = Divided::read(pid, &Known::default()).unwrap();
    let parts = Sums::of(&divided, &[], Tracks::Blocks, |_| 0).parts(Tracks::Blocks, Live::ByPortion, None);
    let kinds: u64 = parts.kinds.iter().map(|kind| kind.bytes).sum();
    let elsewhere = parts.thread_stacks + parts.files + parts.shared + parts.unexplained;
    assert_eq!(kinds, elsewhere, "{parts:?}");
    assert_eq!(parts.before_attach_at_most + elsewhere, parts.rss, "{parts:?}");
    parts
}

/// Bytes of mappings of which no more is known than who can use them.
fn bytes_of_no_purpose(parts: &Parts) -> u64 {
    let kinds = parts.kinds.iter();
    kinds
        .filter(|kind| matches!(kind.kind, MemoryKind::Mappings | MemoryKind::Unexplained))
        .map(|kind| kind.bytes)
        .sum()
}

/// Reports name the same amounts as the census: stacks by what became of their threads, and what the program
/// has mapped.
#[test]
fn parts_of_reports() {
    let running = Running::start(&compiled("gcc"), &["threads"]);
    let kinds = running.census().by_kind();
    let parts_of_threads = parts(running.child.id());
    for (kind, in_report) in [
        (Kind::UnjoinedStack, MemoryKind::UnjoinedStacks),
        (Kind::CachedStack, MemoryKind::CachedStacks),
    ] {
        let found = parts_of_threads.kinds.iter().find(|each| each.kind == in_report);
        assert_eq!(found.map(|each| each.bytes), Some(kinds.get(kind).resident));
    }
    let running = Running::start(&compiled("gcc"), &["kinds"]);
    let parts = parts(running.child.id());
    assert_near(bytes_of_no_purpose(&parts), 5 * MIB);
    assert_near(parts.shared, 12 * MIB);
    let names: Vec<_> = parts
        .named_shared
        .iter()
        .map(|named| named.name.as_str())
        .collect();
    assert!(names.contains(&"/memfd:mapped"), "{names:?}");
    let malloc = (22 * MIB) + 2048 * 1008 + 3072 * 1008;
    assert!(
        parts.before_attach_at_most.abs_diff(malloc) <= malloc / 25,
        "{parts:?}"
    );
}

/// At most 2 % of the memory of interpreters is unexplained, and their heaps are known.
#[test]
fn interpreters() {
    const PYTHON: &str =
        "a = [{i: str(i)} for i in range(100000)]; b = b'x' * (20 << 20); print(0, flush=True); input()";
    const NODE: &str = "const a = []; for (let i = 0; i < 300000; i++) a.push({i, s: 'x' + i}); \
         const b = Buffer.alloc(20 << 20, 1); console.log(0); process.stdin.on('data', () => a.length + b.length)";
    for (program, flag, text, heap) in [
        ("/usr/bin/python3", "-c", PYTHON, Kind::PythonArenas),
        ("/usr/bin/node", "-e", NODE, Kind::V8Heap),
    ] {
        let running = Running::start(Path::new(program), &[flag, text]);
        let census = Census::take(running.child.id(), &Known::default()).unwrap();
        let kinds = census.by_kind();
        let (total, unexplained) = (kinds.total().resident, kinds.get(Kind::Unexplained).resident);
        assert!(
            unexplained <= total / 50,
            "{program}: {unexplained} of {total}: {kinds:?}"
        );
        let parts = parts(running.child.id());
        assert!(
            bytes_of_no_purpose(&parts) <= parts.rss / 50,
            "{program}: {parts:?}"
        );
        assert!(kinds.get(heap).resident > 20 * MIB, "{program}: {kinds:?}");
        assert!(
            kinds.get(Kind::GlibcBlocks).resident > 20 * MIB,
            "{program}: {kinds:?}"
        );
    }
}
