//! Hostile files of the target, and files that are taken away, cost bounded time and memory.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use super::{MIB, RELEASE, elf, finish_within};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};

/// Limit of memleak's memory, in bytes. Debug information of one object may take a gigabyte while its names
/// are looked up, and each processor may have pages of files of 256 MiB mapped while tables are built.
fn max_memory() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (160 + 256 * processors as u64).max(160 + 1024) * MIB
}

/// Runs a command of memleak; returns its output, its maximum memory in bytes, and its CPU time in seconds.
fn measured(arguments: &[&str]) -> (Output, u64, f64) {
    const MEASURE: &str = "import os, sys
child = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(child, 0)
print(used.ru_maxrss * 1024, used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", MEASURE, env!("CARGO_BIN_EXE_memleak")])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("python3 (apt-get install python3)");
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut figures = output_text.lines().last().expect("figures").split(' ');
    let peak = figures.next().and_then(|peak| peak.parse().ok()).expect("bytes");
    let seconds = figures
        .next()
        .and_then(|time| time.parse().ok())
        .expect("seconds");
    (output, peak, seconds)
}

/// Files with gigabytes of holes, names without end, circles: mapped as code, they are traced, their stacks
/// are walked and named, and doctor looks at them, within bounds. Nothing is lost because of them.
#[test]
#[allow(clippy::print_stderr, reason = "what the test measured")]
fn hostile_files_take_bounded_resources() {
    let directory = directory("abuse-hostile");
    let crafted = elf::craft(&directory);
    let path = compile(&directory, "hostile/crafted.c", &RELEASE);
    let files: Vec<_> = crafted
        .iter()
        .map(|(_, path)| path.to_str().expect("UTF-8"))
        .collect();
    let mut program = Program::start(&path, &files);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["1"]);
    program.step("done");
    // Wait for a report with the blocks.
    while memleak.report().through("allocate").is_empty() {}
    let report = finish_within("files that hurt", memleak, (max_memory(), 60.0));
    let blocks: u64 = report
        .through("allocate")
        .iter()
        .map(|stack| stack.allocated.blocks)
        .sum();
    assert_eq!(blocks + report.lost.blocks, files.len() as u64, "{report}");

    let (output, peak, seconds) = measured(&["doctor", "-p", &program.pid().to_string()]);
    eprintln!("doctor: {} MiB, {seconds:.1} s", peak / MIB);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(peak < max_memory() && seconds < 60.0, "{peak} bytes, {seconds} s");
    // Some of each kind.
    let step = if std::env::var_os("MEMLEAK_FULL_LOAD").is_some() {
        1
    } else {
        4
    };
    for (name, path) in crafted.iter().step_by(step) {
        let (output, peak, seconds) = measured(&["table", path.to_str().expect("UTF-8")]);
        eprintln!("table, {name}: {} MiB, {seconds:.1} s", peak / MIB);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{name}: {output:?}");
        // `table` reads the file whole; one larger than 4 GiB is refused at once.
        let length = fs::metadata(path).expect("our own file").len();
        let max = 160 * MIB + if length > 4 << 30 { 0 } else { length };
        assert!(peak < max && seconds < 20.0, "{name}: {peak} bytes, {seconds} s");
    }
    for path in files {
        fs::remove_file(path).expect("our own file");
    }
}

/// A file is cut short, as by `cp` over a library, after its code has run: code of the lost part has no
/// names, and nothing else happens to memleak.
#[test]
fn truncated_file_does_not_end_memleak() {
    let directory = directory("abuse-cut");
    let path = compile(&directory, "hostile/crafted.c", &RELEASE);
    let library = directory.join("libcut.so");
    for is_cut in [false, true] {
        elf::ordinary(&library);
        let mut program = Program::start(&path, &[library.to_str().expect("UTF-8")]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &[]);
        program.step("done");
        if is_cut {
            // The page with the code stays.
            let file = File::options().write(true).open(&library);
            file.and_then(|file| file.set_len(8192)).expect("our own file");
        }
        let report = finish_within("a file that is cut short", memleak, (160 * MIB, 30.0));
        let stack = report.only_through("allocate");
        assert_eq!(stack.allocated.blocks, 1, "{report}");
        assert_eq!(stack.passes("thunk"), !is_cut, "{stack}");
        program.send_line("");
    }
}
