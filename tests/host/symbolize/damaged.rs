//! Files that are damaged, or made to do harm, give fewer names, within bounds of time and memory.

use leak_report::model::Gap;

use super::*;

/// Changes a few bytes of `file`, and cuts every third short.
pub(super) fn damage(file: &mut Vec<u8>, round: usize, random: &mut u64) {
    for _ in 0..8 {
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(*random >> 33).expect("31 bits") % file.len();
        file[at] = random.to_le_bytes()[3];
    }
    if round.is_multiple_of(3) {
        file.truncate(file.len() * round / 300);
    }
}

/// A file that is no ELF file, or a damaged one, gives no names; it does not end the program.
#[test]
fn damaged_files() {
    let program = build(&directory("damaged"), "symbols/inlined.cpp", &["-g"]);
    let whole = Subject::new(&program);
    let addresses = whole.return_addresses();
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for round in 0..300 {
        let mut damaged = Subject::new(&program);
        damage(&mut damaged.bytes, round, &mut random);
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

/// Damaged files beside a program do not end this program either: debug files, split ones, packages, and
/// small tables in the program.
#[test]
fn damaged_debug_files_are_survived() {
    let directory = directory("damaged-beside");
    let split = |version, place: &str| {
        let split = forms::Split::cpp(&format!("damaged{version}"), &[version]);
        let file = forms::file_with_ending(&split.directory, "dwo");
        (split.program.clone(), file, format!("opt/{place}"))
    };
    let version5 = split("-gdwarf-5", "program-inlined.dwo");
    let version4 = split("-gdwarf-4", "program.dwp");
    let package = directory.join("package");
    run("dwp", &["-o", text(&package), text(&version4.1)]);
    let whole = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id"]);
    let debug = directory.join("program.debug");
    keep_debug(&whole, &debug);
    let debug_path = format!("usr/lib/debug/{}", build_id_path(&whole).display());
    let mini = forms::with_mini_debug(&whole, &directory);
    for (program, file, place) in [
        version5,
        (version4.0, package, version4.2),
        (strip(&whole, &directory), debug, debug_path),
        (mini.clone(), mini, "opt/program".to_owned()),
    ] {
        check_with_damaged(&program, &file, &directory.join("root"), &place);
    }
}

/// Looks for names with a damaged `file` at `place` in `root`; where that is the program, it is damaged too.
fn check_with_damaged(program: &Path, file: &Path, root: &Path, place: &str) {
    let place = root.join(place);
    fs::create_dir_all(place.parent().expect("a directory")).expect("a new directory");
    let bytes = fs::read(file).expect("it was made");
    let addresses = Subject::new(program).return_addresses();
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for round in 0..100 {
        let mut damaged = bytes.clone();
        damage(&mut damaged, round, &mut random);
        fs::write(&place, &damaged).expect("a file of ours");
        let mut subject = Subject::in_root(program, Path::new("/opt/program"), vec![root.to_owned()]);
        if file == program {
            subject.bytes = damaged;
        }
        for &address in &addresses {
            subject.at(address, false);
        }
    }
    fs::remove_file(place).expect("it is ours");
}

/// A megabyte of debug information that stands for hundreds of gigabytes, as thousands of units each have all
/// of the same abbreviations, rows of lines or lists of files, is refused at once, and symbols still name the
/// code.
#[test]
fn multiplied_debug_information_is_refused() {
    let directory = directory("multiplied");
    let source = source("symbols/multiplied_debug_info.S");
    for (damage, gap) in [
        ("ABBREVIATIONS", Gap::Malformed),
        ("LINES", Gap::Malformed),
        ("SAME_LINES", Gap::Malformed),
        ("FILES", Gap::TooLarge),
    ] {
        let file = directory.join(format!("{damage}.so"));
        let define = format!("-D{damage}");
        run(
            "gcc",
            &["-shared", "-nostdlib", &define, "-o", text(&file), &source],
        );
        let victim = names::dynamic_symbol(&file, "victim");
        let began = std::time::Instant::now();
        let found = Subject::new(&file).at(victim + 4, true);
        assert_eq!(own_chain(&found)[0].0, "victim", "{damage}");
        assert_eq!(found.gap, Some(gap), "{damage}");
        assert!(began.elapsed().as_secs() < 20, "{damage}: {:?}", began.elapsed());
    }
}

/// Debug information nested deeper than this program's stack is refused, and symbols still name the code.
#[test]
fn endless_nesting_is_refused() {
    let file = directory("nesting").join("nested.so");
    let source = source("symbols/nested_debug_info.s");
    run("gcc", &["-shared", "-nostdlib", "-o", text(&file), &source]);
    let victim = names::dynamic_symbol(&file, "victim");
    let found = Subject::new(&file).at(victim + 4, true);
    assert_eq!(own_chain(&found)[0].0, "victim");
    assert_eq!(found.gap, Some(Gap::Malformed));
}
