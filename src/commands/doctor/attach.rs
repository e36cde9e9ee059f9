//! Tries each way to attach: loads the programs and places a probe on this process itself, where it is never
//! hit. Each attempt is detached before the next one.

use anyhow::Context;
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::elf::ElfView;

use super::finding::Finding;
use crate::allocator::{FUNCTIONS, Role};
use crate::bpf::preflight;
use crate::bpf::{
    AttachPath, CallEnd, CallHooks, Capacity, Cookie, FastPaths, Kernel, LoadError, Probe, ProbeRole,
    ProbedIn, RefusedProgram, Settings, Tolerance, Walk,
};
use crate::session::storages;
use leak_report::model::{CallTrace, Missing, Sampling, TracePart};

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

/// Remedy where the kernel's verifier refuses a program.
const TO_REPORT: &str = "memleak doctor --report writes what an issue needs";

/// Returns one finding per way to attach, and one about the way that traces use, which is fatal if none
/// works. If one works, also a finding per part that is missing from traces, and one about system calls. For
/// tests, programs named in `broken` are made to be refused.
pub(super) fn findings(broken: &[String]) -> Vec<Finding> {
    let tried = AttachPath::ALL.map(|path| (path, attempt(path, broken)));
    let mut findings: Vec<_> = tried
        .iter()
        .map(|(path, outcome)| finding(*path, outcome))
        .collect();
    let used = tried
        .iter()
        .find_map(|(path, outcome)| Some((*path, outcome.as_ref().ok()?)));
    let Some((path, missing)) = used else {
        findings.push(none_works(&tried));
        return findings;
    };
    findings.push(used_finding(path, &tried));
    findings.extend(missing.iter().map(missing_finding));
    findings.push(calls_finding(&attempt_calls(path, broken)));
    findings
}

/// A way to attach, and the result of trying it: the parts that are missing from traces by it, or the error.
type Tried = (AttachPath, anyhow::Result<Vec<Missing>>);

fn missing_finding(missing: &Missing) -> Finding {
    Finding::warning("missing", missing.to_string()).with_remedy(TO_REPORT)
}

/// Finding about how `--mmap` and `--faults` follow system calls.
fn calls_finding(by_functions: &anyhow::Result<()>) -> Finding {
    let topic = "mapping_calls";
    match by_functions {
        Ok(()) => Finding::fine(
            topic,
            "--mmap and --faults follow system calls by the kernel's functions: tried, works",
        ),
        Err(error) => Finding::note(
            topic,
            format!(
                "--mmap and --faults follow system calls by tracepoints, because the kernel's functions \
                 cannot be traced: {error:#}"
            ),
        )
        .with_remedy(
            "not needed; while they trace, every system call of every process takes some 80 ns more. A \
             kernel whose functions can be traced (fentry, on arm64 since Linux 6.4; no lockdown) avoids \
             that",
        ),
    }
}

/// Names the way that traces use, the first and cheapest that works, and which kernels have a cheaper one.
fn used_finding(used: AttachPath, tried: &[Tried]) -> Finding {
    let text = format!("traces use {}", used.in_words());
    let is_refused = |(_, outcome): &Tried| outcome.as_ref().err().is_some_and(is_by_verifier);
    match used {
        AttachPath::Session => Finding::fine("attach", text),
        _ if tried.iter().any(is_refused) => Finding::note("attach", text).with_remedy(TO_REPORT),
        AttachPath::Multi => Finding::note("attach", text).with_remedy(
            "Linux 6.13 has session probes: allocations that are not recorded then take one trap instead of two",
        ),
        AttachPath::Perf => Finding::note("attach", text).with_remedy(
            "Linux 6.6 has multi-probe links, one per file, which attach and detach faster; Linux 6.13 has \
             session probes, with which allocations that are not recorded take one trap instead of two",
        ),
    }
}

fn is_by_verifier(error: &anyhow::Error) -> bool {
    RefusedProgram::of(error).is_some_and(RefusedProgram::is_by_verifier)
}

