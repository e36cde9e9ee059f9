//! Programs that have `libmemleak.so`, which samples what they allocate: whatever allocator is behind it,
//! each sampled block is announced once, and its free once, and the program behaves as without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak::bpf::nop10;

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{
    LIBRARIES, Program, compile_as, directory, library, load, mimalloc, run_tool, source, stock,
};
use memleak_test::report::{Amount, Report};
use memleak_test::started::Started;

const LARGE: u64 = 4 << 20;

/// Returns allocators to be behind the library, each with what is preloaded for it.
fn allocators() -> Vec<(&'static str, PathBuf)> {
    let directory = LIBRARIES;
    let (name, package) = mimalloc();
    vec![
        (
            "jemalloc",
            stock(&format!("{directory}/libjemalloc.so.2"), "libjemalloc2"),
        ),
        (
            "tcmalloc",
            stock(
                &format!("{directory}/libtcmalloc_minimal.so.4"),
                "libtcmalloc-minimal4",
            ),
        ),
        ("mimalloc", stock(&format!("{directory}/{name}"), package)),
    ]
}

fn start(program: &Path, arguments: &[&str], libraries: &[&str]) -> Program {
    let mut command = Command::new(program);
    let program = Program::spawn(command.args(arguments).env("LD_PRELOAD", libraries.join(" ")));
    program.expect("ready");
    program
}

/// Traces `program` from "ready" to `end`, which it says last, with one sample for each 64 KiB.
#[track_caller]
fn trace(mut program: Program, end: &str, flags: &[&str]) -> Report {
    let memleak = Memleak::attach(program.pid(), &[&["--sample-bytes", "64K"], flags].concat());
    program.step(end);
    // Its probes are entered by calls, where the kernel does that well, and by traps elsewhere.
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("maps");
    assert_eq!(
        maps.contains("[uprobes-trampoline]"),
        nop10::outcome() == nop10::Outcome::Call
    );
    let report = memleak.finish();
    program.send_line("");
    assert!(program.end().success());
    assert_eq!(report.source, "usdt");
    assert_eq!(
        report.sampling.as_ref().and_then(|sampling| sampling.interval),
        Some(65_536)
    );
    report.check_sums();
    report
}

fn outstanding(report: &Report, symbol: &str) -> Amount {
    report.through(symbol).iter().map(|stack| stack.outstanding).sum()
}

/// Checks what `announced/edges.c` leaves, whatever its allocator.
#[track_caller]
fn check_edges(name: &str, report: &Report) {
    let each = outstanding(report, "each_function");
    assert_eq!(each.blocks, 9, "{name}");
    let extra = 1 + 2 + 3 + 4 + 5 + 4096 + 7 + 8 + 4096;
    assert_eq!(each.bytes, 9 * LARGE + extra, "{name}");
    let none = Amount { bytes: 0, blocks: 0 };
    for symbol in ["freed", "nulls", "errors_are_kept", "handler"] {
        assert_eq!(outstanding(report, symbol), none, "{name}: {symbol}");
    }
    let failed = outstanding(report, "failed");
    assert_eq!(
        failed,
        Amount {
            bytes: 2 * LARGE,
            blocks: 1
        },
        "{name}"
    );
    let threads = outstanding(report, "at_end_of_thread");
    assert_eq!(
        threads,
        Amount {
            bytes: 20 * (LARGE + 9),
            blocks: 20
        },
        "{name}"
    );
    let forks = outstanding(report, "forks");
    assert_eq!(
        forks,
        Amount {
            bytes: LARGE,
            blocks: 1
        },
        "{name}"
    );
    let events = &report.events;
    assert_eq!((events.missed_frees, events.unknown_frees), (0, 0), "{name}");
    // Smaller blocks, of the C library for itself, can be among them.
    let complete = report
        .stacks
        .iter()
        .filter(|stack| stack.end == "complete")
        .count();
    assert_eq!(complete, report.stacks.len(), "{name}");
    assert!(
        report
            .stacks
            .iter()
            .all(|stack| stack.frames[0].module_name() != "libmemleak.so")
    );
}

/// Compiles a program that calls all functions; the compiler does not replace their calls.
fn exerciser(directory: &Path, source: &str) -> PathBuf {
    compile_as(
        &directory.join("exerciser"),
        source,
        &["-O1", "-fno-builtin", "-D_GNU_SOURCE", "-pthread"],
    )
}

