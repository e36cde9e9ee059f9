//! Thousands of addresses of real objects have the names that three other readers find: blazesym,
//! `eu-addr2line` of elfutils and `addr2line` of binutils. Each is asked for linkers' names, so that what is
//! compared is where they come from and not how they are spelled.
//!
//! Equal everywhere: the number of functions, their names, files and lines. The differences that there are:
//!
//! * The outermost function. Ours has the name that the symbol table has for the address, which says where it
//!   starts and which copy it is (`.part.0`, `.cold`), the others have DWARF's. What the table says is asked
//!   of `nm`.
//! * Code without lines. Binutils names it after the source file that the symbol table mentions last,
//!   elfutils by the line of whatever comes before it; ours has no line.
//! * Functions of which DWARF knows no linker's name, as lambdas' are. Binutils gives the innermost one of an
//!   address the name of the symbol that holds it; the others have the name in the source.
//! * dwz. Blazesym has no names for what lies in the supplementary file, and binutils 2.40 loses whole
//!   functions: chains are compared with elfutils instead.
//! * libc. Binutils 2.40 mistakes the files of code that other files include: blazesym and elfutils agree on
//!   them.

use std::collections::BTreeMap;
use std::path::Component;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym};
use memleak::symbolize::readable;

use super::*;

/// Maximum number of addresses of each object.
const SAMPLE: usize = 1000;

/// An object with its symbol tables, a sample of its addresses, and our chains for them.
struct Case {
    file: PathBuf,
    /// Files with its symbols: itself, or its debug file too.
    tables: Vec<PathBuf>,
    addresses: Vec<u64>,
    ours: Vec<Vec<Level>>,
}

impl Case {
    fn new(file: PathBuf, debug_file: bool) -> Self {
        let mut subject = Subject::in_root(&file, &file, vec![PathBuf::from("/")]);
        // Only these lie between functions.
        let is_padding = |code: Mnemonic| matches!(code, Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Ud2);
        let mut code = subject.instructions();
        code.retain(|instruction| !is_padding(instruction.mnemonic()));
        let step = code.len() / SAMPLE + 1;
        let sample = code.iter().step_by(step).map(|instruction| instruction.ip());
        let addresses: Vec<u64> = sample.collect();
        let ours = addresses
            .iter()
            .map(|&address| own_chain_by(&subject.at(address, true), str::to_owned));
        let mut tables = vec![file.clone()];
        if debug_file {
            tables.push(Path::new("/usr/lib/debug").join(build_id_path(&file)));
        }
        Self {
            ours: ours.collect(),
            file,
            tables,
            addresses,
        }
    }

    /// Checks that `differ` is false for our chain and that of `reader`, in `theirs`, at every address.
    #[track_caller]
    fn check(&self, reader: &str, theirs: &[Vec<Level>], differ: impl Fn(&[Level], &[Level]) -> bool) {
        assert_eq!(theirs.len(), self.addresses.len());
        let pairs = self.ours.iter().zip(theirs);
        let mut wrong = Vec::new();
        for (address, (ours, theirs)) in self.addresses.iter().zip(pairs) {
            if differ(ours, theirs) {
                wrong.push(format!("{address:#x}\n   {ours:?}\n   {theirs:?}"));
            }
        }
        let file = self.file.display();
        let some: Vec<_> = wrong.iter().take(20).cloned().collect();
        let all = self.addresses.len();
        assert!(
            wrong.is_empty(),
            "{file}: {reader}: {} of {all}:\n{}",
            wrong.len(),
            some.join("\n")
        );
    }

    fn blazesym(&self) -> Vec<Vec<Level>> {
        blazesym_chains(&self.file, &self.addresses)
    }

    /// Checks that binutils finds the same, where there are lines and names. It gives some inlined functions
    /// the outermost function's name.
    #[track_caller]
    fn check_binutils(&self) {
        let mut theirs = binutils_chains(&self.file, &self.addresses);
        let mut unnamed = 0;
        for (ours, theirs) in self.ours.iter().zip(&mut theirs) {
            let Some(((outermost, _, _), inlined)) = ours.split_last() else {
                continue;
            };
            let misnamed = inlined
                .iter()
                .zip(theirs)
                .find(|((ours, _, _), (theirs, _, _))| theirs == outermost && ours != outermost);
            if let Some(((name, _, _), (theirs, _, _))) = misnamed {
                theirs.clone_from(name);
                unnamed += 1;
            }
        }
        assert!(unnamed <= 6, "{}: {unnamed}", self.file.display());
        self.check("binutils", &theirs, |ours, theirs| {
            has_lines(ours) && inner_levels_differ(ours, theirs)
        });
    }

