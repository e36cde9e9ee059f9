//! Rules that hold for the whole source tree and that no compiler checks: they read text, and build and run
//! nothing. Those for pages are in `pages`, those for the kernel side in `bpf`, those for comments in
//! `comments`, those for circles of imports and for structs in `circles` and `structs`, those for commits in
//! `subjects`.

mod bpf;
mod circles;
mod comments;
mod pages;
mod structs;
mod subjects;
mod suites;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines beyond which a file has two subjects.
const MAX_LINES: usize = 600;

/// Words ahead of the list of modules in `docs/architecture.md`, each of which may import only those before
/// it. `cli` is the raw flags and `config` what they mean, which the session is given; the program around
/// them is `main`.
const LAYERS: &str = "Modules import only those before them in this list: ";

/// Words that name types that libbpf-cargo generates.
const SKELETON: [&str; 3] = ["skel", "Skel", "bpf::types"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Directories at the root that have sources: all but hidden ones and what builds write.
fn tops() -> Vec<String> {
    let entries = fs::read_dir(root()).expect("the root").flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
    let mut tops: Vec<_> = names
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    tops.sort();
    tops
}

/// Source directories of the workspace's crates.
fn crates() -> Vec<String> {
    let below = fs::read_dir(root().join("crates")).expect("crates").flatten();
    let names = below.filter_map(|entry| entry.file_name().into_string().ok());
    let below = names.map(|name| format!("crates/{name}/src"));
    below
        .chain(["unwind-tables/src", "src"].map(str::to_owned))
        .collect()
}

/// A file below the root.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// Lines with their numbers, without comments.
    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let code = |line| str::split_once(line, "//").map_or(line, |(code, _)| code);
        (1..).zip(self.text.lines().map(code))
    }
}

/// Files below `directory` with one of `extensions`.
fn sources(directory: &str, extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join(directory), extensions, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(path: &Path, extensions: &[&str], found: &mut Vec<Source>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a readable directory").flatten() {
            if entry.file_name() != "target" {
                collect(&entry.path(), extensions, found);
            }
        }
    } else if extensions
        .iter()
        .any(|extension| path.extension().is_some_and(|other| other == *extension))
    {
        let text = fs::read_to_string(path).expect("readable text");
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        found.push(Source { path, text });
    }
}

#[track_caller]
fn assert_none(offences: &[String], rule: &str) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// No source file is longer than [`MAX_LINES`].
#[test]
fn files_are_short() {
    let files: Vec<Source> = tops()
        .iter()
        .map(String::as_str)
        .chain(["build.rs"])
        .flat_map(|directory| sources(directory, &["rs", "c", "h", "cpp", "js", "css", "html"]))
        .collect();
    assert!(files.len() > 20, "the search finds the sources");
    let long = files
        .iter()
        .map(|file| (file, file.text.lines().count()))
        .filter(|&(_, lines)| lines > MAX_LINES);
    let long: Vec<String> = long
        .map(|(file, lines)| format!("{}: {lines} lines", file.display()))
        .collect();
    assert_none(&long, "files over 600 lines");
}

/// The module of the root crate that a file belongs to: `src/session/python.rs` to `session`.
fn module_of(path: &Path) -> &str {
    let inside = path.strip_prefix("src").expect("a file of src");
    let first = inside
        .iter()
        .next()
        .and_then(|name| name.to_str())
        .expect("a name");
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Modules that a line of code takes something from by `crate::`, in `use` or in a path.
fn crate_paths(text: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|character| character.is_alphanumeric() || *character == '_')
            .collect()
    };
    let mut modules = Vec::new();
    for after in text.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            None => modules.push(name(after)),
            Some(group) => modules.extend(top_level_items(group).iter().map(|item| name(item))),
        }
    }
    modules
}

/// The items of a `{…}` group whose opening brace is already behind.
fn top_level_items(group: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0;
    for character in group.chars() {
        match character {
            '}' if depth == 0 => break,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        items.last_mut().expect("never empty").push(character);
    }
    items
}

/// Modules of the root crate in their order, by its page, and those that it hands on from other crates; the
/// crate and the program around it come last.
fn layers() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md");
    let (_, list) = page.split_once(LAYERS).expect("the list");
    let (list, _) = list.split_once('.').expect("its end");
    let named = list.split('`').skip(1).step_by(2);
    named.chain(["lib", "main"]).map(str::to_owned).collect()
}

