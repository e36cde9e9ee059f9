//! One workload under one tool, once.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::common::{Target, run_directory};
use crate::observed::Observed;
use crate::subject::{Work, cpu_time_library};
use crate::tool::{Tool, ToolKind};
use crate::tracer::{Launch, Tracer};

/// Result of one measurement; times are for one unit of work.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// CPU time of the program, nanoseconds.
    pub(crate) cpu: f64,
    /// Nanoseconds from start to end.
    pub(crate) wall: f64,
    /// CPU time of the tool's own process, nanoseconds.
    pub(crate) tool_cpu: f64,
    /// Units of work that the tool could see; includes the warm-up if it was attached before that.
    pub(crate) units: f64,
    pub(crate) observed: Observed,
}

/// Pairs before the tool attaches and time is taken.
const WARM_UP: u32 = 1000;

/// Runs `units` of work; a server answers as many requests of each kind.
pub(crate) fn measure(work: Work, tool: &Tool, units: u32) -> anyhow::Result<Measured> {
    let allocator = work.allocator()?;
    let directory = run_directory("tool")?;
    fs::remove_dir_all(&directory)?;
    fs::create_dir_all(&directory)?;
    let once = work == Work::Clang;
    let (tracer, launch) = Tracer::prepare(tool.kind, &allocator, &directory, once)?;
    let mut subject = Started {
        tracer,
        command: Command::new("true"),
        directory,
    };
    let port = free_port()?;
    subject.command = subject.command_of(&work.words(port)?, &launch, &allocator)?;
    match work {
        Work::Pairs { command, .. } => subject.answer(command, units, tool.starts_before_program()),
        Work::Redis { pipeline } => subject.serve(port, pipeline, units),
        Work::Clang => subject.run_once(tool.kind),
    }
}

struct Started {
    tracer: Tracer,
    command: Command,
    directory: PathBuf,
}

impl Started {
    fn command_of(&self, words: &[OsString], launch: &Launch, allocator: &Path) -> anyhow::Result<Command> {
        let mut all: Vec<OsString> = launch.prefix.iter().map(OsString::from).collect();
        all.extend(words.iter().cloned());
        let mut preloaded: Vec<String> = launch
            .preloaded
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        preloaded.push(cpu_time_library()?.display().to_string());
        let (program, arguments) = all.split_first().context("a program")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", allocator.parent().context("a directory")?)
            .env("LD_PRELOAD", preloaded.join(":"))
            .env("CPU_TIME_FILE", self.directory.join("cpu_time"))
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .stderr(fs::File::create(self.directory.join("program"))?);
        Ok(command)
    }

    fn answer(mut self, command: &str, pairs: u32, sees_all: bool) -> anyhow::Result<Measured> {
        let mut target = Target::start(&mut self.command)?;
        target.ask(&format!("{command} {WARM_UP}"))?;
        self.tracer.attach(target.pid())?;
        let before = self.tracer.cpu_seconds();
        let began = Instant::now();
        let cpu = target.ask(&format!("{command} {pairs}"))?;
        let wall = began.elapsed();
        let tool_seconds = self.tracer.cpu_seconds() - before;
        target.finish()?;
        let units = f64::from(pairs);
        Ok(Measured {
            cpu,
            wall: wall.as_secs_f64() * 1e9 / units,
            tool_cpu: tool_seconds * 1e9 / units,
            units: units + if sees_all { f64::from(WARM_UP) } else { 0.0 },
            observed: self.tracer.finish()?,
        })
    }

