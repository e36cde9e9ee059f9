//! Every stack of real processes, compared with an independent witness: a library in the process that walks each
//! allocation by libgcc's unwinder (`tests/programs/ground_truth.c`). Needs root.
//!
//! The two must agree exactly: the same stacks, each with the same number of calls and bytes. Three things are
//! made equal beforehand:
//! - libgcc reports a frame at address 0 above the last one; the witness takes it as the end of the stack.
//! - The library's own frame, the caller of glibc's function and so memleak's first, is left out.
//! - Modules are known by their file name and addresses are relative to the load address.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::memleak::Memleak;
use common::program::{Program, compile, compile_as, directory, stock};
use common::report::{Amount, Report};

/// The library's file name.
const WITNESS: &str = "libground_truth.so";

/// One stack: the allocation function, whether the stack is known to its end, modules and addresses in them.
type Call = (String, bool, Vec<(String, u64)>);
/// What was allocated from each.
type Calls = BTreeMap<Call, Amount>;

fn add(calls: &mut Calls, call: Call, amount: Amount) {
    let sum = calls.entry(call).or_default();
    *sum = [*sum, amount].into_iter().sum();
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The loader knows libraries by links to them.
fn resolved_name(path: &str) -> String {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    file_name(&real.to_string_lossy())
}

/// What memleak says.
fn reported(report: &Report) -> Calls {
    let mut calls = Calls::new();
    for stack in &report.stacks {
        let place = |frame: &common::report::Frame| match frame.module {
            Some(_) => (frame.module_name().to_owned(), frame.svma()),
            None => ("?".to_owned(), 0),
        };
        let (own, frames) = stack.frames.split_at(1);
        assert_eq!(own[0].module_name(), WITNESS, "called past the witness:\n{stack}");
        let frames = frames.iter().map(place).collect();
        let call = (stack.allocator.clone(), stack.end == "complete", frames);
        add(&mut calls, call, stack.allocated);
    }
    calls
}

/// What the library says.
fn witnessed(file: &Path) -> Calls {
    let text = fs::read_to_string(file).expect("the witness's records");
    let mut calls = Calls::new();
    for line in text.lines() {
        let (call, amount) = witness(line).unwrap_or_else(|| panic!("not a record: {line}"));
        add(&mut calls, call, amount);
    }
    calls
}

fn witness(line: &str) -> Option<(Call, Amount)> {
    let mut words = line.split(' ');
    let allocator = words.next()?.to_owned();
    let blocks = words.next()?.parse().ok()?;
    let bytes = words.next()?.parse().ok()?;
    let complete = words.next()? == "end";
    let mut frames = Vec::new();
    while let Some(module) = words.next() {
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        frames.push((resolved_name(module), address));
    }
    Some(((allocator, complete, frames), Amount { bytes, blocks }))
}

/// Stacks on which the two do not agree, for people.
fn differences(reported: &Calls, witnessed: &Calls) -> String {
    let mut text = String::new();
    let mut number = 0;
    for call in reported
        .keys()
        .chain(witnessed.keys().filter(|call| !reported.contains_key(call)))
    {
        let (ours, theirs) = (reported.get(call), witnessed.get(call));
        if ours == theirs {
            continue;
        }
        number += 1;
        if number > 6 {
            continue;
        }
        let (allocator, complete, frames) = call;
        text += &format!("{allocator}, complete: {complete}; memleak {ours:?}, witness {theirs:?}\n");
        for (module, address) in frames {
            text += &format!("    {module} {address:#x}\n");
        }
    }
    if number > 0 {
        text += &format!(
            "{number} differences; {} stacks by memleak, {} by the witness\n",
            reported.len(),
            witnessed.len()
        );
    }
    text
}

/// Runs `command` under the witness and memleak from its "ready" to its "done", as [`check_script`].
#[track_caller]
fn check(directory: &Path, command: &mut Command, least_stacks: usize, least_blocks: u64) {
    let script = Script {
        begin: |program| program.expect("ready"),
        work: |program| program.step("done"),
    };
    check_script(directory, command, script, least_stacks, least_blocks);
}

/// How to bring a program to where it stands still, and from there through its work to where it does again.
struct Script {
    begin: fn(&mut Program),
    work: fn(&mut Program),
}

/// Runs `command` under the witness and memleak; checks that they agree and that there were at least so many
/// distinct stacks and blocks.
#[track_caller]
fn check_script(
    directory: &Path,
    command: &mut Command,
    script: Script,
    least_stacks: usize,
    least_blocks: u64,
) {
    let library = compile_as(
        &directory.join(WITNESS),
        "ground_truth.c",
        &["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-builtin"],
    );
    let records = directory.join("records");
    let mut program = Program::spawn(command.env("LD_PRELOAD", library).env("GROUND_TRUTH", &records));
    (script.begin)(&mut program);
    program.signal("USR1");
    program.expect("recording");
    let memleak = Memleak::attach(program.pid(), &[]);
    (script.work)(&mut program);
    let report = memleak.finish();
    program.signal("USR2");
    program.expect("recorded");

    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    let (reported, witnessed) = (reported(&report), witnessed(&records));
    let differences = differences(&reported, &witnessed);
    assert!(differences.is_empty(), "{differences}{:?}", report.unwinding);
    assert!(witnessed.len() >= least_stacks, "{} stacks", witnessed.len());
    assert!(
        report.allocated().blocks >= least_blocks,
        "{:?}",
        report.allocated()
    );
    assert!(
        witnessed.keys().all(|(_, complete, _)| *complete),
        "every stack has its end"
    );
}

fn test_directory(test: &str) -> PathBuf {
    directory(&format!("ground_truth-{test}"))
}

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

#[track_caller]
fn check_plain(test: &str, source: &str, flags: &[&str], arguments: &[&str], stacks: usize, blocks: u64) {
    let directory = test_directory(test);
    let path = compile(&directory, source, &[&RELEASE[..], flags].concat());
    check(&directory, Command::new(path).args(arguments), stacks, blocks);
}

/// Asks the leaker how many blocks it leaked; it stands still afterwards.
fn ask(leaker: &mut Program) -> u64 {
    leaker.tell("");
    leaker.line().parse().expect("a number")
}

#[track_caller]
fn check_leaker(test: &str, flags: &[&str]) {
    let directory = test_directory(test);
    let path = compile(&directory, "leaker.cpp", &[&RELEASE[..], flags].concat());
    let script = Script {
        begin: |leaker| {
            ask(leaker);
        },
        work: |leaker| {
            let mut leaked = 0;
            while leaked < 600 {
                leaker.tell("");
                leaked = ask(leaker);
            }
        },
    };
    // It has one stack: answering allocates nothing.
    check_script(&directory, Command::new(path).args(["0", "10"]), script, 1, 500);
}

/// The program of the problem statement.
#[test]
fn leaker() {
    check_leaker("leaker", &[]);
}

/// The same through malloc.
#[test]
fn leaker_with_malloc() {
    check_leaker("leaker-malloc", &["-DWITH_MALLOC"]);
}

/// Plain C: one leak, two callers.
#[test]
fn plain() {
    check_plain("plain", "plain.c", &[], &["1000"], 2, 1000);
}

/// Every allocation function.
#[test]
fn every_function() {
    check_plain("calls", "calls.c", &["-fno-optimize-sibling-calls"], &[], 30, 30);
}

/// Operator new in its forms, and exceptions.
#[test]
fn operator_new() {
    check_plain("new", "operator_new.cpp", &[], &[], 9, 9);
}

/// Signal handlers, on top of a known stack.
#[test]
fn signal_handlers() {
    check_plain("signal", "signal.c", &[], &["other"], 2, 2);
}

/// Exceptions, threads, callbacks, containers, streams and regular expressions of a C++ program.
#[test]
fn mixture() {
    check_plain("mixture", "mixture.cpp", &[], &["20"], 100, 50_000);
}

/// The same without optimisation.
#[test]
fn mixture_unoptimised() {
    check_plain("mixture-O0", "mixture.cpp", &["-O0"], &["8"], 100, 20_000);
}

/// A large program as a distribution built it: its interpreter, extension modules, SQLite and expat.
#[test]
fn python() {
    let script = "
import json, re, sys, zlib, hashlib, decimal, datetime, sqlite3, xml.etree.ElementTree as tree
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
