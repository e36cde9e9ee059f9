//! The peak: the outstanding amounts that are reported for the highest total are those of the program's own
//! count at that time; and between two looks the total was never above the reported limit.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memleak_test::memleak::Memleak;
use memleak_test::profiles::{folded_total, pprof, pprof_totals};
use memleak_test::program::{Program, compile, directory};
use memleak_test::recent::Peak;
use memleak_test::report::{Amount, Report, Stack};

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const BASE: u64 = 16 << 16;

/// `peak.c`, running.
struct Spiking(Program);

impl Spiking {
    #[track_caller]
    fn start(test: &str) -> Self {
        let path = compile(&directory(&format!("peak-{test}")), "amounts/peak.c", &RELEASE);
        let program = Program::start(&path, &[]);
        program.expect("ready");
        Self(program)
    }

    /// Makes it allocate the blocks that it always keeps.
    #[track_caller]
    fn begin(&mut self) {
        self.0.step(&BASE.to_string());
    }

    /// Makes it keep `blocks` more blocks for a time, and returns its maximum of outstanding bytes so far.
    #[track_caller]
    fn spike(&mut self, blocks: u64, bytes: u64, microseconds: i64) -> u64 {
        self.0.send_line(&format!("{blocks} {bytes} {microseconds}"));
        self.0.line().parse().expect("a number")
    }
}

#[track_caller]
fn peak_of(report: &Report) -> Peak {
    report.peak.unwrap_or_else(|| panic!("no peak:\n{report}"))
}

/// Sums up what was outstanding at the peak of stacks through a function.
fn at_peak(report: &Report, symbol: &str) -> Amount {
    let of = |stack: &&Stack| stack.peak.expect("each stack has one");
    report.through(symbol).iter().map(of).sum()
}

/// Checks that the sum of all stacks is the total, and that the total is not below what is outstanding, nor
/// above its limit.
#[track_caller]
fn check(report: &Report) -> Peak {
    let peak = peak_of(report);
    let sum: Amount = report.stacks.iter().filter_map(|stack| stack.peak).sum();
    assert_eq!((sum.bytes, sum.blocks), (peak.bytes, peak.blocks), "{report}");
    let running = report.stacks.iter().filter(|stack| stack.ended.is_none());
    let outstanding: Amount = running.map(|stack| stack.outstanding).sum();
    assert!(peak.bytes >= outstanding.bytes, "{peak:?}\n{report}");
    assert!(peak.never_above_bytes >= peak.bytes, "{peak:?}");
    assert!(
        peak.elapsed_ns <= report.duration_ns && peak.looks > 1,
        "{peak:?}"
    );
    peak
}

