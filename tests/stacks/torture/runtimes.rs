//! Programs whose code is not all compiled ahead, or not by the usual compilers: stacks go through code
//! without CFI, or with CFI that is not true, to their end. The truth is in the blocks: their size says how
//! deep the calls were.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, directory, directory_path, run_tool, source, stock};
use memleak_test::report::{Frame, Report, Stack};

/// Traces a program from its "ready" to its "done".
#[track_caller]
fn trace(program: &mut Program) -> Report {
    program.await_reading();
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    program.await_reading();
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    report
}

/// Size of blocks in `frames.js` without the depth of their calls, which is added, in bytes; and the greatest
/// depth.
const JS_SIZE: u64 = 70_000;
const JS_DEPTH: u64 = 6;
/// Number of blocks of each depth.
const JS_BLOCKS: u64 = 500;

/// Returns the depth of the calls that allocated these blocks.
fn js_depth(stack: &Stack) -> Option<u64> {
    let depth = (stack.allocated.bytes / stack.allocated.blocks).checked_sub(JS_SIZE)?;
    (1..=JS_DEPTH).contains(&depth).then_some(depth)
}

/// Compiled JavaScript keeps frame pointers: through it and node's own interpreter, which has no CFI either,
/// each stack is walked to its end, with one frame more for each call more. Functions are named as node names
/// them in its map for perf.
#[test]
fn node() {
    check_node("node", "--perf-basic-prof");
}

/// Stacks of node are walked to their end, and functions have the names of its dump for perf.
#[test]
fn node_with_dump() {
    check_node("node-dump", "--perf-prof");
}

/// Runs node with a flag that gives functions names.
#[track_caller]
fn check_node(test: &str, names: &str) {
    // node writes its dump, and a log, where it runs.
    let directory = directory(&format!("torture-runtimes-{test}"));
    let path = stock("/usr/bin/node", "nodejs");
    let mut node = Program::spawn(
        Command::new(&path)
            .current_dir(&directory)
            .args(["--single-threaded", names])
            .args(without_inlining(&path))
            .arg(source("torture/frames.js")),
    );
    node.expect("ready");
    let report = trace(&mut node);
    let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", node.pid()));
    let dump = std::fs::read(directory.join(format!("jit-{}.dump", node.pid())));
    let is_cut = dump.is_ok_and(|dump| is_cut(&dump));
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    let mut callers: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for stack in &report.stacks {
        let Some(depth) = js_depth(stack) else { continue };
        *blocks.entry(depth).or_default() += stack.allocated.blocks;
        assert_eq!(stack.end, "complete", "{stack}");
        let compiled = |frame: &&_| is_compiled(frame);
        let frames = stack.frames.iter().filter(compiled).count();
        assert!(frames as u64 > depth, "compiled functions have frames:\n{stack}");
        let count =
            |is: &dyn Fn(&Frame) -> bool| stack.frames.iter().filter(|frame| is(frame)).count() as u64;
        let recursions = count(&|frame| is_function(frame, "recurse"));
        let others = count(&|frame| is_function(frame, "work"));
        let nameless = count(&|frame| is_cut && is_compiled(frame) && frame.symbol.is_none());
        let is_named = recursions == depth && others > 0;
        assert!(
            is_named || (nameless > 0 && recursions + others + nameless == depth + 1),
            "node says what they are called:\n{stack}"
        );
        callers.entry(depth).or_default().push(stack.frames.len());
    }
    let expected: BTreeMap<u64, u64> = (1..=JS_DEPTH).map(|depth| (depth, JS_BLOCKS)).collect();
    assert_eq!(blocks, expected);
    let base = callers[&1][0] - 1;
    for (&depth, lengths) in &callers {
        for &length in lengths {
            assert_eq!(
                length as u64,
                base as u64 + depth,
                "a frame for each call: {callers:?}"
            );
        }
    }
}

/// Returns true if a dump ends within a record: node writes the rest, with names of the functions that were
/// compiled last, when its buffer is full (2 MiB in node 24).
///
/// A header with its length at 8, and records with theirs at 4 (Linux, `tools/perf/Documentation/
/// jitdump-specification.txt`).
fn is_cut(dump: &[u8]) -> bool {
    let number = |at: usize| Some(u32::from_le_bytes(*dump.get(at..)?.first_chunk()?) as usize);
    let mut record = number(8);
    while let Some(at) = record.filter(|&at| at < dump.len()) {
        record = number(at + 4).map(|length| at + length.max(16));
    }
    record != Some(dump.len())
}

/// Flags that keep this version's compilers from inlining functions.
#[track_caller]
fn without_inlining(node: &Path) -> Vec<&'static str> {
    let known = Command::new(node)
        .arg("--v8-options")
        .output()
        .expect("it is there");
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let mut flags = vec!["--no-turbo-inlining", "--no-maglev-inlining"];
    flags.retain(|flag| known.contains(&flag.replace("--no-", " --")));
    flags
}

