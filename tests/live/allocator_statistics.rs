//! Live bytes are what the target's own allocator says they are, to within a thousandth, for all that was
//! allocated after the attach.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use memleak_test::memleak::Memleak;
use memleak_test::program::{PATIENCE, Program, compile, directory, stock};
use memleak_test::report::{Report, Stack};

/// Checks that two numbers of bytes agree, and prints them.
#[track_caller]
fn check_agree(name: &str, ours: u64, own: u64) {
    let difference = ours.abs_diff(own);
    let _ = writeln!(
        std::io::stderr(),
        "{name}: {ours} bytes live by our account, {own} by its own; {difference} apart"
    );
    assert!(own > 1_000_000, "{name}: {own} is too little to compare");
    assert!(difference * 1000 <= own, "{name}: {ours} and {own}");
}

/// Traces a program that prints its allocator's live bytes before and after its work.
#[track_caller]
fn check_program(name: &str, preload: Option<(&str, &str)>) {
    let path = compile(
        &directory(&format!("allocator_statistics-{name}")),
        "allocators/own_word.c",
        &["-O2"],
    );
    let mut command = Command::new(path);
    // With glibc, blocks in threads' caches count as live: turn these off.
    command
        .arg("30000")
        .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    if let Some((library, package)) = preload {
        command.env("LD_PRELOAD", stock(library, package));
    }
    let mut program = Program::spawn(&mut command);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.send_line("");
    let [before, after] = [program.line(), program.line()].map(|line| {
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|word| word.parse().expect("a number"))
            .collect();
        (numbers[0], numbers[1])
    });
    program.expect("done");
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(
        (report.lost.blocks, report.events.unknown_frees),
        (0, 0),
        "{report}"
    );
    let live = report.outstanding();
    assert_eq!(live.blocks, 20000, "{report}");
    let (own, unasked) = (after.0 - before.0, after.1);
    check_agree(name, live.bytes + unasked, own);
    assert!(program.end().success());
}

/// glibc, by `mallinfo2`.
#[test]
fn glibc() {
    check_program("glibc", None);
}

/// jemalloc, by `mallctl` "stats.allocated".
#[test]
fn jemalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    check_program("jemalloc", Some((library, "libjemalloc2")));
}

/// tcmalloc, by its property "generic.current_allocated_bytes".
#[test]
fn tcmalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4";
    check_program("tcmalloc", Some((library, "libgoogle-perftools4")));
}

/// A connection to a redis server.
struct Redis {
    replies: BufReader<UnixStream>,
}

impl Redis {
    #[track_caller]
    fn connect(socket: &Path) -> Self {
        let began = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    let replies = BufReader::new(stream);
                    return Self { replies };
                }
                Err(error) => assert!(began.elapsed() < *PATIENCE, "redis-server: {error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, text: &str) {
        self.replies
            .get_mut()
            .write_all(text.as_bytes())
            .expect("it reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }

    /// Live bytes by the server's own statement, each block with the size that its allocator gave.
    #[track_caller]
    fn used_memory(&mut self) -> u64 {
        self.send("INFO memory\r\n");
        let length = self.line();
        let length: usize = length.trim_start_matches('$').parse().expect("a length");
        let mut text = vec![0; length + 2];
        self.replies.read_exact(&mut text).expect("it answers");
        let text = String::from_utf8_lossy(&text).into_owned();
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.expect("the server says it")
            .trim()
            .parse()
            .expect("a number")
    }

    /// Sets keys to values; all keys of one length, and all values.
    #[track_caller]
    fn fill(&mut self, keys: u32, value: &str) {
        const BATCH: u32 = 500;
        for first in (0..keys).step_by(BATCH as usize) {
            let batch = first..(first + BATCH).min(keys);
            let text: String = batch
                .clone()
                .map(|key| format!("SET key:{key:012} {value}\r\n"))
                .collect();
            self.send(&text);
            for _ in batch {
                assert_eq!(self.line(), "+OK");
            }
        }
    }
}

/// Size that jemalloc gives for a request: multiples of 16 up to 128 (8 for the least), then four classes to
/// each doubling.
fn class_of_jemalloc(size: u64) -> u64 {
    match size {
        0..=8 => 8,
        9..=128 => size.next_multiple_of(16),
        _ => size.next_multiple_of(1 << ((size - 1).ilog2() - 2)),
    }
}

/// The sizes that jemalloc gives, by its manual's table.
#[test]
fn classes_of_jemalloc() {
    for (size, class) in [
        (1, 8),
        (9, 16),
        (24, 32),
        (128, 128),
        (129, 160),
        (1000, 1024),
        (1025, 1280),
        (5000, 5120),
    ] {
        assert_eq!(class_of_jemalloc(size), class, "{size}");
    }
}

/// Bytes that jemalloc gave for a stack's blocks, if they are all of one size.
fn given(stack: &Stack) -> u64 {
    let live = stack.outstanding;
    match live.blocks {
        0 => 0,
        blocks => blocks * class_of_jemalloc(live.bytes / blocks),
    }
}

/// A redis server with jemalloc and fifty megabytes of data, by its `INFO memory`.
#[test]
fn redis() {
    let directory = directory("allocator_statistics-redis");
    let socket = directory.join("socket");
    let mut server = Program::spawn(
        Command::new(stock("/usr/bin/redis-server", "redis-server"))
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .current_dir(&directory),
    );
    let mut connection = Redis::connect(&socket);
    let before = connection.used_memory();
    let memleak = Memleak::attach(server.pid(), &[]);
    connection.fill(40_000, &"v".repeat(1200));
    let after = connection.used_memory();
    let report: Report = memleak.finish();
    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{report}");
    let ours = report.stacks.iter().map(given).sum();
    check_agree("redis", ours, after - before);
    connection.send("SHUTDOWN NOSAVE\r\n");
    assert!(server.end().success());
    fs::remove_dir_all(directory).expect("our own directory");
}
