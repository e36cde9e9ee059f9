//! Separate debug files, found by build-id and by link.

use super::*;

/// A stripped program's names come from the debug file with its build-id, under the root it belongs to, and a
/// debug file with another build-id at that place is not used.
#[test]
fn debug_file_by_build_id() {
    let directory = directory("build-id");
    let program = build(&directory, "inlined.cpp", &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program, &directory);
    let (empty, root) = (directory.join("empty"), directory.join("root"));
    fs::create_dir_all(&empty).expect("a new directory");
    let path = Path::new("/opt/program");
    check_no_names(&mut Subject::in_root(&stripped, path, vec![empty.clone()]));

    let place = root.join("usr/lib/debug").join(build_id_path(&program));
    keep_debug(&program, &place);
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, path, vec![empty.clone(), root.clone()]),
    );

    let other = build(
        &super::directory("build-id-other"),
        "inlined.cpp",
        &["-g", "-O1", "-Wl,--build-id"],
    );
    keep_debug(&other, &place);
    check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
}

/// An absolute link in a root is a path in that root.
#[test]
fn debug_directory_behind_a_link() {
    let directory = directory("link");
    let program = build(&directory, "inlined.cpp", &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program, &directory);
    let root = directory.join("root");
    keep_debug(&program, &root.join("elsewhere").join(build_id_path(&program)));
    fs::create_dir_all(root.join("usr/lib")).expect("a new directory");
    std::os::unix::fs::symlink("/elsewhere", root.join("usr/lib/debug")).expect("a new link");
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, Path::new("/p"), vec![root]),
    );
}

/// Without a build-id the linked file is used from each place it may lie in, if its checksum is right.
#[test]
fn debug_file_by_link() {
    let directory = directory("debuglink");
    let program = build(&directory, "inlined.cpp", &["-g", "-Wl,--build-id=none"]);
    let stripped = strip(&program, &directory);
    let debug = directory.join("program.debug");
    keep_debug(&program, &debug);
    run(
        "objcopy",
        &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&stripped)],
    );
    let path = Path::new("/opt/bin/program");
    for place in ["opt/bin", "opt/bin/.debug", "usr/lib/debug/opt/bin"] {
        let root = directory.join("roots").join(place.replace('/', "-"));
        let file = root.join(place).join("program.debug");
        keep_debug(&program, &file);
        check_same_names(
            &program,
            &mut Subject::in_root(&stripped, path, vec![root.clone()]),
        );

        let mut bytes = fs::read(&file).expect("the debug file");
        bytes.push(0);
        fs::write(&file, bytes).expect("a changed debug file");
        check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
    }
}
