//! Tests of the census: recorded text, and real programs.

mod real;

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use unwind_tables::addr::Avma;

use super::classify::{self, Facts};
use super::contents::{Contents, fill};
use super::huge::{self, Effort};
use super::kind::Kind;
use super::mounts::Mounts;
use super::stacks::{self, ThreadStack, ThreadState};
use super::{Divided, Known};
use crate::smaps::{self, Amounts, Resident};

/// Memory with some words in it.
#[derive(Default)]
pub(crate) struct Words(BTreeMap<u64, u64>);

impl Words {
    pub(crate) fn put(&mut self, address: u64, words: &[u64]) {
        let addresses = (address..).step_by(8);
        self.0.extend(addresses.zip(words.iter().copied()));
    }
}

impl Contents for Words {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        (address..)
            .step_by(8)
            .zip(bytes.chunks_exact_mut(8))
            .all(|(at, chunk)| match self.0.get(&at) {
                Some(word) => {
                    chunk.copy_from_slice(&word.to_ne_bytes());
                    true
                }
                None => false,
            })
    }

    fn resident(&self, _: u64, count: usize) -> usize {
        count
    }
}

/// Finds the stacks in the memory of a recorded process.
fn stacks_in(contents: &dyn Contents, mappings: &[Resident], usual: u64) -> Vec<ThreadStack> {
    let read = |address: u64, words: &mut [u64]| fill(contents, address, words);
    stacks::find(&read, mappings.iter().map(|mapping| &mapping.entry), usual)
}

/// Divides the memory of a recorded process.
fn divided(smaps: &str, contents: &dyn Contents) -> Vec<(Kind, u64)> {
    let mappings = smaps::parse(smaps.as_bytes());
    let mounts = Mounts::parse(b"30 1 0:42 / /run rw - tmpfs tmpfs rw\n");
    let divided = Divided::of(mappings, &Known::default(), contents, (mounts, 8 << 20));
    let portions = divided.portions.iter();
    portions
        .map(|portion| (portion.kind, portion.amounts.resident >> 10))
        .collect()
}

/// Mapping with these columns after its address range, and one resident page for each of its pages.
fn mapping(start: u64, pages: u64, rest: &str) -> String {
    let end = start + pages * 4096;
    format!("{start:x}-{end:x} {rest}\nRss: {} kB\n", pages * 4)
}

/// Names of the kernel and of programs decide.
#[test]
fn names() {
    for (rest, kind) in [
        ("rw-p 00000000 00:00 0 [heap]", Kind::BrkHeap),
        ("rw-p 00000000 00:00 0 [stack]", Kind::MainStack),
        ("r-xp 00000000 00:00 0 [vdso]", Kind::KernelPages),
        ("rw-s 00000000 00:0f 9 anon_inode:[io_uring]", Kind::KernelPages),
        ("rw-p 00000000 00:00 0 [anon:scudo:primary]", Kind::NamedHeap),
        ("rw-p 00000000 00:00 0 [anon:libc_malloc]", Kind::NamedHeap),
        ("rw-p 00000000 00:00 0 [anon: Go: heap]", Kind::GoHeap),
        ("rw-p 00000000 00:00 0 [anon:v8]", Kind::V8Heap),
        ("rwxp 00000000 00:00 0 [anon:v8]", Kind::GeneratedCode),
        ("rw-p 00000000 00:00 0 [anon:my pool]", Kind::Named),
        ("rw-s 00000000 00:01 9 [anon_shmem:x]", Kind::SharedAnonymous),
        ("rw-s 00000000 00:01 9 /dev/zero (deleted)", Kind::SharedAnonymous),
        ("rw-s 00000000 00:01 9 /SYSV00000000 (deleted)", Kind::SystemV),
        ("rw-s 00000000 00:01 9 /memfd:a (deleted)", Kind::MemoryFile),
        (
            "r-xs 00000000 00:01 9 /memfd:doublemapper (deleted)",
            Kind::GeneratedCode,
        ),
        ("rw-s 00000000 00:2a 9 /run/a", Kind::SharedFile),
        ("rw-s 00000000 00:2b 9 /run/a", Kind::MappedFile),
        ("rw-s 00000000 00:19 9 /dev/shm/a", Kind::SharedFile),
        ("rw-s 00000000 00:05 9 /dev/dri/card0", Kind::Device),
        ("rw-p 00000000 00:0f 9 /anon_hugepage (deleted)", Kind::Hugetlb),
        ("r-xp 00000000 fe:00 9 /bin/a", Kind::ProgramCode),
        ("r--p 00000000 fe:00 9 /usr/share/a", Kind::MappedFile),
        ("rwxp 00000000 00:00 0", Kind::GeneratedCode),
        ("rw-p 00000000 00:00 0", Kind::Unexplained),
        ("---p 00000000 00:00 0", Kind::Unexplained),
    ] {
        let found = divided(&mapping(0x7f00_0000_0000, 3, rest), &Words::default());
        assert_eq!(found, [(kind, 12)], "{rest}");
    }
    let empty = "7f0000000000-7f0000003000 ---p 00000000 00:00 0\nRss: 0 kB\n";
    assert_eq!(divided(empty, &Words::default()), [(Kind::Reserved, 0)]);
}