    /// Checks that elfutils finds the same, where there are lines. Of inlined functions that overlap it takes
    /// the first in the file, others the last: that happens once or twice, and where it does, blazesym agrees
    /// with us.
    #[track_caller]
    fn check_elfutils(&self) {
        let mut theirs = elfutils_chains(&self.file, &self.addresses);
        let mut overlapping = 0;
        let others = self.ours.iter().zip(self.blazesym());
        for (theirs, (ours, blazesym)) in theirs.iter_mut().zip(others) {
            let is_confirmed = !inner_levels_differ(ours, &blazesym);
            if has_lines(ours) && inner_levels_differ(ours, theirs) && is_confirmed {
                theirs.clone_from(ours);
                overlapping += 1;
            }
        }
        assert!(overlapping <= 2, "{}: {overlapping}", self.file.display());
        self.check("elfutils", &theirs, |ours, theirs| {
            has_lines(ours) && inner_levels_differ(ours, theirs)
        });
    }

    /// Checks that every outermost function has the name that a symbol table has for the address, if one has
    /// any.
    fn check_symbols(&self) {
        let tables = self.tables.iter().map(|table| Symbols::read(table));
        let symbols: Vec<Symbols> = tables.collect();
        let mut named = 0;
        for (&address, ours) in self.addresses.iter().zip(&self.ours) {
            let names: Vec<String> = symbols
                .iter()
                .flat_map(|table| table.containing(address))
                .collect();
            let outermost = &ours[ours.len() - 1].0;
            assert!(
                names.is_empty() || names.contains(outermost),
                "{}: {address:#x}: {outermost} is none of {names:?}",
                self.file.display()
            );
            named += usize::from(!names.is_empty());
        }
        assert!(
            named > self.addresses.len() / 2,
            "{named} of {}",
            self.addresses.len()
        );
    }
}

/// Symbols of a file as `nm` lists them.
struct Symbols {
    /// Ends and names, by start.
    functions: BTreeMap<u64, Vec<(u64, String)>>,
    longest: u64,
}

impl Symbols {
    fn read(file: &Path) -> Self {
        let mut symbols = Self {
            functions: BTreeMap::new(),
            longest: 0,
        };
        for table in [&[][..], &["-D"]] {
            let listing = run("nm", &[table, &["-S", "--defined-only", text(file)]].concat());
            for line in listing.lines() {
                let words: Vec<&str> = line.splitn(4, ' ').collect();
                let [start, size, _, name] = words[..] else {
                    continue;
                };
                let number = |text| u64::from_str_radix(text, 16).expect("a number");
                let (start, size) = (number(start), number(size));
                let name = name.split('@').next().unwrap_or(name);
                let functions = symbols.functions.entry(start).or_default();
                functions.push((start + size, readable(name)));
                symbols.longest = symbols.longest.max(size);
            }
        }
        symbols
    }

    /// Returns the names of the functions that contain `address`.
    fn containing(&self, address: u64) -> Vec<String> {
        let starts = self
            .functions
            .range(address.saturating_sub(self.longest)..=address);
        let containing = starts.flat_map(|(_, functions)| functions.iter().filter(|(end, _)| *end > address));
        containing.map(|(_, name)| name.clone()).collect()
    }
}

/// Inline chains of `addresses` by blazesym, innermost function first; empty where it has no symbol.
fn blazesym_chains(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let symbolizer = blazesym::symbolize::Symbolizer::builder()
        .enable_demangling(false)
        .build();
    let source = Source::Elf(Elf::new(file));
    let found = symbolizer.symbolize(&source, Input::VirtOffset(addresses));
    let found = found.expect("blazesym reads it");
    let chain =
        |found: &blazesym::symbolize::Symbolized| found.as_sym().map(blazesym_chain).unwrap_or_default();
    found.iter().map(chain).collect()
}

fn blazesym_chain(symbol: &Sym) -> Vec<Level> {
    let level = |name: &str, info: Option<&blazesym::symbolize::CodeInfo>| {
        let file = info.map_or("??".to_owned(), |info| {
            info.to_path().to_string_lossy().into_owned()
        });
        let line = info.and_then(|info| info.line).filter(|&line| line > 0);
        (
            readable(name),
            file,
            line.map_or("?".to_owned(), |line| line.to_string()),
        )
    };
    let inlined = symbol.inlined.iter().rev();
    let mut chain: Vec<Level> = inlined
        .map(|inlined| level(&inlined.name, inlined.code_info.as_ref()))
        .collect();
    chain.push(level(&symbol.name, symbol.code_info.as_deref()));
    chain
}

/// Inline chains of `addresses` by elfutils' `eu-addr2line`.
fn elfutils_chains(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let mut chains = binutils::chains_by("eu-addr2line", file, addresses);
    for (name, file, line) in chains.iter_mut().flatten() {
        // `NAME inlined at FILE:LINE:COLUMN in SYMBOL`, and `FILE:LINE:COLUMN`.
        *name = readable(name.split(" inlined at ").next().expect("split gives one"));
        if let Some((path, number)) = file.rsplit_once(':') {
            (*file, *line) = (path.to_owned(), number.to_owned());
        }
    }
    chains
}

