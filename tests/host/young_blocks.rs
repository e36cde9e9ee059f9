//! Young blocks, compiled for the host: threads that are delayed wherever another can come between account
//! for each block once. In a kernel, a probe is between two steps for less than a microsecond; what happens
//! there is rare, and must be right.

#![allow(unsafe_code, reason = "calls the C side through a shared object")]

use libloading::{Library, Symbol};
use memleak_test::compile::compile_for_host;
use memleak_test::program::end_if_only_compiled;

type ExchangeBlocks = unsafe extern "C" fn(u32, u64) -> u64;

/// Few addresses that are soon used again, two places, and more threads than processors: every freed block is
/// known, as it was recorded, and none is left.
#[test]
fn blocks_are_in_one_place() {
    let flags = ["-Wno-unused-function", "-Wno-pass-failed", "-pthread"];
    let object = compile_for_host("young.c", "host-young", &flags);
    end_if_only_compiled();
    let rounds = match std::env::var_os("MEMLEAK_FULL_LOAD") {
        Some(_) => 500_000,
        None => 20_000,
    };
    // SAFETY: the object is the one just built; it has no initialisers, and the symbol has this type.
    let wrong = unsafe {
        let library = Library::new(&object).expect("the shared object loads");
        let exchange: Symbol<'_, ExchangeBlocks> =
            library.get(b"host_exchange_blocks\0").expect("it is exported");
        exchange(8, rounds)
    };
    assert_eq!(wrong, 0);
}
