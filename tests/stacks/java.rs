//! Stacks through the code that a JVM generates are those that the JVM itself sees: a native library records
//! the JVM's own stack at each of its allocations (`tests/programs/java/`). The names are of the map for perf
//! that `jcmd` makes it write.
//!
//! Methods are not inlined here, as a method that is has no frame of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_with, directory, run_tool, source, stock};
use memleak_test::report::{Frame, Report, Stack};
use memleak_test::started::Started;

const PACKAGE: &str = "openjdk-17-jdk-headless";
/// Number of places in `frames.c`.
const PLACES: usize = 10;

/// Methods that the JVM says are on the stack at each place, innermost first, and allocations there.
type Witnessed = BTreeMap<usize, (Vec<String>, u64)>;

/// Runs `Frames.java` with these flags, traced from its "ready" to its "done".
#[track_caller]
fn trace(test: &str, flags: &[&str], calls_before: u32) -> (Report, Witnessed) {
    let directory = directory(&format!("java-{test}"));
    let compiler = stock("/usr/bin/javac", PACKAGE);
    let compiler = std::fs::canonicalize(compiler).expect("it is a link to the JDK's");
    let tools = compiler.parent().expect("the JDK's tools");
    let headers = tools.with_file_name("include");
    let includes = [&headers, &headers.join("linux")].map(|path| format!("-I{}", path.display()));
    let library = directory.join("libframes.so");
    let shared = ["-O2", "-shared", "-fPIC", &includes[0], &includes[1]];
    compile_with("gcc", &library, "java/frames.c", &shared);
    run_tool(
        Command::new(&compiler)
            .arg("-d")
            .arg(&directory)
            .arg(source("java/Frames.java")),
    );
    let witnessed = directory.join("witnessed");
    let mut java = Program::spawn(
        Command::new(tools.join("java"))
            .args(flags)
            .arg("-cp")
            .arg(&directory)
            .arg("Frames")
            .args([&library, &witnessed])
            .arg(calls_before.to_string()),
    );
    java.expect("ready");
    let memleak = Memleak::attach(java.pid(), &[]);
    java.step("done");
    run_tool(Command::new(tools.join("jcmd")).args([&java.pid().to_string(), "Compiler.perfmap"]));
    let report = memleak.finish();
    let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", java.pid()));
    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    (report, read(&witnessed))
}

/// Reads what the library has written: lines of a place and signatures of methods, such as
/// `LFrames$Direct;.go`.
#[track_caller]
fn read(path: &Path) -> Witnessed {
    let text = std::fs::read_to_string(path).expect("the library wrote it");
    let mut witnessed = Witnessed::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let place = words
            .next()
            .and_then(|place| place.parse().ok())
            .expect("a place");
        let methods: Vec<String> = words.map(plain_name).collect();
        let (known, count) = witnessed.entry(place).or_insert_with(|| (methods.clone(), 0));
        assert_eq!(*known, methods, "place {place} is always called in the same way");
        *count += 1;
    }
    assert_eq!(witnessed.len(), PLACES);
    witnessed
}

/// The name of a method as the map for perf has it, without types: `Frames$Direct.go`.
fn plain_name(signature: &str) -> String {
    let (class, method) = signature.split_once(';').expect("a class's signature");
    let class = class.strip_prefix('L').expect("no array");
    format!("{}{method}", class.replace('/', "."))
}

/// Frames of generated code in groups: those without native code in between, each from the innermost.
fn generated(stack: &Stack) -> Vec<&[Frame]> {
    let groups = stack
        .frames
        .chunk_by(|a, b| a.module.is_some() == b.module.is_some());
    groups.filter(|group| group[0].module.is_none()).collect()
}

/// Checks that frames are of these methods: of the very method, or of the interpreter, which runs them all.
#[track_caller]
fn check_methods<'a>(frames: impl Iterator<Item = &'a Frame>, methods: &[String], stack: &Stack) {
    for (frame, method) in frames.zip(methods) {
        // Where classes are hidden (lambdas), the JVM has two forms of their names.
        let is_method = frame.name().replace("/0x", ".0x").contains(&format!("{method}("));
        assert!(is_method || frame.name() == "Interpreter", "{method} in\n{stack}");
    }
}

