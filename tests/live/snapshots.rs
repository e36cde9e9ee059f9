//! Reports while the target goes on: ages and changes are true, each block is counted once however busy the
//! target is, and recordings have the same.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use memleak_test::memleak::Memleak;
use memleak_test::profiles::{pprof_totals, pprof_totals_at};
use memleak_test::program::{Program, compile, copy_program, directory};
use memleak_test::receiver::{Receiver, answer};
use memleak_test::recent::of_all_ages;
use memleak_test::report::{Amount, Report};

const NOTHING: Amount = Amount { bytes: 0, blocks: 0 };
const MILLISECOND: u64 = 1_000_000;

fn kept(blocks: u64) -> Amount {
    Amount {
        bytes: 24 * blocks,
        blocks,
    }
}

fn program(test: &str) -> PathBuf {
    let directory = directory(&format!("snapshots-{test}"));
    compile(
        &directory,
        "amounts/snapshots.c",
        &["-O2", "-fno-optimize-sibling-calls", "-pthread"],
    )
}

/// Starts the program, which will keep `blocks` and replace others in `threads` threads.
fn start(test: &str, blocks: u64, threads: u32) -> Program {
    let program = Program::start(&program(test), &[&blocks.to_string(), &threads.to_string()]);
    program.expect("ready");
    program
}

/// Checks a report of a target that is paused: sums, and that ages add up to the outstanding amount.
#[track_caller]
fn check_at_rest(report: &Report) {
    report.check_sums();
    for stack in &report.stacks {
        assert_eq!(of_all_ages(&stack.recent.ages), stack.outstanding, "{stack}");
    }
    assert_eq!(of_all_ages(&report.recent.ages), report.outstanding(), "{report}");
}

/// The block table and the totals per stack say the same, to the byte, with the target at rest.
#[test]
fn the_block_table_agrees_with_the_totals() {
    let mut program = start("agree", 5000, 3);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("kept");
    program.step("churning");
    sleep(Duration::from_millis(200));
    program.step("quiet");
    let report = memleak.finish();
    check_at_rest(&report);
    assert_eq!(report.only_through("keep_block").outstanding, kept(5000));
    let churn = report.only_through("churn_block");
    assert!(churn.allocated.blocks > 1000, "{churn}");
    assert_eq!(churn.outstanding, NOTHING, "{churn}");
}

/// Reports end while threads replace blocks as fast as they can, and find every block that stays just once;
/// of those that come and go they find no more than there are, and take none of them for an old one.
#[test]
fn reports_under_churn() {
    const THREADS: u32 = 3;
    let blocks = 20_000;
    let mut program = start("churn", blocks, THREADS);
    let memleak = Memleak::attach_reporting(program.pid(), &["-o", "3000"], &["0.5"]);
    program.step("kept");
    program.step("churning");
    // By then it keeps blocks and churns.
    memleak.report();
    memleak.report();
    for _ in 0..6 {
        let report = memleak.report();
        let stack = report.only_through("keep_block");
        assert_eq!(stack.outstanding, kept(blocks), "{stack}");
        assert_eq!(of_all_ages(&stack.recent.ages), kept(blocks), "{stack}");
        let churn = report.only_through("churn_block");
        let found = of_all_ages(&churn.recent.ages);
        // A block of each thread may be between the table and the totals.
        let max = churn.outstanding.blocks + u64::from(THREADS);
        assert!(found.blocks <= max, "{found:?} of {churn}");
        assert_eq!(churn.recent.young, Some(churn.outstanding), "{churn}");
    }
    program.step("quiet");
    let report = memleak.finish();
    check_at_rest(&report);
    assert_eq!(report.only_through("churn_block").outstanding, NOTHING);
}

/// A slow leak is first by growth among threads that allocate and free thousands of times as much, and a
/// larger amount that stays; those leave nothing behind. Each report is in the order of growth.
#[test]
fn growing_site_is_ranked_first() {
    let mut program = start("growth", 20_000, 3);
    let mut memleak = Memleak::attach_reporting(program.pid(), &["--sort", "growth"], &["0.3"]);
    program.step("kept");
    memleak.mark();
    program.step("churning");
    (0..5).for_each(|_| drop(memleak.report()));
    program.step("quiet");
    let mut reports = memleak.finish_with_reports();
    let last = reports.pop().expect("a last report");
    assert!(last.stacks[0].passes("leak_block"), "{last}");
    let residual = |site| last.only_through(site).recent.since_baseline.net_bytes;
    assert_eq!(
        (residual("churn_block"), residual("keep_block")),
        (0, 0),
        "{last}"
    );
    let churn = last.only_through("churn_block");
    let leak = last.only_through("leak_block");
    assert!(churn.allocated.blocks > 100 * leak.allocated.blocks, "{last}");
    assert_eq!(
        leak.recent.since_baseline.net_blocks.cast_unsigned(),
        leak.outstanding.blocks
    );
    for report in reports.iter().chain([&last]) {
        let marked = report.recent.since_baseline.marked.is_some();
        let growth = report.stacks.iter().map(|stack| match marked {
            true => stack.recent.since_baseline.net_bytes,
            false => stack.recent.since_last.net_bytes,
        });
        assert!(growth.is_sorted_by(|a, b| a >= b), "{report}");
    }
}

