//! Debug information gives the same names in every form that it comes in.

use leak_report::model::Gap;

use super::*;

fn section_names(file: &Path) -> String {
    run("readelf", &["-SW", text(file)])
}

/// Compressed sections, in each way that linkers know or knew, in the program and in its debug file.
#[test]
fn compressed_sections() {
    let (directory, program) = (directory("compressed"), whole_program());
    let stripped = strip(program, &directory);
    for (way, mark) in [("zlib", " C "), ("zlib-gnu", ".zdebug_info"), ("zstd", " C ")] {
        let compressed = directory.join(way);
        let option = format!("--compress-debug-sections={way}");
        run("objcopy", &[&option, text(program), text(&compressed)]);
        assert!(section_names(&compressed).contains(mark), "{way}");
        check_same_names(program, &mut Subject::new(&compressed));

        let root = directory.join(format!("{way}-root"));
        keep_debug(
            &compressed,
            &root.join("usr/lib/debug").join(build_id_path(program)),
        );
        check_same_names(
            program,
            &mut Subject::in_root(&stripped, Path::new("/p"), vec![root]),
        );
    }
}

/// A compressed section that claims a larger size than is allowed is not unpacked.
#[test]
fn bombs_are_refused() {
    let (directory, program) = (directory("bomb"), whole_program());
    let compressed = directory.join("zlib");
    run(
        "objcopy",
        &["--compress-debug-sections=zlib", text(program), text(&compressed)],
    );
    let mut bytes = fs::read(&compressed).expect("it was made");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let section = elf.section_by_name(".debug_info").expect("debug information");
    // `Elf64_Chdr`: the size is the second of three words of 8 bytes.
    let (offset, _) = section.file_range().expect("bytes");
    let size = usize::try_from(offset).expect("a place in memory") + 8;
    bytes[size..size + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    fs::write(&compressed, bytes).expect("a changed file");
    let mut subject = Subject::new(&compressed);
    let address = subject.return_addresses()[0];
    let found = subject.at(address, false);
    assert_eq!((found.gap, &found.file), (Some(Gap::TooLarge), &None));
    assert!(found.symbol.is_some(), "symbols name it all the same");
}

/// Makes a stripped program with MiniDebugInfo, as distributions do: symbols of the functions that no dynamic
/// symbol names, compressed by xz.
pub(super) fn with_mini_debug(program: &Path, directory: &Path) -> PathBuf {
    let beside = |name: &str| directory.join(name);
    let names = |listing: String, kinds: &str| -> Vec<String> {
        let mut names: Vec<String> = listing
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (name, kind) = (words.next()?, words.next()?);
                kinds
                    .contains(kind)
                    .then(|| name.split('@').next().unwrap_or(name).to_owned())
            })
            .collect();
        names.sort();
        names
    };
    let listing = |table: &[&str]| {
        run(
            "nm",
            &[&["--format=posix", "--defined-only", text(program)], table].concat(),
        )
    };
    let dynamic = names(listing(&["-D"]), "TtWwDVi");
    let mut kept = names(listing(&[]), "TtWw");
    kept.retain(|name| dynamic.binary_search(name).is_err());
    let (list, mini, stripped) = (beside("kept"), beside("mini"), beside("mini-stripped"));
    fs::write(&list, kept.join("\n")).expect("a new file");
    let debug = beside("mini-debug");
    keep_debug(program, &debug);
    let keep = format!("--keep-symbols={}", text(&list));
    run(
        "objcopy",
        &[
            "-S",
            "--remove-section=.comment",
            &keep,
            text(&debug),
            text(&mini),
        ],
    );
    run("xz", &["--force", text(&mini)]);
    let add = format!("--add-section=.gnu_debugdata={}.xz", text(&mini));
    run("objcopy", &["--strip-all", &add, text(program), text(&stripped)]);
    stripped
}

/// A stripped file's own small table names its functions, and says nothing of lines.
#[test]
fn mini_debug() {
    let program = whole_program();
    let stripped = with_mini_debug(program, &directory("mini"));
    let (mut whole, mut mini) = (Subject::new(program), Subject::new(&stripped));
    let addresses = whole.return_addresses();
    assert!(addresses.len() > 100, "{}", addresses.len());
    for address in addresses {
        let found = mini.at(address, false);
        assert_eq!(found.symbol, whole.at(address, false).symbol, "at {address:#x}");
        assert_eq!((&found.file, found.inlined.len()), (&None, 0));
    }

    let bytes = fs::read(&stripped).expect("it was made");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let section = elf.section_by_name(".gnu_debugdata").expect("it was added");
    let (offset, size) = section.file_range().expect("bytes");
    let middle = usize::try_from(offset + size / 2).expect("a place in memory");
    mini.bytes[middle] ^= 0x10;
    mini.symbolizer = Symbolizer::new(Vec::new());
    check_no_names(&mut mini);
}

/// Puts `file` where `path` is in `root`.
fn put(root: &Path, path: &Path, file: &Path) {
    let place = root.join(path.strip_prefix("/").unwrap_or(path));
    fs::create_dir_all(place.parent().expect("a directory")).expect("a new directory");
    fs::copy(file, place).expect("a copy");
}

/// Returns the file in `directory` with this extension.
pub(super) fn file_with_ending(directory: &Path, ending: &str) -> PathBuf {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let has_ending = |path: &PathBuf| path.extension().is_some_and(|extension| extension == ending);
    paths.find(has_ending).expect(ending)
}

