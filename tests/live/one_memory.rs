//! Processes that share their memory, and are no threads of one another, are traced as one.

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report};

fn amount(blocks: u64, size: u64) -> Amount {
    Amount {
        bytes: blocks * size,
        blocks,
    }
}

/// Allocated and outstanding amount of one function, over all its stacks.
pub(crate) fn by(report: &Report, symbol: &str) -> (Amount, Amount) {
    let stacks = report.through(symbol);
    (
        stacks.iter().map(|stack| stack.allocated).sum(),
        stacks.iter().map(|stack| stack.outstanding).sum(),
    )
}

/// Two processes with one memory count as one, whoever allocates and frees, and whether the second began
/// before the trace or later.
#[test]
fn one_memory() {
    for attach in attach_paths() {
        let path = compile(
            &directory(&format!("one-memory-{attach}")),
            "processes/shared_memory.c",
            &["-O1"],
        );
        for begins in ["early", "late"] {
            let mut program = Program::start(&path, &[begins]);
            program.expect("ready");
            let mut memleak = Memleak::attach(program.pid(), &["--attach", attach]);
            program.step("shared");
            if begins == "late" {
                memleak.await_message("shares the memory");
            }
            program.step("done");
            let report = memleak.finish();
            report.check_sums();
            let found = ["handed", "helper_leak", "returned"].map(|function| by(&report, function));
            let expected = [
                (amount(30, 100), amount(0, 100)),
                (amount(12, 200), amount(12, 200)),
                (amount(7, 300), amount(0, 300)),
            ];
            assert_eq!(found, expected, "{attach}, {begins}: {report}");
            assert!(program.end().success());
        }
    }
}