/// Weighted blocks agree in the table and the totals too, except for the rounding of blocks.
#[test]
fn sampled_blocks_agree_with_the_totals() {
    for flags in [["-s", "7"], ["--sample-bytes", "500"]] {
        let mut program = start(&format!("sampled{}", flags[0]), 5000, 1);
        let memleak = Memleak::attach(program.pid(), &flags);
        program.step("kept");
        program.step("churning");
        program.step("quiet");
        let report = memleak.finish();
        let stack = report.only_through("keep_block");
        let found = of_all_ages(&stack.recent.ages);
        assert!(found.blocks > 1000, "{stack}");
        assert_eq!(found.bytes, stack.outstanding.bytes, "{stack}");
        // Each class of ages is rounded separately.
        assert!(
            found.blocks.abs_diff(stack.outstanding.blocks) <= 7,
            "{found:?} {stack}"
        );
    }
}

/// The standard error in text, which is computed from the old blocks, is that of the totals if all blocks are
/// old.
#[test]
fn sampled_blocks_have_the_error_of_the_totals() {
    let mut program = start("error", 5000, 0);
    let flags = ["--sample-bytes", "100", "-o", "1", "--format", "text"];
    let memleak = Memleak::attach(program.pid(), &flags);
    program.step("kept");
    sleep(Duration::from_millis(10));
    let text = memleak.finish_text();
    let errors: Vec<_> = text.lines().filter_map(|line| line.split_once('±')).collect();
    let [(_, of_stack), (_, of_all)] = errors[..] else {
        panic!("not two errors in {text}")
    };
    assert_eq!(of_stack, of_all, "{text}");
    assert!(!of_stack.contains(" 0 B"), "{text}");
}

/// Blocks younger than `-o` are hidden in text, which says so, and are marked in JSON; nothing is hidden with
/// `-o 0`. An age of a minute is an age of a minute.
#[test]
fn age_filter() {
    for (older, hidden) in [("0", false), ("60000", true), ("1000", false)] {
        let mut program = start(&format!("age-{older}"), 100, 0);
        let json = Memleak::attach(program.pid(), &["-o", older]);
        let text = Memleak::attach(program.pid(), &["-o", older, "--format", "text"]);
        program.step("kept");
        // Longer than the limit of a second.
        sleep(Duration::from_millis(1100));
        let (report, text) = (json.finish(), text.finish_text());
        check_at_rest(&report);
        let milliseconds: u64 = older.parse().expect("a number");
        assert_eq!(report.recent.older_than_ns, Some(milliseconds * MILLISECOND));
        let stack = report.only_through("keep_block");
        assert_eq!(stack.outstanding, kept(100));
        for age in stack.recent.ages.as_ref().expect("ages were looked at") {
            assert!(
                age.up_to_ns.is_none_or(|bound| bound > 1100 * MILLISECOND),
                "{age:?}"
            );
        }
        assert_eq!(
            stack.recent.young,
            Some(if hidden { kept(100) } else { NOTHING }),
            "{stack}"
        );
        let entry = "keep_block: 2.3 KiB (2400 B) in 100 blocks, 100% of all, via malloc";
        assert_eq!(text.contains(entry), !hidden, "-o {older}: {text}");
        let hint = "  not shown: 2.3 KiB (2400 B) in 100 blocks younger than 1 min (-o 0 shows them)";
        assert_eq!(text.contains(hint), hidden, "-o {older}: {text}");
    }
}

