//! The program under test, tracing another program.

use std::process::{Child, Command, ExitStatus, Stdio};

use super::program::{Lines, PROGRAM, cpu_seconds, end_if_only_compiled, require_root, signal};
use super::report::Report;

/// A running `memleak`; killed when dropped.
pub struct Memleak {
    child: Child,
    reports: Lines,
    messages: Lines,
    /// Messages up to the one that says that all is attached.
    seen_messages: Vec<String>,
    /// Set if the child is memleak's parent, which starts it in another pid namespace and stays.
    is_parent: bool,
}

/// Starts it without input. Returns the lines of its reports, and of its messages.
#[track_caller]
pub fn spawn(command: &mut Command) -> (Child, Lines, Lines) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memleak was built");
    let reports = Lines::of(child.stdout.take().expect("a pipe"), "memleak");
    let messages = Lines::of(child.stderr.take().expect("a pipe"), "memleak");
    (child, reports, messages)
}

/// Interval longer than any test: such a trace reports only when it is asked to end.
const NO_INTERVAL: &str = "1d";

impl Memleak {
    /// Attaches to `pid` and waits until all probes are in place. The only report is the last.
    #[track_caller]
    pub fn attach(pid: u32, flags: &[&str]) -> Self {
        Self::attach_reporting(pid, flags, &[NO_INTERVAL])
    }

    /// Attaches as [`Memleak::attach`] does, with reports as `interval` (and count) says.
    #[track_caller]
    pub fn attach_reporting(pid: u32, flags: &[&str], interval: &[&str]) -> Self {
        Self::attach_reporting_by(Command::new(PROGRAM), pid, flags, interval)
    }

    /// Attaches in the pid and mount namespaces of process `host_pid`, where the process to trace is `pid`.
    #[track_caller]
    pub fn attach_inside(host_pid: u32, pid: u32, flags: &[&str]) -> Self {
        let mut command = Command::new("nsenter");
        let host_pid = host_pid.to_string();
        command.args(["--target", &host_pid, "--pid", "--mount"]);
        command.arg(PROGRAM);
        let mut memleak = Self::attach_reporting_by(command, pid, flags, &[NO_INTERVAL]);
        memleak.is_parent = true;
        memleak
    }

    /// Attaches as [`Memleak::attach`] does, by a command that becomes memleak.
    #[track_caller]
    pub fn attach_by(command: Command, pid: u32, flags: &[&str]) -> Self {
        Self::attach_reporting_by(command, pid, flags, &[NO_INTERVAL])
    }

    /// Attaches as [`Memleak::attach`] does, without these capabilities.
    #[track_caller]
    pub fn attach_without(capabilities: &[&str], pid: u32) -> Self {
        let mut command = Command::new("setpriv");
        let dropped: Vec<_> = capabilities
            .iter()
            .map(|capability| format!("-{capability}"))
            .collect();
        command.args(["--bounding-set", &dropped.join(",")]);
        command.arg(PROGRAM);
        Self::attach_reporting_by(command, pid, &[], &[NO_INTERVAL])
    }

    /// Attaches as [`Memleak::attach_reporting`] does, by a command that becomes memleak.
    #[track_caller]
    pub fn attach_reporting_by(mut command: Command, pid: u32, flags: &[&str], interval: &[&str]) -> Self {
        command.args(["-p", &pid.to_string()]);
        Self::start(command, flags, interval)
    }

    /// Traces the kernel's own allocations.
    #[track_caller]
    pub fn attach_to_kernel(flags: &[&str], interval: &str) -> Self {
        let command = Command::new(PROGRAM);
        Self::start(command, flags, &[interval])
    }

    /// Attaches to the processes that `flags` select.
    #[track_caller]
    pub fn attach_selected(flags: &[&str]) -> Self {
        Self::attach_selected_by(Command::new(PROGRAM), flags)
    }

    /// Attaches as [`Memleak::attach_selected`] does, by a command that becomes memleak.
    #[track_caller]
    pub fn attach_selected_by(command: Command, flags: &[&str]) -> Self {
        Self::start(command, flags, &[NO_INTERVAL])
    }

    #[track_caller]
    fn start(mut command: Command, flags: &[&str], interval: &[&str]) -> Self {
        end_if_only_compiled();
        require_root();
        let is_given = |flag: &&str| ["--format", "--output"].contains(flag);
        let format = match flags.iter().any(is_given) {
            true => &[][..],
            false => &["--format", "json"],
        };
        let (child, reports, messages) = spawn(command.args(format).args(flags).args(interval));
        let mut memleak = Self {
            child,
            reports,
            messages,
            seen_messages: Vec::new(),
            is_parent: false,
        };
        memleak.await_attached();
        memleak
    }

    /// Waits for the message that memleak is tracing, which comes once everything is attached.
    #[track_caller]
    fn await_attached(&mut self) {
        while let Some(line) = self.messages.next() {
            let is_attached = line.contains("tracing ");
            self.seen_messages.push(line);
            if is_attached {
                return;
            }
        }
        panic!("memleak did not attach: {:#?}", self.seen_messages);
    }