/// Inline chains of `addresses` by binutils' `addr2line`.
fn binutils_chains(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let mut chains = binutils::chains_by("addr2line", file, addresses);
    for (name, _, _) in chains.iter_mut().flatten() {
        *name = readable(name);
    }
    chains
}

/// Returns whether chains differ in more than the outermost function's name.
fn inner_levels_differ(ours: &[Level], theirs: &[Level]) -> bool {
    let inner = |chain: &[Level]| -> Vec<_> {
        let inner = chain.iter().rev().skip(1);
        inner.map(|(name, _, _)| name.clone()).collect()
    };
    let is_other_place =
        |(ours, theirs): (&Level, &Level)| !is_same_file(&ours.1, &theirs.1) || ours.2 != theirs.2;
    ours.len() != theirs.len() || inner(ours) != inner(theirs) || ours.iter().zip(theirs).any(is_other_place)
}

/// Returns whether two paths are the same, where one of them can be relative.
fn is_same_file(ours: &str, theirs: &str) -> bool {
    let (ours, theirs) = (without_detours(ours), without_detours(theirs));
    ours.ends_with(&theirs) || theirs.ends_with(&ours)
}

/// A path without `.` and, as far as it is known where they lead to, `..`.
fn without_detours(path: &str) -> PathBuf {
    let mut straight = PathBuf::new();
    for component in Path::new(path).components() {
        if component == Component::ParentDir && straight.file_name().is_some() {
            straight.pop();
        } else if component != Component::CurDir {
            straight.push(component);
        }
    }
    straight
}

fn has_lines(ours: &[Level]) -> bool {
    ours.iter().any(|(_, file, _)| file != "??")
}

/// A C++ program's chains are those of blazesym and of binutils.
#[test]
fn a_cpp_program() {
    let case = Case::new(whole_program().to_owned(), false);
    case.check_symbols();
    let depth = case.ours.iter().map(Vec::len).max();
    assert!(depth > Some(6), "{depth:?}");
    case.check("blazesym", &case.blazesym(), inner_levels_differ);
    case.check_binutils();
}

/// Chains of a Rust program are those of blazesym and of binutils.
#[test]
fn a_rust_program() {
    let library = directory("oracle-rust").join("libload.so");
    compile_rust_library(&library, &["-Cprefer-dynamic"]);
    let case = Case::new(library, false);
    case.check_symbols();
    case.check("blazesym", &case.blazesym(), inner_levels_differ);
    case.check_binutils();
}

/// Chains of libc are those of blazesym and of elfutils, by its package of debug files.
#[test]
fn libc() {
    let case = Case::new(library("libc.so.6"), true);
    case.check_symbols();
    case.check("blazesym", &case.blazesym(), inner_levels_differ);
    case.check_elfutils();
}

/// Chains of a stripped library go as far as its dynamic symbols, and no further.
#[test]
fn a_stripped_library() {
    let case = Case::new(library("libstdc++.so.6"), false);
    case.check_symbols();
    case.check("blazesym", &case.blazesym(), |ours, theirs| match theirs {
        [] => ours[0].0 != "??",
        _ => ours[0].0 == "??" || inner_levels_differ(ours, theirs),
    });
}

/// Chains of Debian's packages whose debug files share a supplementary file (dwz) are those of elfutils;
/// blazesym agrees but for names in that file, which Lua has some of, in Debian 12. Debian 13 has no such
/// files of Lua; those of Kerberos share types only.
#[test]
fn packages_with_supplementary_files() {
    let lua = ["/usr/bin/lua5.4", "/usr/lib/x86_64-linux-gnu/liblua5.4.so.0"];
    let kerberos =
        ["libkrb5.so.3", "libgssapi_krb5.so.2"].map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}"));
    let shared = |package: &str| {
        Path::new("/usr/lib/debug/.dwz/x86_64-linux-gnu")
            .join(format!("{package}.debug"))
            .exists()
    };
    if shared("lua5.4") {
        let unnamed = check_supplementary(&lua);
        assert!((1..50).contains(&unnamed), "{unnamed}");
    } else {
        assert!(
            shared("libkrb5-3"),
            "tests/setup.sh test installs liblua5.4-0-dbg or libkrb5-dbg"
        );
        assert_eq!(check_supplementary(&kerberos.each_ref().map(String::as_str)), 0);
    }
}

/// Compares the chains of `files`, which have debug files, by all readers. Returns how many names blazesym
/// lacks.
#[track_caller]
fn check_supplementary(files: &[&str]) -> usize {
    let mut unnamed = 0;
    for file in files {
        let case = Case::new(fs::canonicalize(file).expect(file), true);
        case.check_symbols();
        case.check_elfutils();
        let mut theirs = case.blazesym();
        for (ours, theirs) in case.ours.iter().zip(&mut theirs) {
            for (our, their) in ours.iter().zip(theirs).filter(|(_, their)| their.0.is_empty()) {
                their.0.clone_from(&our.0);
                unnamed += 1;
            }
        }
        case.check("blazesym", &theirs, inner_levels_differ);
    }
    unnamed
}
