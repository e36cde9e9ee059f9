//! A tool at work: starts it, ends it, and reads its results.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::observed::{self, Observed};
use crate::subject::{find, library};
use crate::tool::ToolKind;

/// Maximum time for a tool to attach, or to write its results.
const PATIENCE: Duration = Duration::from_secs(240);
/// Time for heaptrack to attach, which does not say when it has.
const SETTLING: Duration = Duration::from_secs(2);
/// Interval of reports, in seconds: longer than any measurement, so that memleak reports only at the end.
const NO_INTERVAL: &str = "86400";

/// A tool that runs beside the program, or none.
pub(crate) struct Tracer {
    kind: ToolKind,
    directory: PathBuf,
    child: Option<Child>,
}

/// Additions to the program's command by a tool that starts with it: words in front, a library, and
/// variables.
pub(crate) struct Launch {
    pub(crate) prefix: Vec<String>,
    pub(crate) preloaded: Option<PathBuf>,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Tracer {
    /// Prepares a tool, and starts it if it has to run before the program. `once`: the program runs but once
    /// and cannot be attached to.
    pub(crate) fn prepare(
        kind: ToolKind,
        allocator: &Path,
        directory: &Path,
        once: bool,
    ) -> anyhow::Result<(Self, Launch)> {
        let mut tracer = Self {
            kind,
            directory: directory.to_owned(),
            child: None,
        };
        let file = |name: &str| directory.join(name).display().to_string();
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut launch = Launch {
            prefix: Vec::new(),
            preloaded: None,
            environment: Vec::new(),
        };
        match kind {
            ToolKind::Bpftrace(script) => tracer.start_bpftrace(script, allocator)?,
            ToolKind::Perf => {
                place_perf_probes(allocator)?;
                if once {
                    launch.prefix = perf_record(directory);
                    launch.prefix.push("--".to_owned());
                }
            }
            ToolKind::Preloaded(flags) if flags.is_none() || !once => launch.preloaded = Some(sampler()?),
            ToolKind::Memleak(flags) | ToolKind::Preloaded(Some(flags)) if once => {
                launch.prefix = words(&[env!("CARGO_BIN_EXE_memleak"), "--format", "json"]);
                if kind != ToolKind::Memleak(flags) {
                    launch.prefix.push("--preload".to_owned());
                }
                launch.prefix.extend(flags.iter().map(|&flag| flag.to_owned()));
                launch.prefix.extend([NO_INTERVAL, "--"].map(str::to_owned));
            }
            ToolKind::Valgrind => {
                let log = format!("--log-file={}", file("valgrind"));
                launch.prefix = words(&["valgrind", "--leak-check=full", &log]);
            }
            ToolKind::Heaptrack => {
                launch.preloaded = Some(PathBuf::from("/usr/lib/heaptrack/libheaptrack_preload.so"));
                launch
                    .environment
                    .push(("DUMP_HEAPTRACK_OUTPUT", file("heaptrack")));
            }
            ToolKind::Gperftools => {
                launch.preloaded = Some(library("libtcmalloc.so.4"));
                launch.environment.push(("HEAPPROFILE", file("profile")));
            }
            ToolKind::Jemalloc => {
                launch.preloaded = Some(library("libjemalloc.so.2"));
                let settings = format!(
                    "prof:true,prof_accum:true,prof_final:true,prof_prefix:{}",
                    file("jeprof")
                );
                launch.environment.push(("MALLOC_CONF", settings));
            }
            ToolKind::Untraced
            | ToolKind::Memleak(_)
            | ToolKind::Preloaded(_)
            | ToolKind::Bcc
            | ToolKind::HeaptrackInjected => {}
        }
        Ok((tracer, launch))
    }

    /// Attaches the tool, if it is one that attaches to running processes.
    pub(crate) fn attach(&mut self, pid: u32) -> anyhow::Result<()> {
        let pid = pid.to_string();
        match self.kind {
            ToolKind::Memleak(flags) | ToolKind::Preloaded(Some(flags)) => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
                command
                    .args(["-p", &pid, "--format", "json"])
                    .args(flags)
                    .arg(NO_INTERVAL);
                self.start(&mut command)?;
                self.await_text("stderr", "tracing ")
            }
            ToolKind::Perf => self.attach_perf(&pid),
            ToolKind::Bcc => {
                let program = find("memleak-bpfcc").context("memleak-bpfcc")?;
                self.start(Command::new(program).args(["-p", &pid, NO_INTERVAL]))?;
                self.await_text("stdout", "Attaching")
            }
            ToolKind::HeaptrackInjected => {
                let output = self.directory.join("heaptrack");
                self.start(Command::new("heaptrack").arg("-o").arg(output).args(["-p", &pid]))?;
                self.await_text("stdout", "injecting")?;
                std::thread::sleep(SETTLING);
                self.ensure_runs()
            }
            ToolKind::Untraced
            | ToolKind::Preloaded(None)
            | ToolKind::Bpftrace(_)
            | ToolKind::Heaptrack
            | ToolKind::Gperftools
            | ToolKind::Jemalloc
            | ToolKind::Valgrind => Ok(()),
        }
    }

