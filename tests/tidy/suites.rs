//! Suites: each file of one is a module of it, their page has a row for each, and each traced program has a
//! user.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use memleak_test::program::{AS_ROOT, QUICK_SUITES};

use super::{Source, assert_none, root, sources};

/// Page of the suites, and the line below which [`table`] writes it.
const PAGE: &str = "tests/README.md";
const BEGIN: &str = "<!-- The rest is written by `MEMLEAK_TEST_UPDATE=1 cargo test --test tidy`. -->\n";

/// Environment variable that makes the test write the page instead of comparing it.
const UPDATE: &str = "MEMLEAK_TEST_UPDATE";

/// Endings of programs, also of those that are not compiled.
const PROGRAMS: [&str; 10] = ["c", "cpp", "go", "h", "js", "py", "rs", "s", "S", "sh"];

/// A directory of `tests` that is a test binary.
struct Suite {
    name: String,
    main: Module,
}

/// A file of a suite, and those that are declared in it.
struct Module {
    source: Source,
    /// `walk::limits`.
    name: String,
    children: Vec<Module>,
}

/// All suites, in the order of their names.
fn suites() -> Vec<Suite> {
    let entries = fs::read_dir(root().join("tests")).expect("tests").flatten();
    let mut found: Vec<_> = entries.filter_map(|entry| suite(&entry.path())).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() > 4, "the search finds the suites");
    found
}

fn suite(directory: &Path) -> Option<Suite> {
    let name = directory.file_name()?.to_str()?.to_owned();
    let main = directory.join("main.rs");
    main.exists().then(|| Suite {
        name,
        main: Module::read(&main, String::new()),
    })
}

impl Module {
    fn read(path: &Path, name: String) -> Self {
        let text = fs::read_to_string(path).expect("a module of a suite");
        let directory = path.parent().expect("a directory");
        let mut children = Vec::new();
        for child in declared(&text) {
            let place = [format!("{child}.rs"), format!("{child}/mod.rs")].map(|file| directory.join(file));
            let file = place.iter().find(|file| file.exists());
            let file = file.unwrap_or_else(|| panic!("{}: no file for `mod {child};`", path.display()));
            let parent = if name.is_empty() {
                String::new()
            } else {
                format!("{name}::")
            };
            children.push(Self::read(file, format!("{parent}{child}")));
        }
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        Self {
            source: Source { path, text },
            name,
            children,
        }
    }

    /// This module and all below it.
    fn all(&self) -> Vec<&Self> {
        let mut all = vec![self];
        all.extend(self.children.iter().flat_map(Self::all));
        all
    }

    /// Names of its own tests.
    fn tests(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.source.text.lines().collect();
        let after = |at: usize| {
            let function = lines[at..]
                .iter()
                .find_map(|line| line.trim().strip_prefix("fn "));
            function.and_then(|function| function.split('(').next())
        };
        let is_test = |line: &&str| line.trim() == "#[test]";
        let starts = (0..lines.len()).filter(|&at| is_test(&lines[at]));
        starts.filter_map(after).collect()
    }

    fn has_tests(&self) -> bool {
        self.all().iter().any(|module| !module.tests().is_empty())
    }

    /// Returns the first sentence of its page, which ends in `.` before a capital letter.
    fn claim(&self) -> String {
        let page = self
            .source
            .text
            .lines()
            .map_while(|line| line.strip_prefix("//!"));
        let words: Vec<&str> = page
            .take_while(|line| !line.trim().is_empty())
            .flat_map(str::split_whitespace)
            .collect();
        let is_last = |pair: &[&str]| pair[0].ends_with('.') && pair[1].starts_with(char::is_uppercase);
        let end = words.windows(2).position(is_last).unwrap_or(words.len() - 1);
        words[..=end].join(" ")
    }

