use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;

const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
const NAMES: &[&str] = &[
    "malloc",
    "free",
    "memalign",
    "aligned_alloc",
    "strlen",
    "no_such_function",
];

/// Compiles C source to an ELF file with `cc`.
fn compile(name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
    let directory: PathBuf = std::env::temp_dir();
    let stem = directory.join(format!("memleak-symbols-{}-{name}", std::process::id()));
    let (source_path, output) = (stem.with_extension("c"), stem.with_extension("elf"));
    fs::write(&source_path, source).expect("a writable directory");
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&output)
        .arg(&source_path)
        .status();
    assert!(status.expect("cc").success());
    let elf = fs::read(&output).expect("the output");
    for path in [source_path, output] {
        fs::remove_file(path).expect("ours");
    }
    elf
}

/// The definitions, as (name, kind).
fn found(elf: &[u8], names: &[&'static str]) -> Vec<(&'static str, SymbolKind)> {
    let symbols = find(elf, names).expect("readable symbols");
    symbols
        .iter()
        .map(|symbol| (names[symbol.name], symbol.kind))
        .collect()
}

/// Clears `e_shoff`, `e_shnum` and `e_shstrndx` (ELF-64 file header).
fn without_section_headers(mut elf: Vec<u8>) -> Vec<u8> {
    elf[40..48].fill(0);
    elf[60..64].fill(0);
    elf
}

/// The functions of the stripped C library are found with and without section headers.
#[test]
fn stripped_library() {
    let Ok(elf) = fs::read(LIBC) else { return };
    let symbols = find(&elf, NAMES).expect("readable symbols");
    let of = |name: &str| symbols.iter().find(|symbol| NAMES[symbol.name] == name);
    for name in ["malloc", "free", "memalign", "aligned_alloc"] {
        let symbol = of(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(symbol.kind, SymbolKind::Function, "{name}");
        assert!(symbol.size > 0, "{name}");
    }
    assert_eq!(of("strlen").expect("strlen").kind, SymbolKind::Indirect);
    assert_eq!(of("no_such_function"), None);
    assert_eq!(find(&without_section_headers(elf), NAMES), Ok(symbols));
}

const ALLOCATOR: &str = "
    char *malloc(unsigned long n) { static char pool[64]; return pool + n; }
    void free(void *p) { (void)p; }
    void *_start(void) { return malloc(1); }";

/// A static executable has no dynamic symbols, only `.symtab`.
#[test]
fn static_executable() {
    let elf = compile("static", ALLOCATOR, &["-static", "-nostdlib", "-fno-builtin"]);
    let both = [("malloc", SymbolKind::Function), ("free", SymbolKind::Function)];
    assert_eq!(found(&elf, NAMES), both);
    assert_eq!(found(&without_section_headers(elf), NAMES), []);
}

/// Libraries with only one kind of hash table are read without section headers.
#[test]
fn hash_tables() {
    for style in ["gnu", "sysv", "both"] {
        let hash = format!("-Wl,--hash-style={style}");
        let elf = compile(
            style,
            ALLOCATOR,
            &["-shared", "-fPIC", "-nostdlib", "-fno-builtin", &hash],
        );
        let both = [("malloc", SymbolKind::Function), ("free", SymbolKind::Function)];
        assert_eq!(found(&without_section_headers(elf), NAMES), both, "{style}");
    }
}

/// A `static` function, a function that is only called, and a variable are not definitions.
#[test]
fn not_definitions() {
    let source = "
        void *aligned_alloc(unsigned long, unsigned long);
        __attribute__((noinline, used)) static void free(void *p) { __asm__(\"\" :: \"r\"(p)); }
        char strlen[8];
        int main(void) { free(aligned_alloc(8, 8)); return 0; }";
    let elf = compile("local", source, &["-fno-builtin", "-no-pie", "-w"]);
    assert_eq!(found(&elf, NAMES), []);
}

/// A function that the linker has hidden is distinguished from one that is local to a file, for any linker,
/// though both are local symbols.
#[test]
fn hidden_definitions() {
    let source = "
        __attribute__((visibility(\"hidden\"))) char *malloc(unsigned long n) { static char pool[64]; return pool + n; }
        __attribute__((noinline, used)) static void free(void *p) { __asm__(\"\" :: \"r\"(p)); }
        char *aligned_alloc(unsigned long a, unsigned long n) { return malloc(a + n); }
        int main(void) { free(malloc(1)); return 0; }";
    for linker in ["bfd", "lld"] {
        let flags = ["-fno-builtin", "-w", &format!("-fuse-ld={linker}")];
        let elf = compile(&format!("hidden-{linker}"), source, &flags);
        let number = |name: &[u8]| NAMES.iter().position(|wanted| wanted.as_bytes() == name);
        let symbols = scan(&elf, number).expect("readable symbols");
        for (name, local, hidden) in [
            ("malloc", true, true),
            ("free", true, false),
            ("aligned_alloc", false, false),
        ] {
            let symbol = symbols.iter().find(|symbol| NAMES[symbol.name] == name);
            let found = symbol.map(|symbol| (symbol.local, symbol.hidden));
            assert_eq!(found, Some((local, hidden)), "{name}, {linker}");
        }
    }
}

/// Damaged files give errors or fewer symbols, never a panic: truncated at many places, and with headers and
/// tables overwritten.
#[test]
fn damaged_files() {
    let elf = compile(
        "damaged",
        ALLOCATOR,
        &["-shared", "-fPIC", "-nostdlib", "-fno-builtin"],
    );
    for elf in [elf.clone(), without_section_headers(elf)] {
        for length in (0..elf.len()).step_by(7) {
            let _ = find(&elf[..length], NAMES);
        }
        for at in 0..elf.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = elf.clone();
                damaged[at] = value;
                let _ = find(&damaged, NAMES);
            }
        }
    }
}
