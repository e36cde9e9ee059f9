//! Rules for pages: README, the manual in `docs/`, and what else is written for people. Links, names of files
//! and flags in them are right.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use memleak::cli::Cli;

use super::{Source, assert_none, root, sources};

/// The folders of `bpf/`.
const BPF_FOLDERS: [&str; 5] = ["walk/", "fast/", "calls/", "store/", "process/"];

/// Names of source files in a text.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let ends_as_source = |word: &&str| {
        let ending = word.rsplit_once('.').map_or("", |(_, ending)| ending);
        ["c", "cpp", "h", "json", "md", "py", "rs", "sh", "toml"].contains(&ending)
    };
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "./_-*".contains(letter)))
        .map(|word| word.trim_matches('.'))
        .filter(ends_as_source)
}

/// Pages for people, beside those that explain a directory.
fn pages() -> Vec<Source> {
    let tops = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|page| Source {
        path: page.into(),
        text: fs::read_to_string(root().join(page)).expect("a page"),
    });
    tops.into_iter().chain(sources("docs", &["md"])).collect()
}

/// Pages and comments name files that are there: by the path from the root or, below `bpf/`, from there.
#[test]
fn named_files_exist() {
    let tops = [
        "src/",
        "bpf/",
        "crates/",
        "tests/",
        "benches/",
        "unwind-tables/",
        "docs/",
    ];
    let files = tops
        .iter()
        .filter(|top| **top != "docs/")
        .flat_map(|top| sources(top, &["rs", "c", "cpp", "h", "md", "py"]));
    let mut offences = Vec::new();
    let mut seen = 0;
    for file in pages().into_iter().chain(files) {
        let is_page = file.path.extension().is_some_and(|ending| ending == "md");
        let is_comment = |line: &&str| ["//", "/*", "*"].iter().any(|mark| line.trim().starts_with(mark));
        for line in file.text.lines().filter(|line| is_page || is_comment(line)) {
            for name in named_files(line).filter(|name| !name.contains('*')) {
                let is_below = |tops: &[&str]| tops.iter().any(|top| name.starts_with(top));
                let is_bpf = file.path.starts_with("bpf");
                let path = if is_below(&tops) {
                    root().join(name)
                } else if is_bpf && ((is_page && !name.contains('/')) || is_below(&BPF_FOLDERS)) {
                    root().join("bpf").join(name)
                } else {
                    continue;
                };
                seen += 1;
                if !path.exists() {
                    offences.push(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(seen > 50, "the search finds names: {seen}");
    assert_none(&offences, "files that are named but not there");
}

/// Returns a page without the code in it, line by line, so that line numbers stay.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let mut plain = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            // Every other part between backticks is code.
            plain.extend(line.split('`').step_by(2));
        }
        plain.push('\n');
    }
    plain
}

/// Targets of the links of a page, images among them.
fn links(plain: &str) -> impl Iterator<Item = &str> {
    let after = plain.split("](").skip(1);
    let links = after.filter_map(|rest| Some(rest.split_once(')')?.0));
    // rustdoc's links are no files.
    links.filter(|link| !link.contains("::"))
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    let lower = heading.to_lowercase();
    lower
        .trim()
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    lines.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Links between pages lead to files that are there, and to headings that these have.
#[test]
fn links_lead_somewhere() {
    let mut offences = Vec::new();
    let mut seen = 0;
    let directories = ["bpf", "benches", "tests"]
        .iter()
        .flat_map(|top| sources(top, &["md"]));
    for page in pages().into_iter().chain(directories) {
        for link in links(&without_code(&page.text)).filter(|link| !link.contains("://")) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = match file {
                "" => root().join(&page.path),
                _ => root().join(page.path.parent().expect("a directory")).join(file),
            };
            let has_heading = |path: &Path| {
                let text = fs::read_to_string(path).unwrap_or_default();
                heading.is_empty() || anchors(&text).iter().any(|anchor| anchor == heading)
            };
            if !path.exists() || !has_heading(&path) {
                offences.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 80, "the search finds links: {seen}");
    assert_none(&offences, "links that lead nowhere");
}

/// Every page of the manual can be reached from README.
#[test]
fn every_page_is_in_the_index() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let mut offences = Vec::new();
    for page in sources("docs", &["md"]) {
        let name = page.path.to_str().expect("UTF-8");
        let index = match name.strip_prefix("docs/decisions/") {
            Some("README.md") | None => (readme.clone(), name),
            Some(record) => {
                let list = fs::read_to_string(root().join("docs/decisions/README.md"));
                (list.expect("the list"), record)
            }
        };
        if !index.0.contains(&format!("]({})", index.1)) {
            offences.push(name.to_owned());
        }
    }
    assert_none(&offences, "pages that no index has");
}

/// README is a front page.
#[test]
fn readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(readme.lines().count() <= 200, "what is longer belongs into docs/");
}

/// Long flags in a text: `--name`, not behind another letter.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("--").filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let is_start = before.is_none_or(|before| !(before.is_alphanumeric() || "-<!/|".contains(before)));
        let name = text[at + 2..].split(|letter: char| !(letter.is_ascii_lowercase() || letter == '-'));
        let name = name.into_iter().next().unwrap_or_default();
        (is_start && name.starts_with(|letter: char| letter.is_ascii_lowercase())).then_some(name)
    })
}

/// Flags of other programs that pages name.
const FLAGS_OF_OTHERS: [&str; 21] = [
    "all-targets",
    "allow-uprobes",
    "call-graph",
    "features",
    "image",
    "lib",
    "native",
    "no-default-features",
    "nocapture",
    "open",
    "interpreted-frames-native-stack",
    "perf-basic-prof",
    "perf-prof",
    "yjit-perf",
    "port",
    "profile",
    "release",
    "stack-depth",
    "target",
    "test",
    "trace-python-allocators",
];

/// Every flag that pages name is one of memleak's, hidden or not, or another program's.
#[test]
fn named_flags_exist() {
    let program = Cli::command();
    let commands = program.get_subcommands().chain([&program]);
    let arguments = commands.flat_map(|command| command.get_arguments());
    // clap adds these two.
    let known: Vec<&str> = arguments
        .filter_map(|argument| argument.get_long())
        .chain(["help", "version"])
        .collect();
    let mut offences = Vec::new();
    let mut seen = 0;
    // Generated pages have the program's own examples.
    let written = pages()
        .into_iter()
        .filter(|page| page.path != Path::new("docs/cli.md"));
    for page in written {
        for (number, line) in (1..).zip(page.text.lines()) {
            for flag in flags(line).filter(|flag| !FLAGS_OF_OTHERS.contains(flag)) {
                seen += 1;
                if !known.contains(&flag) {
                    offences.push(format!("{}:{number}: --{flag}", page.display()));
                }
            }
        }
    }
    assert!(seen > 100, "the search finds flags: {seen}");
    assert_none(&offences, "flags that memleak does not have");
}

/// The readers of pages see links, headings and flags, and no code.
#[test]
fn page_readers() {
    let page = "# A `b`, c?\n[x](y.md) `[no](code)`\n```\n# no\n[no](z.md)\n```\n![i](a.png#b)";
    let plain = without_code(page);
    assert_eq!(links(&plain).collect::<Vec<_>>(), ["y.md", "a.png#b"]);
    assert_eq!(anchors(page), ["a-b-c"]);
    let found: Vec<_> = flags("`--a-b C`, x--y, --d=1, <!-- e -->, ---f").collect();
    assert_eq!(found, ["a-b", "d"]);
}