    /// Programs that it names, and what it uses of `memleak_test`, and files without tests that are declared
    /// in it: those of `tests/programs` and stock ones.
    fn programs(&self) -> BTreeSet<String> {
        let mut found = programs_in(&self.source.text);
        let tools = sources("crates/test/src", &["rs"]);
        let is_used = |tool: &&Source| {
            let name = tool
                .path
                .file_stem()
                .and_then(|name| name.to_str())
                .expect("UTF-8");
            self.source.text.contains(&format!("memleak_test::{name}::"))
        };
        found.extend(
            tools
                .iter()
                .filter(is_used)
                .flat_map(|tool| programs_in(&tool.text)),
        );
        let helpers = self.children.iter().filter(|child| !child.has_tests());
        found.extend(helpers.flat_map(Self::programs));
        found
    }

    /// Says whether none, some or all of its tests need root, where not all of its suite do.
    fn named_root(&self) -> &'static str {
        let tests = self.tests();
        match tests.iter().filter(|test| test.ends_with(AS_ROOT)).count() {
            0 => "no",
            count if count == tests.len() => "yes",
            _ => "some",
        }
    }
}

/// Modules that are files of their own, beside or below the one with this text.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    let mut is_elsewhere = false;
    text.lines().filter_map(move |line| {
        let elsewhere = std::mem::replace(&mut is_elsewhere, line.starts_with("#[path"));
        let name = line.strip_prefix("mod ")?.strip_suffix(';')?;
        (!elsewhere).then_some(name)
    })
}

/// String literals of a text, as far as quotes tell.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"')
        .filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Programs that a text names in literals: by their path in `tests/programs`, alone or behind the folder of a
/// format such as `torture/{source}`, and programs of the distribution.
fn programs_in(text: &str) -> BTreeSet<String> {
    let all = root().join("tests/programs");
    let folders: Vec<&str> = literals(text)
        .filter_map(|word| Some(word.split_once("/{")?.0))
        .filter(|folder| all.join(folder).is_dir())
        .collect();
    let mut found = BTreeSet::new();
    for word in literals(text) {
        found.extend(
            word.strip_prefix("/usr/bin/")
                .filter(|&name| name != "env")
                .map(str::to_owned),
        );
        let ending = word.rsplit_once('.').map_or("", |(_, ending)| ending);
        if !PROGRAMS.contains(&ending) {
            continue;
        }
        let within = word.trim_start_matches("tests/programs/");
        let places = folders.iter().map(|folder| format!("{folder}/{within}"));
        let place = places.chain([within.to_owned()]).find(|place| {
            let is_program = place.contains('/') && !place.starts_with('/');
            is_program && all.join(place).is_file()
        });
        found.extend(place.map(|place| place.trim_start_matches("../").to_owned()));
    }
    found
}

impl Suite {
    /// True if any of its tests can need root, not only those that are named so.
    fn needs_root(&self) -> bool {
        !QUICK_SUITES.contains(&self.name.as_str())
    }

    fn describe(&self, page: &mut String) {
        let is_named = |module: &Module| module.named_root() != "no";
        let root = match (self.needs_root(), self.main.all().into_iter().any(is_named)) {
            (true, _) => "Needs root.",
            (false, true) => "Tests whose names end in `_as_root` need root.",
            (false, false) => "Needs no root.",
        };
        let name = &self.name;
        *page += &format!("\n## `{name}`\n\n{} {root}\n", self.main.claim());
        *page += "\n| module | claim | root | programs |\n|---|---|---|---|\n";
        for module in self.main.all().into_iter().filter(|module| module.has_tests()) {
            if module.name.is_empty() && module.tests().is_empty() {
                continue;
            }
            let root = match self.needs_root() {
                true => "yes",
                false => module.named_root(),
            };
            let path = match module.name.as_str() {
                "" => name,
                inside => inside,
            };
            let programs: Vec<_> = module.programs().into_iter().collect();
            *page += &format!(
                "| `{path}` | {} | {root} | {} |\n",
                module.claim().replace('|', "\\|"),
                programs.join(", ")
            );
        }
    }
}

/// Returns the generated part of the page.
fn table() -> String {
    let mut page = String::new();
    for suite in suites() {
        suite.describe(&mut page);
    }
    page
}

