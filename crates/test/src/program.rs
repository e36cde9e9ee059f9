//! Programs that tests compile, start, talk to and end. Each program says when it is ready and waits for a
//! line before it goes on, so that nothing is timed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::exclusion::share_machine;

/// memleak, as cargo builds it for integration tests.
pub const PROGRAM: &str = env!("MEMLEAK_PROGRAM");
/// Directory for what suites write.
pub const FILES: &str = env!("MEMLEAK_TEST_FILES");
/// The tree of memleak's sources.
pub const TREE: &str = env!("MEMLEAK_TREE");

/// Maximum time for one thing before the test fails; nothing takes a tenth of it on an idle machine.
/// `MEMLEAK_TEST_PATIENCE` multiplies it, for a machine that has other work.
pub static PATIENCE: LazyLock<Duration> = LazyLock::new(|| {
    let factor = std::env::var("MEMLEAK_TEST_PATIENCE").map(|factor| factor.parse());
    Duration::from_secs(100)
        * factor
            .unwrap_or(Ok(1))
            .expect("MEMLEAK_TEST_PATIENCE: a whole number")
});

/// Suites that `make quick` runs: of their tests, only those whose name ends in [`AS_ROOT`] need root. Of the
/// other suites, any test can need it.
pub const QUICK_SUITES: [&str; 3] = ["cli", "host", "tidy"];

/// Ending of names of tests that need root, in suites where not all do: `make quick` leaves these out.
pub const AS_ROOT: &str = "_as_root";

/// Fails a test that needs privileges and does not have them, or does not say that it needs them.
#[track_caller]
pub fn require_root() {
    share_machine();
    let thread = thread::current();
    let test = thread.name().unwrap_or_default();
    assert!(
        test.is_empty() || test.ends_with(AS_ROOT) || !QUICK_SUITES.contains(&suite().as_str()),
        "`{test}` needs root: end its name in `{AS_ROOT}`, for `make quick`"
    );
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let uid = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .expect("a uid");
    let effective = uid.split_whitespace().nth(1);
    assert_eq!(
        effective,
        Some("0"),
        "live tests trace real processes: run them as root (sudo -E cargo test)"
    );
}

/// Environment variable that `tests/fresh.sh` sets to have tests only compile their programs.
const COMPILE_ONLY: &str = "MEMLEAK_TEST_COMPILE_ONLY";
/// Start of the message of tests that end there, which tells them from those that fail.
pub const ONLY_COMPILED: &str = "compiled, and nothing is run";

/// Ends a test before its programs are run or traced, if `MEMLEAK_TEST_COMPILE_ONLY` says so.
#[track_caller]
pub fn end_if_only_compiled() {
    share_machine();
    assert!(
        std::env::var_os(COMPILE_ONLY).is_none(),
        "{ONLY_COMPILED} with {COMPILE_ONLY}"
    );
}

/// Returns `full` if tests are to be as heavy as their claims, which `MEMLEAK_FULL_LOAD` says.
pub fn load<T>(small: T, full: T) -> T {
    match std::env::var_os("MEMLEAK_FULL_LOAD") {
        Some(_) => full,
        None => small,
    }
}

/// The path of a stock program, or a failure that names its package.
#[track_caller]
pub fn stock(path: &str, package: &str) -> PathBuf {
    let path = PathBuf::from(path);
    assert!(
        path.exists(),
        "{} is missing: apt-get install {package}",
        path.display()
    );
    path
}

/// Directory of Debian's libraries.
pub const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// The library and the package of mimalloc: which version there is depends on the release (Debian 12, Debian
/// 13).
pub fn mimalloc() -> (&'static str, &'static str) {
    let versions = [
        ("libmimalloc.so.2", "libmimalloc2.0"),
        ("libmimalloc.so.3", "libmimalloc3"),
    ];
    let installed = versions
        .into_iter()
        .find(|(library, _)| Path::new(LIBRARIES).join(library).exists());
    installed.unwrap_or(versions[0])
}

/// The name of the suite that runs, which is that of its program without cargo's hash.
fn suite() -> String {
    let program = std::env::current_exe().expect("/proc is mounted");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.split('-').next().unwrap_or_default().to_owned()
}

/// The path of the directory of this name, which [`directory`] makes.
pub fn directory_path(name: &str) -> PathBuf {
    Path::new(FILES).join(suite()).join(name)
}

/// An empty directory for one test. Compiled programs go there. Its name begins with the test's module; no
/// other test of the suite may ask for the same.
#[track_caller]
pub fn directory(name: &str) -> PathBuf {
    static OWNERS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    share_machine();
    if let Some(test) = thread::current().name() {
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.entry(name.to_owned()).or_insert_with(|| test.to_owned());
        assert_eq!(owner, test, "two tests want the directory {name}");
    }
    let directory = directory_path(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a new directory");
    directory
}

/// Copies a program that is to be run, by `cp`. If this process wrote it, a program that another test starts
/// meanwhile would inherit the open file, and executing the copy would fail (ETXTBSY).
#[track_caller]
pub fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    run_tool(Command::new("cp").arg(from).arg(to));
}

/// A TCP port of 127.0.0.1 that was free a moment ago, and that no other test of the suite is given.
#[track_caller]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(port) {
            return port;
        }
    }
}

/// A file of `tests/programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(TREE).join("tests/programs").join(name)
}

/// Runs a build tool to its successful end.
#[track_caller]
pub fn run_tool(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (apt-get install g++ binutils)"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{errors}");
}