/// A program compiled whole and with its debug information split off.
pub(super) struct Split {
    pub(super) directory: PathBuf,
    whole: PathBuf,
    pub(super) program: PathBuf,
}

impl Split {
    /// Compiles the small C++ program with g++, whole and split.
    pub(super) fn cpp(test: &str, flags: &[&str]) -> Self {
        let directory = directory(test);
        let whole = directory.join("whole");
        let flags = [&["-g", "-Wl,--build-id"], flags].concat();
        fs::rename(build(&directory, "symbols/inlined.cpp", &flags), &whole).expect("it was made");
        let program = build(
            &directory,
            "symbols/inlined.cpp",
            &[&flags[..], &["-gsplit-dwarf"]].concat(),
        );
        Self {
            directory,
            whole,
            program,
        }
    }

    /// Compiles the larger C++ program with g++, whole and split.
    fn large(test: &str) -> Self {
        let directory = directory(test);
        Self {
            whole: whole_program().to_owned(),
            program: build(
                &directory,
                "symbols/symbols.cpp",
                &["-g", "-Wl,--build-id", "-gsplit-dwarf"],
            ),
            directory,
        }
    }

    /// Compiles a library with rustc, whole and split, the latter with a package of its debug information.
    fn rust(test: &str) -> Self {
        let directory = directory(test);
        let compile = |name: &str, form: &str| {
            let library = directory.join(name);
            let flags = ["-Cprefer-dynamic", "-Cdwarf-version=5", form];
            compile_rust_library(&library, &flags);
            library
        };
        Self {
            whole: compile("libwhole.so", "-Csplit-debuginfo=off"),
            program: compile("libload.so", "-Csplit-debuginfo=packed"),
            directory,
        }
    }

    fn root(&self, name: &str) -> PathBuf {
        let root = self.directory.join(name);
        fs::create_dir_all(&root).expect("a new directory");
        root
    }

    /// The split program, known as `/opt/program`, beside what is in `roots`.
    fn subject(&self, roots: &[&str]) -> Subject {
        let roots = roots.iter().map(|root| self.root(root)).collect();
        Subject::in_root(&self.program, Path::new("/opt/program"), roots)
    }

    /// Checks that there are lines and functions but no inlined ones, and that the reason is said.
    #[track_caller]
    fn check_only_lines(&self, roots: &[&str]) {
        let mut subject = self.subject(roots);
        let addresses = subject.return_addresses();
        let found: Vec<_> = addresses
            .iter()
            .map(|&address| subject.at(address, false))
            .collect();
        let with_line = found.iter().filter(|found| found.line.is_some());
        assert!(with_line.clone().count() >= 5);
        for found in with_line {
            assert_eq!((found.inlined.len(), found.gap), (0, Some(Gap::NoSplitFile)));
        }
    }

    /// Checks that the split program and what is in `root` say what the whole one says.
    #[track_caller]
    fn check(&self, root: &str) {
        check_same_names(&self.whole, &mut self.subject(&["empty", root]));
    }
}

/// Split debug information is found where the compiler left it and beside the program, in each version of
/// DWARF that has it, under the root that the program belongs to; that of another program is not used.
#[test]
fn split_files() {
    let (large, small) = (
        Split::large("split-large"),
        Split::cpp("split-small", &["-gdwarf-4"]),
    );
    for (split, other) in [(&large, &small), (&small, &large)] {
        let rest = file_with_ending(&split.directory, "dwo");
        split.check_only_lines(&["empty"]);
        put(&split.root("compiled"), &rest, &rest);
        split.check("compiled");
        let beside = Path::new("/opt").join(rest.file_name().expect("a name"));
        put(&split.root("beside"), &beside, &rest);
        split.check("beside");
        put(
            &split.root("other"),
            &rest,
            &file_with_ending(&other.directory, "dwo"),
        );
        split.check_only_lines(&["other"]);
    }
}

/// Units of types come before a program's own unit, and do not hide it.
#[test]
fn split_files_with_units_of_types() {
    let split = Split::cpp("split-types", &["-fdebug-types-section"]);
    let rest = file_with_ending(&split.directory, "dwo");
    put(&split.root("compiled"), &rest, &rest);
    split.check("compiled");
}

/// Packages are found beside the program and among debug files: those of `dwp`, which knows DWARF 4, and
/// those of rustc, which knows DWARF 5. A package of another program is not used.
#[test]
fn split_packages() {
    let split = Split::cpp("package-cpp", &["-gdwarf-4"]);
    let package = split.directory.join("package");
    run(
        "dwp",
        &[
            "-o",
            text(&package),
            text(&file_with_ending(&split.directory, "dwo")),
        ],
    );
    put(&split.root("beside"), Path::new("/opt/program.dwp"), &package);
    split.check("beside");
    put(
        &split.root("kept"),
        Path::new("/usr/lib/debug/opt/program.dwp"),
        &package,
    );
    split.check("kept");
    let rust = Split::rust("package-rust");
    let theirs = file_with_ending(&rust.directory, "dwp");
    put(&rust.root("beside"), Path::new("/opt/program.dwp"), &theirs);
    rust.check("beside");
    put(&split.root("other"), Path::new("/opt/program.dwp"), &theirs);
    split.check_only_lines(&["other"]);
}