    /// CPU seconds of the tool's own process so far.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        const TICKS_PER_SECOND: f64 = 100.0;
        let Some(child) = &self.child else { return 0.0 };
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2);
        ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
    }

    /// Ends the tool and reads its results. The program has ended.
    pub(crate) fn finish(mut self) -> anyhow::Result<Observed> {
        self.end()?;
        let seen = observed::read(self.kind, &self.directory);
        self.remove_probes();
        seen.with_context(|| self.last_words())
    }

    fn start(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let file = |name: &str| File::create(self.directory.join(name));
        let child = command
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn start_bpftrace(&mut self, script: &str, allocator: &Path) -> anyhow::Result<()> {
        let script = script.replace("LIB", &allocator.display().to_string());
        let mut command = Command::new("bpftrace");
        command
            .env("BPFTRACE_MAP_KEYS_MAX", "1000000")
            .env("BPFTRACE_NO_CPP_DEMANGLE", "1")
            .args(["-B", "line", "-e", &script]);
        self.start(&mut command)?;
        self.await_text("stdout", "ready")
    }

    /// Attaches perf with its events disabled and enables them through a FIFO, which perf acknowledges:
    /// without that, a short program is over before.
    fn attach_perf(&mut self, pid: &str) -> anyhow::Result<()> {
        let [control, answer] = ["perf.control", "perf.answer"].map(|name| self.directory.join(name));
        let made = Command::new("mkfifo").args([&control, &answer]).status()?;
        ensure!(made.success(), "mkfifo: {made}");
        let open = |fifo: &Path| {
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(fifo)
        };
        let (mut commands, mut answers) = (open(&control)?, open(&answer)?);
        let record = perf_record(&self.directory);
        let fifos = format!("fifo:{},{}", control.display(), answer.display());
        let mut command = Command::new(&record[0]);
        command
            .args(&record[1..])
            .args(["-D", "-1", "--control", &fifos, "-p", pid]);
        self.start(&mut command)?;
        commands.write_all(b"enable\n")?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if answers.read(&mut [0; 16]).is_ok_and(|length| length > 0) {
                return Ok(());
            }
            self.ensure_runs()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("it is not attached after {PATIENCE:?}: {}", self.last_words())
    }

    fn await_text(&mut self, file: &str, text: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let mut content = Vec::new();
            File::open(self.directory.join(file))?.read_to_end(&mut content)?;
            if String::from_utf8_lossy(&content).contains(text) {
                return Ok(());
            }
            self.ensure_runs()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("it is not attached after {PATIENCE:?}: {}", self.last_words())
    }

    fn ensure_runs(&mut self) -> anyhow::Result<()> {
        let ended = self.child.as_mut().map_or(Ok(None), Child::try_wait)?;
        ensure!(ended.is_none(), "it ended: {}", self.last_words());
        Ok(())
    }

    /// The last lines that it wrote to standard error.
    fn last_words(&self) -> String {
        const LINES: usize = 3;
        let text = fs::read(self.directory.join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        match lines.len() {
            0 => "it said nothing".to_owned(),
            count => lines[count.saturating_sub(LINES)..].join(" "),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        // heaptrack's process is a shell, which ends after the program.
        if self.kind != ToolKind::HeaptrackInjected && child.try_wait()?.is_none() {
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if child.try_wait()?.is_some() {
                self.child = None;
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("it has not ended after {PATIENCE:?}")
    }

    fn remove_probes(&self) {
        if self.kind == ToolKind::Perf {
            _ = Command::new("perf")
                .args(["probe", "-q", "-d"])
                .arg(format!("{}:*", perf_group()))
                .output();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            _ = child.kill();
            _ = child.wait();
        }
        self.remove_probes();
    }
}

/// The library that samples, as memleak writes it.
fn sampler() -> anyhow::Result<PathBuf> {
    let path = crate::common::run_directory("sampler")?.join("libmemleak.so");
    if !path.exists() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        let status = command.args(["library", "--output"]).arg(&path).status()?;
        ensure!(status.success(), "memleak library: {status}");
    }
    Ok(path)
}

/// The group of this run's uprobes.
fn perf_group() -> String {
    format!("memleak_bench_{}", std::process::id())
}

fn perf_record(directory: &Path) -> Vec<String> {
    let output = directory.join("perf.data").display().to_string();
    let events = format!("{}:*", perf_group());
    let words = [
        "perf",
        "record",
        "-q",
        "--call-graph",
        "dwarf",
        "-e",
        &events,
        "-o",
        &output,
    ];
    words.map(str::to_owned).to_vec()
}

/// Places probes on allocations alone: perf itself could not tell freed blocks from outstanding ones.
fn place_perf_probes(allocator: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("perf");
    command.args(["probe", "-q", "-f", "-x"]).arg(allocator);
    for function in ["malloc", "calloc", "realloc"] {
        command
            .arg("-a")
            .arg(format!("{}:{function}={function}", perf_group()));
    }
    let output = command.output().context("cannot run perf")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf probe: {}", errors.trim());
    Ok(())
}
