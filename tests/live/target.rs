//! The target survives whatever happens to memleak, and what it does to itself while it is traced.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use memleak_test::exclusion::alone;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::from_main;

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

fn start(test: &str, source: &str, arguments: &[&str]) -> Program {
    let path = compile(&directory(&format!("target-{test}")), source, &RELEASE);
    let program = Program::start(&path, arguments);
    program.expect("ready");
    program
}

/// Addresses at which the C library's code in the process differs from its file.
fn changed_code(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the target runs");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("root");
    let code = |line: &&str| line.contains(" r-xp ") && line.contains("libc.so.6");
    let mut changed = Vec::new();
    for line in maps.lines().filter(code) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (start, end, offset) = (number(start), number(end), number(words[2]));
        let length = usize::try_from(end - start).expect("it is mapped");
        let (mut mapped, mut file) = (vec![0; length], vec![0; length]);
        memory.read_exact_at(&mut mapped, start).expect("it is mapped");
        let path = words.last().expect("a path");
        // The last page may extend beyond the end of the file.
        File::open(path)
            .expect("the library")
            .read_at(&mut file, offset)
            .expect("the library");
        let differs = mapped
            .iter()
            .zip(&file)
            .enumerate()
            .filter(|(_, (mapped, file))| mapped != file);
        changed.extend(differs.map(|(at, _)| start + at as u64));
    }
    changed
}

/// Killed, memleak leaves nothing behind: the target's code is that of its files again, and it goes on.
#[test]
fn memleak_is_killed() {
    // Other tests' probes are in the C library of every process.
    let _alone = alone();
    for attach in ["session", "multi", "perf"] {
        let mut program = start(&format!("killed-{attach}"), "amounts/plain.c", &["50"]);
        assert_eq!(changed_code(program.pid()), Vec::<u64>::new(), "before");
        let memleak = Memleak::attach(program.pid(), &["--attach", attach]);
        let probed = changed_code(program.pid()).len();
        assert!(
            probed >= 9,
            "{attach}: a breakpoint in each of {probed} functions"
        );
        drop(memleak);
        assert_eq!(changed_code(program.pid()), Vec::<u64>::new(), "{attach}: after");
        program.step("done");
        assert!(program.end().success());
    }
}

/// Attached and detached while threads allocate and free at full speed, again and again: no report shows
/// a leak.
#[test]
fn attached_to_a_busy_program() {
    const THREADS: u64 = 4;
    let mut program = start(
        "busy",
        "load/many_threads.c",
        &[&THREADS.to_string(), "1000000000"],
    );
    program.send_line("");
    for _ in 0..5 {
        let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.1"]);
        let first = memleak.report();
        let last = memleak.finish();
        assert!(last.events.allocations >= first.events.allocations);
        for report in [first, last] {
            let outstanding = report.outstanding().blocks;
            assert!(
                outstanding <= THREADS,
                "a block for each thread at most:\n{report}"
            );
        }
    }
}

/// Allocator calls that are left by longjmp, thousands of times, in the middle of everything: neither the
/// program nor the count of what follows suffers.
#[test]
fn longjmp_out_of_the_allocator() {
    for attach in ["session", "multi", "perf"] {
        let mut program = start(&format!("longjmp-{attach}"), "stacks/longjmp.c", &[]);
        let memleak = Memleak::attach(program.pid(), &["--attach", attach]);
        program.step("done");
        let report = memleak.finish();
        let stack = report.only_through("after_jumps");
        assert_eq!(stack.outstanding.blocks, 1, "{attach}: {report}");
        assert_eq!(stack.end, "complete", "{attach}: {report}");
        assert_eq!(report.outstanding().blocks, 1, "{attach}: {report}");
        assert!(program.end().success());
    }
}

/// A process's name is of any bytes: where the kernel cut it within a character, its map of generated code is
/// read as ever.
#[test]
fn name_cut_within_a_character() {
    let path = compile(
        &directory("target-name"),
        "symbols/cut_name.c",
        &["-O2", "-fno-omit-frame-pointer"],
    );
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let name = fs::read(format!("/proc/{}/comm", program.pid())).expect("it runs");
    assert!(str::from_utf8(&name).is_err(), "{name:?}");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    let stack = report.only_through("generated_caller");
    assert_eq!(stack.outstanding.blocks, 10, "{report}");
    stack.check_names(&from_main(&["leaf", "generated_caller", "main"]));
    assert!(program.end().success());
}
