//! Debug information of functions that the linker removed says nothing about the code that is there.

use super::*;

/// Linkers that tests/setup.sh installs on every release, and those that are used where they are there.
const LINKERS: [&str; 2] = ["bfd", "lld"];
const OTHER_LINKERS: [&str; 2] = ["gold", "mold"];

fn linkers() -> impl Iterator<Item = &'static str> {
    let is_there = |linker: &&str| {
        let names = [format!("/usr/bin/ld.{linker}"), format!("/usr/bin/{linker}")];
        names.iter().any(|name| Path::new(name).exists())
    };
    LINKERS
        .into_iter()
        .chain(OTHER_LINKERS.into_iter().filter(is_there))
}

/// Links `removed/` by `linker`; all but one of its files have debug information by `flags`.
fn link(directory: &Path, linker: &str, flags: &[&str], form: &[&str]) -> PathBuf {
    let program = directory.join("program");
    let object = |name: &str| {
        directory
            .join(Path::new(name).file_name().expect("a name"))
            .with_extension("o")
    };
    let mut objects = Vec::new();
    for (name, more) in [
        (
            "symbols/removed/mixed.c",
            &[flags, &["-ffunction-sections"]].concat()[..],
        ),
        ("symbols/removed/whole.c", flags),
        ("symbols/removed/plain.c", &[]),
        ("symbols/removed/live.c", flags),
    ] {
        let (file, object) = (source(name), object(name));
        let usual = ["-O2", "-fPIC", "-c", "-o", text(&object), &file];
        run("gcc", &[&usual, more].concat());
        objects.push(object);
    }
    let objects: Vec<&str> = objects.iter().map(|object| text(object)).collect();
    let linker = format!("-fuse-ld={linker}");
    let usual = ["-Wl,--gc-sections", &linker, "-o", text(&program)];
    run("gcc", &[&usual, form, &objects].concat());
    program
}

/// Start and length of a function, by the symbol table.
fn function(program: &Path, name: &str) -> (u64, u64) {
    let listing = run("nm", &["-S", text(program)]);
    let line = listing.lines().find(|line| line.ends_with(&format!(" {name}")));
    let mut words = line.unwrap_or_else(|| panic!("{name} is there")).split(' ');
    let mut number = || u64::from_str_radix(words.next().expect("a word"), 16).expect("a number");
    (number(), number())
}

/// Checks that code without debug information has no lines and, without a symbol, no names; other code has
/// its own.
#[track_caller]
fn check(directory: &Path, linker: &str, flags: &[&str], form: &[&str]) {
    let program = link(directory, linker, flags, form);
    let case = format!("{linker} {flags:?} {form:?}");
    let stripped = directory.join("stripped");
    let names = ["plain", "live", "live_beside"];
    let remove = names.map(|name| format!("--strip-symbol={name}"));
    let remove: Vec<&str> = remove.iter().map(String::as_str).collect();
    run(
        "objcopy",
        &[&remove[..], &[text(&program), text(&stripped)]].concat(),
    );
    for (file, has_symbols) in [(&program, true), (&stripped, false)] {
        let mut subject = Subject::in_root(file, file, vec![PathBuf::from("/")]);
        for name in names {
            let (start, length) = function(&program, name);
            for address in start..start + length {
                let found = subject.at(address, true);
                let shown = found.symbol.as_ref().map(|symbol| symbol.name.to_string());
                let source = found.file.as_deref().map(base_name);
                let expected = match name {
                    "plain" => (has_symbols.then(|| name.to_owned()), None),
                    "live" => (Some(name.to_owned()), Some("live.c".to_owned())),
                    _ => (Some(name.to_owned()), Some("mixed.c".to_owned())),
                };
                assert_eq!((shown, source), expected, "{case}: {name} at {address:#x}");
                assert_eq!(
                    found.line.is_some(),
                    name != "plain",
                    "{case}: {name} at {address:#x}"
                );
            }
        }
    }
}

/// Debug information of removed functions is ignored, by each linker and of each kind.
#[test]
fn removed_functions() {
    for linker in linkers() {
        for flags in [
            &["-g", "-gdwarf-4"][..],
            &["-g", "-gdwarf-5"],
            &["-g", "-gdwarf-4", "-gsplit-dwarf"],
            &["-g", "-gdwarf-5", "-gsplit-dwarf"],
        ] {
            let directory = directory(&format!("removed-{linker}{}", flags.join("")));
            check(&directory, linker, flags, &[]);
        }
    }
}

/// Debug information of removed functions is ignored in a library, in a program with its headers in the
/// segment of the code, and with another tombstone address for removed code.
#[test]
fn removed_functions_in_other_files() {
    let script = directory("removed-script").join("exported");
    fs::write(&script, "{ global: main; local: *; };").expect("our own directory");
    let exported = format!("-Wl,--version-script={}", text(&script));
    for (linker, form) in [
        ("bfd", &["-shared", &exported][..]),
        ("lld", &["-shared", &exported]),
        ("bfd", &["-Wl,-z,noseparate-code"]),
        ("lld", &["-Wl,-z,dead-reloc-in-nonalloc=.debug_*=0x10"]),
    ] {
        let directory = directory(&format!("removed-{linker}{}", form[0].len()));
        check(&directory, linker, &["-g"], form);
    }
}
