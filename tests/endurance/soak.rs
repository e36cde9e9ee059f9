//! A slow leak in heavy churn, for any time: whenever the program pauses, the reported amounts of each of its
//! functions are equal to its own counts, to the byte, and nothing is lost. memleak's memory, its maps and
//! its descriptors do not grow, and the leak is what grows most.
//!
//! `MEMLEAK_SOAK_MINUTES` is how long it lasts, `MEMLEAK_SOAK_LOAD` how much of one CPU the program takes, in
//! per cent.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stderr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memleak_test::memleak::Memleak;
use memleak_test::program::{PATIENCE, Program, compile, compile_as, directory};
use memleak_test::report::{Amount, Report};

const LEAK: &str = "leaked";
/// Maximum size of the program's cache, in bytes. Once the leak has lost twice as much since the mark, it
/// must have grown most.
const MAX_CACHED: u64 = 300 * 1024;

/// Memory of a block in the block table, in bytes.
const MAP_BYTES_PER_BLOCK: u64 = 96;

/// Maximum rise of memleak's resident memory, in bytes, from the first quarter of the time after the warm-up
/// to the last. The C library's allocator and the kernel's page counts move by less.
const MAX_RISE: u64 = 1 << 20;
/// Maximum rise of memleak's maps, in bytes: the program's live blocks become a few hundred more, or less,
/// from look to look.
const MAX_RISE_OF_MAPS: u64 = 64 << 10;

/// Duration, load and intervals of a run.
struct Plan {
    time: Duration,
    load: u32,
    /// Seconds between reports.
    interval: &'static str,
    /// Time between looks at the program, which pauses for each.
    check_interval: Duration,
}

impl Plan {
    fn of_environment() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let load = text("MEMLEAK_SOAK_LOAD").map_or(30, |load| load.parse().expect("per cent"));
        let minutes = text("MEMLEAK_SOAK_MINUTES").map(|minutes| minutes.parse::<f64>().expect("minutes"));
        match minutes {
            Some(minutes) => Self {
                time: Duration::from_secs_f64(60.0 * minutes),
                load,
                interval: "2",
                check_interval: Duration::from_secs(20),
            },
            None => Self {
                time: Duration::from_secs(6),
                load,
                interval: "0.25",
                check_interval: Duration::from_secs(1),
            },
        }
    }

    /// Time before samples are compared.
    fn warm_up(&self) -> Duration {
        self.time / 4
    }

    /// Returns whether there is time for the leak to show among all else.
    fn is_long(&self) -> bool {
        self.time > Duration::from_secs(200)
    }
}

/// Amounts that a function of the program has allocated and not freed, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    allocated: Amount,
    outstanding: Amount,
}

impl Counted {
    /// Parses a line of the program: name, then blocks and bytes that were allocated, blocks and bytes that
    /// were freed.
    fn parse(line: &str) -> (String, Self) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> u64 { words[at].parse().expect("a number") };
        let (blocks, bytes) = (number(1), number(2));
        let counted = Self {
            allocated: Amount { bytes, blocks },
            outstanding: Amount {
                bytes: bytes - number(4),
                blocks: blocks - number(3),
            },
        };
        (words[0].to_owned(), counted)
    }

    fn reported(report: &Report, function: &str) -> Self {
        let stacks = report.through(function);
        Self {
            allocated: stacks.iter().map(|stack| stack.allocated).sum(),
            outstanding: stacks.iter().map(|stack| stack.outstanding).sum(),
        }
    }
}

type Counts = BTreeMap<String, Counted>;

/// Memory and descriptors of memleak at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    resident: u64,
    /// Memory of maps in bytes, without that of the leak's blocks, which stay in the table for good.
    maps: u64,
    descriptors: u64,
}

/// The middle one of some figures.
fn median(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    figures[figures.len() / 2]
}

struct Soak {
    plan: Plan,
    began: Instant,
    /// A time before the attach.
    not_attached: Instant,
    program: Program,
    memleak: Memleak,
    samples: Vec<Sample>,
    looks: u64,
    /// Number of looks in which the leak had grown most.
    ahead: u64,
}

impl Soak {
    fn start(plan: Plan, recording: &Path) -> Self {
        let directory = recording.parent().expect("it is in a directory");
        let library = directory.join("fleeting.so");
        compile_as(
            &library,
            "mappings/fleeting_library.c",
            &["-O2", "-shared", "-fPIC"],
        );
        let flags = [
            "-O2",
            "-fomit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-pthread",
        ];
        let path = compile(directory, "amounts/soak.c", &flags);
        let library = library.to_str().expect("UTF-8");
        let mut program = Program::start(&path, &[library, &plan.load.to_string()]);
        program.expect("ready");
        let recording = recording.to_str().expect("UTF-8");
        let flags = ["--sort", "growth", "--record", recording, "--record-limit", "8M"];
        let not_attached = Instant::now();
        let memleak = Memleak::attach_reporting(program.pid(), &flags, &[plan.interval]);
        program.send_line("go");
        Self {
            plan,
            began: Instant::now(),
            not_attached,
            program,
            memleak,
            samples: Vec::new(),
            looks: 0,
            ahead: 0,
        }
    }