/// Blocks that are certainly sampled, from every function and in every special case, are accounted exactly,
/// by each way to attach.
#[test]
fn edges() {
    let directory = directory("preloaded-edges");
    let program = exerciser(&directory, "announced/edges.c");
    let library = library(&directory).display().to_string();
    for way in attach_paths() {
        let program = start(&program, &[], &[&library]);
        check_edges(way, &trace(program, "done", &["--attach", way]));
    }
}

/// Blocks that are certainly sampled are also accounted exactly with the library in front of each other
/// allocator.
#[test]
fn edges_of_other_allocators() {
    let directory = directory("preloaded-allocators");
    let program = exerciser(&directory, "announced/edges.c");
    let library = library(&directory).display().to_string();
    for (name, allocator) in allocators() {
        let libraries = [library.as_str(), allocator.to_str().expect("UTF-8")];
        check_edges(name, &trace(start(&program, &[], &libraries), "done", &[]));
    }
}

/// One object serves musl, too, whose `calloc` calls `malloc`: nothing counts twice.
#[test]
fn musl() {
    let directory = directory("preloaded-musl");
    let library = library(&directory).display().to_string();
    let program = directory.join("edges");
    let mut command = Command::new("musl-gcc");
    command.args([
        "-O1",
        "-fno-builtin",
        "-fasynchronous-unwind-tables",
        "-D_GNU_SOURCE",
        "-o",
    ]);
    run_tool(command.arg(&program).arg(source("announced/edges.c")));
    let report = trace(start(&program, &[], &[&library]), "done", &[]);
    let each = outstanding(&report, "each_function");
    let extra = 1 + 2 + 3 + 4 + 5 + 4096 + 7 + 8;
    assert_eq!(
        each,
        Amount {
            bytes: 8 * LARGE + extra,
            blocks: 8
        }
    );
    assert_eq!(outstanding(&report, "freed").blocks, 0);
    assert_eq!((report.events.missed_frees, report.events.unknown_frees), (0, 0));
}

/// C++'s operators are sampled where they are the allocator's own and passed through where they call
/// `malloc`; either way exceptions pass.
#[test]
fn operators() {
    let directory = directory("preloaded-operators");
    let library = library(&directory).display().to_string();
    let program = compile_as(
        &directory.join("operators"),
        "announced/operators.cpp",
        &["-O1", "-std=c++17"],
    );
    let mut libraries = vec![("libstdc++", vec![library.clone()])];
    for (name, path) in allocators() {
        // mimalloc of the distribution, in C, ends a program instead of throwing.
        if name != "mimalloc" {
            libraries.push((name, vec![library.clone(), path.display().to_string()]));
        }
    }
    for (name, libraries) in libraries {
        let libraries: Vec<_> = libraries.iter().map(String::as_str).collect();
        let report = trace(start(&program, &[], &libraries), "done", &[]);
        let new = outstanding(&report, "by_new()");
        assert_eq!(
            new,
            Amount {
                bytes: 5 * LARGE + 1 + 2 + 3 + 4,
                blocks: 5
            },
            "{name}"
        );
        assert_eq!(outstanding(&report, "by_delete()").blocks, 0, "{name}");
        assert_eq!(outstanding(&report, "by_throwing()").blocks, 0, "{name}");
        assert_eq!(
            (report.events.missed_frees, report.events.unknown_frees),
            (0, 0),
            "{name}"
        );
    }
}

/// Returns the bytes that the storm has requested in all, which it prints when it is done.
fn asked_for(storm: &mut Program) -> f64 {
    let done = storm.line();
    let bytes = done.strip_prefix("done ").expect(&done);
    bytes.parse().expect("a number")
}

/// Under 80 threads that come and go, every free of an announced block is announced, to the byte, and
/// estimates are within five standard errors of the truth, at each sampling interval and in front of each
/// allocator.
#[test]
fn storm() {
    let directory = directory("preloaded-storm");
    let library = library(&directory).display().to_string();
    let program = exerciser(&directory, "announced/storm.c");
    let rounds = load("2", "20");
    let libraries = [String::new()].into_iter();
    let libraries = libraries.chain(
        allocators()
            .into_iter()
            .map(|(_, path)| path.display().to_string()),
    );
    for allocator in libraries {
        for distance in ["64K", "512K", "4M"] {
            let mut program = start(&program, &[rounds], &[&library, &allocator]);
            let memleak = Memleak::attach(program.pid(), &["--sample-bytes", distance]);
            program.send_line("");
            let truth = asked_for(&mut program);
            let report = memleak.finish();
            program.send_line("");
            assert!(program.end().success());
            report.check_sums();
            let case = format!("{distance}, {allocator}");
            // The C library keeps what it has allocated for its threads.
            let kept = outstanding(&report, "work");
            assert_eq!(kept, Amount { bytes: 0, blocks: 0 }, "{case}");
            assert_eq!(
                (report.events.missed_frees, report.events.unknown_frees),
                (0, 0),
                "{case}"
            );
            assert!(
                report.stacks.iter().all(|stack| stack.end == "complete"),
                "{case}"
            );
            let estimate = report.allocated_estimate_through("work");
            let distance = report
                .sampling
                .and_then(|sampling| sampling.interval)
                .expect("known");
            // Blocks of 3 MB at most: the variance of what a block of n bytes stands for is n times the
            // distance at most.
            let error = (truth * distance as f64).sqrt();
            assert!(
                (estimate.bytes as f64 - truth).abs() < 5.0 * error,
                "{case}: {} of {truth}, ± {error}",
                estimate.bytes
            );
        }
    }
}

