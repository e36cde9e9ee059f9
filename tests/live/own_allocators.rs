//! Allocators that a program has itself: hidden ones, in whole or in part, and one whose functions restart.

use crate::allocators::{start, trace};
use crate::one_memory::by;
use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{compile_as, directory};
use memleak_test::report::Amount;

/// A hidden allocator that is whole is traced without a flag, by any linker, and whether its `free` is hidden
/// or not.
#[test]
fn hidden_allocators() {
    let directory = directory("allocators-hidden-whole");
    let hidden = "-DOWN_FREE=__attribute__((visibility(\"hidden\")))";
    for (name, free, linker) in [
        ("exported-free", "-DOWN_FREE=", "-fuse-ld=bfd"),
        ("whole", hidden, "-fuse-ld=lld"),
    ] {
        let flags = ["-O2", "-fno-builtin", free, linker];
        let path = compile_as(&directory.join(name), "allocators/hidden.c", &flags);
        let report = trace(&path, None, &[]);
        for (function, bytes, left) in [("leaky", 100, 5), ("passing", 50, 0)] {
            let amount = |blocks| Amount {
                bytes: bytes * blocks,
                blocks,
            };
            let stack = report.only_through(function);
            let found = (stack.allocated, stack.outstanding);
            assert_eq!(found, (amount(5), amount(left)), "{name}: {function}:\n{report}");
        }
    }
}

/// A function that prepares its thread's cache and restarts by a jump is one call: no free is of an unknown
/// block, and nothing is allocated twice.
#[test]
fn functions_that_begin_again() {
    let path = directory("allocators-again").join("program");
    let flags = ["-O2", "-fno-builtin", "-pthread"];
    let path = compile_as(&path, "allocators/begins_again.c", &flags);
    for attach in attach_paths() {
        let report = trace(&path, None, &["--attach", attach]);
        let expected = [("leaky", 100, 5, 5), ("passing", 50, 10, 0), ("given", 30, 5, 0)];
        for (function, bytes, blocks, left) in expected {
            let amount = |blocks| Amount {
                bytes: bytes * blocks,
                blocks,
            };
            let found = by(&report, function);
            assert_eq!(
                found,
                (amount(blocks), amount(left)),
                "{attach}: {function}:\n{report}"
            );
        }
        assert_eq!(report.events.unknown_frees, 0, "{attach}:\n{report}");
    }
}

/// A hidden function of C without the other half of an allocator, or with one that is local to its file, does
/// not count as the program's allocator: it is named, with what to do, and traced if that is done.
#[test]
fn hidden_functions() {
    let directory = directory("allocators-hidden");
    let given = ["--alloc", "malloc:alloc(size=0)", "--alloc", "free:free(block=0)"];
    for (name, free, given) in [
        ("alone", "-UOWN_FREE", &given[..2]),
        ("static-free", "-DOWN_FREE=static", &given),
    ] {
        let flags = ["-O2", "-fno-builtin", free];
        let path = compile_as(&directory.join(name), "allocators/hidden.c", &flags);
        let mut program = start(&path, &[], None);
        let memleak = Memleak::attach(program.pid(), &[]);
        program.step("done");
        let (_, messages) = memleak.finish_with_messages();
        program.send_line("");
        let is_named = |line: &String| {
            let mut advice = given.iter().skip(1).step_by(2);
            line.contains("defines `malloc` as a local symbol")
                && advice.all(|shape| line.contains(&format!("--alloc '{shape}'")))
        };
        assert!(messages.iter().any(is_named), "{name}: {messages:#?}");
        let report = trace(&path, None, given);
        let leaky = report.only_through("leaky");
        let all = Amount {
            bytes: 5 * 100,
            blocks: 5,
        };
        assert_eq!(
            (leaky.allocated, leaky.outstanding),
            (all, all),
            "{name}: {report}"
        );
    }
}
