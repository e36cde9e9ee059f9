//! Names of sites: functions that only pass blocks on do not give them, in a real program with the C
//! library's own headers and a stripped library.

use crate::allocators::trace;
use memleak_test::program::{compile, directory};

/// Inline functions of the C library's headers, and helpers without a name below a library's allocation
/// function, are not responsible: their callers are.
#[test]
fn of_what_passes_blocks_on() {
    let path = compile(&directory("sites"), "allocators/sites.c", &["-O2", "-g"]);
    let report = trace(&path, None, &[]);
    for (function, passed_by) in [
        ("reads_line", "getline"),
        ("formats", "asprintf"),
        ("queries", "sqlite3"),
    ] {
        let stacks = report.through(function);
        assert!(!stacks.is_empty(), "{function}: {report}");
        for stack in stacks {
            let responsible = stack.responsible.as_ref().map(|found| &*found.symbol);
            assert_eq!(responsible, Some(function), "{stack}");
            let inlined = stack.frames.iter().flat_map(|frame| &frame.inlined);
            let inlined = inlined.filter_map(|inlined| inlined.symbol.as_deref());
            let mut names = inlined.chain(stack.names());
            assert!(names.any(|name| name.contains(passed_by)), "{stack}");
        }
    }
}
