//! Programs that claim to be a JVM with frame pointers: memleak reads that in their memory, by tables of
//! theirs.

use std::process::Command;
use std::time::Instant;

use super::{MIB, RELEASE, finish_within};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_as, directory};

/// Maximum seconds until doctor has reported on a process.
const SECONDS: f64 = 20.0;

/// A right table is believed. One without an end, or that leads to missing memory, is not, takes no time, and
/// changes nothing else.
#[test]
fn claimed_jvms() {
    let path = directory("abuse-jvm").join("libjvm.so");
    compile_as(&path, "hostile/jvm.c", &[&RELEASE[..], &["-rdynamic"]].concat());
    for (how, believed) in [
        ("right", Some(true)),
        ("off", Some(false)),
        ("endless", Some(false)),
        ("wild", Some(false)),
        ("wild flags", Some(false)),
        ("wild value", Some(false)),
        // Memory behind the flags may be mapped or not.
        ("many", None),
        ("large", Some(false)),
        ("far", Some(false)),
        ("nameless", Some(false)),
        // It still counts as a JVM that keeps frame pointers, but not all its code is known to.
        ("wild interpreter", Some(true)),
        ("wild heaps", Some(true)),
        ("many heaps", Some(true)),
        ("all heap", Some(true)),
    ] {
        let mut program = Program::start(&path, &[how]);
        program.expect("ready");
        let began = Instant::now();
        let doctor = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["doctor", "-p", &program.pid().to_string()])
            .output()
            .expect("it is there");
        let seconds = began.elapsed().as_secs_f64();
        assert!(seconds < SECONDS, "{how}: {seconds} s");
        let said = String::from_utf8_lossy(&doctor.stdout);
        assert!(said.contains("code generated at run time"), "{how}: {said}");
        let is_believed = said.contains("a JVM that keeps frame pointers");
        assert_eq!(is_believed, believed.unwrap_or(is_believed), "{how}: {said}");
        let mut memleak = Memleak::attach(program.pid(), &[]);
        // The message about a JVM whose description of itself is not known.
        let unknown = "its JVM does not describe its flags";
        let is_told = memleak.seen_messages().iter().any(|line| line.contains(unknown));
        if how == "wild flags" && !is_told {
            memleak.await_message(unknown);
        }
        program.step("done");
        let report = finish_within(how, memleak, (160 * MIB, SECONDS));
        let stack = report.only_through("leak");
        assert_eq!(
            (stack.allocated.blocks, &*stack.end),
            (100, "complete"),
            "{stack}"
        );
    }
}
