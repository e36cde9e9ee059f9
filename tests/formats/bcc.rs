//! Scripts and tests that were written for bcc's memleak work with this one.
//!
//! bcc's acceptance test: the program under test is started with `-c` and allocates 30000 bytes after the
//! first report; of all output, the last line with "byte" must begin with exactly that number. And what
//! people do with the output: a script that keeps it in a file, one that adds it up, and one-liners of awk
//! and grep.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, require_root};

const KINDS: [&str; 8] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "valloc",
    "memalign",
    "pvalloc",
    "aligned_alloc",
];

/// The number that the last line with "byte" begins with, as bcc's test finds it.
fn leaked(program: &Path, kind: &str, stay: &str, format: &str) -> String {
    let command = format!("{} {kind} 30000 {stay}", program.display());
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["-c", &command, "-T", "1", "1", "--format", format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("memleak was built");
    let mut input = memleak.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(memleak.stdout.take().expect("a pipe"))
        .lines()
        .map(|line| line.expect("UTF-8"));
    let mut before = Vec::new();
    let first = lines.find(|line| {
        before.push(line.clone());
        line.contains("with outstanding allocations")
    });
    assert!(first.is_some(), "{kind}: no report");
    before.pop();
    check_preamble(&before, &command);
    input.write_all(b"\n").expect("the program reads our pipe");
    // The trace ends with the program. One that stays runs until a report shows its allocation, however long
    // that takes; then its input is closed, and it ends.
    let has_word = |line: &String| line.contains("byte");
    let seen = (stay == "stays").then(|| lines.find(has_word)).flatten();
    drop(input);
    let status = memleak.wait().expect("a child of ours");
    assert!(status.success(), "{kind}: {status}");
    let last = lines.filter(has_word).last().or(seen);
    let last = last.unwrap_or_else(|| panic!("{kind}: no line with the word"));
    last.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Checks the lines of bcc's memleak ahead of the first report of a program that it has started.
fn check_preamble(lines: &[String], command: &str) {
    let [executing, attaching] = lines else {
        panic!("two lines: {lines:?}");
    };
    let expected = format!("Executing '{command}' and tracing the resulting process.");
    assert_eq!(*executing, expected);
    let pid = attaching
        .strip_prefix("Attaching to pid ")
        .and_then(|rest| rest.strip_suffix(", Ctrl+C to quit."));
    assert!(pid.is_some_and(|pid| pid.parse::<u32>().is_ok()), "{attaching}");
}

/// Each function's block is reported with exactly the size that was asked for, whether the program stays or
/// has exited by the second report.
#[test]
fn exactly_30000() {
    require_root();
    let program = &compile(&directory("bcc"), "amounts/acceptance.c", &["-O2"]);
    let cases = [("stays", "bcc"), ("exits", "bcc")];
    for kind in KINDS {
        // In parallel, as they wait most of the time.
        thread::scope(|scope| {
            let start = |(stay, format)| scope.spawn(move || leaked(program, kind, stay, format));
            for (case, found) in cases.iter().zip(cases.map(start)) {
                let found = found.join().expect("the trace goes well");
                assert_eq!(found, "30000", "{kind}, {case:?}");
            }
        });
    }
}

/// Script that parses calls as tuples of Python, and prints what they have in common and what each is about.
const TUPLES: &str = r#"
import ast, re, sys
calls = [ast.literal_eval(line) for line in sys.stdin]
print(len({(comm, pid) for comm, pid, *_ in calls}), all(len(call) == 6 for call in calls))
addresses = []
for *_, time, message in calls:
    def name(found):
        addresses.append(found[2]) if found[2] not in addresses else None
        return found[1] + "ABC"[addresses.index(found[2])]
    print(re.sub(r"((?:result|address) = )([0-9a-f]+)", name, message.decode()))
"#;

/// Calls are written one by one, as by bcc's memleak: requests, frees, results.
#[test]
fn calls_are_traced_like_bcc() {
    require_root();
    let program = compile(&directory("bcc-told"), "amounts/acceptance.c", &["-O2"]);
    let command = format!("{} realloc 30000 exits", program.display());
    let output = filtered(
        env!("CARGO_BIN_EXE_memleak"),
        &["-c", &command, "-t", "--format", "bcc"],
        "\n",
    );
    let (preamble, calls): (Vec<_>, Vec<_>) = output.lines().partition(|line| !line.starts_with('('));
    assert_eq!(preamble.len(), 2, "{output}");
    let found = filtered("python3", &["-c", TUPLES], &(calls.join("\n") + "\n"));
    let expected = "1 True\nalloc entered, size = 10\nalloc exited, size = 10, result = A\nalloc entered, size = 30000\n\
                    free entered, address = A, size = 10\nalloc exited, size = 30000, result = B\n";
    // The last block may grow in place.
    assert_eq!(
        found.replace("30000, result = A", "30000, result = B"),
        expected,
        "{output}"
    );
}

/// Bytes that `calls.c` leaves, in as many blocks from as many stacks.
const LEFT_BYTES: u64 = 9_450_496;
const LEFT_BLOCKS: u64 = 19;

/// Traces `calls.c` and returns what is written, all blocks shown.
fn output_of(format: &str) -> String {
    let flags = [
        "-O2",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-pthread",
    ];
    let path = compile(&directory(&format!("bcc-{format}")), "allocators/calls.c", &flags);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--format", format, "-o", "0", "-T", "100", "-a"]);
    program.step("done");
    let text = memleak.finish_text();
    program.end();
    text
}

/// Runs a tool with `input` and returns what it writes.
fn filtered(tool: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let mut pipe = child.stdin.take().expect("a pipe");
    let text = input.to_owned();
    let writer = thread::spawn(move || pipe.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("a child of ours");
    writer.join().expect("a thread of ours").expect("it reads all");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Script that adds up a report: an entry begins with its line, and the frames below belong to it.
const ANALYSER: &str = r#"
import re, sys
entry = re.compile(r"^\s*(\d+) bytes in (\d+) allocations from stack$")
frame = re.compile(r"(?:\]|0x[0-9a-f]{16}\s) ?([A-Za-z_]\w*)\+0x")
sites = []
for line in sys.stdin:
    found = entry.match(line.rstrip("\n"))
    if found:
        sites.append((int(found[1]), int(found[2]), []))
    elif sites and (name := frame.search(line)):
        sites[-1][2].append(name[1])
size, blocks = sum(site[0] for site in sites), sum(site[1] for site in sites)
print(f"{size:,} bytes in {blocks} blocks from {len(sites)} stacks, {size // blocks} each")
for site in sorted(sites, reverse=True)[:2]:
    print(site[0], site[2][0])
"#;

/// A program that reads reports finds the same in each format that has bcc's entries.
#[test]
fn reports_are_added_up() {
    for format in ["bcc", "libbpf"] {
        let output = output_of(format);
        let sum = filtered("python3", &["-c", ANALYSER], &output);
        let expected = format!(
            "9,450,496 bytes in {LEFT_BLOCKS} blocks from {LEFT_BLOCKS} stacks, {} each\n6291456 realloc_large\n3145728 \
             malloc_large_kept\n",
            LEFT_BYTES / LEFT_BLOCKS
        );
        assert_eq!(sum, expected, "{format}:\n{output}");
        // The largest entries; in one dialect they begin with the number.
        let filter = match format {
            "libbpf" => "/^[0-9]+ bytes/ && $1 >= 1048576",
            _ => "$2 == \"bytes\" && $1 >= 1048576",
        };
        let large = filtered("awk", &[filter], &output);
        assert_eq!(large.lines().count(), 2, "{format}: {large}");
        let around = filtered("grep", &["-A", "3", "malloc_large_kept+"], &output);
        assert!(around.contains("main+0x"), "{format}: {around}");
        let of_blocks = filtered("grep", &["-c", "addr = "], &output);
        assert_eq!(of_blocks.trim(), LEFT_BLOCKS.to_string(), "{format}");
        check_dialect(format, &output);
    }
}

/// Script that prints the lines of a report that do not match a pattern.
const STRANGERS: &str = r#"
import re, sys
form = re.compile(sys.argv[1])
print("".join(line for line in sys.stdin if not form.fullmatch(line.rstrip("\n"))), end="")
"#;

/// Checks that every line is one of the dialect's.
fn check_dialect(format: &str, output: &str) {
    const BCC: &str = r"Attaching to pid \d+, Ctrl\+C to quit\.|\[\d\d:\d\d:\d\d\] Top 100 stacks with outstanding allocations:|\taddr = [0-9a-f]+ size = \d+|\t\d+ bytes in \d+ allocations from stack|\t\t0x[0-9a-f]{16}\t\S.*\+0x[0-9a-f]+ \[[^/]+\]";
    const LIBBPF: &str = r"Attaching to pid \d+, Ctrl\+C to quit\.|\[\d+:\d+:\d+\] Top 19 stacks with outstanding allocations:|\d+ bytes in \d+ allocations from stack|\taddr = 0x[0-9a-f]+ size = \d+|\t\d+ \[<[0-9a-f]{16}>\] \S.*\+0x[0-9a-f]+ \[/.+\]";
    let form = if format == "bcc" { BCC } else { LIBBPF };
    let strangers = filtered("python3", &["-c", STRANGERS, form], output);
    assert_eq!(strangers, "", "{format}:\n{output}");
}

/// A script that traces a process for some seconds with few frames and keeps the report under the time's
/// name.
const KEEPER: &str = r#"
set -eu
report="leak_report_$(date +%Y%m%d_%H%M%S).txt"
"$1" -p "$2" --format bcc -T 20 -s 1 -o 0 --perf-max-stack-depth 2 "$3" 1 >"$report" 2>messages
grep -c 'allocations from stack' "$report"
awk '/0x/ { frames++; if (frames > most) most = frames } /allocations from stack/ { frames = 0 } END { print most }' "$report"
"#;

/// The script works, and no stack has more frames than it asks for.
#[test]
fn reports_are_kept() {
    require_root();
    let directory = directory("bcc-kept");
    let path = compile(&directory, "allocators/calls.c", &["-O2", "-pthread"]);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let script = Command::new("sh")
        .args(["-c", KEEPER, "sh", env!("CARGO_BIN_EXE_memleak")])
        .args([program.pid().to_string(), "2".to_owned()])
        .current_dir(&directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    thread::scope(|scope| {
        let output = scope.spawn(|| script.wait_with_output().expect("a child of ours"));
        // Calls before the attach are not in the report: wait for memleak to say that it is there.
        let messages = directory.join("messages");
        while !std::fs::read_to_string(&messages).is_ok_and(|text| text.contains("tracing ")) {
            thread::sleep(Duration::from_millis(10));
        }
        program.step("done");
        let output = output.join().expect("the script ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].parse::<u32>().is_ok_and(|entries| entries > 10),
            "{text}"
        );
        assert_eq!(lines[1], "2", "{text}");
    });
}