/// Blocks of a program that has exited: none is young, text shows all of them, and lists single ones on
/// request.
#[test]
fn outstanding_blocks_of_an_ended_program() {
    let mut program = start("ended", 100, 0);
    let json = Memleak::attach(program.pid(), &["-o", "60000"]);
    let text = Memleak::attach(program.pid(), &["-o", "60000", "-a", "--format", "text"]);
    program.step("kept");
    program.end();
    let report = json.last_report();
    assert_eq!(
        report.only_through("keep_block").recent.young,
        Some(NOTHING),
        "{report}"
    );
    let text = text.wait_for_text();
    assert!(
        text.contains("keep_block: 2.3 KiB (2400 B) in 100 blocks"),
        "{text}"
    );
    assert_eq!(text.matches("\n   addr = 0x").count(), 10, "{text}");
    assert_eq!(text.matches(" size = 24, ").count(), 10, "{text}");
    assert!(text.contains("\n   and 90 more blocks\n"), "{text}");
}

/// Totals alone agree with totals and blocks of a target at rest; ages are then not known.
#[test]
fn combined_only() {
    let mut program = start("combined", 300, 2);
    let all = Memleak::attach(program.pid(), &[]);
    let combined = Memleak::attach(program.pid(), &["--combined-only"]);
    program.step("kept");
    program.step("churning");
    sleep(Duration::from_millis(100));
    program.step("quiet");
    let (all, combined) = (all.finish(), combined.finish());
    check_at_rest(&all);
    combined.check_sums();
    assert!(combined.recent.older_than_ns.is_none() && combined.recent.ages.is_none());
    assert!(combined.stacks.iter().all(|stack| stack.recent.young.is_none()));
    assert!(combined.stacks.iter().all(|stack| stack.recent.ages.is_none()));
    for site in ["keep_block", "churn_block", "leak_block"] {
        let (all, combined) = (all.only_through(site), combined.only_through(site));
        assert_eq!(
            (all.allocated, all.outstanding),
            (combined.allocated, combined.outstanding),
            "{site}"
        );
    }
}

/// Changes in the reports add up to everything that came and went, as their times add up to the time of the
/// trace; amounts from before a mark are in the baseline.
#[test]
fn changes_add_up() {
    let mut program = start("changes", 500, 2);
    let mut memleak = Memleak::attach_reporting(program.pid(), &[], &["0.4"]);
    program.step("kept");
    memleak.mark();
    program.step("churning");
    let mut reports: Vec<_> = (0..4).map(|_| memleak.report()).collect();
    program.step("quiet");
    reports.extend(memleak.finish_with_reports());
    let last = reports.last().expect("a last report");
    check_at_rest(last);
    let times = reports.iter().map(|report| report.recent.since_last.duration_ns);
    assert_eq!(times.sum::<u64>(), last.duration_ns);
    for site in ["keep_block", "churn_block", "leak_block"] {
        let changes = reports.iter().flat_map(|report| report.through(site));
        let changes: Vec<_> = changes.map(|stack| stack.recent.since_last).collect();
        let allocated: Amount = changes.iter().map(|change| change.allocated).sum();
        let freed: Amount = changes.iter().map(|change| change.freed).sum();
        let stack = last.only_through(site);
        assert_eq!(allocated, stack.allocated, "{stack}");
        assert_eq!(
            allocated.blocks - freed.blocks,
            stack.outstanding.blocks,
            "{stack}"
        );
        let net: i64 = changes.iter().map(|change| change.net_bytes).sum();
        assert_eq!(u64::try_from(net), Ok(stack.outstanding.bytes), "{stack}");
    }
    assert!(last.recent.since_baseline.marked.is_some());
    assert!(last.recent.since_baseline.duration_ns < last.duration_ns);
    let since_mark = |site| last.only_through(site).recent.since_baseline;
    assert_eq!(since_mark("keep_block").allocated, NOTHING);
    let leak = last.only_through("leak_block");
    assert_eq!(since_mark("leak_block").allocated, leak.allocated);
    assert_eq!(
        since_mark("leak_block").net_blocks,
        i64::try_from(leak.outstanding.blocks).expect("few")
    );
}

/// A million live blocks are all found, each once, while other threads allocate and free; the report ends.
#[test]
fn million_blocks_in_a_report() {
    let blocks = 1_000_000;
    let mut program = start("million", blocks, 2);
    let flags = ["-o", "0", "--max-blocks", "2000000"];
    let memleak = Memleak::attach(program.pid(), &flags);
    program.step("kept");
    program.step("churning");
    let report = memleak.finish();
    let stack = report.only_through("keep_block");
    assert_eq!(stack.outstanding, kept(blocks));
    assert_eq!(of_all_ages(&stack.recent.ages), kept(blocks));
    assert_eq!(report.lost.blocks, 0);
}