    /// Takes reports, as they come, for some time.
    fn follow_for(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            let report = self.memleak.report();
            self.sample(&report);
        }
    }

    fn sample(&mut self, report: &Report) {
        let pid = self.memleak.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
        self.samples.push(Sample {
            at: self.began.elapsed(),
            resident: 1024 * resident.expect("every process has it"),
            maps: report.own.kernel_bytes
                - MAP_BYTES_PER_BLOCK * Counted::reported(report, LEAK).outstanding.blocks,
            descriptors: descriptors as u64,
        });
    }

    /// Reads the program's own counts while it stands still.
    fn counts(&self) -> Counts {
        let lines = std::iter::from_fn(|| Some(self.program.line()).filter(|line| line != "still"));
        lines.map(|line| Counted::parse(&line)).collect()
    }

    /// Returns a report that was begun while the program was paused. Older reports may still wait to be read:
    /// they are recognized by their time, which counts from the attach.
    fn still_report(&mut self) -> Report {
        let began = Instant::now();
        let is_still = began.duration_since(self.not_attached);
        let mut before = self.memleak.report();
        while Duration::from_nanos(before.duration_ns) < is_still {
            self.sample(&before);
            before = self.memleak.report();
        }
        loop {
            let report = self.memleak.report();
            self.sample(&report);
            if (report.events.allocations, report.events.frees)
                == (before.events.allocations, before.events.frees)
            {
                return report;
            }
            assert!(began.elapsed() < *PATIENCE, "the program stands still:\n{report}");
            before = report;
        }
    }

    /// Compares what is reported with what the program counted.
    fn check(&mut self) -> (Report, Counts) {
        let counts = self.counts();
        let report = self.still_report();
        report.check_sums();
        let lost = &report.lost;
        let all_lost = [lost.blocks, lost.bytes, lost.frees, lost.processes, lost.events];
        assert_eq!(all_lost, [0; 5], "{lost:?}");
        for (function, counted) in &counts {
            let reported = Counted::reported(&report, function);
            assert_eq!(
                reported,
                *counted,
                "{function} after {:?}: {report}",
                self.began.elapsed()
            );
        }
        self.looks += 1;
        (report, counts)
    }

    /// Pauses the program for a look.
    fn look(&mut self) -> (Report, Counts) {
        self.program.send_line("still");
        let looked = self.check();
        self.program.send_line("go");
        looked
    }

    /// Churns and looks until the time is over.
    fn run(&mut self) {
        let mut is_marked = false;
        let mut lost_at_mark = 0;
        while self.began.elapsed() < self.plan.time {
            self.follow_for(self.plan.check_interval);
            let (report, counts) = self.look();
            let lost = counts[LEAK].outstanding.bytes;
            if !is_marked && self.began.elapsed() >= self.plan.warm_up() {
                self.memleak.mark();
                (is_marked, lost_at_mark) = (true, lost);
            } else if is_marked && lost - lost_at_mark > 2 * MAX_CACHED {
                self.check_rank(&report);
            }
            self.tell_progress(&counts);
        }
    }

    /// Checks that the leak has grown most since the mark; true once it has lost more than any cache can
    /// hold.
    fn check_rank(&mut self, report: &Report) {
        let first = report
            .stacks
            .iter()
            .max_by_key(|stack| stack.recent.since_baseline.net_bytes);
        let first = first.expect("there are stacks");
        assert!(first.passes(LEAK), "the leak grows most:\n{report}");
        self.ahead += 1;
    }

    fn tell_progress(&self, counts: &Counts) {
        let allocated: u64 = counts.values().map(|counted| counted.allocated.blocks).sum();
        let sample = self.samples.last().expect("reports were made");
        let _ = writeln!(
            stderr(),
            "soak: {:.1} min, {allocated} blocks, {} lost by the leak; memleak: {} KiB resident, {} KiB of maps, {} descriptors",
            self.began.elapsed().as_secs_f64() / 60.0,
            counts[LEAK].outstanding.blocks,
            sample.resident >> 10,
            sample.maps >> 10,
            sample.descriptors,
        );
    }
}

/// The median of some figure in the first quarter of the time after the warm-up, and in the last quarter.
fn quarters(samples: &[Sample], figure: fn(&Sample) -> u64) -> (u64, u64) {
    let quarter = samples.len().div_ceil(4);
    let of = |samples: &[Sample]| median(samples.iter().map(figure).collect());
    (of(&samples[..quarter]), of(&samples[samples.len() - quarter..]))
}