/// Has memleak write `libmemleak.so`, and returns its path.
#[track_caller]
pub fn library(directory: &Path) -> PathBuf {
    let path = directory.join("libmemleak.so");
    let mut command = Command::new(PROGRAM);
    run_tool(command.args(["library", "--output"]).arg(&path));
    path
}

/// Compiles `source` of `tests/programs` as `directory/NAME`, NAME being the source's without its ending.
#[track_caller]
pub fn compile(directory: &Path, source_name: &str, flags: &[&str]) -> PathBuf {
    let name = Path::new(source_name).file_stem().expect("a file name");
    compile_as(&directory.join(name), source_name, flags)
}

/// Compiles `source` of `tests/programs` as `output`.
#[track_caller]
pub fn compile_as(output: &Path, source_name: &str, flags: &[&str]) -> PathBuf {
    let compiler = if source_name.ends_with(".cpp") {
        "g++"
    } else {
        "gcc"
    };
    compile_with(compiler, output, source_name, flags)
}

/// Compiles `source` of `tests/programs` by `compiler` as `output`.
#[track_caller]
pub fn compile_with(compiler: &str, output: &Path, source_name: &str, flags: &[&str]) -> PathBuf {
    // Libraries must come after what needs them.
    let mut command = Command::new(compiler);
    command.arg("-o").arg(output).arg(source(source_name)).args(flags);
    run_tool(&mut command);
    output.to_owned()
}

/// Lines of a pipe, read by a thread so that a pipe is never full and waiting has an end.
pub struct Lines {
    lines: Receiver<String>,
    source: String,
}

impl Lines {
    pub fn of(pipe: impl std::io::Read + Send + 'static, source: &str) -> Self {
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self {
            lines,
            source: source.to_owned(),
        }
    }

    /// The next line, or `None` at the end.
    #[track_caller]
    pub fn next(&self) -> Option<String> {
        match self.lines.recv_timeout(*PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{} says nothing for {:?}", self.source, *PATIENCE),
        }
    }

    /// The next line, if there is one already.
    pub fn try_next(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// All lines up to the end.
    #[track_caller]
    pub fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// Where `tests/setup.sh` has put packages of Debian's next release, with the C library that they need.
pub const NEXT_RELEASE: &str = concat!(env!("MEMLEAK_TREE"), "/target/interpreters/root/usr");
/// Directory of its libraries, below [`NEXT_RELEASE`].
pub const LIBRARIES_OF_NEXT: &str = if cfg!(target_arch = "aarch64") {
    "lib/aarch64-linux-gnu"
} else {
    "lib/x86_64-linux-gnu"
};

/// Runs a program with the C library of Debian's next release.
#[track_caller]
pub fn of_next_release(program: &Path) -> Command {
    const LOADER: &str = if cfg!(target_arch = "aarch64") {
        "lib/ld-linux-aarch64.so.1"
    } else {
        "lib64/ld-linux-x86-64.so.2"
    };
    let root = Path::new(NEXT_RELEASE);
    assert!(
        root.exists(),
        "{NEXT_RELEASE} is missing: tests/setup.sh test, or kernels for arm64"
    );
    let mut command = Command::new(root.join(LOADER));
    command.arg("--library-path").arg(root.join(LIBRARIES_OF_NEXT));
    command.arg(program);
    command
}

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines,
}

impl Program {
    #[track_caller]
    pub fn start(path: &Path, arguments: &[&str]) -> Self {
        Self::spawn(Command::new(path).args(arguments))
    }

    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        end_if_only_compiled();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let name = command.get_program().to_string_lossy().into_owned();
        Self {
            input: child.stdin.take(),
            output: Lines::of(child.stdout.take().expect("a pipe"), &name),
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line, after which the program goes on.
    #[track_caller]
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("standard input is open");
        writeln!(input, "{line}").expect("the program reads");
    }

    /// Waits for the program's next line.
    #[track_caller]
    pub fn line(&self) -> String {
        self.output
            .next()
            .expect("a line from the program, which has ended")
    }

    /// Waits for the program's lines up to `last`, which is not among them.
    #[track_caller]
    pub fn lines_before(&self, last: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == last => return lines,
                line => lines.push(line),
            }
        }
    }

    /// The program's next line, if it has been written already.
    pub fn try_line(&self) -> Option<String> {
        self.output.try_next()
    }

    /// Waits for the program's next line, which must be this one.
    #[track_caller]
    pub fn expect(&self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Lets it go on, and waits until it says `answer`.
    #[track_caller]
    pub fn step(&mut self, answer: &str) {
        self.send_line("");
        self.expect(answer);
    }

    /// Waits until its first thread is in a read of standard input. A message alone does not mean that it is
    /// there yet: an interpreter still allocates on its way.
    #[track_caller]
    pub fn await_reading(&self) {
        let path = format!("/proc/{}/syscall", self.pid());
        let started = Instant::now();
        loop {
            let call = std::fs::read_to_string(&path).expect("it runs");
            // The number of read, and the first argument.
            if call.starts_with("0 0x0 ") {
                return;
            }
            assert!(started.elapsed() < *PATIENCE, "it does not read: {call}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal, as `kill -NAME` does.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        self.child.wait().expect("a child of ours")
    }

    /// Closes its input, which ends it.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().expect("a child of ours")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that all threads of a process have taken so far, in seconds.
#[track_caller]
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(") ").next().expect("behind its name");
    let ticks = fields.split(' ').skip(11).take(2);
    // USER_HZ is 100 wherever Linux runs.
    ticks
        .map(|ticks| ticks.parse::<f64>().expect("a number"))
        .sum::<f64>()
        / 100.0
}

/// Sends a signal to a child of this test.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("/bin/kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(status.expect("/bin/kill (apt-get install procps)").success());
}