/// A directory that all users may read, for a recording and a copy of the program that reads it.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("our own");
        copy_program(env!("CARGO_BIN_EXE_memleak"), directory.path().join("memleak"));
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Runs memleak as the user `nobody`. Returns its output and messages.
    #[track_caller]
    fn memleak(&self, arguments: &[&str]) -> (String, String) {
        let nobody = [
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--no-new-privs",
        ];
        let output = Command::new("setpriv")
            .args(nobody)
            .arg(self.path("memleak"))
            .args(arguments)
            .output()
            .expect("util-linux is installed");
        let (out, errors) = (output.stdout, output.stderr);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&errors));
        (text(&out), text(&errors))
    }
}

/// A recording of a memleak that was killed can be read by anyone, without the program that was traced, and
/// is to the byte what memleak reported then. Another reader finds the same in it.
#[test]
fn recording_survives_the_kill_of_memleak() {
    let shelf = Shelf::new();
    let path = program("recorded");
    let mut program = Program::start(&path, &["500", "1"]);
    program.expect("ready");
    let file = shelf.path("leaks.memleak");
    let memleak = Memleak::attach_reporting(program.pid(), &["--record", &file], &["0.2"]);
    program.step("kept");
    program.step("churning");
    let reports: Vec<_> = (0..5).map(|_| memleak.report_line()).collect();
    memleak.kill();
    program.end();
    fs::remove_file(&path).expect("our own");
    let mode = fs::metadata(&file).expect("a recording").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("our own");
    let (read, errors) = shelf.memleak(&["report", &file, "--all", "--format", "json"]);
    assert!(errors.contains("is incomplete"), "{errors}");
    // The next may have been recorded and not been written yet.
    assert!(read.lines().count() - reports.len() <= 1, "{errors}");
    assert!(
        read.lines().zip(&reports).all(|(read, written)| read == written),
        "{read}"
    );
    let last = Report::parse(read.lines().last().expect("a report"));
    last.only_through("leak_block")
        .check(&["leak_block", "leak", ".."]);
    check_by_another_reader(&file, &last, read.lines().count());
    let (text, _) = shelf.memleak(&["diff", &format!("{file}:1"), &file, "-T", "1"]);
    let grown = text
        .lines()
        .find(|line| line.contains("(grown)") || line.contains("(new)"));
    assert!(grown.is_some() && text.contains("leak_block+0x"), "{text}");
    let (trend, _) = shelf.memleak(&["trend", &file, "--format", "json"]);
    let trend: serde_json::Value = serde_json::from_str(&trend).expect("JSON");
    let steepest = &trend["sites"][0];
    assert_eq!(steepest["frames"][0]["symbol"], "leak_block", "{trend}");
    assert!(
        steepest["slope"]["bytes_per_minute"].as_f64() > Some(10_000.0),
        "{trend}"
    );
}