/// Checks that a stack is the one that the JVM sees, or the start of it if it says so. Returns whether it is
/// whole.
#[track_caller]
fn check_stack(stack: &Stack, methods: &[String]) -> bool {
    let groups = generated(stack);
    let is_whole = stack.end == "complete";
    // The JVM calls each group by a stub, whose frame is the last one.
    let stubs = if is_whole { groups.len() } else { groups.len() - 1 };
    let java = groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| match at < stubs {
            true => &group[..group.len() - 1],
            false => group,
        });
    let java: Vec<&Frame> = java.collect();
    match is_whole {
        true => assert_eq!(java.len(), methods.len(), "{methods:#?}\n{stack}"),
        false => {
            assert_eq!(stack.end, "anonymous_code", "{stack}");
            assert!(java.len() <= methods.len(), "{methods:#?}\n{stack}");
        }
    }
    for group in &groups[..stubs] {
        let stub = group.last().expect("groups have frames");
        assert!(stub.name().starts_with("StubRoutines"), "{stack}");
    }
    check_methods(java.into_iter(), methods, stack);
    is_whole
}

/// Sums over all stacks of allocations by the library.
#[derive(Debug, Default)]
struct Found {
    whole: u64,
    cut: u64,
    /// Frames of compiled methods, by name.
    compiled: usize,
    /// Frames that were believed because the walk arrived at native code.
    on_trial: usize,
}

/// Checks all stacks of a run: none has a frame that the JVM does not have there, none lacks one before its
/// end.
#[track_caller]
fn check(test: &str, flags: &[&str], calls_before: u32) -> Found {
    let (report, witnessed) = trace(test, flags, calls_before);
    let mut found = Found::default();
    for (place, (methods, count)) in &witnessed {
        let stacks = report.through(&format!("place_{place}"));
        let blocks: u64 = stacks.iter().map(|stack| stack.allocated.blocks).sum();
        assert_eq!(blocks, *count, "place {place}:\n{report}");
        for stack in stacks {
            match check_stack(stack, methods) {
                true => found.whole += stack.allocated.blocks,
                false => found.cut += stack.allocated.blocks,
            }
            let frames = stack.frames.iter().filter(|frame| frame.module.is_none());
            found.compiled += frames.filter(|frame| frame.name().contains("Frames")).count();
            let on_trial = |frame: &&Frame| frame.found_by == "fp_generated";
            found.on_trial += stack.frames.iter().filter(on_trial).count();
        }
    }
    found
}

#[track_caller]
fn check_whole(test: &str, flags: &[&str]) -> Found {
    let found = check(test, flags, 3);
    assert_eq!(found.cut, 0, "{found:?}");
    found
}

const NO_INLINING: [&str; 3] = ["-Xcomp", "-XX:-Inline", "-XX:CompileCommand=quiet"];
const ALL: &str = "-XX:CompileCommand=compileonly,Frames*.*";
/// Classes within it are interpreted: calls go from compiled to interpreted code and back.
const SOME: &str = "-XX:CompileCommand=compileonly,Frames.*";
const C1: &str = "-XX:TieredStopAtLevel=1";
const C2: &str = "-XX:-TieredCompilation";
const KEEP: &str = "-XX:+PreserveFramePointer";

/// The interpreter keeps frame pointers, but jumps to what it calls: its frames are believed because they
/// lead to native code.
#[test]
fn interpreted() {
    let found = check_whole("interpreted", &["-Xint"]);
    assert!(found.on_trial > 30, "{found:?}");
}

/// Both compilers keep frame pointers if they are told to; memleak reads in the JVM that they are.
#[test]
fn compiled_with_frame_pointers() {
    for (test, compiler, methods) in [
        ("c1", C1, ALL),
        ("c1-mixed", C1, SOME),
        ("c2", C2, ALL),
        ("c2-mixed", C2, SOME),
    ] {
        let found = check_whole(test, &[&NO_INLINING[..], &[compiler, methods, KEEP]].concat());
        assert!(found.compiled > 10, "{test}: {found:?}");
    }
}