    fn serve(mut self, port: u16, pipeline: u32, requests: u32) -> anyhow::Result<Measured> {
        let child = self.command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut server = Server {
            child: child.context("cannot run redis-server")?,
            port,
        };
        let pid = server.await_ready()?;
        self.tracer.attach(pid)?;
        let tool_before = self.tracer.cpu_seconds();
        let before = server.cpu_nanoseconds()?;
        let began = Instant::now();
        let mut units = 0.0;
        for (size, tests) in [
            ("16", "set,get"),
            ("512", "set,get"),
            ("4096", "set,get"),
            ("64", "lpush"),
        ] {
            server.load(pipeline, requests, size, tests)?;
            units += f64::from(requests) * tests.split(',').count() as f64;
        }
        let wall = began.elapsed();
        let cpu = server.cpu_nanoseconds()? - before;
        let tool_seconds = self.tracer.cpu_seconds() - tool_before;
        server.shut_down()?;
        Ok(Measured {
            cpu: cpu / units,
            wall: wall.as_secs_f64() * 1e9 / units,
            tool_cpu: tool_seconds * 1e9 / units,
            units,
            observed: self.tracer.finish()?,
        })
    }

    /// Runs the program once; the tool starts it, or waits for it. Ends when both have ended.
    fn run_once(mut self, kind: ToolKind) -> anyhow::Result<Measured> {
        let before = self.tracer.cpu_seconds();
        let began = Instant::now();
        let status = self
            .command
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.directory.join("stdout.once"))?)
            .status()?;
        let wall = began.elapsed();
        let mut tool_cpu = (self.tracer.cpu_seconds() - before) * 1e9;
        ensure!(status.success(), "{status}: {}", self.output());
        if kind.is_memleak() {
            fs::rename(self.directory.join("stdout.once"), self.directory.join("stdout"))?;
        }
        let mut cpu = None;
        for line in fs::read_to_string(self.directory.join("cpu_time"))?.lines() {
            let (name, nanoseconds) = line.split_once(' ').context("a name and a time")?;
            let nanoseconds: f64 = nanoseconds.parse()?;
            match name {
                "memleak" | "perf" => tool_cpu += nanoseconds,
                // Of several processes, the one that compiles takes the most.
                _ => cpu = Some(f64::max(cpu.unwrap_or(0.0), nanoseconds)),
            }
        }
        Ok(Measured {
            cpu: cpu.context("the program did not say how long it took")?,
            wall: wall.as_secs_f64() * 1e9,
            tool_cpu,
            units: 1.0,
            observed: self.tracer.finish()?,
        })
    }

    fn output(&self) -> String {
        let output = fs::read(self.directory.join("program")).unwrap_or_default();
        String::from_utf8_lossy(&output)
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A redis-server; ended when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        let output = output.context("cannot run redis-cli (apt-get install redis-tools)")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until the server answers, and returns its process id.
    fn await_ready(&mut self) -> anyhow::Result<u32> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            if let Some(pid) = field(&self.ask(&["INFO", "server"])?, "process_id") {
                return pid.parse().context("redis's process id");
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("redis-server ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("redis-server does not answer")
    }

    fn cpu_nanoseconds(&self) -> anyhow::Result<f64> {
        let output = self.ask(&["INFO", "cpu"])?;
        let seconds = |name: &str| -> anyhow::Result<f64> {
            let value = field(&output, name).with_context(|| format!("redis says no {name}"))?;
            Ok(value.parse()?)
        };
        Ok((seconds("used_cpu_user")? + seconds("used_cpu_sys")?) * 1e9)
    }

    fn load(&self, pipeline: u32, requests: u32, size: &str, tests: &str) -> anyhow::Result<()> {
        let status = Command::new("redis-benchmark")
            .args(["-q", "-c", "8", "-r", "10000", "-d", size, "-t", tests])
            .args([
                "-p",
                &self.port.to_string(),
                "-P",
                &pipeline.to_string(),
                "-n",
                &requests.to_string(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("cannot run redis-benchmark (apt-get install redis-tools)")?;
        ensure!(status.success(), "redis-benchmark failed: {status}");
        Ok(())
    }

    fn shut_down(mut self) -> anyhow::Result<()> {
        self.ask(&["SHUTDOWN", "NOSAVE"])?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The value of a line `NAME:VALUE`.
fn field<'text>(text: &'text str, name: &str) -> Option<&'text str> {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    lines.find_map(|(key, value)| (key == name).then_some(value))
}
