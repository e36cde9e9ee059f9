//! Budgets for the instructions that the verifier processes per program, and for the programs' stack. Tests
//! only; they need root.
//!
//! The verifier gives up at a million instructions, and load time grows with them. `tests/kernels/budget.tsv`
//! has the counts of each kernel's verifier, one column for each kernel; the running kernel's column is the
//! budget. `UPDATE=budget make test-kernels` writes it. To let a program grow beyond its budget is a
//! decision.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use libbpf_rs::Object;
use libbpf_rs::skel::Skel;

use super::exceptions::Exceptions;
use super::stack_depth::{self, MAX};
use super::{
    AttachPath, CallHooks, Capacity, FastPaths, FaultSettings, Kernel, KernelEvents, KernelSettings,
    KernelTrace, Registers, Settings, Storage, Takes, Walk, fdinfo,
};
use leak_report::model::{CallTrace, Sampling};

/// Maximum number of instructions of any program on any kernel: future verifiers may need several times as
/// many.
const MOST: u64 = 250_000;
/// Compiler of the programs that were counted for the table.
const COMPILER: &str = "clang version 14.";
/// Tolerance above the budget, in percent.
const MORE: u64 = 25;
/// Tolerance for programs of another compiler: those of clang 19 take up to 21 % more, one of clang 21 takes
/// 139 % more.
const MORE_BY_OTHERS: u64 = 150;

const SAMPLED: Sampling = Sampling::Bytes(1 << 19);
const PROVIDED: Sampling = Sampling::Provider(None);
const GOVERNED: Sampling = Sampling::Governed(1 << 19);

/// A way in which programs are loaded for a trace of processes.
#[derive(Clone, Copy)]
struct Load {
    /// Name in the table.
    name: &'static str,
    attach: AttachPath,
    walk: Walk,
    sampling: Sampling,
    calls: CallTrace,
    regions: Option<CallHooks>,
    frees: Option<CallHooks>,
    faults: bool,
    /// True to handle calls that can end on other threads, and probes that share events.
    calls_move: bool,
}

const fn load(name: &'static str, attach: AttachPath) -> Load {
    Load {
        name,
        attach,
        walk: Walk::Dwarf,
        sampling: Sampling::All,
        calls: CallTrace::Off,
        regions: None,
        frees: None,
        faults: false,
        calls_move: false,
    }
}

const fn with_moving_calls(load: Load) -> Load {
    Load {
        calls_move: true,
        ..load
    }
}

const fn sampled(sampling: Sampling, load: Load) -> Load {
    Load { sampling, ..load }
}

const fn by_frame_pointers(load: Load) -> Load {
    Load {
        walk: Walk::Fp,
        ..load
    }
}

const fn with_mappings(hooks: CallHooks, load: Load) -> Load {
    Load {
        regions: Some(hooks),
        ..load
    }
}

const fn with_faults(hooks: CallHooks, load: Load) -> Load {
    Load {
        faults: true,
        ..with_mappings(hooks, load)
    }
}

const fn with_frees(hooks: CallHooks, load: Load) -> Load {
    Load {
        frees: Some(hooks),
        ..load
    }
}

const LOADS: &[Load] = &[
    load("session", AttachPath::Session),
    by_frame_pointers(load("session-fp", AttachPath::Session)),
    sampled(SAMPLED, load("session-sampled", AttachPath::Session)),
    sampled(GOVERNED, load("session-governed", AttachPath::Session)),
    with_frees(
        CallHooks::Functions,
        load("session-frees-functions", AttachPath::Session),
    ),
    with_frees(CallHooks::Tracepoints, load("session-frees", AttachPath::Session)),
    with_moving_calls(load("session-moving", AttachPath::Session)),
    load("multi", AttachPath::Multi),
    sampled(
        SAMPLED,
        Load {
            calls: CallTrace::All,
            ..load("multi-calls", AttachPath::Multi)
        },
    ),
    load("perf", AttachPath::Perf),
    with_moving_calls(load("perf-moving", AttachPath::Perf)),
    by_frame_pointers(load("perf-fp", AttachPath::Perf)),
    sampled(SAMPLED, load("perf-sampled", AttachPath::Perf)),
    with_frees(CallHooks::Tracepoints, load("perf-frees", AttachPath::Perf)),
    sampled(PROVIDED, load("announced", AttachPath::Perf)),
    with_mappings(CallHooks::Functions, load("mappings-functions", AttachPath::Perf)),
    with_mappings(CallHooks::Tracepoints, load("mappings", AttachPath::Perf)),
    by_frame_pointers(with_mappings(
        CallHooks::Tracepoints,
        load("mappings-fp", AttachPath::Perf),
    )),
    with_faults(CallHooks::Functions, load("faults-functions", AttachPath::Perf)),
    with_faults(CallHooks::Tracepoints, load("faults", AttachPath::Perf)),
];

