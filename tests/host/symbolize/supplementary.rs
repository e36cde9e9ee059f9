//! Debug files that share a supplementary file, as `dwz` makes them, give all their names.

use leak_report::model::Gap;

use super::*;

/// Two programs' debug files after `dwz`, and what they share.
struct Shared {
    stripped: PathBuf,
    debug: PathBuf,
    common: PathBuf,
}

/// Runs dwz on the debug files of `symbols.cpp` and of `other`, which is compiled with other flags; `name` is
/// how they refer to the file that they share.
fn shared(directory: &Path, other: &Path, name: &str) -> Shared {
    let [debug, other] =
        [(whole_program(), "program.debug"), (other, "other.debug")].map(|(program, name)| {
            let debug = directory.join(name);
            keep_debug(program, &debug);
            debug
        });
    let common = directory.join("common.debug");
    run(
        "dwz",
        &["-m", text(&common), "-M", name, text(&debug), text(&other)],
    );
    let sections = run("readelf", &["-SW", text(&debug)]);
    assert!(sections.contains(".gnu_debugaltlink"), "{sections}");
    Shared {
        stripped: strip(whole_program(), directory),
        debug,
        common,
    }
}

impl Shared {
    /// The stripped program in `root`, with its debug file behind a link by build-id, as packages have it.
    fn in_root(&self, root: &Path) -> Subject {
        let real = root.join("usr/lib/debug/opt/program.debug");
        let by_id = root.join("usr/lib/debug").join(build_id_path(whole_program()));
        for place in [&real, &by_id] {
            fs::create_dir_all(place.parent().expect("a directory")).expect("a new directory");
        }
        fs::copy(&self.debug, real).expect("a copy");
        _ = fs::remove_file(&by_id);
        std::os::unix::fs::symlink("../../opt/program.debug", by_id).expect("a new link");
        Subject::in_root(&self.stripped, Path::new("/opt/program"), vec![root.to_owned()])
    }

    fn put_common(&self, root: &Path, place: &str) {
        let place = root.join(place);
        fs::create_dir_all(place.parent().expect("a directory")).expect("a new directory");
        fs::copy(&self.common, place).expect("a copy");
    }
}

/// Supplementary files of debug files are found by name, from the root or from the debug file, and by
/// build-id; without one, or with another file in its place, names are missing and the reason is said.
#[test]
fn shared_debug_information() {
    let other = build(
        &directory("dwz-other"),
        "symbols/symbols.cpp",
        &["-g", "-Wl,--build-id", "-O1"],
    );
    for name in ["/usr/lib/debug/.dwz/common.debug", "../.dwz/common.debug"] {
        let directory = directory(&format!("dwz{}", name.len()));
        let shared = shared(&directory, &other, name);
        let (named, kept, none) = (
            directory.join("named"),
            directory.join("kept"),
            directory.join("none"),
        );
        shared.put_common(&named, "usr/lib/debug/.dwz/common.debug");
        let by_id = build_id_path(&shared.common);
        shared.put_common(&kept, &format!("usr/lib/debug/{}", by_id.display()));
        for root in [&named, &kept] {
            check_same_names(whole_program(), &mut shared.in_root(root));
        }

        for another in [None, Some(&shared.debug)] {
            if let Some(another) = another {
                let place = none.join("usr/lib/debug/.dwz/common.debug");
                fs::create_dir_all(place.parent().expect("a directory")).expect("a new directory");
                fs::copy(another, place).expect("a copy");
            }
            let mut subject = shared.in_root(&none);
            let addresses = subject.return_addresses();
            let gaps = addresses.iter().map(|&address| subject.at(address, false).gap);
            let missing = gaps.filter(|gap| *gap == Some(Gap::NoSupplementaryFile)).count();
            assert!(missing > 10, "{missing} of {}", addresses.len());
        }
    }
}
