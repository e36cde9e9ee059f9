//! Time that `memleak -p PID` takes until it is attached to a process with many objects, and from the
//! interrupt until it has ended; and its memory meanwhile. Needs root.
//!
//! `cargo bench --bench attach` takes 200 objects, the largest shared libraries of this machine, with tables
//! built on all cores and on one, in turn; it fails if no attach took less CPU time than [`LIMIT`], or if
//! memleak ever had more resident memory than the target's code allows. `cargo test --bench attach` takes 20
//! objects, once.
//!
//! Wall-clock times include what other work on the machine takes; CPU time, summed over all threads, does
//! not. On an idle machine an attach takes less wall-clock time than CPU time.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memleak::bpf::preflight;
use memleak::process::maps::{self, MapsName};

/// Upper limit of the CPU time of the fastest attach.
const LIMIT: Duration = Duration::from_secs(1);
/// Upper limit of memleak's resident memory, in bytes, for a target with at most [`DEFAULT_CODE`] bytes of
/// code; more than half of it are pages of its files. A larger target adds a quarter of its additional code:
/// Debian 13's libraries have 250 MiB where those of Debian 12 have 140.
const MAX_RESIDENT: u64 = 256 << 20;
const DEFAULT_CODE: u64 = 128 << 20;

const DIRECTORIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/llvm-14/lib",
    "/usr/lib/llvm-15/lib",
];
/// Parts of names of libraries to leave out: they replace the process's allocator, want to be loaded first,
/// or are there already.
const LEFT_OUT: [&str; 12] = [
    "asan",
    "tsan",
    "lsan",
    "ubsan",
    "malloc",
    "profiler",
    "libgc",
    "memusage",
    "pcprofile",
    "SegFault",
    "libc.so",
    "ld-linux",
];
/// Minimum size of a library to load, in bytes.
const MIN_BYTES: u64 = 30 << 10;

