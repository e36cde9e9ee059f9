//! Functions that the user describes (`--alloc`), whatever else they do.

use crate::allocators::{NOTHING, RELEASE, Row, check_rows, is_function, trace};
use memleak_test::attach_paths::attach_paths;
use memleak_test::program::{compile, directory};
use memleak_test::report::{Amount, Stack};

/// Functions that the user describes are traced beside the known ones, and alone where only their object is
/// looked at.
#[test]
fn functions_that_are_given() {
    let path = compile(&directory("allocators-given"), "allocators/pool.c", &RELEASE);
    let given = [
        "--alloc",
        "pool_get:alloc(size=0)",
        "--alloc",
        "pool_get_many:alloc(size=1*2,result=*0)",
        "--alloc",
        "pool_resize:realloc(block=0,size=1)",
        "--alloc",
        "pool_put:free(block=0)",
    ];
    let pool: &[Row] = &[
        ("get_kept", 1001),
        ("get_freed", 1002),
        ("many_kept", 110),
        ("resize_old", 100),
        ("resize_kept", 200),
    ];
    let both: Vec<Row> = pool.iter().copied().chain([("malloc_kept", 33)]).collect();
    check_rows("with the C library", &trace(&path, None, &given), &both);
    let only: Vec<_> = given.iter().copied().chain(["-O", "pool"]).collect();
    check_rows("by itself", &trace(&path, None, &only), pool);
}

/// A described function in which fibers wait and go on in another thread: no process dies of that, each call
/// is counted once, with what is allocated within it, and what other fibers allocate meanwhile is not taken
/// for a part of it.
#[test]
fn functions_that_change_threads() {
    const FIBERS: u64 = 8;
    const ROUNDS: u64 = 25;
    let flags = [&RELEASE[..], &["-pthread"]].concat();
    let path = compile(&directory("allocators-fibers"), "allocators/fibers.c", &flags);
    let given = [
        "--alloc",
        "pool_get:alloc(size=0)",
        "--alloc",
        "pool_put:free(block=0)",
    ];
    for attach in attach_paths() {
        let report = trace(&path, None, &[&given[..], &["--attach", attach]].concat());
        for (site, bytes, stays) in [
            ("get_kept", 64, true),
            ("get_freed", 32, false),
            ("malloc_kept", 16, true),
        ] {
            let through: Vec<_> = report
                .stacks
                .iter()
                .filter(|stack| stack.names().iter().any(|name| is_function(name, site)))
                .collect();
            let sum = |of: fn(&Stack) -> Amount| through.iter().map(|stack| of(stack)).sum::<Amount>();
            let blocks = FIBERS * ROUNDS;
            let all = Amount {
                bytes: bytes * blocks,
                blocks,
            };
            let left = if stays { all } else { NOTHING };
            assert_eq!(
                (sum(|stack| stack.allocated), sum(|stack| stack.outstanding)),
                (all, left),
                "{attach}, {site}:\n{report}"
            );
        }
        let events = &report.events;
        assert_eq!(
            (report.lost.blocks, events.abandoned, events.missed_frees),
            (0, 0, 0),
            "{attach}:\n{report}"
        );
        // A thread that ends gives back what it has kept of freed blocks.
        assert_eq!(
            events.unknown_frees, events.own_unknown_frees,
            "{attach}:\n{report}"
        );
    }
}