/// `--max-overhead` chooses among the sampling intervals that the library offers: in a burst the trace
/// changes to larger ones, estimates are within their standard errors of the truth across the changes, and
/// freed blocks are gone to the last one.
#[test]
fn overhead_limit() {
    let directory = directory("preloaded-limit");
    let library = library(&directory).display().to_string();
    let program = exerciser(&directory, "announced/storm.c");
    let mut program = start(&program, &["60"], &[&library]);
    let memleak = Memleak::attach(program.pid(), &["--max-overhead", "0.5"]);
    program.send_line("");
    let truth = asked_for(&mut program);
    let (report, messages) = memleak.finish_with_messages();
    program.send_line("");
    assert!(program.end().success());
    report.check_sums();
    assert_eq!(report.source, "usdt");
    let governor = report
        .overhead
        .as_ref()
        .and_then(|overhead| overhead.governor.as_ref());
    let interval = &governor.expect("there is a limit").interval;
    assert_eq!(interval.least, 64 << 10, "{messages:#?}");
    assert!(
        [512 << 10, 4 << 20].contains(&interval.most),
        "{interval:?}: {messages:#?}"
    );
    assert_eq!(outstanding(&report, "work"), Amount { bytes: 0, blocks: 0 });
    assert_eq!((report.lost.blocks, report.events.missed_frees), (0, 0));
    let estimate = report.allocated_estimate_through("work");
    let error = estimate.standard_error.expect("an estimate has an error").bytes;
    assert!(
        (estimate.bytes as f64 - truth).abs() < 5.0 * error,
        "{} of {truth}, ± {error}",
        estimate.bytes
    );
}

/// Blocks that the library cannot announce, as it may map no memory to remember them in, are counted as lost:
/// recorded and lost blocks together are those that were chosen.
#[test]
fn no_memory_to_remember_blocks() {
    let directory = directory("preloaded-bounded");
    let library = library(&directory).display().to_string();
    let program = exerciser(&directory, "announced/bounded.c");
    let mut program = start(&program, &[], &[&library]);
    let memleak = Memleak::attach(program.pid(), &["--sample-bytes", "64K"]);
    program.send_line("");
    assert_eq!(program.line(), "done");
    let report = memleak.finish();
    program.send_line("");
    assert!(program.end().success());
    // The losses have no stack: the library could not announce it.
    let lost = report.lost.causes.get("not_announced").copied().unwrap_or(0);
    let recorded = report.outstanding.recorded_blocks.expect("an estimate");
    assert!(lost > 1000 && report.lost.blocks == lost, "{:?}", report.lost);
    // Of 60 KiB, with an interval of 64 KiB.
    let (blocks, chosen) = (20_000.0, 1.0 - (-60.0_f64 / 64.0).exp());
    let off = (lost + recorded) as f64 - blocks * chosen;
    let error = (blocks * chosen * (1.0 - chosen)).sqrt();
    assert!(
        off.abs() < 5.0 * error,
        "{recorded} and {lost}: {off} too many, ± {error}"
    );
}

/// Tracers come and go, some of them killed: the program's blocks stay intact, and no tracer is attached at
/// the end.
#[test]
fn tracers_come_and_go() {
    let directory = directory("preloaded-tracers");
    let library = library(&directory).display().to_string();
    let program = exerciser(&directory, "announced/storm.c");
    let mut program = start(&program, &["20"], &[&library]);
    program.send_line("");
    for round in 0..load(6, 40) {
        let distance = ["64K", "512K", "4M"][round % 3];
        let memleak = Memleak::attach(program.pid(), &["--sample-bytes", distance]);
        match round % 2 {
            0 => memleak.kill(),
            _ => memleak.finish().check_sums(),
        }
    }
    let done = program.line();
    assert!(done.starts_with("done "), "{done}");
    program.send_line("");
    assert!(program.end().success());
}