    /// Waits for a message that contains `part`.
    #[track_caller]
    pub fn await_message(&mut self, part: &str) {
        while let Some(line) = self.messages.next() {
            let is_it = line.contains(part);
            self.seen_messages.push(line);
            if is_it {
                return;
            }
        }
        panic!("no message `{part}`: {:#?}", self.seen_messages);
    }

    /// Sets the mark that growth is counted from, and waits until that is done.
    #[track_caller]
    pub fn mark(&mut self) {
        signal(self.child.id(), "USR1");
        while let Some(line) = self.messages.next() {
            let done = line.contains("marked at ");
            self.seen_messages.push(line);
            if done {
                return;
            }
        }
        panic!("memleak did not mark: {:#?}", self.seen_messages);
    }

    /// Messages that were read so far: those up to the one that says that all is attached, and those up to a
    /// mark.
    pub fn seen_messages(&self) -> &[String] {
        &self.seen_messages
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, as `kill -NAME` does.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// CPU time that it has taken so far, in seconds.
    #[track_caller]
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid())
    }

    #[track_caller]
    pub fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid()));
        files.expect("it runs").count()
    }

    /// Asks for an end and returns the last report as text, for flags with a `--format`.
    #[track_caller]
    pub fn finish_text(self) -> String {
        self.interrupt();
        self.wait_for_text()
    }

    /// Asks for an end and returns the last report as text, and all messages.
    #[track_caller]
    pub fn finish_text_with_messages(mut self) -> (String, Vec<String>) {
        self.interrupt();
        let lines = self.reports.rest();
        assert!(self.child.wait().expect("a child of ours").success());
        let mut messages = std::mem::take(&mut self.seen_messages);
        messages.extend(self.messages.rest());
        (lines.join("\n"), messages)
    }

    /// Waits for an end that has its own cause and returns the last report as text, for flags with a
    /// `--format`.
    #[track_caller]
    pub fn wait_for_text(mut self) -> String {
        let lines = self.reports.rest();
        assert!(self.child.wait().expect("a child of ours").success());
        lines.join("\n")
    }

    /// The next report that it makes by itself.
    #[track_caller]
    pub fn report(&self) -> Report {
        Report::parse(&self.reports.next().expect("a report"))
    }

    /// The next report that it makes by itself, as it is written.
    #[track_caller]
    pub fn report_line(&self) -> String {
        self.reports.next().expect("a report")
    }

    /// Kills memleak, which gets no chance to clean up.
    pub fn kill(mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Asks for an end and returns the last report.
    #[track_caller]
    pub fn finish(self) -> Report {
        self.interrupt();
        self.last_report()
    }

    /// Asks for an end and does not wait for it.
    pub fn interrupt(&self) {
        // Having a child does not make it a parent of memleak: memleak adds and removes probes in children of
        // its own.
        let pid = match self.is_parent {
            true => child_of(self.child.id()).expect("it has started memleak"),
            false => self.child.id(),
        };
        signal(pid, "INT");
    }

    /// Asks for an end and returns all reports in their order, the last of which was asked for.
    #[track_caller]
    pub fn finish_with_reports(self) -> Vec<Report> {
        self.finish_with_all_reports().0
    }

    /// Asks for an end and returns the last report and all messages.
    #[track_caller]
    pub fn finish_with_messages(self) -> (Report, Vec<String>) {
        let (mut reports, messages) = self.finish_with_all_reports();
        (reports.pop().expect("a report"), messages)
    }

    /// Asks for an end and returns all reports and all messages.
    #[track_caller]
    pub fn finish_with_all_reports(self) -> (Vec<Report>, Vec<String>) {
        self.interrupt();
        self.rest()
    }

    /// Waits for an end that was asked for and returns all reports and messages.
    #[track_caller]
    pub fn rest(mut self) -> (Vec<Report>, Vec<String>) {
        let reports = self.reports.rest();
        let mut messages = std::mem::take(&mut self.seen_messages);
        messages.extend(self.messages.rest());
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status}: {messages:#?}");
        (
            reports.iter().map(|report| Report::parse(report)).collect(),
            messages,
        )
    }

    /// Waits for an end that has its own cause and returns the last report.
    #[track_caller]
    pub fn last_report(self) -> Report {
        let (report, status) = self.wait();
        assert!(status.success(), "{status}");
        report
    }

    /// Waits for an end that has its own cause and returns the last report and the status, whatever that is.
    #[track_caller]
    pub fn wait(mut self) -> (Report, ExitStatus) {
        let reports = self.reports.rest();
        let status = self.child.wait().expect("a child of ours");
        let messages = self.messages.rest().join("\n");
        let report = reports.last().unwrap_or_else(|| panic!("no report: {messages}"));
        (Report::parse(report), status)
    }
}

/// Starts memleak and waits until it traces. Returns the child, whose reports wait in an unread pipe, and its
/// further messages.
#[track_caller]
pub fn tracing(arguments: &[&str]) -> (Child, Lines) {
    require_root();
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memleak was built");
    let messages = Lines::of(child.stderr.take().expect("a pipe"), "memleak");
    while !messages.next().expect("it attaches").contains("tracing ") {}
    (child, messages)
}

/// Returns the first child of a process, if it has one.
pub fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

impl Drop for Memleak {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
