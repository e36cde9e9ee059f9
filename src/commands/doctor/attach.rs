//! Tries each way to attach: loads the programs and places a probe on this process itself, where it is never hit. It is
//! detached before the next is tried.

use anyhow::Context;
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::elf::ElfView;

use super::Finding;
use crate::allocator::{FUNCTIONS, Role};
use crate::bpf::preflight::{self, Obstacle};
use crate::bpf::{
    AttachPath, CallEnd, CallHooks, Capacity, Cookie, FastPaths, Kernel, Probe, ProbeRole, Settings, Storage,
    Walk,
};
use leak_report::model::{CallTrace, Sampling};

/// Path of this program's own file, for the kernel.
const OWN_FILE: &str = "/proc/self/exe";

/// Minimum capacity that the programs can be loaded with.
const SMALL: Capacity = Capacity {
    table_words: 64,
    mappings: 16,
    processes: 1,
    stacks: 16,
    stand_ins: 16,
    blocks: 16,
};

/// Returns a finding per way to attach, and one about the way that traces use, which is fatal if none works.
pub(super) fn findings() -> Vec<Finding> {
    let tried = AttachPath::ALL.map(|path| (path, attempt(path)));
    let mut findings: Vec<_> = tried
        .iter()
        .map(|(path, outcome)| finding(*path, outcome))
        .collect();
    let used = tried.iter().find(|(_, outcome)| outcome.is_ok());
    findings.push(used_finding(used.map(|(path, _)| *path)));
    findings.extend(used.map(|(path, _)| calls_finding(&attempt_calls(*path))));
    findings
}

/// Says how `--mmap` and `--faults` follow system calls.
fn calls_finding(by_functions: &anyhow::Result<()>) -> Finding {
    let topic = "mapping_calls";
    match by_functions {
        Ok(()) => Finding::fine(
            topic,
            "--mmap and --faults follow system calls by the kernel's functions: tried, works",
        ),
        Err(error) => Finding::note(
            topic,
            format!("--mmap and --faults follow system calls by tracepoints, as functions were tried: {error:#}"),
        )
        .with_remedy(
            "not needed; while they trace, every system call of every process takes some 80 ns more. A kernel that lets its              functions be traced (fentry, on arm64 since Linux 6.4; no lockdown) spares that",
        ),
    }
}

/// Names the way that traces use, which is the first that works and the cheapest, and what a newer kernel would add.
fn used_finding(used: Option<AttachPath>) -> Finding {
    let text = |path| format!("traces use {}", name(path));
    match used {
        Some(path @ AttachPath::Session) => Finding::fine("attach", text(path)),
        Some(path @ AttachPath::Multi) => Finding::note("attach", text(path)).with_remedy(
            "Linux 6.13 has session probes: allocations that are not recorded then take one trap instead of two",
        ),
        Some(path @ AttachPath::Perf) => Finding::note("attach", text(path)).with_remedy(
            "Linux 6.6 has multi-probe links, one per file, which attach and detach sooner; Linux 6.13 session probes, of \
             which allocations that are not recorded take one trap instead of two",
        ),
        None => none_works(&preflight::obstacles()),
    }
}

fn none_works(obstacles: &[Obstacle]) -> Finding {
    let description = "no way to attach works";
    if obstacles.is_empty() {
        return Finding::fatal("attach", description)
            .with_remedy("run as root (sudo memleak doctor), on Linux 6.1 or newer");
    }
    let all: Vec<_> = obstacles
        .iter()
        .map(|obstacle| obstacle.description.as_str())
        .collect();
    let remedies: Vec<_> = obstacles.iter().map(|obstacle| obstacle.remedy).collect();
    Finding::fatal("attach", format!("{description}: {}", all.join("; "))).with_remedy(remedies.join("; "))
}

fn name(path: AttachPath) -> &'static str {
    match path {
        AttachPath::Session => "session probes",
        AttachPath::Multi => "multi-probe links",
        AttachPath::Perf => "a perf event per probe",
    }
}

fn finding(path: AttachPath, outcome: &anyhow::Result<()>) -> Finding {
    let (topic, since) = match path {
        AttachPath::Session => ("attach_session", "Linux 6.13"),
        AttachPath::Multi => ("attach_multi", "Linux 6.6"),
        AttachPath::Perf => ("attach_perf", "every kernel with uprobes"),
    };
    let description = name(path);
    match outcome {
        Ok(()) => Finding::fine(topic, format!("{description}: tried, works")),
        Err(error) => Finding::note(topic, format!("{description}: tried, does not work: {error:#}"))
            .with_remedy(format!("not needed if another way works; {since} has it")),
    }
}

/// Settings for an attempt: with mapping calls, without page faults.
fn settings(path: AttachPath, regions: Option<CallHooks>) -> Settings {
    Settings {
        walk: Walk::Dwarf,
        fast_paths: FastPaths::default(),
        attach: path,
        python: false,
        follow_fork: false,
        follow_members: false,
        regions,
        frees: None,
        faults: None,
        sizes: None,
        sampling: Sampling::All,
        announced: false,
        held: None,
        calls: CallTrace::Off,
        capacity: SMALL,
    }
}

/// Loads the programs for mapping calls at the kernel's functions, and attaches them.
fn attempt_calls(path: AttachPath) -> anyhow::Result<()> {
    let mut storage = Storage::uninit();
    let kernel = Kernel::load(&mut storage, &settings(path, Some(CallHooks::Functions)))?;
    kernel.watch_regions()?;
    Ok(())
}

/// Loads the programs for `path` and attaches a probe of each kind to this process.
fn attempt(path: AttachPath) -> anyhow::Result<()> {
    let mut storage = Storage::uninit();
    let kernel = Kernel::load(&mut storage, &settings(path, None))?;
    let offset = entry_point()?;
    let probes = [Role::Allocate, Role::Free].map(|role| probe(role, offset));
    let _watch = kernel.watch(false).context("cannot follow processes")?;
    kernel.attach(Some(std::process::id()), &probes, &[])?;
    Ok(())
}

fn probe(role: Role, offset: FileOffset) -> Probe {
    let function = FUNCTIONS.iter().position(|function| function.role == role);
    Probe {
        path: OWN_FILE.into(),
        file: OWN_FILE.to_owned(),
        offset,
        cookie: Cookie {
            function: function.and_then(|number| u8::try_from(number).ok()).unwrap_or(0),
            role: if role == Role::Free {
                ProbeRole::Free
            } else {
                ProbeRole::Allocate
            },
            size: None,
            count: None,
            block: None,
            result: None,
            leaf: false,
            module: 0,
        },
        end: if role == Role::Free {
            CallEnd::Unseen
        } else {
            CallEnd::ReturnProbe
        },
        name: "_start".to_owned(),
    }
}

/// Offset of this program's entry point: code that runs once, and has run.
fn entry_point() -> anyhow::Result<FileOffset> {
    // Bytes of `e_entry` in the ELF header (gABI, figure 4-3).
    const ENTRY: std::ops::Range<usize> = 24..32;
    let bytes = std::fs::read(OWN_FILE).context("cannot read our own file")?;
    let view = ElfView::parse(&bytes).context("our own file")?;
    let field = bytes.get(ENTRY).and_then(|field| field.try_into().ok());
    let entry = Svma::new(u64::from_le_bytes(field.context("our own file has no header")?));
    view.offset_of(entry)
        .context("our own entry point is not in the file")
}
