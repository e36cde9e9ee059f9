//! What the verifier goes through to accept each program, held to a budget. Tests only; they need root.
//!
//! The verifier gives up at a million instructions, and load time grows with them. A change that makes a program
//! grow beyond its budget is to be a decision: write down what it takes then.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use super::fdinfo;
use super::{AttachPath, Capacity, Kernel, Sampling, Settings, ShortWays, Storage, Telling, Walk};

/// A program, how it is attached, how it walks, what it records, and how many instructions the verifier of Linux 6.18 processed for
/// it when this was written.
type Row = (&'static str, AttachPath, Walk, Sampling, u64);

const SAMPLED: Sampling = Sampling::Bytes(1 << 19);
const GOVERNED: Sampling = Sampling::Governed(1 << 19);

/// How much more it may be, in per cent.
const MORE: u64 = 15;

const MEASURED: &[Row] = &[
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        75_488,
    ),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Fp,
        Sampling::All,
        27_171,
    ),
    (
        "allocation_entry",
        AttachPath::Multi,
        Walk::Dwarf,
        Sampling::All,
        2_789,
    ),
    (
        "allocation_entry",
        AttachPath::Multi,
        Walk::Fp,
        Sampling::All,
        2_789,
    ),
    (
        "allocation_return",
        AttachPath::Multi,
        Walk::Dwarf,
        Sampling::All,
        72_611,
    ),
    (
        "allocation_return",
        AttachPath::Multi,
        Walk::Fp,
        Sampling::All,
        24_294,
    ),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        SAMPLED,
        83_684,
    ),
    (
        "mmap_begins",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        100,
    ),
    (
        "mmap_ends",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        62_442,
    ),
    (
        "allocation_ret",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        73_887,
    ),
    (
        "free_entry",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        2_866,
    ),
    ("free_entry", AttachPath::Session, Walk::Dwarf, SAMPLED, 3_119),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        GOVERNED,
        84_788,
    ),
    ("free_entry", AttachPath::Session, Walk::Dwarf, GOVERNED, 3_741),
    (
        "process_rename",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        53,
    ),
    (
        "process_exec",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        1_031,
    ),
    (
        "process_exit",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        597,
    ),
    (
        "process_fork",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        285,
    ),
    (
        "forget_blocks",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        88,
    ),
];

/// Instructions processed, by program.
fn verified(attach: AttachPath, walk: Walk, sampling: Sampling) -> BTreeMap<String, u64> {
    let settings = Settings {
        walk,
        short_ways: ShortWays::default(),
        attach,
        follow_fork: true,
        regions: true,
        sizes: None,
        sampling,
        calls: Telling::Nothing,
        capacity: Capacity {
            table_words: 1 << 20,
            mappings: 1 << 10,
            processes: 1,
            stacks: 1 << 16,
            blocks: 1 << 16,
        },
    };
    let mut storage = Storage::uninit();
    let kernel = Kernel::load(&mut storage, &settings).expect("the kernel accepts it (as root)");
    let programs = &kernel.skeleton.progs;
    let all = [
        &programs.allocation_session,
        &programs.allocation_entry,
        &programs.allocation_return,
        &programs.allocation_ret,
        &programs.free_entry,
        &programs.mmap_begins,
        &programs.mmap_ends,
        &programs.process_exec,
        &programs.process_rename,
        &programs.process_exit,
        &programs.process_fork,
        &programs.forget_blocks,
    ];
    let loaded = all.into_iter().filter(|program| program.autoload());
    loaded
        .map(|program| {
            let name = program.name().to_string_lossy().into_owned();
            (name, verified_instructions(program.as_fd()))
        })
        .collect()
}

/// What the kernel says of the program that a descriptor stands for.
fn verified_instructions(program: impl AsFd) -> u64 {
    let text = fdinfo::read(program).expect("the program is loaded");
    let count = fdinfo::number(&text, "verified_insns:");
    count.unwrap_or_else(|| panic!("no count of verified instructions:\n{text}"))
}

/// Every program stays within its budget.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn verified_instructions_stay_within_their_budgets() {
    let mut beyond = Vec::new();
    let ways = AttachPath::ALL
        .into_iter()
        .flat_map(|attach| [Walk::Dwarf, Walk::Fp].map(|walk| (attach, walk, Sampling::All)))
        .chain([SAMPLED, GOVERNED].map(|sampling| (AttachPath::Session, Walk::Dwarf, sampling)));
    for (attach, walk, sampling) in ways {
        let verified = verified(attach, walk, sampling);
        let rows = MEASURED
            .iter()
            .filter(|row| (row.1, row.2, row.3) == (attach, walk, sampling));
        for &(name, .., measured) in rows {
            let (count, budget) = (verified[name], measured + measured * MORE / 100);
            let line = format!("{name}, {attach:?}, {walk:?}, {sampling:?}: {count} of {budget}");
            println!("{line}");
            if count > budget {
                beyond.push(line);
            }
        }
    }
    assert!(beyond.is_empty(), "the verifier takes longer: {beyond:#?}");
}