/// `--preload` starts a program with the library: it is traced from its first allocation on by what it
/// announces, and so are its children.
#[test]
fn started_with_the_library() {
    let python = stock("/usr/bin/python3", "python3");
    let script = "kept = [bytearray(8 << 20) for _ in range(4)]";
    let memleak = Started::start(&["--preload", "--", python.to_str().expect("UTF-8"), "-c", script]);
    let outcome = memleak.finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);
    let report = outcome.report();
    assert_eq!(report.source, "usdt");
    assert!(
        report.allocated().bytes >= 4 * (8 << 20),
        "{}",
        report.allocated().bytes
    );
    assert!(
        report
            .stacks
            .iter()
            .all(|stack| stack.frames[0].module_name() != "libmemleak.so")
    );
}

/// A library that is not the one that memleak has is replaced before a program loads it.
#[test]
fn changed_library() {
    let run = || {
        let outcome = Started::start(&["--preload", "--", "/bin/sh", "-c", "echo ran"]).finish();
        assert_eq!((outcome.status, outcome.lines), (Some(0), vec!["ran".to_owned()]));
    };
    run();
    let mut copies: Vec<_> = fs::read_dir("/var/lib/memleak")
        .expect("root's copies")
        .flatten()
        .collect();
    copies.sort_by_key(|copy| {
        copy.metadata()
            .and_then(|metadata| metadata.modified())
            .expect("a time")
    });
    let newest = copies.pop().expect("a copy").path();
    fs::write(&newest, "something else").expect("root may");
    run();
    let bytes = fs::read(&newest).expect("it is there");
    assert!(bytes.starts_with(b"\x7fELF"), "{}", newest.display());
}

/// Programs that load no library, or do not call it, are refused before they run, by a line that says what to
/// do.
#[test]
fn refused() {
    let directory = directory("preloaded-refused");
    let plain = |name: &str, flags: &[&str]| {
        compile_as(&directory.join(name), "amounts/plain.c", flags)
            .display()
            .to_string()
    };
    let set_user = plain("set_user", &[]);
    run_tool(Command::new("chown").args(["nobody", &set_user]));
    run_tool(Command::new("chmod").args(["u+s", &set_user]));
    let with_allocator = plain(
        "own",
        &[
            "-rdynamic",
            "/usr/lib/x86_64-linux-gnu/libjemalloc.a",
            "-lm",
            "-ldl",
            "-pthread",
        ],
    );
    let cases = [
        (plain("static", &["-static"]), "ignore LD_PRELOAD"),
        (set_user, "ignore LD_PRELOAD"),
        (plain("sanitized", &["-fsanitize=address"]), "AddressSanitizer"),
        (with_allocator, "the allocator that it calls"),
    ];
    for (program, reason) in cases {
        let outcome = Started::start(&["--preload", "--", &program]).finish();
        assert_eq!(outcome.status, Some(2), "{program}");
        assert!(outcome.lines.is_empty(), "{program} ran: {:?}", outcome.lines);
        let message = outcome.messages.last().expect("a reason");
        assert!(
            message.contains(reason) && message.contains("leave out --preload"),
            "{message}"
        );
    }
}

/// A static Rust program whose allocator is `memleak_alloc::Sampled` announces by itself.
#[test]
fn static_rust_program() {
    let directory = directory("preloaded-rust");
    let rustc = || {
        let mut command = Command::new("rustc");
        command.args([
            "--edition=2024",
            "-O",
            "-Ctarget-feature=+crt-static",
            "--out-dir",
        ]);
        command.arg(&directory);
        command
    };
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/memleak-alloc/src/lib.rs");
    run_tool(
        rustc()
            .args(["--crate-type=rlib", "--crate-name=memleak_alloc"])
            .arg(library),
    );
    let extern_crate = format!(
        "--extern=memleak_alloc={}",
        directory.join("libmemleak_alloc.rlib").display()
    );
    run_tool(rustc().arg(extern_crate).arg(source("announced/sampled.rs")));
    let program = Program::start(&directory.join("sampled"), &[]);
    program.expect("ready");
    let report = trace(program, "done", &[]);
    let kept = outstanding(&report, "sampled::kept");
    assert_eq!(
        kept,
        Amount {
            bytes: 10 * LARGE,
            blocks: 10
        }
    );
    assert_eq!(outstanding(&report, "sampled::freed").blocks, 0);
    assert_eq!((report.events.missed_frees, report.events.unknown_frees), (0, 0));
    assert!(report.stacks.iter().all(|stack| stack.end == "complete"));
}
