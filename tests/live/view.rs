//! The view of a trace on a terminal, as its user sees it: through a real pseudo-terminal and an independent
//! emulator.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::holders;
use clap::Parser;
use memleak::cli::Cli;
use memleak::cli::Config;
use memleak::session::Signals;
use memleak::sinks::live::{LiveView, Messages};
use memleak_test::program::{PATIENCE, Program, compile, directory, signal};
use memleak_test::report::Report;
use memleak_test::terminal::{Session, Terminal};

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
/// Text that is on no screen of a working view.
const GARBAGE: [&str; 3] = ["noise", "memleak: ", "\u{1b}"];

fn growing(test: &str) -> PathBuf {
    compile(&directory(test), "amounts/growing.cpp", &RELEASE)
}

/// Returns the lines of the table of sites.
fn sites(screen: &str) -> Vec<&str> {
    let lines = screen
        .lines()
        .skip_while(|line| !line.contains("OUTSTANDING"))
        .skip(1);
    let sites = lines.take_while(|line| !line.starts_with('─')).map(str::trim_end);
    sites.filter(|line| !line.is_empty()).collect()
}

/// A screen without what is different each time: numbers and their units, how long a trend is, where things
/// stand in their lines, and lines that are cut here or there.
fn shape(screen: &str) -> String {
    let is_cut = |line: &str| line.contains("[libc.so.6]") || line.starts_with("allocated ");
    let lines = screen.lines().filter(|line| !line.is_empty() && !is_cut(line));
    let words = lines.map(|line| line.split_whitespace().map(shape_of_word).collect::<Vec<_>>());
    let lines: Vec<_> = words.map(|words| words.join(" ")).collect();
    let units = [("KiB", "B"), ("MiB", "B"), ("# k", "#")];
    let shape = lines.join("\n");
    units
        .iter()
        .fold(shape, |shape, (unit, all)| shape.replace(unit, all))
}

fn shape_of_word(word: &str) -> String {
    // A score that is not known yet.
    if word == "-" {
        return "#".to_owned();
    }
    let mut shape = String::new();
    let mut characters = word.chars().peekable();
    while let Some(character) = characters.next() {
        let is_number = characters.peek().is_some_and(char::is_ascii_digit);
        let shown = match character {
            '0'..='9' => '#',
            '.' | ':' if is_number && shape.ends_with('#') => '#',
            '▁'..='█' => '▁',
            other => other,
        };
        if !(['#', '▁', '─'].contains(&shown) && shape.ends_with(shown)) {
            shape.push(shown);
        }
    }
    shape
}

fn first_is(name: &'static str) -> impl Fn(&str) -> bool {
    move |screen| sites(screen).first().is_some_and(|line| line.ends_with(name))
}