/// Checks the recording as Python reads it, by its description.
#[track_caller]
fn check_by_another_reader(file: &str, last: &Report, count: usize) {
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_recording.py");
    let output = Command::new("/usr/bin/python3").args([reader, file]).output();
    let output = output.expect("python3 is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{errors} (apt-get install python3-cbor2)"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let reports: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(reports.len(), count);
    let outstanding = &reports[count - 1]["outstanding"];
    for site in ["keep_block", "leak_block", "churn_block"] {
        let Amount { bytes, blocks } = last.only_through(site).outstanding;
        assert_eq!(
            outstanding[site],
            serde_json::json!([bytes, blocks]),
            "{site}: {text}"
        );
    }
}

/// Two runs are compared site by site; what is larger in the second has grown, in every form of the
/// difference.
#[test]
fn two_runs_are_compared() {
    let shelf = Shelf::new();
    let path = program("compared");
    let files = [("100", "before.memleak"), ("300", "after.memleak")].map(|(blocks, name)| {
        let file = shelf.path(name);
        let mut program = Program::start(&path, &[blocks, "0"]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &["--record", &file, "-o", "0"]);
        program.step("kept");
        memleak.finish();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("our own");
        file
    });
    let [before, after] = &files;
    let (text, _) = shelf.memleak(&["diff", before, after]);
    let entry = "\n+4800 B in +200 blocks (grown): keep_block\n   2.3 KiB (2400 B) in 100 blocks before, 7.0 KiB (7200 B) in 300 blocks after, via malloc\n";
    assert!(text.contains(entry) && !text.contains("Note:"), "{text}");
    let (folded, _) = shelf.memleak(&["diff", before, after, "--format", "folded"]);
    assert!(
        folded.lines().any(|line| line.ends_with(";keep_block 2400 7200")),
        "{folded}"
    );
    let (svg, _) = shelf.memleak(&["diff", before, after, "--format", "svg"]);
    assert!(svg.contains("keep_block (7,200 bytes, 100.00%; +"), "{svg}");
    let (json, _) = shelf.memleak(&["diff", after, before, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        json["sites"][0]["growth"],
        serde_json::json!({"bytes": -4800, "blocks": -200})
    );
    assert_eq!(
        json["notes"],
        serde_json::json!(["the first report is later than the second"])
    );
}

/// Profiles that a store receives add up to the last report, as Go's pprof reads them: the allocated amounts
/// of all profiles together, the outstanding ones of the last. Metrics are the last report's, and so is the
/// profile beside them.
#[test]
fn exported() {
    let shelf = Shelf::new();
    let store = Receiver::start(|number| match number {
        // It has to be sent again.
        1 => None,
        _ => Some(answer(200, "", "")),
    });
    let mut program = start("exported", 5000, 2);
    let url = format!("http://{}", store.address);
    let push = ["--push", &url, "--push-api", "pyroscope-ingest"];
    let flags = [
        &push[..],
        &["--push-label", "env=test", "--metrics", "0", "-o", "0"],
    ]
    .concat();
    let memleak = Memleak::attach_reporting(program.pid(), &flags, &["0.4"]);
    program.step("kept");
    program.step("churning");
    memleak.report();
    memleak.report();
    program.step("quiet");
    memleak.report();
    let at_rest = memleak.report();
    let address = metrics_address(&memleak);
    let page = metrics(&address);
    let value = |name: &str| {
        let found = page.lines().find_map(|line| line.strip_prefix(name));
        found.expect(name).trim().parse::<u64>().expect("a number")
    };
    assert_eq!(value("memleak_outstanding_bytes "), at_rest.outstanding.bytes);
    assert_eq!(value("memleak_outstanding_blocks "), at_rest.outstanding.blocks);
    assert_eq!(value("memleak_allocations_total "), at_rest.events.allocations);
    let site = page
        .lines()
        .find(|line| line.starts_with("memleak_site_outstanding_blocks") && line.contains("\"keep_block\""));
    assert!(site.expect("a site").ends_with(" 5000"), "{page}");
    let pulled = pprof_totals_at(&format!("http://{address}/debug/pprof/heap"), shelf.0.path());
    let (allocated, held) = (at_rest.allocated, at_rest.outstanding);
    let peak = at_rest.peak.expect("it is followed");
    assert_eq!(
        pulled,
        [
            peak.blocks,
            peak.bytes,
            allocated.blocks,
            allocated.bytes,
            held.blocks,
            held.bytes
        ]
    );
    let (reports, messages) = memleak.finish_with_all_reports();
    let last = reports.last().expect("a report");
    let (mut allocated, mut outstanding) = ([0, 0], [0, 0]);
    let mut seen = Vec::new();
    for request in store.rest() {
        let name = "name=snapshots%7Bcomm%3Dsnapshots%2Cenv%3Dtest%2Cexe%3D";
        assert!(request.line.contains(name), "{}", request.line);
        if seen.contains(&request.body) {
            continue;
        }
        let file = PathBuf::from(shelf.path("pushed.pb.gz"));
        fs::write(&file, &request.body).expect("our own");
        let [objects, space, held_objects, held_space] = pprof_totals(&file)[..] else {
            panic!("not four values")
        };
        allocated = [allocated[0] + objects, allocated[1] + space];
        outstanding = [held_objects, held_space];
        seen.push(request.body);
    }
    assert!(seen.len() >= 5, "a profile of each report");
    assert_eq!(allocated, [last.allocated.blocks, last.allocated.bytes]);
    assert_eq!(outstanding, [last.outstanding.blocks, last.outstanding.bytes]);
    let sent = format!("push: {} profiles sent to {url}, none lost", seen.len());
    assert!(
        messages.iter().any(|message| message.contains(&sent)),
        "{messages:#?}"
    );
}

/// Returns the address at which memleak says that metrics are.
#[track_caller]
fn metrics_address(memleak: &Memleak) -> String {
    let address = memleak.seen_messages().iter().find_map(|line| {
        let (_, rest) = line.split_once("metrics: http://")?;
        rest.split_once("/metrics").map(|(address, _)| address.to_owned())
    });
    address.expect("an address")
}

#[track_caller]
fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    answer
}