/// A thread's stack that no C library describes is known by the thread's stack pointer.
#[test]
fn stack_pointers() {
    let text = mapping(0x7f00_0000_0000, 16, "rw-p 00000000 00:00 0");
    let mappings = smaps::parse(text.as_bytes());
    let kind = |pointer| {
        let facts = Facts {
            contents: &Words::default(),
            heaps: &[],
            stack_pointers: &[Avma::new(pointer)],
            stacks: &[],
            mounts: &Mounts::default(),
        };
        classify::portions(&mappings, &facts)[0].kind
    };
    assert_eq!(kind(0x7f00_0000_fff8), Kind::RunningStack);
    assert_eq!(kind(0x7f00_0001_0000), Kind::Unexplained);
}

/// A stack and a large block that the kernel has made one mapping are divided.
#[test]
fn a_mapping_of_two_kinds() {
    let start = 0x7f00_0010_1000;
    let text = format!(
        "{:x}-{start:x} ---p 00000000 00:00 0\nRss: 0 kB\n{}",
        start - 4096,
        mapping(start, 16 + 4 + 2, "rw-p 00000000 00:00 0")
    );
    let end = start + 16 * 4096;
    let own = end - 2368;
    let mut words = Words::default();
    words.put(end - 8192, &[0; 1024]);
    words.put(own, &[own, 0, own]);
    words.put(own + 1680, &[start - 4096, 17 * 4096, 4096]);
    words.put(end, &[0, 4 * 4096 + 2]);
    let mappings = smaps::parse(text.as_bytes());
    // Stacks of this size are usual.
    let stacks = stacks_in(&words, &mappings, 16 * 4096);
    assert_eq!(stacks.len(), 1);
    let facts = Facts {
        contents: &words,
        heaps: &[],
        stack_pointers: &[],
        stacks: &stacks,
        mounts: &Mounts::default(),
    };
    let portions = classify::portions(&mappings, &facts);
    let found: Vec<_> = portions
        .iter()
        .map(|portion| {
            (
                portion.kind,
                portion.amounts.resident >> 10,
                portion.amounts.mappings,
            )
        })
        .collect();
    let expected = [
        (Kind::Reserved, 0, 1),
        (Kind::UnjoinedStack, 64, 1),
        (Kind::GlibcBlocks, 16, 0),
        (Kind::Unexplained, 8, 0),
    ];
    assert_eq!(found, expected);
}

/// Stands for a word near the one that says that a thread is detached.
const LEADS_BACK: u64 = 1;

