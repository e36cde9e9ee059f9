//! Every stack of real processes is the one that an independent witness finds: a library in the process that
//! walks each allocation by libgcc's unwinder (`tests/programs/stacks/ground_truth.c`).
//!
//! The two must agree exactly: the same stacks, each with the same number of calls and bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::program::{Program, compile, directory, stock};
use memleak_test::witness::{READY_TO_DONE, Script, Witness};

/// Runs `command` under the witness and memleak from its "ready" to its "done", as [`check_script`].
#[track_caller]
fn check(directory: &Path, command: &mut Command, least_stacks: usize, least_blocks: u64) {
    check_script(directory, command, &READY_TO_DONE, least_stacks, least_blocks);
}

/// Runs `command` under the witness and memleak; checks that they agree, that every stack has its end, and
/// that there were at least `least_stacks` distinct stacks and `least_blocks` blocks.
#[track_caller]
fn check_script(
    directory: &Path,
    command: &mut Command,
    script: &Script,
    least_stacks: usize,
    least_blocks: u64,
) {
    let accounts = Witness::preloaded(directory).watch(command, script, &[]);
    accounts.check_equal();
    accounts.check_complete();
    let stacks = accounts.witnessed.len();
    assert!(stacks >= least_stacks, "{stacks} stacks");
    let allocated = accounts.report.allocated();
    assert!(allocated.blocks >= least_blocks, "{allocated:?}");
}

fn test_directory(test: &str) -> PathBuf {
    directory(&format!("ground_truth-{test}"))
}

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

#[track_caller]
fn check_plain(test: &str, source: &str, flags: &[&str], arguments: &[&str], (stacks, blocks): (usize, u64)) {
    let directory = test_directory(test);
    let path = compile(&directory, source, &[&RELEASE[..], flags].concat());
    check(&directory, Command::new(path).args(arguments), stacks, blocks);
}

/// Asks the leaker how many blocks it leaked; it is paused afterwards.
fn ask(leaker: &mut Program) -> u64 {
    leaker.send_line("");
    leaker.line().parse().expect("a number")
}

#[track_caller]
fn check_leaker(test: &str, flags: &[&str]) {
    let directory = test_directory(test);
    let path = compile(&directory, "amounts/leaker.cpp", &[&RELEASE[..], flags].concat());
    let script = Script {
        begin: |leaker| {
            ask(leaker);
        },
        work: |leaker| {
            let mut leaked = 0;
            while leaked < 600 {
                leaker.send_line("");
                leaked = ask(leaker);
            }
        },
    };
    // It has one stack: answering allocates nothing.
    check_script(&directory, Command::new(path).args(["0", "10"]), &script, 1, 500);
}

/// The program of the problem statement.
#[test]
fn leaker() {
    check_leaker("leaker", &[]);
}

/// The program of the problem statement, through malloc.
#[test]
fn leaker_with_malloc() {
    check_leaker("leaker-malloc", &["-DWITH_MALLOC"]);
}

/// Plain C: one leak, two callers.
#[test]
fn plain() {
    check_plain("plain", "amounts/plain.c", &[], &["1000"], (2, 1000));
}

/// Every allocation function.
#[test]
fn every_function() {
    check_plain(
        "calls",
        "allocators/calls.c",
        &["-fno-optimize-sibling-calls"],
        &[],
        (30, 30),
    );
}

/// Operator new in its forms, and exceptions.
#[test]
fn operator_new() {
    check_plain("new", "allocators/operator_new.cpp", &[], &[], (9, 9));
}

/// Signal handlers, on top of a known stack.
#[test]
fn signal_handlers() {
    check_plain("signal", "stacks/signal.c", &[], &["other"], (2, 2));
}

/// Exceptions, threads, callbacks, containers, streams and regular expressions of a C++ program.
#[test]
fn mixture() {
    check_plain("mixture", "stacks/mixture.cpp", &[], &["20"], (100, 50_000));
}

/// Exceptions, threads, callbacks, containers, streams and regular expressions of a C++ program without
/// optimisation.
#[test]
fn mixture_unoptimised() {
    check_plain(
        "mixture-O0",
        "stacks/mixture.cpp",
        &["-O0"],
        &["8"],
        (100, 20_000),
    );
}

/// A large program as a distribution built it: its interpreter, extension modules, SQLite and expat.
#[test]
fn python() {
    let script = "
import json, re, sys, zlib, hashlib, decimal, datetime, sqlite3, xml.etree.ElementTree as tree
import array, collections, csv, io, itertools, pickle, struct
def work(depth, seed):
    if depth:
        return work(depth - 1, seed + 1)
    data = [{'a': i, 'b': [str(i)] * 5, 'c': {'x': re.sub('a', 'b', 'banana%d' % i)}} for i in range(60)]
    text = json.dumps(data)
    json.loads(text)
    zlib.decompress(zlib.compress(text.encode()))
    hashlib.sha256(text.encode()).hexdigest()
    sorted(text, key=lambda letter: -ord(letter))
    str(decimal.Decimal(seed) / 7)
    datetime.datetime(2000, 1, 1).strftime('%Y-%m-%d')
    database = sqlite3.connect(':memory:')
    database.execute('create table t(a integer primary key, b text)')
    database.executemany('insert into t(b) values (?)', [(item['c']['x'],) for item in data])
    database.execute('select b, count(*), max(a) from t where b like ? group by b order by 2', ('%n%',)).fetchall()
    database.close()
    pickle.loads(pickle.dumps(data))
    csv.writer(io.StringIO()).writerows(csv.reader(text.split('}')))
    collections.Counter(text).most_common(3)
    re.findall('(b)|(n)a', text.encode('utf-16').decode('utf-16'))
    json.dumps(data, indent=1, sort_keys=True)
    array.array('d', itertools.accumulate(struct.unpack('4h', struct.pack('4h', 1, 2, 3, seed)))).tobytes()
    tree.tostring(tree.fromstring('<a>' + '<b c=\"d\">text</b>' * 20 + '</a>'))
    try:
        int('x%d' % seed)
    except ValueError as error:
        return str(error)
work(1, 1)
print('ready', flush=True)
sys.stdin.readline()
for round in range(40):
    work(round % 10, round)
print('done', flush=True)
sys.stdin.readline()
";
    let python = stock("/usr/bin/python3", "python3");
    let mut command = Command::new(python);
    // Each object is a call of malloc.
    command
        .args(["-c", script])
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "1");
    check(&test_directory("python"), &mut command, 500, 100_000);
}

/// Extension modules that are loaded one after the other, from before main to the exit: each allocates before
/// its table is in the kernel.
#[test]
fn python_imports() {
    let script = "import json, decimal, sqlite3, ctypes, ssl, hashlib, xml.etree.ElementTree, unicodedata, asyncio, multiprocessing, lzma, \
                  bz2, curses, readline";
    let python = stock("/usr/bin/python3", "python3");
    let mut command = Command::new(python);
    command.args(["-c", script]).env("PYTHONHASHSEED", "1");
    let accounts = Witness::preloaded(&test_directory("python-imports")).watch_whole(&mut command, &[]);
    accounts.check_equal();
    accounts.check_complete();
    let unwinding = &accounts.report.unwinding;
    assert!(unwinding.finished_in_user_space > 100, "{unwinding:?}");
    assert_eq!(unwinding.not_finished, 0, "{unwinding:?}");
}
