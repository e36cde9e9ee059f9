//! Files that are damaged, or made to do harm.

use memleak::symbolize::Gap;

use super::*;

/// A file that is no ELF file, or a damaged one, gives no names; it does not end the program.
#[test]
fn damaged_files() {
    let program = build(&directory("damaged"), "inlined.cpp", &["-g"]);
    let whole = Subject::new(&program);
    let addresses = whole.return_addresses();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300 {
        let mut damaged = Subject::new(&program);
        for _ in 0..8 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(random >> 33).expect("31 bits") % damaged.bytes.len();
            damaged.bytes[at] = random.to_le_bytes()[3];
        }
        if round % 3 == 0 {
            let length = damaged.bytes.len() * round / 300;
            damaged.bytes.truncate(length);
        }
        for &address in &addresses {
            damaged.at(address, false);
        }
    }
    let mut nothing = Subject {
        bytes: b"#!/bin/sh\n".to_vec(),
        ..whole
    };
    assert_eq!(nothing.at(0x1000, false).gap, Some(Gap::Unreadable));
}

/// Debug information nested deeper than this program's stack is refused, and symbols still name the code.
#[test]
fn endless_nesting_is_refused() {
    let file = directory("nesting").join("nested.so");
    let source = source("nested_debug_info.s");
    run("gcc", &["-shared", "-nostdlib", "-o", text(&file), &source]);
    let victim = names::dynamic_symbol(&file, "victim");
    let found = Subject::new(&file).at(victim + 4, true);
    assert_eq!(own_chain(&found)[0].0, "victim");
    assert_eq!(found.gap, Some(Gap::Malformed));
}
