//! Claims: tables of real objects agree with gimli's evaluation of their CFI at every row; and the comparison
//! that shows this notices every way in which an image can be wrong.

use crate::common::elf::{HandMade, cie, fde};
use crate::common::{libc, read_first, vdso, without_section_headers};
use unwind_tables::addr::Svma;
use unwind_tables::build::build;
use unwind_tables::coverage::CfiSource;
use unwind_tables::image::{Image, header};
use unwind_tables::packed::{KIND_BITS, PackedRule, kind};
use unwind_tables::rule::UnwindRule;
use unwind_tables::verify::{Outcome, Verified, verify};
use unwind_tables::{ElfView, Saves, compile, compile_as};

/// Compares one object, which must agree; returns the result of the comparison.
#[track_caller]
fn check(elf: &[u8], rows_at_least: u64) -> Verified {
    let compiled = compile_as(elf, Saves::Always).expect("an object of this machine");
    assert_eq!(compiled.coverage.source, CfiSource::EhFrame);
    let verified = verify(elf, compiled.image.as_ref()).expect("an object of this machine");
    assert_eq!((verified.wrong, &verified.examples[..]), (0, &[][..]));
    assert_eq!(verified.malformed, 0);
    assert!(
        verified.rows >= rows_at_least
            && verified.addresses >= verified.rows
            && verified.saved > verified.rows,
        "{verified:?}"
    );
    verified
}

/// Objects that every program on this machine is made of, and this test itself: no rule is wrong, none is
/// missing.
#[test]
fn real_objects_agree() {
    let library = |name: &str| {
        read_first(&[
            &format!("/usr/lib/x86_64-linux-gnu/{name}"),
            &format!("/usr/lib64/{name}"),
        ])
    };
    let this_test = std::env::current_exe().expect("this executable's path");
    for (elf, rows) in [
        (libc(), 20_000),
        (read_first(&["/lib64/ld-linux-x86-64.so.2"]), 2000),
        (library("libstdc++.so.6"), 15_000),
        (vdso(), 20),
        (std::fs::read(this_test).expect("this executable"), 10_000),
    ] {
        assert_eq!(check(&elf, rows).unsupported.len(), 0);
    }
}

/// Hand-written assembly with CFAs in many registers, where there is any on this machine.
#[test]
fn assembly_agrees() {
    for name in ["libcrypto.so.3", "libgmp.so.10"] {
        let path = format!("/usr/lib/x86_64-linux-gnu/{name}");
        if let Ok(elf) = std::fs::read(path) {
            assert_eq!(check(&elf, 1000).unsupported.len(), 0);
        }
    }
}

/// Files that no compiler makes, for which fuzzers have found differences.
#[test]
fn odd_files_agree() {
    // Offset in a CIE of the column of the return address.
    const COLUMN: usize = 12;
    let usual = cie(&[]);
    let mut named_rbx = usual.clone();
    named_rbx[COLUMN] = 3;
    // A terminator, as crtend.o has one, and what a linker put behind it.
    let joined = [&[0; 4], &usual[..]].concat();
    for (case, cie, instructions) in [
        (
            "a row that the next one, which saves rbx, replaces at once",
            &usual,
            &[0x41, 0x0e, 16, 0x40, 0x0e, 24, 0x83, 3][..],
        ),
        (
            "rbx saved below a CFA that is in no general register",
            &usual,
            &[0x41, 0x0c, 17, 16, 0x83, 2],
        ),
        (
            "a return address in the column of rbx",
            &named_rbx,
            &[0x41, 0x0e, 16],
        ),
        (
            "a section of two, of which the first ended",
            &joined,
            &[0x41, 0x0e, 16],
        ),
    ] {
        let mut contents = cie.clone();
        let back = contents.len() - contents.iter().position(|&byte| byte != 0).expect("a length");
        contents.extend(fde(back, 0x1010, 0x10, instructions));
        let elf = HandMade {
            segments: vec![0x1000],
            section: ".eh_frame",
            contents,
            flags: 0,
        }
        .bytes();
        let image = compile_as(&elf, Saves::Always).expect(case).image.expect(case);
        let verified = verify(&elf, Some(&image)).expect(case);
        assert_eq!((verified.wrong, &verified.examples[..]), (0, &[][..]), "{case}");
        assert_eq!((verified.malformed, verified.rows > 0), (0, true), "{case}");
    }
}