/// Explains why no trace is possible: by the known obstacles of this system, or else by the kernel's error.
fn none_works(tried: &[Tried]) -> Finding {
    let description = "no way to attach works";
    let obstacles = preflight::obstacles();
    if !obstacles.is_empty() {
        let all: Vec<_> = obstacles
            .iter()
            .map(|obstacle| obstacle.description.as_str())
            .collect();
        let remedies: Vec<_> = obstacles.iter().map(|obstacle| obstacle.remedy).collect();
        return Finding::fatal("attach", format!("{description}: {}", all.join("; ")))
            .with_remedy(remedies.join("; "));
    }
    let errors = || tried.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    let refused = errors().find(|error| is_by_verifier(error));
    match refused.or_else(|| errors().next_back()) {
        Some(error) if error.downcast_ref::<LoadError>().is_some() => {
            Finding::fatal("attach", format!("{description}: {error:#}"))
                .with_remedy(format!("use another kernel; {TO_REPORT}"))
        }
        Some(_) | None => {
            Finding::fatal("attach", description).with_remedy("run as root (sudo memleak doctor)")
        }
    }
}

fn finding(path: AttachPath, outcome: &anyhow::Result<Vec<Missing>>) -> Finding {
    let (topic, since) = match path {
        AttachPath::Session => ("attach_session", "Linux 6.13"),
        AttachPath::Multi => ("attach_multi", "Linux 6.6"),
        AttachPath::Perf => ("attach_perf", "every kernel with uprobes"),
    };
    let description = path.in_words();
    match outcome {
        Ok(_) => Finding::fine(topic, format!("{description}: tried, works")),
        Err(error) if is_by_verifier(error) => {
            Finding::note(topic, format!("{description}: tried, does not work: {error:#}"))
                .with_remedy(format!("not needed if another way works; {TO_REPORT}"))
        }
        Err(error) => Finding::note(topic, format!("{description}: tried, does not work: {error:#}"))
            .with_remedy(format!("not needed if another way works; {since} has it")),
    }
}

/// Settings for an attempt: everything that traces of blocks use or, with `regions`, mapping calls. No page
/// faults.
pub(super) fn settings(path: AttachPath, regions: Option<CallHooks>) -> Settings {
    Settings {
        walk: Walk::Dwarf,
        fast_paths: FastPaths::default(),
        attach: path,
        python: true,
        follow_fork: true,
        follow_members: true,
        regions,
        frees: None,
        faults: None,
        sizes: None,
        sampling: Sampling::All,
        announced: false,
        calls_move: true,
        stops_translated: true,
        shares_events: true,
        // PID 1, which memleak never starts: this only enables the code for started processes.
        started: Some(1),
        holds_end: true,
        calls: CallTrace::Off,
        capacity: SMALL,
    }
}

/// Loads the programs for mapping calls at the kernel's functions, and attaches them.
fn attempt_calls(path: AttachPath, broken: &[String]) -> anyhow::Result<()> {
    let mut storages = storages();
    let mut tolerance = Tolerance::breaking(broken);
    let settings = settings(path, Some(CallHooks::Functions));
    let kernel = Kernel::load_tolerantly(&mut storages.iter_mut(), &settings, &mut tolerance)?;
    kernel.watch_regions()?;
    Ok(())
}

/// Tries `path` as traces do: if the verifier refuses a program, tries once more without Python frames.
/// Returns the missing parts.
fn attempt(path: AttachPath, broken: &[String]) -> anyhow::Result<Vec<Missing>> {
    let mut tolerance = Tolerance::breaking(broken);
    let error = match attempt_by(path, &mut tolerance) {
        Ok(()) => return Ok(tolerance.missing().to_vec()),
        Err(error) => error,
    };
    if let Some(refused) = RefusedProgram::of(&error).filter(|refused| refused.is_by_verifier()) {
        tolerance.leave_out(TracePart::Python, &refused.name, refused.reason());
        attempt_by(path, &mut tolerance)?;
        return Ok(tolerance.missing().to_vec());
    }
    Err(error)
}

/// Loads the programs for `path` and attaches a probe of each kind to this process.
fn attempt_by(path: AttachPath, tolerance: &mut Tolerance) -> anyhow::Result<()> {
    let mut storages = storages();
    let kernel = Kernel::load_tolerantly(&mut storages.iter_mut(), &settings(path, None), tolerance)?;
    let offset = entry_point()?;
    let probes = [Role::Allocate, Role::Free].map(|role| probe(role, offset));
    let _watch = kernel.watch(false).context("cannot follow processes")?;
    kernel.attach(&ProbedIn::Process(std::process::id()), &probes, &[])?;
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
            copies_string: false,
            count: None,
            block: None,
            result: None,
            leaf: false,
            moves: false,
            for_records: false,
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

/// File offset of this program's entry point: code that runs only once, and has run already.
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
