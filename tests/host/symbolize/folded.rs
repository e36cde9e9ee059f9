//! Functions that the linker has folded into one are named as such, and no function that merely has several
//! names.

use super::names::dynamic_symbol;
use super::*;

fn others(subject: &mut Subject, svma: u64) -> Vec<String> {
    let found = subject.at(svma, true);
    found.folded.iter().map(ToString::to_string).collect()
}

/// Address of the function that `nm` shows by this demangled name.
fn address_of(program: &Path, name: &str) -> u64 {
    let listing = run("nm", &["-C", text(program)]);
    let ending = format!(" {name}");
    let line = listing.lines().find(|line| line.ends_with(&ending)).expect(name);
    u64::from_str_radix(line.split(' ').next().expect("a value"), 16).expect("a number")
}

/// Each of two functions with equal code is named, whichever is called; without folding, none is.
#[test]
fn folded_functions() {
    let directory = directory("folded");
    let (order, user) = ("Order* make<Order>(int)", "User* make<User>(int)");
    for (folding, expected) in [("all", true), ("none", false)] {
        let icf = format!("-Wl,--icf={folding}");
        let flags = ["-g", "-ffunction-sections", "-fuse-ld=lld", &icf];
        let program = build(&directory, "symbols/folded.cpp", &flags);
        let mut subject = Subject::new(&program);
        for (name, other) in [(order, user), (user, order)] {
            let address = address_of(&program, name);
            let found = subject.at(address, true);
            let shown = found.symbol.as_ref().expect(name).name.to_string();
            let mut both = others(&mut subject, address);
            if expected {
                both.push(shown);
                both.sort();
                assert_eq!(both, [order, user], "{folding}");
            } else {
                assert_eq!((shown, both), (name.to_owned(), Vec::new()), "{folding}: {other}");
            }
        }
        // The constructor has two names, as those of all classes do.
        for name in ["Order::Order(int)", "main"] {
            assert_eq!(
                others(&mut subject, address_of(&program, name)),
                [""; 0],
                "{folding}: {name}"
            );
        }
    }
}

/// Several names that a library gives to one function are not reported as other functions: those of C, and
/// forms of `operator new`.
#[test]
fn several_names_of_one_function() {
    for (library_name, functions) in [
        (
            "libc.so.6",
            &["malloc", "write", "strtol", "memcpy", "pthread_mutex_lock"][..],
        ),
        (
            "libstdc++.so.6",
            &["_Znwm", "_Znam", "_ZdlPv", "_ZNSt6localeC1Ev", "_ZNSsC1Ev"],
        ),
        ("libjemalloc.so.2", &["malloc", "_Znwm", "_ZdlPvm"]),
    ] {
        let file = library(library_name);
        let mut subject = Subject::in_root(&file, &file, vec![PathBuf::from("/")]);
        for function in functions {
            let address = dynamic_symbol(&file, function);
            assert_eq!(
                others(&mut subject, address),
                [""; 0],
                "{function} of {library_name}"
            );
        }
    }
}