/// Without section headers, CFI is found through `PT_GNU_EH_FRAME`, and the table is the same everywhere.
#[test]
fn tables_without_section_headers_agree() {
    let elf = without_section_headers(libc());
    assert!(!ElfView::parse(&elf).expect("headers").has_section_headers());
    assert_eq!(check(&elf, 20_000).rows, check(&libc(), 20_000).rows);
}

/// The stack ends in glibc where a thread starts, and nowhere else.
#[test]
fn stacks_end_where_the_return_address_is_undefined() {
    let elf = libc();
    let view = ElfView::parse(&elf).expect("libc");
    let (table, _) = build(&view).expect("libc");
    let ends = table
        .rows()
        .into_iter()
        .filter(|row| row.rule == UnwindRule::EndOfStack);
    // `clone` and, since 2.34, `clone3`.
    assert!((1..=3).contains(&ends.count()));
    assert_eq!(table.rule_at(Svma::new(0)), UnwindRule::Gap);
}

/// A saved register whose slot is off by one is noticed.
#[test]
fn a_wrong_slot_is_noticed() {
    let elf = read_first(&["/lib64/ld-linux-x86-64.so.2"]);
    let image = compile(&elf).expect("the dynamic linker").image.expect("CFI");
    let saves = header_word(&image, header::SAVES_AT);
    let rules = saves + header_word(&image, saves + header::RULES_AT);
    let mut noticed = 0;
    for rule in rules..rules + header_word(&image, saves + header::RULE_COUNT) {
        // A short entry in which rbx is saved.
        let bits = image.words()[rule];
        if bits & 7 == kind::SP && bits >> KIND_BITS & 31 != 0 {
            let changed = changed(&image, rule, |rule| rule ^ 1 << KIND_BITS).expect("still an image");
            assert!(
                verify(&elf, Some(&changed)).expect("the dynamic linker").wrong > 0,
                "rule {rule}"
            );
            noticed += 1;
        }
    }
    assert!(noticed > 5, "only {noticed} rules were changed");
}

/// Without an image, each row is missing.
#[test]
fn a_missing_image_is_noticed() {
    let verified = verify(&vdso(), None).expect("the vDSO");
    assert_eq!(verified.wrong, verified.rows);
    assert!(verified.examples.iter().all(|wrong| wrong.image == Outcome::Gap));
}

/// The image with one word changed; `None` if the result is not an image.
fn changed(image: &Image, at: usize, change: impl Fn(u32) -> u32) -> Option<Image> {
    let mut words = image.words().to_vec();
    words[at] = change(words[at]);
    Image::from_words(words).ok()
}

fn header_word(image: &Image, number: usize) -> usize {
    usize::try_from(image.words()[number]).expect("a small image")
}

/// Each rule of an image that computes the CFA from a register is noticed if its offset is wrong by the least
/// possible amount (eight bytes).
#[test]
fn every_wrong_rule_is_noticed() {
    let elf = read_first(&["/lib64/ld-linux-x86-64.so.2"]);
    let image = compile(&elf).expect("the dynamic linker").image.expect("CFI");
    let rules = header_word(&image, header::RULES_AT);
    let mut noticed = 0;
    for rule in rules..rules + header_word(&image, header::RULE_COUNT) {
        if ![kind::SP, kind::FP].contains(&PackedRule::from_bits(image.words()[rule]).kind()) {
            continue;
        }
        let changed = changed(&image, rule, |rule| rule + (1 << KIND_BITS)).expect("still an image");
        let verified = verify(&elf, Some(&changed)).expect("the dynamic linker");
        assert!(verified.wrong > 0, "rule {rule}");
        noticed += 1;
    }
    assert!(noticed > 20, "only {noticed} rules were changed");
}

/// Each row that starts a byte too late is noticed.
#[test]
fn every_misplaced_row_is_noticed() {
    let elf = vdso();
    let image = compile(&elf).expect("the vDSO").image.expect("CFI");
    let rows = header_word(&image, header::ROWS_AT);
    let mut noticed = 0;
    // Row 0 stands before the first block.
    for row in 1..header_word(&image, header::ROW_COUNT) {
        let half = 16 * (row % 2);
        let changed = changed(&image, rows + row / 2, |words| {
            let late = (words >> half & 0xff).wrapping_add(1) & 0xff;
            words & !(0xff << half) | late << half
        });
        if let Some(changed) = changed {
            let verified = verify(&elf, Some(&changed)).expect("the vDSO");
            assert!(verified.wrong > 0, "row {row}");
            noticed += 1;
        }
    }
    assert!(noticed > 10, "only {noticed} rows were moved");
}
