//! All allocators that a program can have: for each function exactly the bytes and blocks that were requested
//! and that are left, one record per block, without flags.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use memleak_test::memleak::Memleak;
use memleak_test::program::{
    LIBRARIES, Program, compile, compile_as, directory, mimalloc, of_next_release, run_tool, source, stock,
};
use memleak_test::report::{Amount, Report, Stack};

pub(crate) const RELEASE: [&str; 3] = ["-O2", "-fno-optimize-sibling-calls", "-pthread"];
pub(crate) const NOTHING: Amount = Amount { bytes: 0, blocks: 0 };

/// The allocators that can take the C library's place, and their packages.
fn preloaded() -> [(&'static str, &'static str); 4] {
    [
        ("libtcmalloc.so.4", "libgoogle-perftools4"),
        ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        ("libjemalloc.so.2", "libjemalloc2"),
        mimalloc(),
    ]
}

/// A function of the program and the size it requests; its name says what is left: all for `…_kept`,
/// otherwise nothing.
pub(crate) type Row = (&'static str, u64);

const C: &[Row] = &[
    ("malloc_kept", 1001),
    ("malloc_freed", 1002),
    ("malloc_large_kept", 3 << 20),
    ("malloc_large_freed", 3 << 20),
    ("calloc_kept", 77),
    ("calloc_freed", 84),
    ("realloc_old", 100),
    ("realloc_kept", 100_000),
    ("realloc_null_freed", 1004),
    ("memalign_kept", 1010),
    ("memalign_freed", 1011),
    ("posix_memalign_kept", 1016),
    ("posix_memalign_freed", 1017),
    ("aligned_alloc_kept", 1024),
    ("aligned_alloc_freed", 1088),
];

/// Copies of strings, which mimalloc makes by functions of its own from 3 on.
const STRINGS: &[Row] = &[
    ("strdup_kept", 2001),
    ("strdup_freed", 2000),
    ("strndup_kept", 1501),
    ("strndup_freed", 2001),
];

const CXX: &[Row] = &[
    ("new_kept", 101),
    ("new_freed", 102),
    ("new_sized", 103),
    ("array_kept", 104),
    ("array_freed", 105),
    ("array_sized", 106),
    ("nothrow_kept", 107),
    ("nothrow_freed", 108),
    ("nothrow_array_freed", 109),
    ("aligned_kept", 128),
    ("aligned_freed", 192),
    ("aligned_sized", 256),
    ("aligned_array_freed", 320),
    ("aligned_array_sized", 384),
    ("aligned_nothrow_freed", 448),
    ("large_freed", 5 << 20),
];

const JEMALLOC: &[Row] = &[
    ("plain_kept", 1000),
    ("plain_freed", 1001),
    ("mallocx_kept", 1002),
    ("mallocx_dallocx", 1003),
    ("mallocx_sdallocx", 1004),
    ("rallocx_old", 100),
    ("rallocx_kept", 100_000),
    // The size changes from then on, and with it the site.
    ("xallocx_old", 3600),
    ("xallocx_kept", 4000),
    ("xallocx_failed_old_kept", 64),
];

const MIMALLOC: &[Row] = &[
    ("malloc_kept", 1001),
    ("strdup_kept", 100_001),
    ("strdup_freed", 100_000),
    ("strdup_empty_kept", 1),
    ("strndup_kept", 1501),
    ("strndup_freed", 11),
    ("heap_strdup_kept", 10_001),
    ("heap_strndup_freed", 1),
];

/// Starts a program, perhaps with another allocator in the C library's place.
pub(crate) fn start(path: &Path, arguments: &[&str], preloaded: Option<&str>) -> Program {
    let mut command = Command::new(path);
    command.args(arguments);
    if let Some(library) = preloaded {
        command.env("LD_PRELOAD", Path::new(LIBRARIES).join(library));
    }
    let program = Program::spawn(&mut command);
    program.expect("ready");
    program
}

/// Traces a program from its "ready" to its "done".
#[track_caller]
pub(crate) fn trace(path: &Path, preloaded: Option<&str>, flags: &[&str]) -> Report {
    trace_started(start(path, &[], preloaded), path, flags)
}

/// Traces a program that is ready, until its "done".
#[track_caller]
fn trace_started(mut program: Program, path: &Path, flags: &[&str]) -> Report {
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("done");
    let report = memleak.finish();
    assert!(
        program.end().success(),
        "{} is none the worse for it",
        path.display()
    );
    report.check_sums();
    report
}

/// Checks that each row is one stack with one block of just that size, and that there is nothing else.
#[track_caller]
pub(crate) fn check_rows(case: &str, report: &Report, rows: &[Row]) {
    for &(row, bytes) in rows {
        let site = row
            .strip_suffix("_old_kept")
            .map_or(row.to_owned(), |site| format!("{site}_old"));
        let stacks: Vec<_> = report
            .stacks
            .iter()
            .filter(|stack| stack.names().iter().any(|name| is_function(name, &site)))
            .collect();
        let [stack] = stacks[..] else {
            panic!("{case}: not one stack through {site}:\n{report}")
        };
        let one = Amount { bytes, blocks: 1 };
        let left = if row.ends_with("_kept") { one } else { NOTHING };
        assert_eq!(
            (stack.allocated, stack.outstanding),
            (one, left),
            "{case}: {site}:\n{stack}"
        );
        // musl has no CFI.
        let in_musl = stack
            .end_at
            .iter()
            .any(|at| at.module.iter().any(|path| path.contains("musl")));
        assert!(stack.end == "complete" || in_musl, "{case}: {stack}");
    }
    assert_eq!(report.stacks.len(), rows.len(), "{case}: nothing else:\n{report}");
    assert_eq!(
        (report.lost.blocks, report.events.unknown_frees),
        (0, 0),
        "{case}:\n{report}"
    );
}

/// Returns whether a frame's name is the function's, as C, C++ and Rust write it.
pub(crate) fn is_function(name: &str, function: &str) -> bool {
    let name = name.split('(').next().unwrap_or(name);
    name.rsplit("::").next() == Some(function)
}

fn packaged(library: &str, package: &str) {
    stock(&format!("{LIBRARIES}/{library}"), package);
}

/// The functions of C, in the C library and in each allocator that takes its place.
#[test]
fn functions_of_c() {
    let flags = [&RELEASE[..], &["-DSTRINGS"]].concat();
    let path = compile(&directory("allocators-c"), "allocators/allocator.c", &flags);
    let rows = [C, STRINGS].concat();
    check_rows("glibc", &trace(&path, None, &[]), &rows);
    let next = Program::spawn(&mut of_next_release(&path));
    next.expect("ready");
    check_rows("the next glibc", &trace_started(next, &path, &[]), &rows);
    for (library, package) in preloaded() {
        packaged(library, package);
        check_rows(library, &trace(&path, Some(library), &[]), &rows);
    }
}

/// The functions of C in musl's C library, shared and static, and in a static glibc, of which most linkers
/// make `malloc` a local symbol, as it is hidden there.
#[test]
fn functions_of_c_in_other_linkage() {
    let directory = directory("allocators-linkage");
    let musl = |name: &str, flags: &[&str]| {
        let output = directory.join(name);
        let mut command = Command::new("musl-gcc");
        command
            .args(RELEASE)
            .args(flags)
            .arg("-o")
            .arg(&output)
            .arg(source("allocators/allocator.c"));
        run_tool(&mut command);
        output
    };
    let glibc = |name: &str, flags: &[&str]| {
        let flags = [&["-O2", "-fno-optimize-sibling-calls"], flags].concat();
        compile_as(&directory.join(name), "allocators/allocator.c", &flags)
    };
    let other = source("allocators/other_free.c").display().to_string();
    let programs: [PathBuf; 6] = [
        musl("musl", &[]),
        musl("musl-static", &["-static"]),
        glibc("static", &["-static"]),
        glibc("static-pie", &["-static-pie"]),
        glibc("static-lld", &["-static", "-fuse-ld=lld"]),
        // Another function, of a separate file, has the name of one of C's.
        glibc("static-other", &["-static", "-fuse-ld=lld", "-x", "c", &other]),
    ];
    for path in &programs {
        check_rows(&path.display().to_string(), &trace(path, None, &[]), C);
    }
}

/// A static program in which the linker found no use for `free` is traced, with a message about it.
#[test]
fn a_program_that_never_frees() {
    let directory = directory("allocators-never_frees");
    let path = directory.join("plain");
    let mut command = Command::new("musl-gcc");
    command
        .args(["-O2", "-fno-optimize-sibling-calls", "-static", "-o"])
        .arg(&path)
        .arg(source("amounts/plain.c"));
    run_tool(&mut command);
    let symbols = Command::new("nm").arg(&path).output().expect("nm (binutils)");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    assert!(
        symbols.contains(" malloc\n") && !symbols.contains(" free\n"),
        "{symbols}"
    );
    let mut program = start(&path, &["10"], None);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    assert!(
        messages.iter().any(|line| line.contains("never frees")),
        "{messages:#?}"
    );
    report.check_sums();
    let five = Amount {
        bytes: 5 * 24,
        blocks: 5,
    };
    for function in ["even", "odd"] {
        let is_through = |name: &&str| is_function(name, function);
        let stacks = report.stacks.iter();
        let through: Vec<_> = stacks
            .filter(|stack| stack.names().iter().any(is_through))
            .collect();
        let [stack] = through[..] else {
            panic!("not one stack through {function}:\n{report}")
        };
        assert_eq!((stack.allocated, stack.outstanding), (five, five), "{stack}");
    }
}

/// Each form of `operator new` and `operator delete`: where it leads to malloc, and where it is the
/// allocator's own.
#[test]
fn operators_of_cxx() {
    let path = compile(&directory("allocators-cxx"), "allocators/allocator.cpp", &RELEASE);
    check_rows("glibc", &trace(&path, None, &[]), CXX);
    // In parallel, as most of the time goes into waiting for the kernel to change code.
    let check = |library: &str, package: &str| {
        packaged(library, package);
        for attach in ["session", "multi", "perf"] {
            let report = trace(&path, Some(library), &["--attach", attach]);
            check_rows(&format!("{library} by {attach}"), &report, CXX);
        }
    };
    thread::scope(|scope| {
        for (library, package) in preloaded() {
            scope.spawn(|| check(library, package));
        }
    });
}

/// A program whose `operator new` throws, or is left by longjmp, thread after thread, is not disturbed by
/// attaches and detaches meanwhile; what it does afterwards is counted exactly.
#[test]
fn operators_that_throw_under_load() {
    let path = compile(
        &directory("allocators-throw"),
        "allocators/allocator.cpp",
        &RELEASE,
    );
    let check = |library: &str| {
        let mut program = start(&path, &["3000"], Some(library));
        program.send_line("");
        for attach in ["session", "multi", "perf", "session"] {
            let memleak = Memleak::attach(program.pid(), &["--attach", attach]);
            let report = memleak.finish();
            assert_eq!(report.lost.blocks, 0, "{library}:\n{report}");
        }
        let memleak = Memleak::attach(program.pid(), &[]);
        program.expect("failed often");
        program.step("done");
        let report = memleak.finish();
        assert!(program.end().success(), "{library}");
        report.check_sums();
        for &(site, bytes) in CXX {
            let through = |stack: &&Stack| stack.names().iter().any(|name| is_function(name, site));
            let [stack] = report.stacks.iter().filter(through).collect::<Vec<_>>()[..] else {
                panic!("{library}: not one stack through {site}:\n{report}")
            };
            let one = Amount { bytes, blocks: 1 };
            let left = if site.ends_with("_kept") { one } else { NOTHING };
            assert_eq!(
                (stack.allocated, stack.outstanding),
                (one, left),
                "{library}: {stack}"
            );
        }
    };
    // mimalloc aborts instead: as Debian builds it, in C, it cannot throw.
    thread::scope(|scope| {
        for library in ["libtcmalloc.so.4", "libjemalloc.so.2"] {
            scope.spawn(|| check(library));
        }
    });
}

/// mimalloc's own functions that call no other of its functions.
#[test]
fn functions_of_mimalloc() {
    let (library, package) = mimalloc();
    let library = stock(&format!("{LIBRARIES}/{library}"), package);
    let flags = ["-O2", library.to_str().expect("a plain path")];
    let path = compile(&directory("allocators-mimalloc"), "allocators/mimalloc.c", &flags);
    check_rows("linked", &trace(&path, None, &[]), MIMALLOC);
}

/// jemalloc's own functions: linked, and static in the executable under a prefix, with symbols that are
/// global and with symbols that the linker made local, or that are not there as the program does not call
/// them.
#[test]
fn functions_of_jemalloc() {
    packaged("libjemalloc.so", "libjemalloc-dev");
    let directory = directory("allocators-jemalloc");
    let linked = compile(&directory, "allocators/jemalloc.c", &["-O2", "-ljemalloc"]);
    check_rows("linked", &trace(&linked, None, &[]), JEMALLOC);

    let archive = prefixed_archive(&directory, "je_");
    let archive = archive.to_str().expect("a path of ours");
    let flags = [
        "-O2",
        "-DPREFIX(name)=je_##name",
        archive,
        "-lstdc++",
        "-lm",
        "-pthread",
    ];
    let global = compile_as(&directory.join("static"), "allocators/jemalloc.c", &flags);
    check_rows("static", &trace(&global, None, &[]), JEMALLOC);

    let local = directory.join("local");
    let mut localize = Command::new("objcopy");
    localize
        .args(["--wildcard", "--localize-symbol=je_*"])
        .args([&global, &local]);
    run_tool(&mut localize);
    check_rows("local", &trace(&local, None, &[]), JEMALLOC);

    let flags = ["-O2", archive, "-lstdc++", "-lm", "-pthread"];
    let sized = compile(&directory, "allocators/jemalloc_sized.c", &flags);
    let mut leave_out = Command::new("objcopy");
    leave_out
        .args(["--strip-symbol=je_free", "--strip-symbol=je_dallocx"])
        .arg(&sized);
    run_tool(&mut leave_out);
    let rows = &[
        ("plain_kept", 1000),
        ("plain_freed", 1001),
        ("mallocx_kept", 1002),
    ];
    check_rows("sized", &trace(&sized, None, &[]), rows);

    let stripped = directory.join("stripped");
    run_tool(Command::new("strip").args(["-o"]).args([&stripped, &global]));
    let mut program = start(&stripped, &[], None);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let (_, messages) = memleak.finish_with_messages();
    let warned = |line: &String| line.contains("contains jemalloc, but no symbols of it");
    assert!(messages.iter().any(warned), "{messages:#?}");
}

/// jemalloc with a prefix before the names that it exports.
fn prefixed_archive(directory: &Path, prefix: &str) -> PathBuf {
    const EXPORTED: &[&str] = &[
        "malloc",
        "calloc",
        "realloc",
        "free",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "mallocx",
        "rallocx",
        "xallocx",
        "sallocx",
        "dallocx",
        "sdallocx",
        "nallocx",
        "mallctl",
        "malloc_usable_size",
    ];
    let archive = directory.join("libjemalloc_prefixed.a");
    let mut rename = Command::new("objcopy");
    for name in EXPORTED {
        rename.arg(format!("--redefine-sym={name}={prefix}{name}"));
    }
    rename.arg(format!("{LIBRARIES}/libjemalloc_pic.a")).arg(&archive);
    run_tool(&mut rename);
    archive
}

/// The collector's functions; a message says that it frees without a call.
#[test]
fn functions_of_the_collector() {
    packaged("libgc.so", "libgc-dev");
    let path = compile(
        &directory("allocators-collector"),
        "allocators/collector.c",
        &["-O2", "-lgc"],
    );
    let mut program = start(&path, &[], None);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    let rows: &[Row] = &[
        ("malloc_kept", 1001),
        ("malloc_freed", 1002),
        ("atomic_kept", 1003),
        ("uncollectable_freed", 1004),
        ("realloc_old", 100),
        ("realloc_kept", 100_000),
    ];
    check_rows("collector", &report, rows);
    assert!(
        messages.iter().any(|line| line.contains("GC_free")),
        "{messages:#?}"
    );
}

/// Rust's allocation: by the C library's functions, and by the program's own allocator. In an optimised build
/// the latter has no function that could be told from others, and a message says so.
#[test]
fn functions_of_rust() {
    let directory = directory("allocators-rust");
    let rows: &[Row] = &[("alloc_kept", 1001), ("alloc_freed", 1002), ("zeroed_kept", 1003)];
    for own in [false, true] {
        let output = directory.join(if own { "own" } else { "system" });
        let mut command = Command::new("rustc");
        command.args(["--edition=2024", "-Awarnings", "-o"]).arg(&output);
        command.args(if own {
            ["--cfg", "own"]
        } else {
            ["-C", "opt-level=3"]
        });
        run_tool(command.arg(source("allocators/allocator.rs")));
        let mut program = Program::start(&output, &[]);
        program.expect("warm");
        program.step("ready");
        let memleak = Memleak::attach(program.pid(), &[]);
        program.step("done");
        let (report, messages) = memleak.finish_with_messages();
        assert!(program.end().success());
        assert_eq!(
            messages.iter().any(|line| line.contains("__rust_alloc")),
            own,
            "{messages:#?}"
        );
        for &(site, bytes) in rows {
            let stack = report.only_through(&format!("allocator::{site}"));
            let responsible = stack.responsible.as_ref().map(|found| &*found.symbol);
            assert_eq!(responsible, Some(&*format!("allocator::{site}")), "{report}");
            let one = Amount { bytes, blocks: 1 };
            let left = if site.ends_with("_kept") { one } else { NOTHING };
            assert_eq!(
                (stack.allocated, stack.outstanding),
                (one, left),
                "{own}: {stack}"
            );
        }
        let moved: Amount = report
            .stacks
            .iter()
            .filter(|stack| stack.names().iter().any(|name| is_function(name, "realloc_kept")))
            .map(|stack| stack.outstanding)
            .sum();
        assert_eq!(
            moved,
            Amount {
                bytes: 100_000,
                blocks: 1
            },
            "{own}:\n{report}"
        );
        assert_eq!(
            (report.lost.blocks, report.events.unknown_frees),
            (0, 0),
            "{own}:\n{report}"
        );
    }
}

/// An allocator whose names have an unknown prefix is found by `-S PREFIX`.
#[test]
fn functions_with_a_prefix() {
    let renamed = [
        "-Dpool_get=zz_malloc",
        "-Dpool_resize=zz_realloc",
        "-Dpool_put=zz_free",
    ];
    let flags = [&RELEASE[..], &renamed].concat();
    let path = compile(&directory("allocators-prefix"), "allocators/pool.c", &flags);
    let rows: &[Row] = &[
        ("get_kept", 1001),
        ("get_freed", 1002),
        // A function without the prefix allocates it.
        ("many_kept", 110),
        ("resize_old", 100),
        ("resize_kept", 200),
        ("malloc_kept", 33),
    ];
    check_rows("-S zz_", &trace(&path, None, &["-S", "zz_"]), rows);
}

/// A request for an allocator or a function that is missing gets one error, which names those that exist or
/// the remedy.
#[test]
fn missing_allocators_are_named() {
    let path = compile(&directory("allocators-missing"), "allocators/pool.c", &RELEASE);
    let program = start(&path, &[], None);
    for (flags, expected) in [
        (["-O", "libnothing.so"], "libc.so.6"),
        (["--alloc", "pool_lost:alloc(size=0)"], "`pool_lost`"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        command.args(["-p", &program.pid().to_string()]).args(flags);
        let output = command.output().expect("memleak was built");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.lines().last().is_some_and(|line| line.contains(expected)),
            "{errors}"
        );
    }
}
