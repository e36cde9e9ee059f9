//! Parts that benchmarks of running programs share: their targets, the command line, medians.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use anyhow::{Context, bail, ensure};

/// Selection made on the command line.
pub(crate) struct Selection {
    /// True for `cargo bench` without `--quick`; otherwise less is measured, and coarsely.
    pub(crate) whole: bool,
    /// True for `cargo bench`, false for `cargo test`.
    pub(crate) bench: bool,
    /// The parts that are named; none means all.
    parts: Vec<String>,
    /// `--rounds=N`: rounds of each measurement, instead of the usual number.
    #[allow(dead_code, reason = "not every benchmark has rounds")]
    pub(crate) rounds: Option<usize>,
    /// `--tools=NAME,NAME`: parts of the names of tools; none means all.
    tools: Vec<String>,
}

impl Selection {
    fn from_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
        Self {
            rounds: value("--rounds=").and_then(|rounds| rounds.parse().ok()),
            tools: value("--tools=")
                .into_iter()
                .flat_map(|names| names.split(',').map(str::to_owned))
                .collect(),
            // Cargo passes --bench when benchmarks are asked for, and nothing when tests are.
            whole: has("--bench") && !has("--quick"),
            bench: has("--bench"),
            parts: arguments
                .iter()
                .filter(|argument| !argument.starts_with("--"))
                .cloned()
                .collect(),
        }
    }

    pub(crate) fn selects(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Returns whether a tool is to be measured.
    #[allow(dead_code, reason = "not every benchmark has tools")]
    pub(crate) fn selects_tool(&self, name: &str) -> bool {
        self.tools.is_empty() || self.tools.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    /// Refuses parts that are none of `known`: they would measure nothing.
    fn check(&self, known: &[&str]) -> anyhow::Result<()> {
        for part in &self.parts {
            ensure!(
                known.contains(&part.as_str()),
                "there is no `{part}` to measure; there are: {}",
                known.join(", ")
            );
        }
        Ok(())
    }
}

/// Runs a benchmark of these parts.
pub(crate) fn run_bench(
    parts: &[&str],
    run: impl FnOnce(&Selection, &mut dyn Write) -> anyhow::Result<()>,
) -> ExitCode {
    let selection = Selection::from_arguments();
    let result = selection
        .check(parts)
        .and_then(|()| run(&selection, &mut io::stdout().lock()));
    // Files of a run that was killed are left to `cargo clean`.
    _ = fs::remove_dir_all(benches_directory().join(run_name()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing more can be done if standard error is gone, too.
            _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A median and the range that it is the median of.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Summarizes values; without any, all three are NaN.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => at(middle),
            _ => (at(middle.wrapping_sub(1)) + at(middle)) / 2.0,
        };
        Self {
            min: at(0),
            median,
            max: at(values.len().saturating_sub(1)),
        }
    }
}

impl fmt::Display for Spread {
    /// `MEDIAN [MIN .. MAX]`, with the digits that are asked for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = *self;
        let digits = f.precision().unwrap_or(2);
        let width = f.width().unwrap_or(0);
        write!(
            f,
            "{median:width$.digits$} [{min:width$.digits$} .. {max:width$.digits$}]"
        )
    }
}

fn benches_directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("benches")
}

/// Names this run, among others at the same time.
fn run_name() -> String {
    format!("run-{}", std::process::id())
}

/// Creates a directory for files of this run only, below those of all benchmarks.
pub(crate) fn run_directory(name: &str) -> anyhow::Result<PathBuf> {
    let directory = benches_directory().join(run_name()).join(name);
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// Compiles a file of `benches` as `name`, without frame pointers.
pub(crate) fn compile(source: &str, name: &str) -> anyhow::Result<PathBuf> {
    let program = run_directory("programs")?.join(name);
    if program.exists() {
        return Ok(program);
    }
    let status = Command::new("gcc")
        .args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fomit-frame-pointer",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join(source))
        .status()
        .context("cannot run gcc (apt-get install gcc)")?;
    ensure!(status.success(), "gcc could not compile {source}");
    Ok(program)
}

/// Returns a directory with a copy of the C library, for `LD_LIBRARY_PATH`. Probes are placed in files: no
/// other process runs into those in this copy.
pub(crate) fn own_libc(name: &str) -> anyhow::Result<PathBuf> {
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
    let directory = run_directory(&format!("libc-{name}"))?;
    let copy = directory.join("libc.so.6");
    // Never rewritten: a process that still runs may have it mapped.
    if !copy.exists() {
        fs::copy(LIBC, &copy).with_context(|| format!("cannot copy {LIBC}"))?;
    }
    Ok(directory)
}

/// A program that answers each line of its input with a number; ended when dropped.
pub(crate) struct Target {
    child: Child,
    /// Standard input; `None` once it is closed, which ends the program.
    commands: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Target {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a pipe was asked for")?).lines();
        Ok(Self {
            child,
            commands,
            answers,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and returns the answer, which is nanoseconds per pair for most commands.
    pub(crate) fn ask(&mut self, command: &str) -> anyhow::Result<f64> {
        let commands = self.commands.as_mut().context("a pipe was asked for")?;
        writeln!(commands, "{command}")?;
        let Some(answer) = self.answers.next() else {
            bail!("the target ended when it was asked for `{command}`")
        };
        let answer = answer?;
        answer
            .trim()
            .parse()
            .with_context(|| format!("the target answers `{answer}`, which is no number"))
    }

    /// Lets it end by itself, as it does when nothing more is asked.
    #[allow(dead_code, reason = "not every benchmark cares how its target ends")]
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.commands = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the target ended with {status}");
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