/// The view shows a process's sites, with their outstanding amounts, their growth and their stacks; each key
/// does what the help says; the last report is written to the file that was asked for, the terminal is
/// restored, and results of conditions are printed there.
#[test]
fn keys_of_the_live_view() {
    let directory = directory("view-around");
    let program = compile(&directory, "amounts/growing.cpp", &RELEASE);
    let program = Program::start(&program, &["\u{1b}[31mevil", "0"]);
    let (pid, kept) = (program.pid().to_string(), directory.join("leaks.json"));
    let kept_in = kept.to_str().expect("UTF-8");
    let condition = ["--fail-on", "outstanding>1KiB"];
    let arguments = ["live", "-p", &pid, "0.2", "--output", kept_in];
    let mut terminal = Terminal::start(&[&arguments[..], &condition].concat());
    let screen = terminal.await_screen("everything", |screen| {
        let is_shown = first_is("keep_large()")(screen) && sites(screen).len() == 2;
        is_shown && screen.contains("overhead") && screen.contains("% of one CPU")
    });
    let title = screen.lines().next().unwrap_or_default();
    assert!(
        title.starts_with(&format!("memleak  {pid} \\u{{1b}}[31mevil")),
        "{screen}"
    );
    // A picture of the view, as evidence.
    fs::write(directory.join("screen.txt"), &screen).expect("our own directory");
    assert_eq!(screen.lines().count(), 24, "{screen}");
    insta::assert_snapshot!(shape(&screen), @r"
    memleak # \u{#b}[#mevil # every # s
    alloc #/s free #/s live # B in # blocks overhead #%
    SUSP▼ OUTSTANDING BLOCKS GROWTH/s TREND SITE
    > # # B # +# B/s ▁ ✓ keep_large()
    # # B # +# B/s ▁ ✓ keep_many()
    ─ # of #: # B in # blocks via malloc ─
    operator new(unsigned long) [libstdc++.so.#]
    keep_large() [growing]
    main [growing]
    _start [growing]
    end: complete
    nothing lost all # stacks complete
    # allocations/s: about #% of one CPU
    q quit ? help ↑↓ site Tab stack s order / filter m mark v verdict w why
    ");
    keys_of_the_table(&mut terminal);
    keys_of_other_panes(&mut terminal);
    other_sizes(&mut terminal);
    terminal.press("q");
    let (status, screen) = terminal.wait();
    assert_eq!(status, Some(1), "{screen}");
    for text in [
        "most by keep_large()",
        "nothing lost",
        "outstanding>1KiB: exceeded: ",
    ] {
        assert!(screen.contains(text), "{text}: {screen}");
    }
    let reports = fs::read_to_string(&kept).expect("the last report was kept");
    let report = Report::parse(reports.trim_end());
    assert!(
        report.only_through("keep_large()").outstanding.bytes > 4096,
        "{report}"
    );
}

/// A key adds a verdict to each report, with the lost blocks of each site and the holders of the rest, until
/// it is pressed again.
#[test]
fn verdicts_on_a_key() {
    let directory = directory("view-verdict");
    let program = compile(&directory, "amounts/growing.cpp", &RELEASE);
    let program = Program::start(&program, &["lost", "0"]);
    let mut terminal = Terminal::start(&["live", "-p", &program.pid().to_string(), "0.5"]);
    terminal.await_screen("a site", first_is("keep_large()"));
    terminal.press("v");
    let screen = terminal.await_text(" definitely lost, ");
    assert!(
        screen.contains("DEF. LOST") && screen.contains("verdict: "),
        "{screen}"
    );
    assert!(first_is("keep_large()")(&screen), "{screen}");
    terminal.press("v");
    terminal.await_screen("no verdict", |screen| !screen.contains("DEF. LOST"));
    drop(terminal);
    let (path, library) = holders::programs(&directory);
    let mut program = Program::start(&path, &[library.to_str().expect("a plain name")]);
    let mut terminal = Terminal::start(&["live", "-p", &program.pid().to_string(), "1"]);
    terminal.await_text("no allocation yet");
    program.send_line("");
    while program.line() != "ready" {}
    terminal.press("v");
    terminal.await_screen("a site", first_is("make_buffer()"));
    // Of those with `make_session` on the stack, the second.
    terminal.press("/make_session\r");
    terminal.await_text("─ 1 of 2");
    terminal.press("\u{1b}[B");
    let screen = terminal.await_text("100 blocks (4.6 KiB) still reachable from g_sessions");
    for text in [
        "SITE with `make_session`",
        "held by g_sessions (holders.cpp:",
        "retains at least 24.2 KiB in 200 blocks",
        "Session",
    ] {
        assert!(screen.contains(text), "{text}: {screen}");
    }
}

fn keys_of_the_table(terminal: &mut Terminal) {
    terminal.press("b");
    terminal.await_screen("most blocks first", first_is("keep_many()"));
    terminal.press("a");
    terminal.await_screen("most allocated first", first_is("come_and_go()"));
    terminal.press("s");
    terminal.await_text("BLOCKS▼");
    terminal.press("o");
    terminal.await_screen("largest first", first_is("keep_large()"));
    // Down, as terminals send it.
    terminal.press("\u{1b}[B");
    terminal.await_screen("the second site", |screen| {
        screen.contains("─ 2 of 2") && sites(screen).get(1).is_some_and(|line| line.starts_with('>'))
    });
    terminal.press("/LARGE\r");
    let screen = terminal.await_text("SITE with `LARGE`, 1 without");
    assert_eq!(sites(&screen).len(), 1, "{screen}");
    terminal.press("\u{1b}");
    terminal.await_screen("both sites", |screen| sites(screen).len() == 2);
    terminal.press("u");
    terminal.await_screen("growth in blocks", |screen| !screen.contains("B/s"));
    terminal.press("u");
    terminal.press("m");
    terminal.await_text("SINCE MARK/s");
}

fn keys_of_other_panes(terminal: &mut Terminal) {
    terminal.press("?");
    terminal.await_text("Keys (↑ ↓ scroll");
    terminal.press("x");
    terminal.press("l");
    terminal.await_text("marked at ");
    terminal.press("\u{1b}");
    terminal.await_text("TREND");
    terminal.press("p");
    let paused = terminal.await_text("PAUSED");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(terminal.screen(), paused);
    terminal.press("p");
    terminal.await_screen("later reports", |screen| {
        !screen.contains("PAUSED") && screen != paused
    });
    diagnosis(terminal);
    terminal.press("\t");
    terminal.await_text("Tab sites");
    terminal.press("\u{1b}[6~\t");
    let screen = terminal.await_text("Tab stack");
    for garbage in GARBAGE {
        assert!(!screen.contains(garbage), "{screen}");
    }
}

/// A key looks into why memory grows, by a child that ends with the window.
fn diagnosis(terminal: &mut Terminal) {
    let diagnoses = |pid: u32| {
        let parent = format!("\nPPid:\t{pid}\n");
        let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
        let mut processes = processes.map(|process| process.path());
        processes.any(|process| {
            let [words, status] =
                ["cmdline", "status"].map(|file| fs::read(process.join(file)).unwrap_or_default());
            words.starts_with(b"memleak\0why\0") && String::from_utf8_lossy(&status).contains(&parent)
        })
    };
    terminal.press("w");
    let screen = terminal.await_text("looking at process");
    assert!(
        screen.contains(" s left") && screen.contains("Esc closes this"),
        "{screen}"
    );
    let began = Instant::now();
    while !diagnoses(terminal.pid()) {
        assert!(began.elapsed() < *PATIENCE, "no child");
        std::thread::sleep(Duration::from_millis(10));
    }
    terminal.press("\u{1b}");
    terminal.await_text("TREND");
    let began = Instant::now();
    while diagnoses(terminal.pid()) {
        assert!(began.elapsed() < *PATIENCE, "the child is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn other_sizes(terminal: &mut Terminal) {
    terminal.resize(40, 120);
    terminal.await_screen("more columns", |screen| {
        screen.contains("ALLOCATED") && screen.lines().count() == 40
    });
    terminal.resize(8, 30);
    terminal.await_text("The terminal is too small.");
    terminal.resize(24, 80);
    terminal.await_screen("the usual size", first_is("keep_large()"));
}

/// However the view ends, the terminal is restored, and the status says what happened. Warnings are printed
/// once there is no view that they could garble.
#[test]
fn ends() {
    let idle = Program::spawn(Command::new("sleep").arg("1000"));
    let pid = idle.pid().to_string();
    for end in ["Ctrl-C", "TERM", "count"] {
        let count = if end == "count" { &["2"][..] } else { &[] };
        let mut terminal = Terminal::start(&[&["--live", "-p", &pid, "0.2"][..], count].concat());
        terminal.await_text("warning: no call of a probed function was seen");
        match end {
            "Ctrl-C" => terminal.press("\u{3}"),
            "count" => {}
            name => signal(terminal.pid(), name),
        }
        let (status, screen) = terminal.wait();
        assert_eq!(status, Some(0), "{end}: {screen}");
        let warnings = screen
            .matches("memleak: warning: no call of a probed function was seen")
            .count();
        assert_eq!(warnings, 1, "{end}: {screen}");
        assert!(screen.contains("0 B in 0 blocks outstanding"), "{end}: {screen}");
    }
}

/// A terminal that vanishes ends the trace, with or without a signal; what goes to files is written.
#[test]
fn vanished_terminal_ends_the_trace() {
    let directory = directory("view-vanishes");
    let program = compile(&directory, "amounts/growing.cpp", &RELEASE);
    let program = Program::start(&program, &["growing", "0"]);
    for session in [Session::Own, Session::None] {
        let kept = directory.join("leaks.txt");
        let arguments = [
            "--live",
            "-p",
            &program.pid().to_string(),
            "0.2",
            "-f",
            "--output",
            kept.to_str().expect("UTF-8"),
        ];
        let mut terminal = Terminal::start_in(session, &arguments, &[]);
        terminal.await_text("keep_large()");
        assert_eq!(terminal.hang_up(), Some(0));
        let report = fs::read_to_string(&kept).expect("the last report was kept");
        assert!(report.contains("keep_large()"), "{report}");
        fs::remove_file(&kept).expect("our own file");
    }
}

/// A terminal that takes no output stops neither the trace nor its end: what goes to files is written.
/// Messages wait for the terminal, unless there is a second signal.
#[test]
fn stuck_terminal_does_not_block_the_trace() {
    let directory = directory("view-stuck");
    let program = compile(&directory, "amounts/growing.cpp", &RELEASE);
    let program = Program::start(&program, &["growing", "0"]);
    let (pid, kept) = (program.pid().to_string(), directory.join("leaks.txt"));
    let kept_in = kept.to_str().expect("UTF-8");
    // The condition's result is written when the view is gone, to a terminal that never takes it.
    let condition = ["--fail-on", "outstanding>1KiB"];
    let trace = ["--live", "-p", &pid, "0.2", "--output", kept_in];
    let mut terminal = Terminal::start(&[&trace[..], &condition].concat());
    terminal.await_text("keep_large()");
    terminal.stop_output();
    std::thread::sleep(Duration::from_millis(500));
    signal(terminal.pid(), "TERM");
    let began = Instant::now();
    while !fs::read_to_string(&kept).is_ok_and(|report| report.contains(", nothing lost")) {
        assert!(began.elapsed() < *PATIENCE / 4, "nothing is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(terminal.pid(), "TERM");
    assert_eq!(terminal.wait_for_end(), Some(143));
}

/// The end of a target leaves its last state on the screen until the user leaves. A program that was started
/// is kept from the terminal, and its status is memleak's.
#[test]
fn view_stays_after_the_target_ends() {
    let program = growing("view-ends");
    let command = format!("{} growing 60", program.display());
    let mut terminal = Terminal::start_in(
        Session::Own,
        &["live", "-c", &command, "0.2"],
        &[("NO_COLOR", "1")],
    );
    let screen = terminal.await_text("All processes have ended: this is the last report. q leaves.");
    assert!(screen.contains("ENDED"), "{screen}");
    // 60 blocks, from the first allocation on; below them is what the C++ library allocates for itself.
    assert!(
        screen.contains("1 of 3: 240.0 KiB in 60 blocks via malloc"),
        "{screen}"
    );
    // Its place depends on how many reports saw it grow.
    let sites = sites(&screen);
    assert!(sites.iter().any(|site| site.ends_with("keep_many()")), "{screen}");
    for garbage in GARBAGE {
        assert!(!screen.contains(garbage), "{screen}");
    }
    let plain = terminal.look(|screen| {
        let cells = (0..24).flat_map(|row| (0..80).filter_map(move |column| screen.cell(row, column)));
        let mut colours = cells.map(|cell| (cell.fgcolor(), cell.bgcolor()));
        colours.all(|colours| colours == (vt100::Color::Default, vt100::Color::Default))
    });
    assert!(plain, "NO_COLOR");
    terminal.press("o?xq");
    let (status, screen) = terminal.wait();
    assert_eq!(status, Some(7), "{screen}");
    assert!(!screen.contains("noise"), "{screen}");
}

/// A panic is reported on a terminal that is restored. The program that fails is this test itself.
#[test]
fn a_panic() {
    const FAILS: &str = "MEMLEAK_TEST_PANICS";
    if std::env::var_os(FAILS).is_some() {
        return panic_in_a_view();
    }
    let this = std::env::current_exe().expect("/proc is mounted");
    let thread = std::thread::current();
    let name = thread.name().expect("that of the test");
    let mut terminal = Terminal::run(
        &this,
        Session::Own,
        &[name, "--exact", "--nocapture"],
        &[(FAILS, "1"), ("RUST_BACKTRACE", "0")],
    );
    terminal.await_text("Attaching.");
    terminal.press("m");
    let (status, screen) = terminal.wait();
    assert_eq!(status, Some(101), "{screen}");
    assert!(screen.contains("the key was pressed"), "{screen}");
}

/// Shows the view, and panics when a mark is asked for.
fn panic_in_a_view() {
    let Cli { trace, .. } = Cli::parse_from(["memleak", "--live"]);
    let config = Config::try_from(trace).expect("it makes sense");
    let (signals, is_restored) = (Signals::default(), Arc::default());
    let view = LiveView::open(&config.trace, &signals, &is_restored, &Messages::default(), None);
    let _view = view.expect("there is a terminal");
    while !signals.mark.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the key was pressed");
}

/// Without a terminal, or on one that can only print, there is one line that says so, and nothing is started.
#[test]
fn no_terminal() {
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["live", "-c", "touch /nonexistent"])
        .stdin(Stdio::null())
        .output()
        .expect("memleak was built");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), message.lines().count()),
        (Some(2), 1),
        "{message}"
    );
    assert!(message.contains("standard input is not one"), "{message}");
    assert!(output.stdout.is_empty());
    let terminal = Terminal::start_in(Session::Own, &["--live"], &[("TERM", "dumb")]);
    let (status, screen) = terminal.wait();
    assert_eq!(status, Some(2), "{screen}");
    assert!(
        screen.contains("memleak: --live cannot draw on a terminal of type `dumb`"),
        "{screen}"
    );
}
