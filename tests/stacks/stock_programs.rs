//! Programs as the distribution built them, without frame pointers, under load for some seconds: nearly every
//! walk is complete.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, free_port, stock};
use memleak_test::report::Report;

/// Walks of which one may be incomplete.
const ONE_IN: u64 = 100;

/// A child without a conversation; killed when dropped.
struct Load(Child);

impl Load {
    fn start(command: &mut Command) -> Self {
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(
            quiet
                .spawn()
                .unwrap_or_else(|error| panic!("{command:?}: {error}")),
        )
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Traces `pid` for three seconds; checks and prints the share of complete walks.
#[track_caller]
fn check(name: &str, pid: u32) {
    let memleak = Memleak::attach_reporting(pid, &[], &["3", "1"]);
    let report = memleak.last_report();
    report.check_sums();
    let walks = &report.unwinding.allocations;
    let total: u64 = walks.values().sum();
    let complete = walks["complete"];
    print(&format!(
        "{name}: {complete} of {total} walks complete; {walks:?}"
    ));
    print_incomplete(&report);
    assert!(total > 10_000, "{name} is under load: {total} allocations");
    assert!((total - complete) * ONE_IN <= total, "{name}: {walks:?}");
    assert_eq!(report.lost.blocks, 0, "{name}: {:?}", report.lost);
}

/// Prints to the terminal, past the capture of successful tests' output.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints the most frequent ends of incomplete stacks.
fn print_incomplete(report: &Report) {
    let mut stacks: Vec<_> = report
        .stacks
        .iter()
        .filter(|stack| stack.end != "complete")
        .collect();
    stacks.sort_by_key(|stack| std::cmp::Reverse(stack.allocated.blocks));
    for stack in stacks.iter().take(3) {
        let last = stack.frames.last().map_or("no frame", |frame| frame.name());
        let (blocks, end, at) = (stack.allocated.blocks, &stack.end, &stack.end_at);
        print(&format!("    {blocks} {end} behind {last} at {at:?}"));
    }
}

/// The interpreter, with regular expressions, JSON and coroutines.
#[test]
fn python() {
    let script = "
import json, re, asyncio
print('ready', flush=True)
while True:
    data = [{'a': i, 'b': [str(i)] * 5, 'c': {'x': re.sub('a', 'b', 'banana%d' % i)}} for i in range(2000)]
    json.loads(json.dumps(data))
    asyncio.run(asyncio.sleep(0))
";
    let python = stock("/usr/bin/python3", "python3");
    let program = Program::start(&python, &["-c", script]);
    program.expect("ready");
    check("python3", program.pid());
}

/// A server with 20 clients.
#[test]
fn redis() {
    let server = stock("/usr/bin/redis-server", "redis-server");
    let benchmark = stock("/usr/bin/redis-benchmark", "redis-tools");
    let port = free_port().to_string();
    let mut command = Command::new(server);
    let program = Program::spawn(command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]));
    while !program.line().contains("Ready to accept connections") {}
    let tests = "set,get,lpush,sadd,hset,zadd,lrange_100";
    let clients = Load::start(Command::new(benchmark).args([
        "-p",
        &port,
        "-q",
        "-n",
        "100000000",
        "-c",
        "20",
        "-t",
        tests,
    ]));
    check("redis-server", program.pid());
    drop(clients);
}

/// A database in memory.
#[test]
fn sqlite() {
    let sqlite = stock("/usr/bin/sqlite3", "sqlite3");
    let mut program = Program::start(&sqlite, &[":memory:"]);
    // A child process says it: the shell's own output is buffered.
    program.send_line(".system echo ready");
    program.expect("ready");
    program.send_line(
        "create table t(a, b); \
        with recursive c(x) as (select 1 union all select x + 1 from c) \
        insert into t select x, hex(randomblob(20)) from c limit 300000000;",
    );
    check("sqlite3", program.pid());
}

/// A debugger that searches its own symbols over and over.
#[test]
fn gdb() {
    let gdb = stock("/usr/bin/gdb", "gdb");
    let script = "python\nprint('ready', flush=True)\nwhile True: gdb.execute('info functions malloc', to_string=True)";
    let path = gdb.to_str().expect("UTF-8");
    let program = Program::start(&gdb, &["-nx", "-batch", "-ex", script, path]);
    while program.line() != "ready" {}
    check("gdb", program.pid());
}