/// The page has a row for each module, which agrees with the tree.
#[test]
fn the_page_has_every_module() {
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).expect(PAGE);
    let (head, old) = page.split_once(BEGIN).expect("the line above the tables");
    let new = table();
    if old != new && std::env::var_os(UPDATE).is_some() {
        fs::write(&path, format!("{head}{BEGIN}{new}")).expect("written");
        return;
    }
    let rows: BTreeSet<&str> = old.lines().collect();
    let differ: Vec<String> = new
        .lines()
        .filter(|row| !rows.contains(row))
        .map(str::to_owned)
        .collect();
    assert!(
        old == new,
        "{PAGE} is not what the tree says; `{UPDATE}=1 cargo test --test tidy` writes it:\n{differ:#?}"
    );
}

/// Each file of a suite is a module of it: one that nothing declares is not compiled.
#[test]
fn every_file_is_a_module() {
    let mut lost = Vec::new();
    for suite in suites() {
        let modules = suite.main.all();
        let modules: BTreeSet<&PathBuf> = modules.iter().map(|module| &module.source.path).collect();
        let files = sources(&format!("tests/{}", suite.name), &["rs"]);
        let stray = files.iter().filter(|file| !modules.contains(&file.path));
        lost.extend(stray.map(|file| file.display().to_string()));
    }
    assert_none(&lost, "files that no module declares");
}

/// Each suite states its claim, and so does each module, in a sentence that stands alone.
#[test]
fn every_module_has_a_claim() {
    let mut bare = Vec::new();
    for suite in suites() {
        for module in suite.main.all() {
            let claim = module.claim();
            let is_question = ["What", "Whether"].iter().any(|word| claim.starts_with(word));
            if is_question || !claim.ends_with('.') {
                bare.push(format!("{}: {claim}", module.source.display()));
            }
        }
    }
    assert_none(&bare, "modules whose page does not begin with a claim");
}

/// Other kernels are tried with tests that exist.
#[test]
fn every_check_is_a_test() {
    let mut missing = Vec::new();
    let suites = suites();
    for file in sources("tests/kernels", &["checks"]) {
        for line in file.text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, suite, test, ..] = words[..] else {
                panic!("{}: {line}", file.display());
            };
            let (module, test) = test.rsplit_once("::").expect("a test in a module");
            // Tests of the crate itself, which are in its sources.
            if suite == "memleak" {
                let file = root()
                    .join("src")
                    .join(format!("{}.rs", module.replace("::", "/")));
                let text = fs::read_to_string(&file).unwrap_or_default();
                if !text.contains(&format!("fn {test}()")) {
                    missing.push(line.to_owned());
                }
                continue;
            }
            let suite = suites.iter().find(|other| other.name == suite);
            let modules = suite.map(|suite| suite.main.all()).unwrap_or_default();
            let module = modules.into_iter().find(|other| other.name == module);
            if !module.is_some_and(|module| module.tests().contains(&test)) {
                missing.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert_none(&missing, "checks that are no tests");
}

/// Each program is there for a test, a script, or another program.
#[test]
fn every_program_has_a_user() {
    let endings = [&PROGRAMS[..], &["S"]].concat();
    let programs = sources("tests/programs", &endings);
    assert!(programs.len() > 60, "the search finds the programs");
    let users: Vec<Source> = ["tests", "crates", "benches"]
        .iter()
        .flat_map(|top| sources(top, &endings))
        .collect();
    let used: BTreeSet<String> = users.iter().flat_map(|user| programs_in(&user.text)).collect();
    let mut idle = Vec::new();
    for program in &programs {
        let within = program.path.strip_prefix("tests/programs").expect("one of them");
        let name = within.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        // Headers are named by what is beside them or below, and scripts name programs by their whole path.
        let includes = [format!("\"{name}\""), format!("\"../{name}\"")];
        let path = program.path.to_str().expect("UTF-8");
        let is_named = |user: &&Source| {
            user.text.contains(path)
                || user.path.starts_with("tests/programs")
                    && includes.iter().any(|name| user.text.contains(name))
        };
        if !used.contains(within.to_str().expect("UTF-8")) && !users.iter().any(|user| is_named(&user)) {
            idle.push(path.to_owned());
        }
    }
    assert_none(&idle, "programs that nothing uses");
}
