//! The cost of tracing is as reported, and within its limit; what is recorded meanwhile is right.

use memleak_test::exclusion::alone;
use memleak_test::memleak::Memleak;
use memleak_test::overhead::{Governor, Overhead};
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::Estimate;

const KINDS: [&str; 3] = ["allocate_small", "allocate_middle", "allocate_large"];

/// `paced.c`, running.
struct Paced(Program);

/// Answer of `paced.c` to a command.
#[derive(Clone, Copy)]
struct Answer {
    cpu_ns: f64,
    /// Bytes allocated by each of [`KINDS`] since the start.
    bytes: [u64; 3],
}

impl Paced {
    fn start(test: &str) -> Self {
        let path = compile(
            &directory(&format!("overhead-{test}")),
            "amounts/paced.c",
            &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"],
        );
        let program = Program::start(&path, &[]);
        program.expect("ready");
        Self(program)
    }

    #[track_caller]
    fn ask(&mut self, command: &str) -> Answer {
        self.0.send_line(command);
        let line = self.0.line();
        let mut numbers = line
            .split(' ')
            .map(|number| number.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("four numbers");
        Answer {
            cpu_ns: real(next()),
            bytes: [next(), next(), next()],
        }
    }

    /// Returns the share of one CPU that `pairs` pairs in each millisecond take.
    #[track_caller]
    fn share(&mut self, milliseconds: u32, pairs: u32) -> f64 {
        let answer = self.ask(&format!("{milliseconds} {pairs}"));
        answer.cpu_ns / (f64::from(milliseconds) * 1e6)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn real(number: u64) -> f64 {
    number as f64
}

fn spent_seconds(overhead: &Overhead) -> f64 {
    let programs = overhead.programs.iter().map(|program| program.seconds);
    overhead.traps.seconds + programs.sum::<f64>()
}

/// The reported cost is the target's additional time, to within a factor of 1.5, with all ways to attach.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn reported_cost_is_near_the_measured() {
    const PAIRS: u32 = 100_000;
    // This measures time, and other tests' probes take some of every process.
    let _alone = alone();
    for way in ["session", "multi", "perf"] {
        let mut program = Paced::start(&format!("told-{way}"));
        let pairs = format!("0 {PAIRS}");
        let untraced = program.ask(&pairs).cpu_ns;
        let memleak = Memleak::attach(program.0.pid(), &["--attach", way]);
        let traced = program.ask(&pairs).cpu_ns + program.ask(&pairs).cpu_ns;
        let report = memleak.finish();
        let overhead = report.overhead.expect("it was measured");
        assert!(overhead.measured && overhead.governor.is_none());
        let (real, reported) = ((traced - 2.0 * untraced) / 1e9, spent_seconds(&overhead));
        println!("{way}: {real:.3} s, told {reported:.3} s: {overhead:?}");
        assert!(
            (1.0 / 1.5..1.5).contains(&(reported / real)),
            "{real} s, told {reported} s"
        );
    }
}

/// Checks that the estimate is within four of its standard errors of what was allocated.
#[track_caller]
fn check_estimate(kind: &str, estimate: &Estimate, truth: u64) {
    let error = estimate.standard_error.expect("an estimate has an error").bytes;
    let off = (real(estimate.bytes) - real(truth)).abs();
    assert!(off <= 4.0 * error + 1.0, "{kind}: {truth}, not {estimate:?}");
}

/// The limit is kept, by the target's own CPU time, once the governor has settled; it follows the rate up and
/// down; estimates are right for all sizes, whatever it did; and freed blocks are gone to the last one.
#[test]
#[allow(clippy::print_stdout, reason = "what the test found")]
fn overhead_limit_is_kept() {
    const LIMIT: f64 = 0.08;
    // This measures time.
    let _alone = alone();
    let mut program = Paced::start("held");
    let untraced = program.share(600, 30);
    let memleak = Memleak::attach(program.0.pid(), &["--max-overhead", "8"]);
    program.share(2000, 30);
    let cost = program.share(1000, 30) - untraced;
    program.share(500, 100);
    program.share(1500, 2);
    let allocated = program.ask("free").bytes;
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    let overhead = report.overhead.as_ref().expect("it was measured");
    let governor: &Governor = overhead.governor.as_ref().expect("there is a limit");
    println!("{cost:.3} of a CPU with {governor:?}: {messages:#?}");
    assert!(governor.changes >= 3 && governor.interval.least == 1 && governor.interval.most > 64);
    assert!(governor.interval.now < governor.interval.most, "{governor:?}");
    // On a machine that takes long for a trap, the limit cannot be kept: then it must have said so.
    let floor = governor.floor_percent.map_or(0.0, |percent| percent / 100.0);
    assert!(cost < 1.5 * LIMIT.max(floor), "{cost}: {overhead:?}");
    assert_eq!(
        governor.floor_percent.is_some(),
        messages.iter().any(|line| line.contains("cannot be kept"))
    );
    assert_eq!(report.lost.blocks, 0);
    assert_eq!(
        report.sampling.as_ref().map(|sampling| &*sampling.method),
        Some("bytes")
    );
    let before = allocated_before(600 * 30);
    for (kind, (allocated, before)) in KINDS.into_iter().zip(allocated.into_iter().zip(before)) {
        check_estimate(kind, &report.allocated_estimate_through(kind), allocated - before);
    }
    assert_eq!(report.outstanding.bytes, 0, "{report}");
    assert_eq!(report.outstanding.recorded_blocks, Some(0));
    let error = report.outstanding.standard_error.expect("an estimate");
    assert_eq!((error.bytes, error.blocks), (0.0, 0.0));
    assert_eq!(report.events.missed_frees, 0);
}

/// Returns the bytes of the first `pairs` pairs, by kind, as `paced.c` allocates them.
fn allocated_before(pairs: u64) -> [u64; 3] {
    let mut bytes = [0; 3];
    for number in 0..pairs {
        match number {
            _ if number % 1000 == 7 => bytes[2] += 100_000,
            _ if number % 16 == 3 => bytes[1] += 1000 + number % 1000,
            _ => bytes[0] += 16 + number % 64,
        }
    }
    bytes
}

/// A limit that is far away changes nothing: every block is recorded, amounts are exact, and frees of blocks
/// from before the attach are counted. What it costs is said once, at the start.
#[test]
fn distant_limit_changes_nothing() {
    let mut program = Paced::start("far");
    program.ask("0 512");
    let memleak = Memleak::attach(program.0.pid(), &["--max-overhead", "10000"]);
    program.ask("0 20000");
    program.ask("1500 10");
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    assert!(report.sampling.is_none(), "{:?}", report.sampling);
    assert_eq!((report.events.allocations, report.events.frees), (35_000, 34_488));
    assert_eq!(report.events.unknown_frees, 512);
    assert_eq!(report.outstanding.standard_error.map(|error| error.bytes), None);
    let governor = report.overhead.and_then(|overhead| overhead.governor);
    let governor = governor.expect("there is a limit");
    assert_eq!((governor.changes, governor.interval.now), (0, 1));
    let is_forecast =
        |line: &&String| line.contains("k allocations/s: about ") && line.ends_with("% of one CPU");
    assert_eq!(messages.iter().filter(is_forecast).count(), 1, "{messages:#?}");
}

/// A trace without the right to statistics says so once, and computes the cost from the time that traps take
/// here.
#[test]
fn without_statistics() {
    let mut program = Paced::start("blind");
    let memleak = Memleak::attach_without(&["sys_admin"], program.0.pid());
    program.ask("0 20000");
    let (report, messages) = memleak.finish_with_messages();
    let overhead = report.overhead.expect("it was reckoned");
    assert!(!overhead.measured && overhead.percent > 0.0, "{overhead:?}");
    let warnings = messages
        .iter()
        .filter(|line| line.contains("CAP_SYS_ADMIN"))
        .count();
    assert_eq!(warnings, 1, "{messages:#?}");
}
