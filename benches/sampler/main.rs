//! Cost of `libmemleak.so` in nanoseconds of CPU time per pair of malloc and free: without a tracer, and with
//! memleak attached, which walks the stack of each sampled block. Needs root.
//!
//! `cargo bench --bench sampler` takes 21 rounds (`--rounds=N`); `-- small`, `-- mixed`, `-- server` select
//! one kind of work; `cargo test --bench sampler` only checks that all of it works. With each allocator and
//! with one and two threads, the processes of all variants are there at the same time, and work in turn, in
//! an order that changes. A figure is the time that a variant takes more than the program without the library
//! in the same round: the median of all rounds, and quartiles.

#[allow(
    dead_code,
    reason = "spreads and copies of the C library are other benchmarks'"
)]
#[path = "../common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use common::{Selection, Target, compile, run_bench, run_directory};
use memleak::bpf::preflight;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Kinds of work, each with the pairs of a measurement for each thread.
const WORKS: [(&str, u32); 3] = [("small", 6_000_000), ("mixed", 2_000_000), ("server", 2_000_000)];
/// Allocators, each with the library that provides it; the C library's own needs none.
const ALLOCATORS: [(&str, Option<&str>); 3] = [
    ("glibc", None),
    ("jemalloc", Some("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")),
    (
        "tcmalloc",
        Some("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ),
];
/// Variants: the name, true if the library is loaded, and the sampling interval of memleak if it traces.
/// Others are compared with the first.
const VARIANTS: [(&str, bool, Option<&str>); 5] = [
    ("without", false, None),
    ("not traced", true, None),
    ("memleak, 512K", true, Some("512K")),
    ("memleak, 64K", true, Some("64K")),
    ("without, again", false, None),
];
/// Times that all variants are started anew: a process's addresses and its physical pages change the time of
/// a pair by more than the library does.
const GENERATIONS: usize = 3;
/// Commands that a process runs before it is measured: a heap whose blocks are replaced at random grows for
/// some time.
const WARM_UPS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    run_bench(&["small", "mixed", "server"], run)
}

fn run(selection: &Selection, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    let rounds = match (selection.rounds, selection.whole, selection.bench) {
        (Some(rounds), ..) => rounds,
        (None, true, _) => 21,
        (None, false, true) => 5,
        (None, false, false) => 1,
    };
    writeln!(
        out,
        "CPU nanoseconds per pair without the library, and what each variant takes more: median of {rounds} rounds [quartiles]"
    )?;
    let directory = run_directory("sampler")?;
    let library = directory.join("libmemleak.so");
    let status = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["library", "--output"])
        .arg(&library)
        .status()?;
    ensure!(status.success(), "memleak library: {status}");
    let program = compile("sampler/target.c", "sampler-target")?;
    for (allocator, file) in ALLOCATORS {
        if file.is_some_and(|file| !Path::new(file).exists()) {
            writeln!(out, "\n{allocator}: not installed")?;
            continue;
        }
        for (work, pairs) in WORKS.into_iter().filter(|(work, _)| selection.selects(work)) {
            // `cargo test` only checks that all of it works.
            let pairs = if selection.bench { pairs } else { 1000 };
            let mut measured = [1, 2].map(|_| vec![Vec::new(); VARIANTS.len()]);
            for generation in 0..GENERATIONS.min(rounds) {
                let mut variants = VARIANTS
                    .iter()
                    .map(|variant| Variant::start(variant, &program, &library, file, &directory))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                let rounds = (rounds + generation) / GENERATIONS.min(rounds);
                for (threads, measured) in (1..).zip(&mut measured) {
                    measure(
                        &mut variants,
                        &format!("{work} {threads} {pairs}"),
                        rounds,
                        measured,
                    )?;
                }
                for variant in variants {
                    variant.finish()?;
                }
            }
            for (threads, measured) in (1..).zip(&measured) {
                writeln!(out, "\n{allocator}, {work}, {threads} threads")?;
                print(measured, out)?;
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// A running program, and the memleak that traces it, if any.
struct Variant {
    target: Target,
    memleak: Option<Child>,
}

impl Variant {
    fn start(
        &(name, has_library, distance): &(&str, bool, Option<&str>),
        program: &Path,
        library: &Path,
        allocator: Option<&str>,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let own = has_library.then(|| library.display().to_string());
        let preloaded: Vec<String> = own.into_iter().chain(allocator.map(str::to_owned)).collect();
        let target = Target::start(Command::new(program).env("LD_PRELOAD", preloaded.join(" ")))?;
        let memleak = distance
            .map(|distance| attach(target.pid(), distance, &directory.join(name)))
            .transpose()?;
        Ok(Self { target, memleak })
    }

    fn finish(self) -> anyhow::Result<()> {
        if let Some(mut memleak) = self.memleak {
            kill(Pid::from_raw(memleak.id().cast_signed()), Signal::SIGINT)?;
            let status = memleak.wait()?;
            ensure!(status.success(), "memleak ended with {status}");
        }
        self.target.finish()
    }
}

/// Starts memleak with `--source usdt`, its messages in a file, and waits until it is attached.
fn attach(pid: u32, distance: &str, messages: &PathBuf) -> anyhow::Result<Child> {
    let memleak = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args([
            "-p",
            &pid.to_string(),
            "--source",
            "usdt",
            "--sample-bytes",
            distance,
            "1d",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(messages)?)
        .spawn()
        .context("cannot run memleak")?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let mut text = String::new();
        File::open(messages)?.read_to_string(&mut text)?;
        if text.contains("tracing ") {
            return Ok(memleak);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("memleak is not attached after {PATIENCE:?}")
}

/// Appends each variant's answers to `command`, one per round.
fn measure(
    variants: &mut [Variant],
    command: &str,
    rounds: usize,
    measured: &mut [Vec<f64>],
) -> anyhow::Result<()> {
    for variant in &mut *variants {
        for _ in 0..WARM_UPS {
            variant.target.ask(command)?;
        }
    }
    for round in 0..rounds {
        for turn in 0..variants.len() {
            let turn = if round % 2 == 0 {
                turn
            } else {
                variants.len() - 1 - turn
            };
            let index = (turn + round) % variants.len();
            measured[index].push(variants[index].target.ask(command)?);
        }
    }
    Ok(())
}

fn print(measured: &[Vec<f64>], out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(without) = measured.first() else {
        return Ok(());
    };
    for ((name, ..), answers) in VARIANTS.iter().zip(measured) {
        let more: Vec<f64> = answers
            .iter()
            .zip(without)
            .map(|(answer, base)| answer - base)
            .collect();
        let ratios: Vec<f64> = answers
            .iter()
            .zip(without)
            .map(|(answer, base)| answer / base)
            .collect();
        let [low, median, high] = quartiles(more);
        let [_, own, _] = quartiles(answers.clone());
        let [_, ratio, _] = quartiles(ratios);
        writeln!(
            out,
            "  {name:<16} {own:7.2} ns   {median:+6.2} [{low:+6.2} .. {high:+6.2}]   x {ratio:.3}"
        )?;
    }
    Ok(())
}

/// Lower quartile, median and upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    [last / 4, last / 2, last - last / 4].map(|at| values.get(at).copied().unwrap_or(f64::NAN))
}