/// Returns whether a file of `importer` may import `imported`.
fn may_import(layers: &[String], importer: &str, imported: &str) -> bool {
    let layer = |module| layers.iter().position(|layer| layer == module);
    importer == imported
        || matches!((layer(importer), layer(imported)), (Some(importer), Some(imported)) if imported < importer)
}

/// Imports go one way, also in test code.
#[test]
fn imports_go_one_way() {
    let layers = layers();
    let mut offences = Vec::new();
    for file in sources("src", &["rs"]) {
        let importer = module_of(&file.path);
        let code: String = file.code_lines().flat_map(|(_, line)| [line, "\n"]).collect();
        for imported in crate_paths(&code)
            .into_iter()
            .filter(|imported| !may_import(&layers, importer, imported))
        {
            offences.push(format!("{}: {importer} imports {imported}", file.display()));
        }
    }
    assert_none(&offences, "imports against the order of layers");
}

/// Every file of the root crate belongs to a layer, so that a new one is put in order.
#[test]
fn every_module_has_a_layer() {
    let layers = layers();
    let unknown: Vec<String> = sources("src", &["rs"])
        .iter()
        .filter(|file| !layers.iter().any(|layer| layer == module_of(&file.path)))
        .map(|file| file.display().to_string())
        .collect();
    assert_none(
        &unknown,
        "files of no layer: add theirs to the list in docs/architecture.md",
    );
}

/// The page of the crate has each module once, and no other.
#[test]
fn the_page_has_the_layers() {
    let exists = |module: &&String| {
        [
            format!("src/{module}.rs"),
            format!("src/{module}/mod.rs"),
            format!("crates/{module}/src/lib.rs"),
            format!("crates/code/src/{module}/mod.rs"),
        ]
        .iter()
        .any(|place| root().join(place).exists())
    };
    let layers = layers();
    assert!(layers.len() > 8, "the search finds the list: {layers:?}");
    let absent: Vec<String> = layers.iter().filter(|module| !exists(module)).cloned().collect();
    assert_none(
        &absent,
        "modules in the list of docs/architecture.md that are not there",
    );
    let mut sorted = layers.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), layers.len(), "{layers:?}: one is there twice");
}