/// Runs `memleak report` on a recording, and returns its output.
#[track_caller]
fn replayed(recording: &Path, flags: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .arg("report")
        .arg(recording)
        .args(flags)
        .output()
        .expect("our own");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A peak that lasts for some time is exact in each format, with the amount of each stack: with blocks that
/// were freed since, and without later ones.
#[test]
fn peaks_are_what_the_program_held() {
    let mut program = Spiking::start("formats");
    let directory = directory("peak-recordings");
    let recording = directory.join("peak.memleak");
    let name = recording.to_str().expect("UTF-8");
    let memleak = Memleak::attach(program.0.pid(), &["-o", "0", "--record", name]);
    program.begin();
    assert_eq!(program.spike(100, 1000, 50_000), BASE + 100_000);
    let truth = program.spike(640, 1 << 16, 50_000);
    assert_eq!(program.spike(10, 1 << 16, -1), truth);
    let report = memleak.finish();
    let peak = check(&report);
    assert_eq!((peak.bytes, peak.blocks), (truth, 16 + 640), "{peak:?}");
    assert!(peak.never_above_bytes <= truth + truth / 20, "{peak:?}");
    let base = Amount {
        bytes: BASE,
        blocks: 16,
    };
    let spiked = Amount {
        bytes: 640 << 16,
        blocks: 640,
    };
    assert_eq!(at_peak(&report, "hold_base"), base, "{report}");
    assert_eq!(at_peak(&report, "spike"), spiked, "{report}");
    assert_eq!(at_peak(&report, "keep_later"), Amount::default(), "{report}");
    assert_eq!(report.outstanding().bytes, BASE + (10 << 16), "{report}");
    check_formats(&recording, &directory, &report);
    assert!(program.0.end().success());
}

/// Checks that formats made of a recording have the same peak; programs that are not ours read some of them.
#[track_caller]
fn check_formats(recording: &Path, directory: &Path, report: &Report) {
    let peak = peak_of(report);
    let again = Report::parse(replayed(recording, &["--format", "json"]).trim());
    assert_eq!(again.peak, report.peak);
    assert_eq!(at_peak(&again, "spike"), at_peak(report, "spike"));
    let profile = directory.join("peak.pb.gz");
    replayed(recording, &["--output", profile.to_str().expect("UTF-8")]);
    let totals = pprof_totals(&profile);
    assert_eq!(totals[..2], [peak.blocks, peak.bytes], "{totals:?}");
    assert_eq!(
        totals[4..],
        [report.outstanding().blocks, report.outstanding().bytes]
    );
    let top = pprof(
        &profile,
        "-symbolize=none -top -unit=B -sample_index=peak_space -nodefraction=0",
    );
    let line = top.lines().find(|line| line.contains(" spike")).expect("a line");
    assert!(line.trim_start().starts_with(&format!("{}B", 640 << 16)), "{top}");
    let folded = replayed(recording, &["--format", "folded", "--measure", "peak"]);
    assert_eq!(folded_total(&folded), peak.bytes);
    let text = replayed(recording, &["--sort", "peak"]);
    let line = text.lines().find(|line| line.contains("peak: 41.0 MiB"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("in 656 blocks, ") && line.contains("after the attach"),
        "{text}"
    );
    let mut rows = text.lines().skip_while(|line| !line.contains("AT PEAK"));
    let first = rows.nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(first.contains("40.0 MiB") && first.contains("spike"), "{text}");
    assert!(
        text.contains("at the peak: 40.0 MiB (41943040 B) in 640 blocks"),
        "{text}"
    );
}

/// However short a spike is, the limit is not below it; and what is seen is never above it.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn no_spike_is_above_the_limit() {
    for (blocks, bytes, microseconds) in [
        (400, 1 << 16, 20_000),
        (400, 1 << 16, 5000),
        (400, 1 << 16, 1000),
        (400, 1 << 16, 0),
        (4000, 100, 0),
        // One block, freed at once.
        (1, 64 << 20, 0),
    ] {
        let mut program = Spiking::start(&format!("spike-{blocks}-{microseconds}"));
        let memleak = Memleak::attach(program.0.pid(), &["-o", "0"]);
        program.begin();
        let mut truth = 0;
        for _ in 0..20 {
            truth = program.spike(blocks, bytes, microseconds);
        }
        let peak = check(&memleak.finish());
        let (seen, limit) = (peak.bytes, peak.never_above_bytes);
        println!(
            "{blocks} blocks of {bytes} B for {microseconds} µs: {truth} B held, {seen} B seen, {limit} B at most, {} looks",
            peak.looks
        );
        assert!(seen <= truth && truth <= limit, "{truth}: {peak:?}");
        // Longer than the time between two looks, once something happens.
        if microseconds >= 20_000 {
            assert_eq!(seen, truth, "{peak:?}");
        }
        assert!(program.0.end().success());
    }
}

/// The peak of several processes is that of those that run at once: blocks of ended ones are in no later
/// total.
#[test]
fn ended_processes_do_not_add_up() {
    const CHILDREN: u64 = 5;
    const BYTES: u64 = 20_000 * 48;
    let path: PathBuf = compile(&directory("peak-children"), "processes/children.c", &RELEASE);
    for (way, at_once) in [("alone", 1), ("together", CHILDREN)] {
        let mut program = Program::start(&path, &[&CHILDREN.to_string(), "20000", way]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &["-o", "0", "--follow-fork"]);
        program.step("done");
        let report = memleak.finish();
        let peak = check(&report);
        assert_eq!(report.outstanding().bytes, CHILDREN * BYTES, "{report}");
        let truth = at_once * BYTES;
        assert!(
            peak.bytes <= truth && peak.bytes > truth / 2 && peak.never_above_bytes >= truth,
            "{way}: {peak:?}"
        );
        assert!(peak.never_above_bytes <= truth + truth / 4, "{way}: {peak:?}");
        assert!(program.end().success());
    }
}

/// The peak of a program that ends before the first look is what was outstanding at its end.
#[test]
fn short_lives_have_a_peak() {
    let path = compile(&directory("peak-short"), "amounts/plain.c", &RELEASE);
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["-q", "--format", "json", "--"])
        .args([path.as_os_str(), "2000".as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("memleak was built");
    let mut input = memleak.stdin.take().expect("a pipe");
    input.write_all(b"\n\n").expect("it reads");
    let output = memleak.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (_, line) = text.split_once("done\n").expect("the program ends first");
    let report = Report::parse(line.trim_end());
    let peak = peak_of(&report);
    let outstanding = report.outstanding();
    assert_eq!(outstanding.blocks, 2000, "{report}");
    assert!(
        peak.bytes >= outstanding.bytes && peak.never_above_bytes >= peak.bytes,
        "{peak:?}"
    );
    let leak = at_peak(&report, "leak");
    assert_eq!(leak, outstanding, "{report}");
}
