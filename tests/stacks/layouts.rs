//! Stacks of programs whose code is mapped in unusual ways: several executable segments in a page of the
//! file, or far apart; text that was moved; generated code in files.

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory, run_tool, source};
use memleak_test::report::{Report, Stack, from_main};

const SOURCE: &str = "stacks/layout.c";
/// Compiler flags as distributions have them, without frame pointers. Calls are not replaced by jumps.
const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const LEAK: [&str; 4] = ["leak_c", "leak_b", "leak_a", "main"];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RELEASE.iter().chain(more).copied().collect()
}

#[track_caller]
fn built(test: &str, more: &[&str]) -> PathBuf {
    compile(&directory(&format!("layouts-{test}")), SOURCE, &flags(more))
}

/// Traces a program from its "ready" to its "done".
#[track_caller]
fn trace(path: &Path, arguments: &[&str]) -> Report {
    let mut program = Program::start(path, arguments);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    report
}

#[track_caller]
fn only_stack(report: &Report) -> &Stack {
    let [stack] = &report.stacks[..] else {
        panic!("one stack:\n{report}");
    };
    stack
}

/// Checks that a program's stack is whole and has its names.
#[track_caller]
fn check_whole(path: &Path) {
    only_stack(&trace(path, &[])).check(&from_main(&LEAK));
}

/// Returns the number of executable segments that begin in the first's page of the file.
#[track_caller]
fn segments_in_a_page(path: &Path) -> usize {
    use object::elf::{PF_X, PT_LOAD};
    use object::read::elf::{FileHeader as _, ProgramHeader as _};

    let bytes = std::fs::read(path).expect("it was compiled");
    let endian = object::LittleEndian;
    let header = object::elf::FileHeader64::<object::LittleEndian>::parse(&*bytes).expect("ELF");
    let segments = header.program_headers(endian, &*bytes).expect("segments");
    let code = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_flags(endian).contains(PF_X));
    let pages: Vec<_> = code.map(|segment| segment.p_offset(endian) / 4096).collect();
    pages.iter().filter(|page| **page == pages[0]).count()
}

/// Code at a given address, by lld: two executable segments begin in one page of the file, in a
/// position-independent program and in one at fixed addresses.
#[test]
fn two_segments_in_a_page() {
    for (test, kind) in [("pie", "-pie"), ("no-pie", "-no-pie")] {
        let base = if kind == "-pie" { 0x10_0200 } else { 0x50_0200 };
        let at = format!("-Wl,--section-start=.hot={base:#x}");
        let path = built(test, &["-DHOT", "-fuse-ld=lld", kind, &at]);
        assert_eq!(segments_in_a_page(&path), 2);
        check_whole(&path);
    }
}

/// A library with two such segments, made by a linker script.
#[test]
fn two_segments_of_a_script() {
    let directory = directory("layouts-script");
    let library = directory.join("libsegments.so");
    let script = format!("-Wl,-T,{}", source("stacks/two_segments.ld").display());
    let parts = ["-DHOT", "-DLIBRARY", "-shared", "-fPIC", "-nostartfiles", &script];
    compile_as(&library, SOURCE, &flags(&parts));
    assert_eq!(segments_in_a_page(&library), 2);
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let library = library.to_str().expect("UTF-8");
    check_whole(&compile(&directory, SOURCE, &flags(&["-DMAIN", library, &rpath])));
}

/// Text that was moved to memory without a file, for huge pages, still counts as the file's.
#[test]
fn moved_text() {
    for (test, kind) in [("moved", "-pie"), ("moved-no-pie", "-no-pie")] {
        check_whole(&built(test, &["-DMOVE", kind]));
    }
}

/// Memory in the place of text that holds other code is generated code.
#[test]
fn other_code_in_place_of_text() {
    let report = trace(&built("other", &["-DMOVE", "-DPATCH"]), &[]);
    let stack = only_stack(&report);
    assert_eq!(
        (stack.end.as_str(), stack.frames.len()),
        ("anonymous_code", 1),
        "{stack}"
    );
    assert_eq!(stack.frames[0].symbol, None, "{stack}");
}

/// Generated code with frame pointers has the same stack in a file that is mapped twice as in memory without
/// a file.
#[test]
fn generated_code_in_a_file() {
    let path = built("generated", &["-DGENERATE", "-fno-omit-frame-pointer"]);
    for arguments in [&[][..], &["anonymous"]] {
        let report = trace(&path, arguments);
        let stack = only_stack(&report);
        assert_eq!(stack.end, "complete", "{stack}");
        let names = stack.names();
        assert_eq!([names[0], names[2], names[3], names[4]], LEAK, "{stack}");
        assert_eq!(stack.frames[1].module, None, "{stack}");
    }
}

/// Code that is 64 MiB away from the rest has its table, and so has the rest.
#[test]
fn code_far_apart() {
    for (test, kind) in [("far", "-no-pie"), ("far-pie", "-pie")] {
        let flags = [
            "-DHOT",
            "-fuse-ld=lld",
            kind,
            "-Wl,--section-start=.hot=0x4400000",
        ];
        check_whole(&built(test, &flags));
    }
}

/// More sections than fit the header's fields: names are found, by indexes that are elsewhere.
#[test]
fn more_than_65536_sections() {
    let directory = directory("layouts-sections");
    let assembly = directory.join("sections.s");
    let mut text = String::new();
    for number in 0..66_000 {
        text += &format!(".section .q{number},\"ax\",@progbits\nret\n");
    }
    text += ".section .note.GNU-stack,\"\",@progbits\n";
    std::fs::write(&assembly, text).expect("room");
    let assembly = assembly.to_str().expect("UTF-8");
    let path = compile(&directory, SOURCE, &flags(&["-fuse-ld=lld", assembly]));
    check_whole(&path);
}

/// CFI for debuggers only, in the program's debug file, is found there like lines.
#[test]
fn cfi_in_a_debug_file() {
    let directory = directory("layouts-debug-file");
    let no_eh_frame = ["-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let whole = directory.join("whole");
    compile_as(&whole, SOURCE, &flags(&no_eh_frame));
    let (stripped, debug) = (directory.join("layout"), directory.join("layout.debug"));
    let objcopy =
        |arguments: &[&str], path: &Path| run_tool(Command::new("objcopy").args(arguments).arg(path));
    let to = debug.to_str().expect("UTF-8");
    run_tool(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .arg(&whole)
            .arg(to),
    );
    run_tool(Command::new("strip").arg("-o").arg(&stripped).arg(&whole));
    objcopy(&[&format!("--add-gnu-debuglink={to}")], &stripped);
    check_whole(&stripped);
    // In the program itself, compressed as binutils did before 2.26.
    let old = directory.join("old");
    compile_as(
        &old,
        SOURCE,
        &flags(&[&no_eh_frame[..], &["-gz=zlib-gnu"]].concat()),
    );
    check_whole(&old);
}