/// Returns whether a frame is of a function of `frames.js`, however it was compiled.
///
/// Its name is `JS:*recurse /path/frames.js:8:17`; up to node 18 `LazyCompile:*recurse …`, or
/// `Function:^work …` if it was not compiled lazily. In node 24 it can be `JS:*'recurse …`, too.
fn is_function(frame: &Frame, function: &str) -> bool {
    let name = frame.symbol.as_deref().unwrap_or_default();
    let Some((called, place)) = name.split_once(' ') else {
        return false;
    };
    let tags = ["LazyCompile:", "Function:", "JS:"];
    let Some(called) = tags.iter().find_map(|tag| called.strip_prefix(tag)) else {
        return false;
    };
    place.contains("frames.js") && called.trim_start_matches(['*', '~', '^', '+', '\'']) == function
}

/// Returns whether a frame is of code that was made at run time.
fn is_compiled(frame: &Frame) -> bool {
    frame.module.is_none() && frame.found_by == "fp"
}

/// Stacks of C functions that a goroutine calls go up to where Go's runtime changed stacks, and say that the
/// walk ended there. Frames that older calls left on C's stack are not taken for callers.
/// Position-independent code changes stacks by other instructions.
#[test]
fn cgo() {
    let directory = directory("torture-runtimes-cgo");
    for (name, flags) in [
        ("plain", &[][..]),
        ("pie", &["-buildmode=pie"]),
        ("stripped", &["-buildmode=pie", "-ldflags=-s -w"]),
    ] {
        let path = build_go(&directory, "torture/cgo.go", name, flags);
        let mut program = Program::start(&path, &[]);
        program.expect("ready");
        let report = trace_go(&mut program);
        check_cgo(&report, 50 * 20, name == "stripped");
    }
}

/// Stacks of C functions that a library in Go calls end there as well: in programs in C and Python, to whose
/// stack Go's runtime goes back.
#[test]
fn cgo_library() {
    let directory = directory("torture-runtimes-cgo-library");
    let library = build_go(
        &directory,
        "torture/cgo_library.go",
        "libgo.so",
        &["-buildmode=c-shared"],
    );
    let in_c = directory.join("user");
    run_tool(
        Command::new("cc")
            .args(["-O2", "-o"])
            .args([&in_c, &source("torture/cgo_user.c"), &library]),
    );
    let script = format!(
        "import ctypes, sys
go = ctypes.CDLL({library:?})
print('ready', flush=True)
sys.stdin.readline()
for depth in range(100): go.Enter(depth % 7)
print('done', flush=True)
sys.stdin.readline()
"
    );
    let mut in_python = Command::new(stock("/usr/bin/python3", "python3"));
    in_python.args(["-c", &script]);
    for mut command in [Command::new(in_c), in_python] {
        let mut program = Program::spawn(&mut command);
        program.expect("ready");
        check_cgo(&trace_go(&mut program), 100, false);
    }
}

/// Builds a program or library in Go with C in it.
#[track_caller]
fn build_go(directory: &Path, program: &str, name: &str, flags: &[&str]) -> PathBuf {
    let path = directory.join(name);
    run_tool(
        Command::new(stock("/usr/bin/go", "golang-go"))
            .arg("build")
            .args(flags)
            .arg("-o")
            .args([&path, &source(program)])
            // Shared by both tests: position-independent code is compiled once.
            .env("GOCACHE", directory_path("torture-runtimes-go-cache"))
            .env("GO111MODULE", "off")
            .env("CGO_CFLAGS", "-O2 -fno-optimize-sibling-calls"),
    );
    path
}

/// Traces a program from its "ready" to its "done"; does not wait until it reads, as threads of Go's runtime
/// never all do.
#[track_caller]
fn trace_go(program: &mut Program) -> Report {
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    report
}

/// Checks the stack of `in_c`, which allocates 1001 bytes each time, three calls of `leak` deep; and that no
/// other one goes through the change of stacks either. Functions may have no names.
#[track_caller]
fn check_cgo(report: &Report, blocks: u64, is_stripped: bool) {
    let is_ours = |stack: &&Stack| stack.allocated.bytes == 1001 * stack.allocated.blocks;
    let ours: Vec<&Stack> = report.stacks.iter().filter(is_ours).collect();
    let [stack] = ours[..] else { panic!("{report}") };
    assert_eq!(stack.allocated.blocks, blocks, "{stack}");
    assert_eq!(stack.end, "unsupported_rule", "{stack}");
    // Frames of Python come from the interpreter, not from the walk.
    let frames = stack.frames.iter().filter(|frame| frame.found_by != "python");
    let names: Vec<_> = frames.map(|frame| frame.name()).collect();
    // Go 1.27 has one function more between the change and C.
    assert!((6..=7).contains(&names.len()), "{stack}");
    if is_stripped {
        return;
    }
    assert_eq!(names[..4], ["in_c", "leak", "leak", "leak"], "{stack}");
    // Others are of threads that the runtime starts meanwhile, and Python's own.
    for stack in &report.stacks {
        let native = |frame: &&Frame| frame.found_by != "python";
        let last = stack.frames.iter().rfind(native).map_or("", |frame| frame.name());
        assert!(
            stack.end == "complete" || last.starts_with("runtime.asmcgocall"),
            "{stack}"
        );
    }
}
