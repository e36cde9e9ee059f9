//! Words that the kernel keeps for a process are found where it shows them; places that it does not show are
//! named, and lost blocks that these may hold are unknown.

use std::path::Path;
use std::process::{Command, Stdio};

use super::verdict::verdict_on;
use leak_report::model::Hidden;
use memleak::bpf::{Registers, Storage};
use memleak::process::kept;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};

/// Data of an epoll and the values of a timer and of a pending signal are found; a pipe is named if the
/// process has both ends and it is not empty. Without an iterator, all pipes and signals are named.
#[test]
fn epoll_and_timers() {
    let path = compile(&directory("kept"), "processes/kept.c", &["-O1"]);
    let program = Program::start(&path, &[]);
    program.expect("ready");
    let mut storage = Storage::uninit();
    let mut registers = Registers::open(&mut storage).expect("the kernel accepts it");
    let in_kernel = registers.kept(program.pid()).expect("it runs");
    let kept = kept::read(program.pid(), Some(&in_kernel)).expect("it runs");
    // Only kernels that can checkpoint processes show timers.
    let has_timers = Path::new("/proc/self/timers").exists();
    let [of_epoll, of_timer, of_signal] = [1, 2, 3].map(|number| 0x5a5a_0003_dead_bee0 + number);
    for (word, is_there) in [(of_epoll, true), (of_timer, has_timers), (of_signal, true)] {
        assert_eq!(kept.words.contains(&word), is_there, "{word:#x}: {kept:x?}");
    }
    // Standard input and output are pipes, too, of which others have the other ends.
    assert_eq!(kept.hidden, [(Hidden::Pipes, 1)].into());
    assert_eq!(kept.hidden_words, 1);
    let without = kept::read(program.pid(), None).expect("it runs");
    let count = |kind| without.hidden.get(&kind).copied();
    assert_eq!(
        (count(Hidden::Pipes), count(Hidden::Signals)),
        (Some(2), Some(1)),
        "{without:?}"
    );
    assert_eq!(without.hidden_words, u64::MAX);
}

/// Verdicts on a program that uses a place of the kernel.
struct InFlight {
    place: &'static str,
    /// Blocks of which the kernel has the only pointers.
    held: u64,
    /// Verdicts on these: definitely lost, indirectly lost, reachable, unknown.
    verdict: [u64; 4],
    /// Verdicts on [`LEAKED`] lost ones.
    of_leaked: [u64; 4],
}

/// More than the places below can hold.
const LEAKED: u64 = 100;

/// If a place can hold words, that many of a stack's lost blocks are unknown, and no more. A place that is
/// used but empty holds none.
#[test]
fn in_flight() {
    const ALL_LOST: [u64; 4] = [LEAKED, 0, 0, 0];
    let path = compile(
        &directory("kept-in-flight"),
        "verdicts/in_flight.c",
        &["-O1", "-g", "-lrt"],
    );
    let mut table: Vec<InFlight> = Vec::new();
    for (place, held) in [("io_uring", 64), ("pipe", 20), ("socket", 20), ("queue", 9)] {
        let some = [LEAKED - held, 0, 0, held];
        table.push(InFlight {
            place,
            held,
            verdict: [0, 0, 0, held],
            of_leaked: some,
        });
        table.push(InFlight {
            place,
            held: 0,
            verdict: [0; 4],
            of_leaked: ALL_LOST,
        });
    }
    table.push(InFlight {
        place: "signal",
        held: 40,
        verdict: [0, 0, 40, 0],
        of_leaked: ALL_LOST,
    });
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let started = table.iter().map(|row| scope.spawn(|| row.check(&path)));
        let started: Vec<_> = started.collect();
        started
            .into_iter()
            .filter_map(|thread| thread.join().expect("it ends"))
            .collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

impl InFlight {
    /// Returns a description of what is wrong, if anything is.
    fn check(&self, path: &Path) -> Option<String> {
        let Self { place, held, .. } = self;
        let mut program = Program::start(path, &[place, &held.to_string(), &LEAKED.to_string()]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &["--verdict"]);
        program.step("done");
        let report = memleak.finish();
        let found = ["in_flight", "leaked"].map(|function| verdict_on(&report, function));
        assert!(program.end().success());
        let judgement = report.verdict.expect("it was asked for");
        let is_right = found == [self.verdict, self.of_leaked];
        (!is_right).then(|| {
            format!(
                "{place}, {held}: {found:?}, {:?} with {:?}",
                judgement.not_seen, judgement.not_seen_words
            )
        })
    }
}

/// Operations of asynchronous I/O are counted with what each CPU may have in reserve: those under way are
/// unknown, and not many more.
#[test]
fn asynchronous_operations() {
    let path = compile(
        &directory("kept-aio"),
        "verdicts/in_flight.c",
        &["-O1", "-g", "-lrt"],
    );
    let mut program = Program::start(&path, &["aio", "60", "200"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--verdict"]);
    program.step("done");
    let report = memleak.finish();
    assert_eq!(verdict_on(&report, "in_flight"), [0, 0, 0, 60]);
    let [definitely, _, _, unknown] = verdict_on(&report, "leaked");
    let words = report.verdict.expect("it was asked for").not_seen_words;
    assert!(
        (60..130).contains(&unknown) && Some(unknown) == words,
        "{unknown}, {words:?}"
    );
    assert_eq!(definitely + unknown, 200);
    assert!(program.end().success());
}

/// A condition on blocks that the kernel may hold neither fails nor passes: it is inconclusive. If more are
/// lost than the kernel can hold, it fails.
#[test]
fn gates() {
    let path = compile(
        &directory("kept-gates"),
        "verdicts/in_flight.c",
        &["-O1", "-g", "-lrt"],
    );
    for (blocks, leaked, status) in [("64", "0", 3), ("0", "1", 1), ("8", "9", 1)] {
        let mut program = Program::start(&path, &["io_uring", blocks, leaked]);
        program.expect("ready");
        program.step("done");
        let pid = program.pid().to_string();
        let memleak = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["verdict", "-p", &pid, "--fail-on", "definitely_lost>0"])
            .stdin(Stdio::null())
            .output()
            .expect("memleak was built");
        assert_eq!(
            memleak.status.code(),
            Some(status),
            "{blocks}, {leaked}: {memleak:?}"
        );
        assert!(program.end().success());
    }
}
