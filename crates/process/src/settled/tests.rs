//! Tests of settled modules, over this machine's own C library and programs.

use super::*;
use crate::CodeMapping;
use unwind_tables::addr::Avma;

fn mappings(modules: &[(ModuleId, u64)]) -> Mappings {
    let entries = (1..).zip(modules).map(|(number, &(module, bias))| CodeMapping {
        range: Avma::new(number << 32)..Avma::new((number << 32) + 0x1000),
        code: MappedCode::Module {
            module,
            bias: Bias::from_raw(bias),
        },
    });
    entries.collect()
}

/// The test program itself, the C library, the loader, and a library that none of them needs.
fn modules() -> (Modules, [ModuleId; 4]) {
    let library = |name: &str| Path::new("/lib/x86_64-linux-gnu").join(name);
    let mut modules = Modules::new();
    let ids = [
        std::env::current_exe().expect("own path"),
        library("libc.so.6"),
        library("ld-linux-x86-64.so.2"),
        library("libutil.so.1"),
    ]
    .map(|path| modules.add_file(&path).expect("it is an ELF file"));
    (modules, ids)
}

fn modules_settled(
    mappings: &Mappings,
    modules: &Modules,
    executable: Option<ModuleId>,
) -> BTreeSet<ModuleId> {
    settled(mappings, modules, executable).modules
}

/// The executable, its loader and the objects they need are settled; others are not.
#[test]
fn closure_of_the_executable() {
    let (modules, [program, libc, loader, other]) = modules();
    let mapped = mappings(&[(program, 1), (libc, 2), (loader, 3), (other, 4)]);
    let found = modules_settled(&mapped, &modules, Some(program));
    assert_eq!(found, BTreeSet::from([program, libc, loader]));
    assert_eq!(settled(&mapped, &modules, None), Settled::default());
    assert_eq!(settled(&mapped, &modules, Some(program)).loader, Some(loader));
}

/// A library that is mapped twice can lose one of its places, and is not settled.
#[test]
fn mapped_twice() {
    let (modules, [program, libc, loader, _]) = modules();
    let mapped = mappings(&[(program, 1), (libc, 2), (loader, 3), (libc, 5)]);
    let found = modules_settled(&mapped, &modules, Some(program));
    assert_eq!(found, BTreeSet::from([program, loader]));
}

/// With two objects of one name, it is not known which one was needed: neither is settled.
#[test]
fn ambiguous_names_are_not_settled() {
    let directory = std::env::temp_dir().join(format!("memleak-settled-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let copy = directory.join("libc.so.6");
    std::fs::copy("/lib/x86_64-linux-gnu/libc.so.6", &copy).expect("it can be copied");
    let (mut modules, [program, libc, loader, _]) = modules();
    let copy = modules.add_file(&copy);
    std::fs::remove_dir_all(&directory).expect("it was made here");
    let copy = copy.expect("it is an ELF file");
    let mapped = mappings(&[(program, 1), (libc, 2), (loader, 3), (copy, 4)]);
    let found = modules_settled(&mapped, &modules, Some(program));
    assert_eq!(found, BTreeSet::from([program, loader]));
}
