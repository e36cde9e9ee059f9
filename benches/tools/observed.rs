//! Results of a trace as the tool itself states them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::tool::ToolKind;

/// Figures of a trace; `None` where the tool does not state them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Observed {
    /// Allocations that the tool saw.
    pub(crate) allocations: Option<f64>,
    /// Allocations that the tool says it lost.
    pub(crate) lost: Option<f64>,
    /// Share of allocations with a complete stack, from 0 to 1.
    pub(crate) complete: Option<f64>,
    /// Frames of a stack, on average.
    pub(crate) frames: Option<f64>,
    /// Bytes that the tool wrote to disk.
    pub(crate) written: Option<f64>,
}

/// Number of perf's samples whose frames are counted: unwinding all of them takes minutes.
const UNWOUND_SAMPLES: usize = 50;

/// Reads what the tool left in its directory.
pub(crate) fn read(kind: ToolKind, directory: &Path) -> anyhow::Result<Observed> {
    let text = |name: &str| -> anyhow::Result<String> {
        let bytes = fs::read(directory.join(name)).with_context(|| format!("it wrote no {name}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match kind {
        ToolKind::Memleak(_) | ToolKind::Preloaded(Some(_)) => of_memleak(&text("stdout")?),
        ToolKind::Bpftrace(_) => Ok(of_bpftrace(&text("stdout")?)),
        ToolKind::Perf => of_perf(&directory.join("perf.data")),
        ToolKind::Heaptrack => of_heaptrack(&directory.join("heaptrack")),
        ToolKind::HeaptrackInjected => Ok(Observed {
            allocations: number_after(&(text("stdout")? + &text("stderr")?), "\tallocations:"),
            ..Observed::default()
        }),
        ToolKind::Valgrind => Ok(Observed {
            allocations: number_after(&text("valgrind")?, "total heap usage:"),
            ..Observed::default()
        }),
        ToolKind::Gperftools | ToolKind::Jemalloc => of_profile(directory),
        ToolKind::Untraced | ToolKind::Preloaded(None) | ToolKind::Bcc => Ok(Observed::default()),
    }
}

/// Reads the last of memleak's reports, one JSON object per line.
fn of_memleak(reports: &str) -> anyhow::Result<Observed> {
    let last = reports.lines().last().context("it made no report")?;
    let report: Value = serde_json::from_str(last).context("its report is not JSON")?;
    let number = |value: &Value| value.as_f64();
    let ends = report["unwinding"]["allocations"].as_object();
    let all: f64 = ends
        .into_iter()
        .flat_map(|ends| ends.values())
        .filter_map(number)
        .sum();
    let complete = ends.and_then(|ends| ends.get("complete")).and_then(number);
    let mut frames = 0.0;
    let mut blocks = 0.0;
    for stack in report["stacks"].as_array().into_iter().flatten() {
        let weight = number(&stack["allocated"]["blocks"]).unwrap_or(0.0);
        frames += weight
            * stack["frames"]
                .as_array()
                .map_or(0.0, |frames| frames.len() as f64);
        blocks += weight;
    }
    Ok(Observed {
        allocations: number(&report["events"]["allocations"]),
        lost: number(&report["lost"]["blocks"]),
        complete: (all > 0.0).then(|| complete.unwrap_or(0.0) / all),
        frames: (blocks > 0.0).then(|| frames / blocks),
        written: None,
    })
}

/// Reads stacks, each as `@[`, a line per frame, `]: COUNT`; or one count.
fn of_bpftrace(output: &str) -> Observed {
    let (mut allocations, mut frames, mut depth) = (0.0, 0.0, 0.0);
    for line in output.lines() {
        let count = line
            .rsplit(": ")
            .next()
            .and_then(|count| count.parse::<f64>().ok());
        if line.starts_with("@allocations: ") {
            return Observed {
                allocations: count,
                ..Observed::default()
            };
        }
        if line.starts_with("@[") {
            depth = 0.0;
        } else if line.starts_with("    ") {
            depth += 1.0;
        }
        if let (true, Some(count)) = (line.contains("]: "), count) {
            allocations += count;
            // The first frame is the allocator's.
            frames += count * f64::max(depth - 1.0, 0.0);
        }
    }
    Observed {
        allocations: Some(allocations),
        frames: (allocations > 0.0).then(|| frames / allocations),
        ..Observed::default()
    }
}

fn of_perf(data: &Path) -> anyhow::Result<Observed> {
    let written = fs::metadata(data).context("it wrote no data")?.len() as f64;
    let mut report = Command::new("perf");
    let stats = report.args(["report", "--stats", "-i"]).arg(data).output()?;
    ensure!(stats.status.success(), "perf report failed");
    let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
    // The second part of the statistics, by event, says how many samples were lost.
    let of_events: String = stats.split("stats:").skip(2).collect();
    let sum = |name: &str| -> f64 {
        let lines = of_events.lines().filter(|line| line.trim().starts_with(name));
        lines.filter_map(|line| number_after(line, "events:")).sum()
    };
    Ok(Observed {
        allocations: Some(sum("SAMPLE")),
        lost: Some(sum("LOST_SAMPLES")),
        complete: None,
        frames: perf_frames(data)?,
        written: Some(written),
    })
}

/// Returns the mean number of frames of the first samples, the allocator's own left out.
fn perf_frames(data: &Path) -> anyhow::Result<Option<f64>> {
    let mut script = Command::new("perf")
        .args(["script", "-F", "ip,sym", "-i"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = script.stdout.take().context("a pipe was asked for")?;
    let (mut samples, mut frames) = (0, 0.0);
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        if line.is_empty() {
            samples += 1;
            frames -= 1.0;
        } else {
            frames += 1.0;
        }
        if samples == UNWOUND_SAMPLES {
            break;
        }
    }
    _ = script.kill();
    _ = script.wait();
    Ok((samples > 0).then(|| frames / samples as f64))
}

/// Counts allocations: lines that start with `+`.
fn of_heaptrack(path: &Path) -> anyhow::Result<Observed> {
    let file = fs::File::open(path).context("it wrote no data")?;
    let written = file.metadata()?.len() as f64;
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    Ok(Observed {
        allocations: Some(lines.filter(|line| line.starts_with(b"+ ")).count() as f64),
        written: Some(written),
        ..Observed::default()
    })
}

/// Reads the last profile: `heap profile: LIVE: BYTES [ALLOCATIONS: BYTES] @ …`, or jemalloc's `t*: LIVE:
/// BYTES [ALLOCATIONS: BYTES]`.
fn of_profile(directory: &Path) -> anyhow::Result<Observed> {
    let profiles = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let is_profile = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "heap");
    let last = profiles.filter(is_profile).max().context("it wrote no profile")?;
    let text = fs::read(last)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Observed {
        allocations: number_after(&text, "["),
        ..Observed::default()
    })
}

/// The first number behind `name`.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let (_, rest) = text.split_once(name)?;
    let digits = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == ',');
    let digits: String = digits.filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}