/// The reader of imports sees groups, nested groups and paths in expressions.
#[test]
fn import_reader() {
    let cases = [
        ("use crate::target::maps;", vec!["target"]),
        (
            "use crate::{leak::{Site, group}, target};",
            vec!["leak", "target"],
        ),
        (
            "let site = crate::model::leak::group(crate::bpf::load());",
            vec!["model", "bpf"],
        ),
        ("use unwind_tables::addr::Avma;", vec![]),
        (
            "use crate::{\n    bpf::Kernel,\n    collect,\n};",
            vec!["bpf", "collect", ""],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(crate_paths(text), expected, "{text}");
    }
    let layers = ["leak", "config", "cli"].map(str::to_owned);
    assert!(may_import(&layers, "cli", "leak") && !may_import(&layers, "leak", "cli"));
    assert!(may_import(&layers, "cli", "cli") && !may_import(&layers, "cli", "session"));
}

/// Each threat has a test, which is where the page of threats says.
#[test]
fn every_threat_has_a_test() {
    let page = fs::read_to_string(root().join("docs/threats.md")).expect("docs/threats.md");
    let threats: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    assert!(threats.len() > 10, "the search finds the threats");
    let mut offences = Vec::new();
    for threat in threats {
        let columns: Vec<&str> = threat.trim_matches('|').split(" | ").collect();
        let tests = columns.last().map_or("", |tests| tests.trim());
        let names: Vec<&str> = tests.split(", ").map(|name| name.trim_matches('`')).collect();
        assert_eq!(columns.len(), 3, "{threat}");
        let exists = |name: &str| {
            let (file, test) = name.split_once("::")?;
            let text = fs::read_to_string(root().join(file)).ok()?;
            text.contains(&format!("fn {test}(")).then_some(())
        };
        let missing = names.iter().filter(|name| exists(name).is_none());
        offences.extend(missing.map(|name| format!("{}: no test `{name}`", columns[0])));
    }
    assert_none(&offences, "threats without a test: see docs/threats.md");
}

/// memleak starts programs in three files only: those of the system, the one that the user names, and itself.
#[test]
fn few_files_start_programs() {
    let mut starts = Vec::new();
    for file in ["crates", "src"].iter().flat_map(|top| sources(top, &["rs"])) {
        let tests = file
            .text
            .find("#[cfg(test)]\nmod tests {")
            .unwrap_or(file.text.len());
        let is_test = file.path.iter().any(|part| part == "tests" || part == "tests.rs")
            || file.path.starts_with("crates/test");
        let has_std =
            file.text[..tests].contains("process::Command") || file.text[..tests].contains("process::{");
        if !is_test && has_std && file.text[..tests].contains("Command::new(") {
            starts.push(file.display().to_string());
        }
    }
    assert_eq!(
        starts,
        [
            "crates/base/src/system.rs",
            "crates/process/src/launch/stopped.rs",
            "src/sinks/live/diagnosing.rs",
        ]
    );
}

/// `unwind-tables` and `leak-report` know neither BPF libraries nor processes, and no crate of ours above
/// them.
#[test]
fn pure_crates_are_pure() {
    for (name, ours) in [
        ("unwind-tables", ["leak_report", "use memleak"]),
        ("crates/leak-report", ["use memleak", "memleak::"]),
    ] {
        let mut files = sources(name, &["rs", "toml"]);
        files.retain(|file| !file.path.iter().any(|part| part == "tests" || part == "benches"));
        assert!(files.len() > 5, "the search finds {name}");
        let mut offences = Vec::new();
        for file in files {
            for (number, line) in file.code_lines() {
                let foreign = ["libbpf_rs", "libbpf-", "/proc/", "nix::"]
                    .into_iter()
                    .chain(ours);
                if foreign.into_iter().any(|word| line.contains(word)) {
                    offences.push(format!("{}:{number}: {}", file.display(), line.trim()));
                }
            }
        }
        assert_none(
            &offences,
            &format!("{name} must not know BPF libraries, processes or what is above it"),
        );
    }
}

/// No crate below `crates` knows BPF, or needs a compiler for it.
#[test]
fn crates_know_no_bpf() {
    let manifests = sources("crates", &["toml"]);
    assert!(manifests.len() > 5, "the search finds manifests");
    let mut offences = Vec::new();
    for file in manifests {
        for (number, line) in file.code_lines().filter(|(_, line)| line.contains("libbpf")) {
            offences.push(format!("{}:{number}: {line}", file.display()));
        }
    }
    assert_none(&offences, "crates that know BPF: that belongs into src/bpf");
}

/// Generated types stay in the module that talks to the kernel.
#[test]
fn skeleton_types_stay_inside() {
    let mut offences = Vec::new();
    for file in sources("src", &["rs"]) {
        if module_of(&file.path) == "bpf" {
            continue;
        }
        for (number, line) in file.code_lines() {
            if SKELETON.iter().any(|word| line.contains(word)) {
                offences.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    assert_none(&offences, "skeleton types outside src/bpf");
}

/// Every map's declaration follows a comment that says what it is.
#[test]
fn every_map_is_documented() {
    let starts = |line: &str| line.starts_with("struct {") || line.starts_with("SEC(\".bss.");
    let (mut maps, mut bare) = (0, Vec::new());
    for file in sources("bpf", &["h"]) {
        let mut before = "";
        for (number, line) in (1..).zip(file.text.lines()) {
            maps += usize::from(starts(line));
            if starts(line) && !before.trim_end().ends_with("*/") {
                bare.push(format!("{}:{number}: {line}", file.display()));
            }
            before = line;
        }
    }
    assert!(maps > 20, "the search finds the maps: {maps}");
    assert_none(&bare, "maps without a comment above");
}

/// The kernel allows its GPL-only helpers only in code under a compatible licence; every BPF file states its
/// own.
#[test]
fn bpf_files_state_their_licence() {
    let files = sources("bpf", &["c", "h"]);
    assert!(!files.is_empty());
    let licence = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause";
    let bare = files.iter().filter(|file| {
        !file
            .text
            .lines()
            .next()
            .is_some_and(|line| line.contains(licence))
    });
    let bare: Vec<String> = bare.map(|file| file.display().to_string()).collect();
    assert_none(&bare, "BPF files whose first line is not the licence");
}

/// Files that a build generates are not in the repository.
#[test]
fn nothing_generated_is_tracked() {
    let output = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output();
    // An unpacked source archive has no repository to look at.
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return;
    };
    let generated = |path: &str| {
        let endings = [
            ".o",
            ".skel.rs",
            ".so",
            ".a",
            ".pending-snap",
            ".snap.new",
            ".orig",
            ".rej",
            ".profraw",
        ];
        path.starts_with("target/")
            || path.ends_with("vmlinux.h")
            || endings.iter().any(|ending| path.ends_with(ending))
    };
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        listing.lines().any(|path| path == "Cargo.toml"),
        "the listing is of this repository"
    );
    let tracked: Vec<String> = listing
        .lines()
        .filter(|path| generated(path))
        .map(str::to_owned)
        .collect();
    assert_none(&tracked, "generated files that are tracked");
}

/// The parts of a licence expression between `operator`, but for those in parentheses.
fn parts<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= start && expression[at..].starts_with(operator) => {
                parts.push(&expression[start..at]);
                start = at + operator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts
}

/// Returns whether a licence expression (SPDX, and with the slash of old crates) can be satisfied by
/// `allowed`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.trim();
    for (operator, all) in [(" OR ", false), ("/", false), (" AND ", true)] {
        let parts = parts(expression, operator);
        if parts.len() > 1 {
            let mut parts = parts.iter().map(|part| is_allowed(part, allowed));
            return if all {
                parts.all(|is| is)
            } else {
                parts.any(|is| is)
            };
        }
    }
    match expression
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
    {
        Some(inside) => is_allowed(inside, allowed),
        None => allowed.contains(&expression),
    }
}

/// The reader of licences sees what can be chosen and what cannot.
#[test]
fn licence_reader() {
    let allowed = ["MIT", "ISC"];
    for (expression, expected) in [
        ("MIT", true),
        ("MIT OR GPL-3.0-only", true),
        ("GPL-3.0-only/MIT", true),
        ("MIT AND GPL-3.0-only", false),
        ("(GPL-3.0-only OR MIT) AND ISC", true),
        ("(GPL-3.0-only OR MIT) AND BSD-3-Clause", false),
        ("GPL-3.0-only OR (MIT AND ISC)", true),
        ("MIT WITH something", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

/// Packages that memleak is made of come from crates.io, under licences that `.ci/deny.toml` allows: the part
/// of cargo-deny that is checked in every run (`make deny` is the whole).
#[test]
fn dependencies_are_allowed() {
    let rules = fs::read_to_string(root().join(".ci/deny.toml")).expect(".ci/deny.toml");
    let rules = toml::de::DeTable::parse(&rules).expect("TOML");
    let licences = rules.get_ref()["licenses"].get_ref();
    let words = |list: &toml::de::DeValue<'_>| -> Vec<String> {
        let list = list.as_array().expect("a list").iter();
        list.map(|word| word.get_ref().as_str().expect("a word").to_owned())
            .collect()
    };
    let allowed = words(licences["allow"].get_ref());
    let exceptions = licences["exceptions"].get_ref().as_array().expect("a list");
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "metadata",
        "--locked",
        "--offline",
        "--format-version",
        "1",
        "--all-features",
    ]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.current_dir(root()).output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    assert!(packages.len() > 100, "the search finds the packages");
    let mut offences = Vec::new();
    for package in packages {
        let [name, licence] =
            [&package["name"], &package["license"]].map(|text| text.as_str().unwrap_or_default());
        let excepted = exceptions
            .iter()
            .find(|exception| exception.get_ref()["crate"].get_ref().as_str() == Some(name));
        let more = excepted
            .map(|exception| words(exception.get_ref()["allow"].get_ref()))
            .unwrap_or_default();
        let allowed: Vec<&str> = allowed.iter().chain(&more).map(String::as_str).collect();
        if !is_allowed(licence, &allowed) {
            offences.push(format!("{name}: `{licence}` is not in .ci/deny.toml"));
        }
        let source = package["source"].as_str();
        let foreign =
            source.filter(|&source| source != "registry+https://github.com/rust-lang/crates.io-index");
        offences.extend(foreign.map(|source| format!("{name} comes from {source}")));
    }
    assert_none(&offences, "dependencies that are not allowed");
}
