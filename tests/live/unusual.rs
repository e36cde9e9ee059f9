//! Processes that do something unusual while they have probes, or get other rights: none is ended by the
//! probes or sees a signal that is not its own, and their allocations are counted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, copy_program, directory};

const FLAGS: [&str; 1] = ["-O2"];
const GIVEN: [&str; 2] = ["--alloc", "own_allocation:alloc(size=0,return=probe)"];
const BY_RET: [&str; 2] = ["--alloc", "own_allocation:alloc(size=0)"];
/// Name of the kernel's mapping for probes.
const MAPPING: &str = "[uprobes]";

fn has_mapping(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    maps.lines().any(|line| line.ends_with(MAPPING))
}

/// A process confines itself by seccomp while it is traced, so that any system call but its own ends it or
/// fails: return probes, which some kernels implement by a system call, do it no harm, nor does the end of
/// memleak.
#[test]
fn confined_by_seccomp() {
    let path = compile(&directory("unusual-confined"), "hostile/confined.c", &FLAGS);
    let ways = ["strict", "kills", "refuses"];
    for (attach, how) in attach_paths().into_iter().cycle().zip(ways) {
        let mut program = Program::start(&path, &[how]);
        program.expect("ready");
        program.step("confined");
        let memleak = Memleak::attach(program.pid(), &[&GIVEN[..], &["--attach", attach]].concat());
        program.step("done");
        let report = memleak.finish();
        // Ten times by each of six functions.
        assert_eq!(report.allocated.blocks, 60, "{attach}, {how}: {report}");
        program.send_line("");
        assert!(program.end().success(), "{attach}, {how}");
    }
    let mut program = Program::start(&path, &["kills"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &GIVEN);
    program.step("confined");
    program.step("done");
    memleak.kill();
    program.send_line("");
    assert!(program.end().success(), "killed");
}

/// A debugger steps through probed functions, instruction by instruction, stops at a watched variable, or at
/// the very instruction that has a probe; or the program traps after each of its instructions itself. Every
/// stop is one that was asked for.
#[test]
fn stepped_and_watched() {
    let path = compile(&directory("unusual-stepped"), "hostile/stepped.c", &FLAGS);
    let ways = ["steps", "steps", "breaks", "traps", "watches"];
    let given = [&GIVEN[..], &BY_RET].into_iter().cycle();
    let given = given.zip(attach_paths().into_iter().cycle());
    for (how, (given, attach)) in ways.into_iter().zip(given) {
        let mut program = Program::start(&path, &[how]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &[given, &["--attach", attach]].concat());
        program.step("done");
        let report = memleak.finish();
        assert_eq!(report.allocated_through("leak").blocks, 10, "{how}: {report}");
        program.send_line("");
        assert!(program.end().success(), "{attach}, {how}, {given:?}");
    }
}

/// A debugger's breakpoint on a probed instruction ends the process once memleak has left: the debugger is
/// named, whether it came before or after memleak.
#[test]
fn debuggers_are_named() {
    let path = compile(&directory("unusual-debugged"), "hostile/stepped.c", &FLAGS);
    let is_named = |messages: &[String], pid: u32| {
        let begin = format!("memleak: warning: {pid} is debugged by stepped (");
        messages.iter().filter(|line| line.starts_with(&begin)).count()
    };
    for is_before in [true, false] {
        let mut program = Program::start(&path, &["held"]);
        let pid = program.pid();
        program.expect("ready");
        let memleak = match is_before {
            true => {
                program.step("held");
                Memleak::attach(pid, &[])
            }
            false => {
                let memleak = Memleak::attach(pid, &[]);
                assert_eq!(is_named(memleak.seen_messages(), pid), 0);
                program.step("held");
                memleak
            }
        };
        let (_, messages) = memleak.finish_with_messages();
        assert_eq!(is_named(&messages, pid), 1, "{is_before}: {messages:#?}");
        program.step("done");
        program.send_line("");
        assert!(program.end().success());
    }
}

/// The kernel's mapping for probes, at which CRIU fails, comes with the first hit of a return probe and stays
/// when memleak has left; a process that is not hit has none. Nothing else of a trace remains for CRIU, as
/// the code is that of its files again.
#[test]
fn mapping_of_probes_stays() {
    let path = compile(&directory("unusual-mapping"), "amounts/plain.c", &FLAGS);
    let mut program = Program::start(&path, &["10"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    assert!(!has_mapping(program.pid()), "nothing was hit");
    memleak.finish();
    assert!(
        !has_mapping(program.pid()),
        "nothing was hit, and nothing is left"
    );
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    assert!(has_mapping(program.pid()));
    memleak.finish();
    assert!(has_mapping(program.pid()), "docs/limits.md says that it stays");
    program.send_line("");
    assert!(program.end().success());
}

/// Ways in which a program gets rights that its user does not have, or may not be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raised {
    SetUid,
    Unreadable,
    Capabilities,
}

/// User id of `nobody`, an unprivileged user.
const USER: u32 = 65534;

/// Makes the file that the child executes. Returns the users that it runs as, real and effective.
fn raise(by: Raised, program: &Path) -> (PathBuf, u32, u32) {
    let file = program.with_file_name(format!("{by:?}"));
    copy_program(program, &file);
    let owner = (by == Raised::SetUid).then_some(USER);
    chown(&file, owner, None).expect("root");
    let mode = match by {
        Raised::SetUid => 0o4755,
        Raised::Unreadable => 0o711,
        Raised::Capabilities => {
            // CAP_NET_RAW, permitted and effective (`struct vfs_cap_data`, version 2).
            let capabilities: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
            let bytes: Vec<u8> = capabilities.iter().flat_map(|word| word.to_le_bytes()).collect();
            set_attribute(&file, "security.capability", &bytes);
            0o755
        }
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("our own file");
    match by {
        Raised::SetUid => (file, 0, USER),
        Raised::Unreadable | Raised::Capabilities => (file, USER, USER),
    }
}

fn set_attribute(file: &Path, name: &str, value: &[u8]) {
    const SET: &str = "import os, sys; os.setxattr(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]))";
    let value: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = std::process::Command::new("/usr/bin/python3");
    let set = command.args(["-c", SET]).arg(file).args([name, &value]).status();
    assert!(set.expect("python3 (apt-get install python3)").success());
}

/// A traced process starts a program with other rights, from which the kernel takes inherited probes. memleak
/// says so and places them again, and allocations from then on are counted.
#[test]
fn executed_with_other_rights() {
    let program = compile(&directory("unusual-raised"), "processes/raised.c", &FLAGS);
    for by in [Raised::SetUid, Raised::Unreadable, Raised::Capabilities] {
        let (file, user, effective) = raise(by, &program);
        let mut arguments = vec![file.display().to_string()];
        arguments.extend((user != 0).then(|| user.to_string()));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let mut program = Program::start(&program, &arguments);
        program.expect("ready");
        let mut memleak = Memleak::attach(program.pid(), &["--follow-fork"]);
        program.step(&format!("runs by {user} as {effective}"));
        memleak.await_message("runs with other privileges");
        program.step("raised");
        program.step("done");
        let report = memleak.finish();
        let allocated = report.allocated_through("leak_raised");
        assert_eq!(allocated.blocks, 20, "{by:?}: {report}");
        program.send_line("");
        assert!(program.end().success(), "{by:?}");
    }
}