/// Ids and flags of a thread's record say what became of it.
#[test]
fn states_of_threads() {
    let start = 0x7f00_0010_1000;
    let end = start + 16 * 4096;
    let own = end - 2368;
    let text = format!(
        "{:x}-{start:x} ---p 00000000 00:00 0\n{}",
        start - 4096,
        mapping(start, 16, "rw-p 00000000 00:00 0")
    );
    for (id, joiner, state) in [
        (4711, 0, Some(ThreadState::Running)),
        (4711, own, Some(ThreadState::Running)),
        (0, 0, Some(ThreadState::Unjoined)),
        (0, own + 64, Some(ThreadState::Unjoined)),
        (0, own, Some(ThreadState::Cached)),
        (0xffff_ffff, 0, Some(ThreadState::Cached)),
        // Not where 2.36 has it.
        (0, LEADS_BACK, Some(ThreadState::Ended)),
    ] {
        let mut words = Words::default();
        words.put(end - 8192, &[0; 1024]);
        words.put(own, &[own, 0, own]);
        words.put(own + 720, &[id]);
        match joiner {
            LEADS_BACK => words.put(own + 1560, &[own]),
            joiner => words.put(own + 1568, &[joiner]),
        }
        words.put(own + 1680, &[start - 4096, 17 * 4096, 4096]);
        let found = stacks_in(&words, &smaps::parse(text.as_bytes()), 8 << 20);
        assert_eq!(found.first().map(|stack| stack.state), state, "{id} {joiner:x}");
        // A size that does not agree with the mapping, or would overflow.
        for size in [18 * 4096, 4096, u64::MAX] {
            words.put(own + 1688, &[size]);
            assert_eq!(stacks_in(&words, &smaps::parse(text.as_bytes()), 8 << 20), []);
        }
    }
}

proptest! {
    /// Whatever the text and the memory are: nothing fails, and sums are those of the mappings.
    #[test]
    fn hostile_text(
        lines in vec((any::<u64>(), any::<u64>(), select(RIGHTS.to_vec()), select(NAMES.to_vec())), 0..12),
        sizes in vec(any::<u64>(), 12),
        pattern in any::<u64>(),
    ) {
        let line = |((start, length, rights, name), size): (&(u64, u64, &str, &str), &u64)| {
            let end = start.saturating_add(length % (1 << 40));
            format!("{start:x}-{end:x} {rights} 0 00:00 {name}\nRss: {size} kB\nAnonHugePages: {size} kB\n")
        };
        let text: String = lines.iter().zip(&sizes).map(line).collect();
        let mappings = smaps::parse(text.as_bytes());
        let contents = Pattern(pattern);
        let stacks = stacks_in(&contents, &mappings, pattern);
        let facts = Facts {
            contents: &contents,
            heaps: &[],
            stack_pointers: &[],
            stacks: &stacks,
            mounts: &Mounts::default(),
        };
        let portions = classify::portions(&mappings, &facts);
        huge::surplus(&contents, &mappings, (Effort::Full, pattern));
        for (index, mapping) in mappings.iter().enumerate() {
            let own = portions.iter().filter(|portion| portion.mapping == index);
            let mut sum = Amounts::default();
            own.for_each(|portion| sum.add(&portion.amounts));
            prop_assert_eq!(sum, mapping.amounts);
        }
    }
}

const RIGHTS: [&str; 4] = ["rw-p", "---p", "r-xp", "rw-s"];
const NAMES: [&str; 6] = [
    "0",
    "0 [heap]",
    "0 [anon:malloc]",
    "7 /usr/bin/python3",
    "7 /memfd:a",
    "9 /x/libc.so",
];

/// Memory that repeats a word.
struct Pattern(u64);

impl Contents for Pattern {
    fn read(&self, _: u64, bytes: &mut [u8]) -> bool {
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.0.to_ne_bytes());
        }
        true
    }

    fn resident(&self, _: u64, count: usize) -> usize {
        count / 2
    }
}