fn main() -> ExitCode {
    let full = std::env::args().any(|argument| argument == "--bench");
    let plan = match full {
        true => Plan {
            objects: 200,
            rounds: 9,
        },
        false => Plan {
            objects: 20,
            rounds: 1,
        },
    };
    match run(&plan, full) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("attach: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Plan {
    objects: usize,
    rounds: usize,
}

/// Cores to build tables on, with the command that restricts memleak to them.
const CORES: [(&str, &[&str]); 2] = [("all cores", &[]), ("one core", &["taskset", "-c", "0"])];

fn run(plan: &Plan, full: bool) -> anyhow::Result<()> {
    preflight::check()?;
    let target = Target::start(plan.objects)?;
    let code = target.code_bytes()?;
    println!("{} objects, {:.1} MiB of code", target.objects, mebibytes(code));
    let mut all = CORES.map(|_| Vec::new());
    for _ in 0..plan.rounds {
        for ((_, prefix), attaches) in CORES.iter().zip(&mut all) {
            attaches.push(attach(target.child.id(), prefix)?);
        }
    }
    for ((cores, _), attaches) in CORES.iter().zip(&all) {
        println!("{cores}:");
        print(attaches);
    }
    let attaches = || all.iter().flatten();
    let fastest = attaches().map(Attach::attach_cpu).fold(f64::INFINITY, f64::min);
    let max = attaches()
        .map(|attach| attach.peak_bytes)
        .max()
        .unwrap_or_default();
    let limit = MAX_RESIDENT + code.saturating_sub(DEFAULT_CODE) / 4;
    ensure!(max <= limit, "{max} bytes were resident; the limit is {limit}");
    ensure!(
        !full || fastest <= LIMIT.as_secs_f64() * 1e3,
        "the fastest attach took {fastest:.0} ms of CPU time, and the limit is {LIMIT:?}"
    );
    Ok(())
}

/// A trace from start to end.
struct Attach {
    /// Time from the start of memleak until all is attached.
    attached: Duration,
    steps: Vec<Step>,
    /// Time from the interrupt until memleak is gone.
    ended: Duration,
    /// CPU time in all.
    cpu: Duration,
    peak_bytes: u64,
    kernel_bytes: u64,
}

/// A step of an attach, in milliseconds.
struct Step {
    name: String,
    took: f64,
    cpu: f64,
}

impl Attach {
    /// CPU time until all is attached, in milliseconds.
    fn attach_cpu(&self) -> f64 {
        self.steps.iter().map(|step| step.cpu).sum()
    }
}

/// Traces `pid` until all is attached.
fn attach(pid: u32, prefix: &[&str]) -> anyhow::Result<Attach> {
    let memleak = env!("CARGO_BIN_EXE_memleak");
    let words: Vec<&str> = prefix.iter().copied().chain([memleak]).collect();
    let cpu_before = children_cpu();
    let began = Instant::now();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .args(["-vv", "--format", "json", "-p", &pid.to_string(), "86400"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut messages = BufReader::new(child.stderr.take().context("a pipe was asked for")?).lines();
    let (mut steps, mut seen_messages) = (Vec::new(), Vec::new());
    loop {
        let line = messages
            .next()
            .with_context(|| format!("memleak did not attach: {seen_messages:?}"))??;
        if let Some((_, list)) = line.split_once("attached in steps: ") {
            steps = list.split(", ").filter_map(step).collect();
        }
        if line.contains(": tracing ") {
            break;
        }
        seen_messages.push(line);
    }
    let attached = began.elapsed();
    // Let some calls be traced, so that the report is not empty.
    std::thread::sleep(Duration::from_millis(50));
    let signalled = Instant::now();
    let status = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()?;
    ensure!(status.success(), "memleak has ended by itself");
    let drained = std::thread::spawn(move || messages.for_each(drop));
    let output = child.wait_with_output()?;
    let ended = signalled.elapsed();
    _ = drained.join();
    ensure!(output.status.success(), "memleak failed: {}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let own = |name: &str| {
        report["self"][name]
            .as_u64()
            .context("a report says what memleak takes")
    };
    let allocations = report["events"]["allocations"].as_u64();
    ensure!(allocations > Some(0), "nothing was seen of the target");
    Ok(Attach {
        attached,
        steps,
        ended,
        cpu: children_cpu().saturating_sub(cpu_before),
        peak_bytes: own("peak_bytes")?,
        kernel_bytes: own("kernel_bytes")?,
    })
}

/// `name 12.5 ms (CPU 20.3 ms)`
fn step(text: &str) -> Option<Step> {
    let (text, cpu) = text.strip_suffix(" ms)")?.split_once(" ms (CPU ")?;
    let (name, took) = text.rsplit_once(' ')?;
    Some(Step {
        name: name.to_owned(),
        took: took.parse().ok()?,
        cpu: cpu.parse().ok()?,
    })
}

/// CPU time of all children that have ended.
fn children_cpu() -> Duration {
    // Ticks of a hundredth of a second: user and system time of children, fields 16 and 17 of proc(5).
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .skip(13)
        .take(2);
    let ticks = fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(10 * ticks)
}

fn print(attaches: &[Attach]) {
    let milliseconds = |value: fn(&Attach) -> Duration| {
        attaches
            .iter()
            .map(|attach| value(attach).as_secs_f64() * 1e3)
            .collect::<Vec<_>>()
    };
    line("attached", "ms", milliseconds(|attach| attach.attached));
    line(
        "  CPU time",
        "ms",
        attaches.iter().map(Attach::attach_cpu).collect(),
    );
    for number in 0..attaches.first().map_or(0, |attach| attach.steps.len()) {
        let steps = || attaches.iter().filter_map(|attach| attach.steps.get(number));
        let name = steps().next().map_or("", |step| &step.name);
        line(
            &format!("  {name}"),
            "ms",
            steps().map(|step| step.took).collect(),
        );
        line("    CPU time", "ms", steps().map(|step| step.cpu).collect());
    }
    line("ended, once told to", "ms", milliseconds(|attach| attach.ended));
    line("CPU time in all", "ms", milliseconds(|attach| attach.cpu));
    let of_all = |value: fn(&Attach) -> u64| attaches.iter().map(|attach| mebibytes(value(attach))).collect();
    line("resident, at most", "MiB", of_all(|attach| attach.peak_bytes));
    line("maps in the kernel", "MiB", of_all(|attach| attach.kernel_bytes));
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Median, least and most.
fn line(label: &str, unit: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let (median, min, max) = (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)));
    println!("  {label:<22} {median:8.1} {unit} [{min:.1} .. {max:.1}]");
}

/// A running target; ended when dropped.
struct Target {
    child: Child,
    objects: usize,
}

impl Target {
    fn start(objects: usize) -> anyhow::Result<Self> {
        let mut child = Command::new(compile()?)
            .arg(objects.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut list = child.stdin.take().context("a pipe was asked for")?;
        let paths = libraries()?;
        // The target stops reading once it has enough objects: a failed write is no error.
        let writer = std::thread::spawn(move || {
            for path in paths {
                if writeln!(list, "{}", path.display()).is_err() {
                    return;
                }
            }
        });
        let mut answer = String::new();
        BufReader::new(child.stdout.take().context("a pipe was asked for")?).read_line(&mut answer)?;
        let mut target = Self { child, objects: 0 };
        target.objects = answer
            .trim()
            .parse()
            .context("the target says how many objects it has")?;
        _ = writer.join();
        ensure!(
            target.objects >= objects,
            "this machine has only {} libraries to load",
            target.objects
        );
        Ok(target)
    }

    /// Returns the total size of executable mappings of files, in bytes.
    fn code_bytes(&self) -> anyhow::Result<u64> {
        let maps = fs::read(format!("/proc/{}/maps", self.child.id()))?;
        let mut bytes = 0;
        for entry in maps::parse(&maps) {
            let entry = entry?;
            if entry.executable && matches!(entry.name, MapsName::File { .. }) {
                bytes += entry.range.end.offset_from(entry.range.start);
            }
        }
        Ok(bytes)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Shared libraries, the largest first, each file once.
fn libraries() -> anyhow::Result<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in DIRECTORIES
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
    {
        let path = entry?.path();
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let usable = metadata.is_file() && metadata.len() >= MIN_BYTES && name.contains(".so");
        if usable && !LEFT_OUT.iter().any(|left_out| name.contains(left_out)) {
            found.insert((u64::MAX - metadata.len(), metadata.ino()), path);
        }
    }
    Ok(found.into_values().collect())
}

fn compile() -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/attach_target.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach_target");
    let status = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .status()
        .context("cannot run gcc (apt-get install gcc)")?;
    ensure!(status.success(), "gcc could not compile the target");
    Ok(program)
}