impl Load {
    fn settings(&self) -> Settings {
        Settings {
            python: true,
            walk: self.walk,
            fast_paths: FastPaths::default(),
            attach: self.attach,
            follow_fork: true,
            follow_members: true,
            regions: self.regions,
            frees: self.frees,
            started: Some(1),
            holds_end: true,
            // Mapping calls are sent differently with faults and without.
            faults: self.faults.then_some(FaultSettings {
                function: 0,
                seed: 0,
                takes: Takes {
                    descriptors: true,
                    writes: true,
                },
            }),
            sizes: None,
            sampling: self.sampling,
            announced: self.sampling == PROVIDED,
            calls_move: self.calls_move,
            stops_translated: true,
            shares_events: self.calls_move,
            calls: self.calls,
            capacity: Capacity {
                table_words: 1 << 20,
                mappings: 1 << 10,
                processes: 1,
                stacks: 1 << 16,
                stand_ins: 1 << 12,
                blocks: 1 << 16,
            },
        }
    }

    /// Returns whether the kernel may refuse it: for lack of this way to attach, or of traceable functions.
    fn is_optional(&self) -> bool {
        let ways = std::env::var("KERNEL_WAYS").unwrap_or_default();
        let way = format!("{:?}", self.attach).to_lowercase();
        let lacks_way = !ways.is_empty() && !ways.split(',').any(|other| other == way);
        lacks_way || self.regions.or(self.frees) == Some(CallHooks::Functions)
    }

    /// Usage of its programs; `None` if the kernel may refuse it, and does.
    fn taken(&self) -> Option<Vec<Usage>> {
        let mut storage = Storage::uninit();
        match Kernel::load(&mut storage, &self.settings()) {
            Ok(kernel) => Some(usages(self.name, kernel.skeleton.object())),
            Err(_) if self.is_optional() => None,
            Err(error) => panic!("{}: the kernel refuses it (as root): {error:?}", self.name),
        }
    }
}

/// Instructions and stack of a loaded program.
struct Usage {
    program: String,
    /// Name of the way in which it was loaded.
    load: &'static str,
    /// Instructions processed by the verifier.
    instructions: u64,
    /// Bytes of stack, by the deepest chain of its calls.
    stack: u32,
}

fn usages(load: &'static str, object: &Object) -> Vec<Usage> {
    let loaded = object.progs().filter(|program| program.autoload());
    let usages = loaded.map(|program| Usage {
        program: program.name().to_string_lossy().into_owned(),
        load,
        instructions: verified_instructions(program.as_fd()),
        stack: stack_depth::deepest(program.insns()),
    });
    usages.collect()
}

/// Instructions that the verifier processed for a loaded program.
fn verified_instructions(program: impl AsFd) -> u64 {
    let fields = fdinfo::read(program).expect("the program is loaded");
    let count = fields.number("verified_insns");
    count.unwrap_or_else(|| panic!("no count of verified instructions: {fields:?}"))
}

/// Usage of the programs for the kernel's own allocations; without those for bulk calls, where the kernel
/// refuses them.
fn taken_by_kernel_mode() -> Vec<Usage> {
    let events = KernelEvents::read().expect("the kernel has BTF and its allocators' tracepoints");
    let settings = KernelSettings {
        events,
        percpu: true,
        stacks: 1 << 8,
        blocks: 1 << 8,
        stack_limit: 127,
        sizes: None,
        sampling: SAMPLED,
        calls: CallTrace::Off,
        interrupt_entries: (0, 0),
    };
    let load = |omitted: &[&str]| {
        let exceptions = Exceptions {
            omitted: omitted.iter().map(ToString::to_string).collect(),
            ..Exceptions::default()
        };
        let mut storage = Storage::uninit();
        let trace = KernelTrace::load_but(&mut storage, &settings, &exceptions);
        trace.map(|trace| usages("kernel", trace.object()))
    };
    load(&[])
        .or_else(|_| load(&["kernel_bulk_alloc", "kernel_bulk_free", "kernel_sheaf_free"]))
        .expect("the kernel accepts it (as root)")
}

