//! Programs that the program under test starts: `memleak -c …`. The two share standard output, where JSON is
//! told from the program's lines by its first character.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::program::{Lines, PROGRAM, end_if_only_compiled, require_root};
use super::report::Report;

/// A running `memleak` that has started a program; killed when dropped.
pub struct Started {
    memleak: Child,
    input: Option<ChildStdin>,
    output: Lines,
    messages: Lines,
}

/// Result of a run of `memleak -c`.
pub struct Outcome {
    /// Reports on standard output.
    pub reports: Vec<Report>,
    /// Lines of the program on standard output.
    pub lines: Vec<String>,
    /// Lines of both on standard error.
    pub messages: Vec<String>,
    /// Exit status of memleak; `None` if a signal ended it.
    pub status: Option<i32>,
}

impl Started {
    /// Runs `memleak` with these arguments.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Self {
        Self::spawn_with(&mut Command::new(PROGRAM), arguments)
    }

    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command, &[])
    }

    /// Runs a command that becomes `memleak`, with these arguments after all others.
    #[track_caller]
    pub fn spawn_with(command: &mut Command, last: &[&str]) -> Self {
        end_if_only_compiled();
        require_root();
        let mut memleak = command
            .args(["--format", "json"])
            .args(last)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memleak was built");
        Self {
            input: memleak.stdin.take(),
            output: Lines::of(memleak.stdout.take().expect("a pipe"), "memleak -c"),
            messages: Lines::of(memleak.stderr.take().expect("a pipe"), "memleak -c"),
            memleak,
        }
    }

    pub fn pid(&self) -> u32 {
        self.memleak.id()
    }

    /// Waits for the next line on standard output, of memleak or of the program.
    #[track_caller]
    pub fn line(&self) -> String {
        self.output.next().expect("a line")
    }

    /// Waits for a line of the program.
    #[track_caller]
    pub fn expect(&self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Waits until memleak or the program writes a line with `part` to standard error.
    #[track_caller]
    pub fn await_message(&self, part: &str) {
        while !self.messages.next().expect("more messages").contains(part) {}
    }

    /// Sends a line to the program.
    #[track_caller]
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("standard input is open");
        writeln!(input, "{line}").expect("the program reads");
    }

    /// Waits until memleak ends, but not for the program; its standard input stays open.
    #[track_caller]
    pub fn await_memleak(&mut self) -> Option<i32> {
        self.memleak.wait().expect("a child of ours").code()
    }

    /// Kills memleak, which gets no chance to clean up; the program's input stays open meanwhile.
    pub fn kill(mut self) {
        _ = self.memleak.kill();
        _ = self.memleak.wait();
    }

    /// Closes the program's input and waits until both have ended.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        drop(self.input.take());
        let (reports, lines): (Vec<_>, Vec<_>) = self
            .output
            .rest()
            .into_iter()
            .partition(|line| line.starts_with('{'));
        Outcome {
            reports: reports.iter().map(|report| Report::parse(report)).collect(),
            lines,
            messages: self.messages.rest(),
            status: self.await_memleak(),
        }
    }
}

impl Outcome {
    /// The last report.
    #[track_caller]
    pub fn report(&self) -> &Report {
        let report = self.reports.last();
        report.unwrap_or_else(|| panic!("no report: {:#?}", self.messages))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.memleak.kill();
        let _ = self.memleak.wait();
    }
}
