//! The status line on a terminal while a trace goes on, and Ctrl-C.

use std::time::Duration;

use memleak_test::program::{Program, compile, directory, signal};
use memleak_test::terminal::{Session, Terminal};

/// Starts a program with outstanding blocks, and waits until it reads its input.
fn program(test: &str) -> Program {
    let program = Program::start(&compile(&directory(test), "amounts/plain.c", &["-O2"]), &["1000"]);
    program.expect("ready");
    program.await_reading();
    program
}

/// Returns true if a status line is on the screen.
fn has_status(screen: &str) -> bool {
    screen.lines().any(|line| line.contains(" events/s | "))
}

/// The status line is on the terminal until a message is written or the trace ends. The first Ctrl-C makes
/// the last report, in colours.
#[test]
fn status_line_as_root() {
    let mut program = program("status_line-status_line");
    let pid = program.pid().to_string();
    let environment = [("LANG", "C.UTF-8")];
    let mut terminal = Terminal::start_in(Session::Own, &["-o", "0", "-p", &pid, "86400"], &environment);
    terminal.await_text(" | nothing lost");
    program.step("done");
    let screen = terminal.await_text(" live in 1000 blocks | ");
    assert!(
        screen.contains("23.4 KiB live in") && screen.contains(" stacks | "),
        "{screen}"
    );
    let status = screen.lines().filter(|line| has_status(line)).count();
    assert_eq!(status, 1, "{screen}");
    terminal.resize(24, 40);
    let narrow = terminal.await_screen("narrow line", |screen| {
        has_status(screen) && !screen.contains("nothing lost")
    });
    assert_eq!(
        narrow.lines().filter(|line| has_status(line)).count(),
        1,
        "{narrow}"
    );
    terminal.resize(60, 120);
    terminal.press("\x03");
    terminal.await_text(", nothing lost");
    let colour = terminal.look(|screen| {
        let rows = (0..60).filter(|&row| screen.contents_between(row, 0, row, 8).starts_with("    ID"));
        rows.map(|row| screen.cell(row, 4).expect("on the screen").fgcolor())
            .next_back()
    });
    assert_eq!(colour, Some(vt100::Color::Idx(6)));
    let (code, screen) = terminal.wait();
    assert_eq!(code, Some(0));
    assert!(
        !has_status(&screen) && screen.contains("(12000 B) in 500 blocks, 50.0% of all"),
        "{screen}"
    );
}

/// A terminal gets neither colours nor a line with `-q` and `NO_COLOR`, or with `TERM=dumb`.
#[test]
fn plain_terminal_as_root() {
    let mut program = program("status_line-plain_terminal");
    program.step("done");
    let pid = program.pid().to_string();
    for (arguments, environment) in [
        (&["-q", "-p", &pid, "0.5", "2"][..], &[("NO_COLOR", "1")][..]),
        (&["-p", &pid, "0.5", "2"], &[("TERM", "dumb")]),
    ] {
        let terminal = Terminal::start_in(Session::Own, arguments, environment);
        let mut seen = false;
        while !terminal.screen().contains(", nothing lost") {
            seen |= has_status(&terminal.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_plain = terminal.look(|screen| {
            let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
            cells
                .filter_map(|(row, column)| screen.cell(row, column))
                .all(|cell| cell.fgcolor() == vt100::Color::Default && !cell.bold())
        });
        assert!(is_plain && !seen, "{}", terminal.screen());
        assert_eq!(terminal.wait().0, Some(0));
    }
}

/// A second signal ends memleak at once, whatever it waits for, with the status that shells have for the
/// signal.
#[test]
fn second_signal_as_root() {
    let program = program("status_line-second_signal");
    let pid = program.pid().to_string();
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let mut terminal = Terminal::start(&["-p", &pid, "86400"]);
        terminal.await_text(" | nothing lost");
        // The last report cannot be written.
        terminal.stop_output();
        signal(terminal.pid(), name);
        std::thread::sleep(Duration::from_millis(300));
        signal(terminal.pid(), name);
        assert_eq!(terminal.wait_for_end(), Some(status), "{name}");
    }
    drop(program);
}