fn taken_by_registers() -> Vec<Usage> {
    let mut storage = Storage::uninit();
    let registers = Registers::open(&mut storage).expect("the kernel accepts it (as root)");
    usages("registers", registers.object())
}

/// Instructions that verifiers counted, by program and load, for each kernel.
struct Table {
    kernels: Vec<&'static str>,
    rows: BTreeMap<(&'static str, &'static str), Vec<Option<u64>>>,
}

impl Table {
    fn read() -> Self {
        let text = include_str!("../../tests/kernels/budget.tsv");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let header: Vec<_> = lines.next().expect("a header").split('\t').collect();
        let ["program", "load", kernels @ ..] = &header[..] else {
            panic!("header: {header:?}");
        };
        let row = |line: &'static str| {
            let fields: Vec<_> = line.split('\t').collect();
            let [program, load, counts @ ..] = &fields[..] else {
                panic!("{line}");
            };
            assert_eq!(counts.len(), kernels.len(), "{line}");
            let count = |count: &&str| (*count != "-").then(|| count.parse().expect("a number"));
            ((*program, *load), counts.iter().map(count).collect())
        };
        Self {
            kernels: kernels.to_vec(),
            rows: lines.map(row).collect(),
        }
    }

    /// Index of the running kernel's column; `None` for a kernel that was not tried.
    fn own(&self) -> Option<usize> {
        let release = super::release();
        let series = release.split('.').take(2).collect::<Vec<_>>().join(".");
        let machine = if cfg!(target_arch = "aarch64") {
            "-arm64"
        } else {
            ""
        };
        let name = format!("{series}{machine}");
        self.kernels.iter().position(|kernel| *kernel == name)
    }

    /// Budget of a program, tolerance included: the count of the running kernel, or else the highest of all
    /// kernels.
    fn budget(&self, usage: &Usage) -> Option<u64> {
        let counts = self.rows.get(&(usage.program.as_str(), usage.load))?;
        let own = self.own().and_then(|own| counts[own]);
        let budget = own.or_else(|| counts.iter().flatten().max().copied())?;
        let more = match env!("BPF_CLANG_VERSION").contains(COMPILER) {
            true => MORE,
            false => MORE_BY_OTHERS,
        };
        Some(budget + budget * more / 100)
    }

    /// Programs that were loaded on the running kernel when the table was written.
    fn expected(&self) -> BTreeSet<(&'static str, &'static str)> {
        let Some(own) = self.own() else {
            return BTreeSet::new();
        };
        let rows = self.rows.iter().filter(|(_, counts)| counts[own].is_some());
        rows.map(|(&names, _)| names).collect()
    }
}

/// Every program stays within its budget of instructions, and within the stack of the oldest supported
/// kernels.
#[test]
#[allow(clippy::print_stdout, reason = "what tests/kernels.sh writes into the table")]
fn programs_stay_within_their_budgets_as_root() {
    let table = Table::read();
    let loads = LOADS.iter().filter_map(Load::taken);
    let all: Vec<Usage> = loads
        .chain([taken_by_kernel_mode(), taken_by_registers()])
        .flatten()
        .collect();
    let mut beyond = Vec::new();
    for usage in &all {
        let Usage {
            program,
            load,
            instructions,
            stack,
        } = usage;
        println!("@found budget {program} {load} {instructions} {stack}");
        let budget = table.budget(usage);
        if budget.is_none_or(|budget| *instructions > budget) || *instructions > MOST || *stack > MAX {
            beyond.push(format!(
                "{program}, {load}: {instructions} instructions of {budget:?} and {MOST}, {stack} of {MAX} bytes of stack"
            ));
        }
    }
    let found: BTreeSet<_> = all
        .iter()
        .map(|usage| (usage.program.as_str(), usage.load))
        .collect();
    let expected = table.expected();
    let missing: Vec<_> = expected.iter().filter(|names| !found.contains(*names)).collect();
    assert!(missing.is_empty(), "no longer loaded: {missing:?}");
    assert!(
        beyond.is_empty(),
        "too much for some kernel, or not in tests/kernels/budget.tsv: {beyond:#?}"
    );
}

/// No program takes more than [`MOST`] instructions on any kernel that was tried.
#[test]
fn no_program_is_near_the_limit() {
    let table = Table::read();
    assert!(table.kernels.len() >= 9, "{:?}", table.kernels);
    for (names, counts) in &table.rows {
        assert!(
            counts.iter().flatten().all(|count| *count <= MOST),
            "{names:?}: {counts:?}"
        );
    }
}