/// Name of a figure that must not grow, the figure, and its maximum rise.
type Flat = (&'static str, fn(&Sample) -> u64, u64);

/// Checks that memleak takes as much at the end as after the warm-up. Returns lines of a table.
fn check_flat(samples: &[Sample]) -> Vec<String> {
    let figures: [Flat; 3] = [
        ("resident memory", |sample| sample.resident, MAX_RISE),
        ("maps", |sample| sample.maps, MAX_RISE_OF_MAPS),
        ("descriptors", |sample| sample.descriptors, 0),
    ];
    let check = |(name, figure, max_growth): Flat| {
        let (first, last) = quarters(samples, figure);
        assert!(last <= first + max_growth, "{name}: from {first} to {last}");
        let peak = samples.iter().map(figure).max().unwrap_or_default();
        format!("| memleak's {name}: after the warm-up, at the end, at most | {first}, {last}, {peak} |")
    };
    figures.into_iter().map(check).collect()
}

/// Leaves all samples beside the recording.
fn write_samples(samples: &[Sample], recording: &Path) {
    let line = |sample: &Sample| {
        let Sample {
            at,
            resident,
            maps,
            descriptors,
        } = sample;
        format!("{:.3},{resident},{maps},{descriptors}\n", at.as_secs_f64())
    };
    let text: String = samples.iter().map(line).collect();
    let text = format!("seconds,resident,maps,descriptors\n{text}");
    fs::write(recording.with_extension("csv"), text).expect("a directory of ours");
}

/// Checks the last report, made when all is freed but the leak: nothing else of the program's own is
/// outstanding, and of other code fewer than 10 blocks that the C library keeps for good.
fn check_end(report: &Report, counts: &Counts) {
    for (function, counted) in counts {
        let is_leak = function == LEAK;
        assert_eq!(counted.outstanding.blocks > 0, is_leak, "{function}: {counts:?}");
    }
    let of_others = report.outstanding().blocks - counts[LEAK].outstanding.blocks;
    assert!(of_others < 10, "{report}");
}

/// The trend over the whole recording names the leak first, and how fast it is.
fn check_trend(recording: &Path, counts: &Counts, took: Duration) {
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["trend", "--format", "json"])
        .arg(recording)
        .output()
        .expect("memleak was built");
    let trend: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let first = &trend["sites"][0];
    let mut names = first["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .map(|frame| &frame["symbol"]);
    assert!(names.any(|name| name == LEAK), "{first:#}");
    let slope = first["slope"]["bytes_per_minute"].as_f64().expect("a number");
    let truth = counts[LEAK].allocated.bytes as f64 / took.as_secs_f64() * 60.0;
    assert!(
        (slope / truth - 1.0).abs() < 0.05,
        "{slope} and {truth} bytes a minute"
    );
}

/// A soak, as the module describes it.
#[test]
fn soak() {
    let plan = Plan::of_environment();
    let recording = directory(&format!("soak-{}", plan.time.as_secs())).join("soak.memleak");
    let mut soak = Soak::start(plan, &recording);
    soak.run();
    let took = soak.began.elapsed();
    soak.program.send_line("end");
    let (report, counts) = soak.check();
    check_end(&report, &counts);
    let Soak {
        plan,
        mut program,
        memleak,
        samples,
        looks,
        ahead,
        ..
    } = soak;
    let (last, messages) = memleak.finish_with_messages();
    assert_eq!(last.outstanding(), report.outstanding());
    assert!(
        !messages.iter().any(|line| line.contains("warning")),
        "{messages:#?}"
    );
    program.send_line("");
    assert!(program.await_end().success());
    write_samples(&samples, &recording);
    let mut flat = Vec::new();
    // Both need a warm-up.
    if plan.is_long() {
        assert!(ahead > 0, "the leak was looked for");
        check_trend(&recording, &counts, took);
        let after: Vec<_> = samples
            .into_iter()
            .filter(|sample| sample.at >= plan.warm_up())
            .collect();
        flat = check_flat(&after);
    }
    let allocated: u64 = counts.values().map(|counted| counted.allocated.blocks).sum();
    let lines = [
        format!(
            "| minutes, load in per cent of one CPU | {:.1}, {} |",
            took.as_secs_f64() / 60.0,
            plan.load
        ),
        format!(
            "| blocks allocated, a second | {allocated}, {:.0} |",
            allocated as f64 / took.as_secs_f64()
        ),
        format!("| looks at which all counts agreed | {looks} of {looks} |"),
        format!("| looks at which the leak was first by growth | {ahead} of {ahead} |"),
        format!(
            "| blocks lost by the leak, and found | {} |",
            counts[LEAK].outstanding.blocks
        ),
    ];
    for line in lines.iter().chain(&flat) {
        let _ = writeln!(stderr(), "{line}");
    }
}
