//! Budgets for the instructions that the verifier processes per program, and for the programs' stack. Tests only; they need
//! root.
//!
//! The verifier gives up at a million instructions, and load time grows with them. Growing a program beyond its budget is
//! to be a decision: update the figure then.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use super::fdinfo;
use super::stack_depth::{self, MAX};
use super::{AttachPath, CallHooks, Capacity, FastPaths, FaultSettings, Kernel, Settings, Storage, Walk};
use leak_report::model::{CallTrace, Sampling};

/// Program, attach path, walk, sampling, and instructions that the verifier of Linux 6.18 processed when this was written:
/// with clang 14 or clang 19, whichever was more. The state of a thread is in one of two maps (`bpf/calls/threads.h`): what uses it
/// is followed for each.
type Row = (&'static str, AttachPath, Walk, Sampling, u64);

const SAMPLED: Sampling = Sampling::Bytes(1 << 19);
const PROVIDED: Sampling = Sampling::Provider(None);
const GOVERNED: Sampling = Sampling::Governed(1 << 19);

/// Tolerance above the measured figure, in percent.
const MORE: u64 = 15;

const MEASURED: &[Row] = &[
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        135_941,
    ),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Fp,
        Sampling::All,
        75_179,
    ),
    (
        "allocation_entry",
        AttachPath::Multi,
        Walk::Dwarf,
        Sampling::All,
        5_984,
    ),
    (
        "allocation_entry",
        AttachPath::Multi,
        Walk::Fp,
        Sampling::All,
        5_984,
    ),
    (
        "allocation_return",
        AttachPath::Multi,
        Walk::Dwarf,
        Sampling::All,
        128_363,
    ),
    (
        "allocation_return",
        AttachPath::Multi,
        Walk::Fp,
        Sampling::All,
        67_997,
    ),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        SAMPLED,
        149_524,
    ),
    (
        "mmap_begins",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        116,
    ),
    (
        "mmap_ends",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        108_242,
    ),
    ("mmap_entry", AttachPath::Session, Walk::Dwarf, Sampling::All, 140),
    (
        "mmap_exit",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        87_626,
    ),
    (
        "page_fault",
        AttachPath::Perf,
        Walk::Dwarf,
        Sampling::All,
        108_898,
    ),
    (
        "free_entry",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        4_696,
    ),
    ("free_entry", AttachPath::Session, Walk::Dwarf, SAMPLED, 6_649),
    (
        "allocation_session",
        AttachPath::Session,
        Walk::Dwarf,
        GOVERNED,
        151_863,
    ),
    ("free_entry", AttachPath::Session, Walk::Dwarf, GOVERNED, 6_636),
    (
        "process_rename",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        92,
    ),
    (
        "process_exec",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        1_698,
    ),
    (
        "process_exit",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        996,
    ),
    (
        "usdt_allocation",
        AttachPath::Multi,
        Walk::Dwarf,
        PROVIDED,
        115_201,
    ),
    ("usdt_free", AttachPath::Multi, Walk::Dwarf, PROVIDED, 2_436),
    (
        "process_fork",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        442,
    ),
    (
        "forget_blocks",
        AttachPath::Session,
        Walk::Dwarf,
        Sampling::All,
        91,
    ),
];

/// Programs that note which memory blocks were freed from: as [`MEASURED`], walks by unwind tables, all blocks.
const MEASURED_WITH_FREES: &[(&str, AttachPath, u64)] = &[
    ("allocation_session", AttachPath::Session, 147_413),
    ("allocation_entry", AttachPath::Multi, 7_983),
    ("free_entry", AttachPath::Multi, 4_971),
    ("forget_blocks", AttachPath::Multi, 139),
    ("mmap_ends", AttachPath::Multi, 377),
    ("mremap_ends", AttachPath::Multi, 164),
    ("brk_begins", AttachPath::Multi, 350),
];

struct Usage {
    /// Instructions processed by the verifier.
    instructions: u64,
    /// Bytes of stack, by the deepest chain of its calls.
    stack: u32,
}

/// Instructions and stack of each program that is loaded with these settings; `None` if the kernel does not allow its functions to
/// be traced.
fn taken(
    (regions, frees): (Option<CallHooks>, Option<CallHooks>),
    attach: AttachPath,
    walk: Walk,
    sampling: Sampling,
    calls: CallTrace,
) -> Option<BTreeMap<String, Usage>> {
    let settings = Settings {
        python: true,
        walk,
        fast_paths: FastPaths::default(),
        attach,
        follow_fork: true,
        follow_members: true,
        regions,
        frees,
        held: Some(1),
        // Mapping calls are sent differently with and without.
        faults: (regions.is_some() && attach == AttachPath::Perf)
            .then_some(FaultSettings { function: 0, seed: 0 }),
        sizes: None,
        sampling,
        announced: sampling == PROVIDED,
        calls,
        capacity: Capacity {
            table_words: 1 << 20,
            mappings: 1 << 10,
            processes: 1,
            stacks: 1 << 16,
            stand_ins: 1 << 12,
            blocks: 1 << 16,
        },
    };
    let mut storage = Storage::uninit();
    let loaded = Kernel::load(&mut storage, &settings);
    if regions.or(frees) == Some(CallHooks::Functions) && loaded.is_err() {
        return None;
    }
    let kernel = loaded.expect("the kernel accepts it (as root)");
    let programs = &kernel.skeleton.progs;
    let all = [
        &programs.allocation_session,
        &programs.allocation_entry,
        &programs.allocation_return,
        &programs.free_entry,
        &programs.usdt_allocation,
        &programs.usdt_free,
        &programs.page_fault,
        &programs.loader_hook,
        &programs.exit_hook,
        &programs.process_exec,
        &programs.process_rename,
        &programs.process_exit,
        &programs.process_fork,
        &programs.python_code_end,
        &programs.forget_blocks,
        &programs.waiting_regions,
    ];
    let calls = kernel.region_programs().into_iter().map(|(program, _)| program);
    let loaded = all.into_iter().filter(|program| program.autoload());
    let usages = loaded.chain(calls).map(|program| {
        let name = program.name().to_string_lossy().into_owned();
        let taken = Usage {
            instructions: verified_instructions(program.as_fd()),
            stack: stack_depth::deepest(program.insns()),
        };
        (name, taken)
    });
    Some(usages.collect())
}