/// Compiled code that leaves the frame pointer alone, or has something else in its register, is noticed:
/// stacks end there, and none goes on to a caller's caller.
#[test]
fn compiled_without_frame_pointers() {
    for (test, compiler, methods) in [
        ("no-fp-c1", C1, ALL),
        ("no-fp-c1-mixed", C1, SOME),
        ("no-fp-c2", C2, ALL),
        ("no-fp-c2-mixed", C2, SOME),
    ] {
        let found = check(test, &[&NO_INLINING[..], &[compiler, methods]].concat(), 3);
        assert!(found.cut > 20, "{test}: {found:?}");
    }
}

/// Nearly every stack of a program that does common things is whole, if frame pointers are kept.
#[test]
fn programs_are_whole() {
    for flag in ["-Xint", KEEP] {
        let mut java = Program::spawn(
            Command::new(stock("/usr/bin/java", PACKAGE))
                .arg(flag)
                .arg(source("java/Load.java"))
                .arg("600"),
        );
        java.expect("ready");
        let doctor = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["doctor", "-p", &java.pid().to_string()])
            .output()
            .expect("it is there");
        let said = String::from_utf8_lossy(&doctor.stdout);
        assert_eq!(
            said.contains("a JVM that keeps frame pointers"),
            flag == KEEP,
            "{said}"
        );
        let memleak = Memleak::attach(java.pid(), &[]);
        java.step("done");
        let report = memleak.finish();
        report.check_sums();
        let walks = &report.unwinding.allocations;
        let [all, whole] = [walks.values().sum::<u64>(), walks["complete"]];
        assert!(all > 4000, "{flag}: {walks:?}");
        assert!((all - whole) * 100 <= all, "{flag}: {walks:?}");
    }
}

/// Nearly every stack is whole from before main on: tables and code that walks lack while the JVM starts are
/// known to user space, which finishes them.
#[test]
fn programs_are_whole_from_their_start() {
    let load = source("java/Load.java");
    let load = load.to_str().expect("UTF-8");
    for flag in ["-Xint", KEEP] {
        check_from_start(&[flag, load, "100"], 30_000);
    }
}

/// Nearly every stack is whole even if the JVM has ended before the table of its library was loaded.
#[test]
fn short_programs_are_whole_from_their_start() {
    for flag in ["-Xint", KEEP] {
        for _ in 0..3 {
            check_from_start(&[flag, "-version"], 4000);
        }
    }
}

#[track_caller]
fn check_from_start(arguments: &[&str], at_least: u64) {
    let java = stock("/usr/bin/java", PACKAGE);
    // One report, at the end: another might come between the lines that the program prints.
    let command = [&["1d", "--", java.to_str().expect("UTF-8")], arguments].concat();
    let mut outcome = Started::start(&command).finish();
    let report = outcome.reports.pop().expect("a report");
    report.check_sums();
    let unwinding = &report.unwinding;
    let walks = &unwinding.allocations;
    let [all, whole] = [walks.values().sum::<u64>(), walks["complete"]];
    assert!(all > at_least, "{arguments:?}: {walks:?}");
    assert!((all - whole) * 1000 <= all, "{arguments:?}: {unwinding:?}");
    assert!(
        unwinding.finished_in_user_space > 50,
        "{arguments:?}: {unwinding:?}"
    );
    assert_eq!(unwinding.not_finished, 0, "{arguments:?}");
}

/// By default, code is interpreted first and compiled while it runs, also in the middle of a method.
#[test]
fn compiled_while_it_runs() {
    let found = check("tiered", &["-XX:-Inline"], 3000);
    assert!(found.whole + found.cut > 0, "{found:?}");
    let found = check("tiered-fp", &["-XX:-Inline", KEEP], 3000);
    assert_eq!(found.cut, 0, "{found:?}");
}