/// Instructions that the verifier processed for a loaded program.
fn verified_instructions(program: impl AsFd) -> u64 {
    let fields = fdinfo::read(program).expect("the program is loaded");
    let count = fields.number("verified_insns");
    count.unwrap_or_else(|| panic!("no count of verified instructions: {fields:?}"))
}

/// Every program stays within its budget of instructions, and within the stack of the oldest supported kernels.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn programs_stay_within_their_budgets_as_root() {
    let (mut beyond, mut found) = (Vec::new(), BTreeSet::new());
    let announced =
        [AttachPath::Multi, AttachPath::Perf].map(|attach| (attach, Walk::Dwarf, PROVIDED, CallTrace::Off));
    let all_calls = (AttachPath::Multi, Walk::Dwarf, SAMPLED, CallTrace::All);
    let variants = AttachPath::ALL
        .into_iter()
        .flat_map(|attach| [Walk::Dwarf, Walk::Fp].map(|walk| (attach, walk, Sampling::All)))
        .chain([SAMPLED, GOVERNED].map(|sampling| (AttachPath::Session, Walk::Dwarf, sampling)))
        .map(|(attach, walk, sampling)| (attach, walk, sampling, CallTrace::Off));
    let variants = variants.chain(announced).chain([all_calls]);
    let regions = [None, Some(CallHooks::Functions), Some(CallHooks::Tracepoints)];
    for (regions, (attach, walk, sampling, calls)) in
        variants.flat_map(|variant| regions.map(|regions| (regions, variant)))
    {
        let variant = format!("{attach:?}, {walk:?}, {sampling:?}, {calls:?}, mapping calls: {regions:?}");
        let Some(taken) = taken((regions, None), attach, walk, sampling, calls) else {
            println!("{variant}: not on this kernel");
            found.extend(["mmap_entry", "mmap_exit"]);
            continue;
        };
        let rows = MEASURED
            .iter()
            .filter(|row| (row.1, row.2, row.3) == (attach, walk, sampling));
        for &(name, .., measured) in rows {
            // Those for blocks are loaded, or one or the other ones for mapping calls.
            let Some(Usage {
                instructions: count, ..
            }) = taken.get(name)
            else {
                continue;
            };
            found.insert(name);
            let budget = measured + measured * MORE / 100;
            let line = format!("{name}, {variant}: {count} of {budget} instructions");
            println!("{line}");
            if *count > budget {
                beyond.push(line);
            }
        }
        for (name, Usage { stack, .. }) in taken {
            let line = format!("{name}, {variant}: {stack} of {MAX} bytes of stack");
            println!("{line}");
            if stack > MAX {
                beyond.push(line);
            }
        }
    }
    let never = MEASURED.iter().filter(|row| !found.contains(row.0));
    assert_eq!(
        never.map(|row| row.0).collect::<Vec<_>>(),
        [""; 0],
        "never loaded"
    );
    assert!(beyond.is_empty(), "too much for some kernel: {beyond:#?}");
}

/// Programs that note which memory blocks were freed from stay within their budgets, too.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn programs_that_note_frees_stay_within_their_budgets_as_root() {
    let (mut beyond, mut found) = (Vec::new(), BTreeSet::new());
    for (hooks, attach) in CallHooks::ALL
        .into_iter()
        .flat_map(|hooks| AttachPath::ALL.map(|attach| (hooks, attach)))
    {
        let taken = taken(
            (None, Some(hooks)),
            attach,
            Walk::Dwarf,
            Sampling::All,
            CallTrace::Off,
        );
        let Some(taken) = taken else {
            println!("{hooks:?}: not on this kernel");
            continue;
        };
        for (name, Usage { instructions, stack }) in taken {
            let line =
                format!("{name}, {attach:?}, {hooks:?}: {instructions} instructions, {stack} bytes of stack");
            println!("{line}");
            let rows = MEASURED_WITH_FREES
                .iter()
                .filter(|row| (row.0, row.1) == (&name, attach));
            let budget = rows.map(|row| row.2 + row.2 * MORE / 100).next();
            found.extend(
                MEASURED_WITH_FREES
                    .iter()
                    .map(|row| row.0)
                    .filter(|row| *row == name),
            );
            if budget.is_some_and(|budget| instructions > budget) || stack > MAX {
                beyond.push(line);
            }
        }
    }
    let never = MEASURED_WITH_FREES.iter().filter(|row| !found.contains(row.0));
    assert_eq!(
        never.map(|row| row.0).collect::<Vec<_>>(),
        [""; 0],
        "never loaded"
    );
    assert!(beyond.is_empty(), "too much for some kernel: {beyond:#?}");
}
