//! Baselines: the outstanding amounts of sites in an accepted run. They are text, so that they can be
//! reviewed and kept with the source.
//!
//! ```text
//! memleak baseline 1
//!
//! 480 bytes in 12 blocks
//!     malloc
//!     operator new(unsigned long)
//!     LeakLib::slowMemoryLeak()
//!     main
//! ```
//!
//! Empty lines and lines that begin with `#` are ignored; indented lines are the names of the site above
//! them, the allocator function first. Sites are ordered by name, not by amount, so that a diff of two
//! baselines shows what has changed.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use super::input::{InputError, Lines};
use leak_report::model::Amount;
use leak_report::model::site_name::{SiteName, SiteNames};
use leak_report::render::printable;

/// Beginning of the first line; the version follows.
pub(super) const MAGIC: &str = "memleak baseline ";
const VERSION: u32 = 1;

/// The accepted amount of each site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Baseline(HashMap<SiteName, Amount>);

impl Baseline {
    /// Reads and parses a baseline file.
    pub(super) fn read(path: &Path, names: &mut SiteNames) -> Result<Self, InputError> {
        Self::parse(&Lines::read(path)?, names)
    }

    fn parse(lines: &Lines, names: &mut SiteNames) -> Result<Self, InputError> {
        let content = lines.iter().filter(|(_, line)| !is_blank_or_comment(line));
        let mut content = content.peekable();
        check_version(lines, content.next())?;
        let mut sites = HashMap::new();
        while let Some((number, line)) = content.next() {
            let amount = amount(line).ok_or_else(|| {
                let line = printable(line.trim());
                lines.wrong(
                    number,
                    format!(
                        "`{line}` is not an amount: write a line such as `480 bytes in 12 blocks`, and below it the names of \
                         the site, each indented"
                    ),
                )
            })?;
            let frames = std::iter::from_fn(|| content.next_if(|(_, line)| is_indented(line)));
            let frames: Vec<_> = frames.map(|(_, line)| line.trim()).collect();
            if frames.is_empty() {
                let problem = "no site follows: write its names below, one per line, indented";
                return Err(lines.wrong(number, problem.to_owned()));
            }
            let site = names.site(frames.into_iter());
            if sites.insert(site, amount).is_some() {
                let problem = "this site is listed twice: keep one entry, with the accepted amount";
                return Err(lines.wrong(number, problem.to_owned()));
            }
        }
        Ok(Self(sites))
    }

    /// The accepted amount of a site; 0 if it is not listed.
    pub(super) fn of(&self, site: &SiteName) -> Amount {
        self.0.get(site).copied().unwrap_or_default()
    }
}

/// Checks that the first line is `MAGIC` with the known version.
fn check_version(lines: &Lines, first: Option<(usize, &str)>) -> Result<(), InputError> {
    let number = first.map_or(1, |(number, _)| number);
    let version = first.and_then(|(_, line)| line.strip_prefix(MAGIC));
    let Some(version) = version else {
        let problem = format!(
            "not a baseline: the first line of one is `{MAGIC}{VERSION}`: make one with --write-baseline"
        );
        return Err(lines.wrong(number, problem));
    };
    match version.trim().parse() {
        Ok(VERSION) => Ok(()),
        _ => {
            let version = printable(version.trim());
            let problem = format!(
                "this is a baseline of version `{version}`, and only version {VERSION} is known: make it again with \
                 --write-baseline"
            );
            Err(lines.wrong(number, problem))
        }
    }
}

fn is_blank_or_comment(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

fn is_indented(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

/// Parses `480 bytes in 12 blocks`.
fn amount(line: &str) -> Option<Amount> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [bytes, "byte" | "bytes", "in", blocks, "block" | "blocks"] = words[..] else {
        return None;
    };
    (!is_indented(line)).then_some(Amount {
        bytes: bytes.parse().ok()?,
        blocks: blocks.parse().ok()?,
    })
}

/// Writes the amounts of sites as a baseline.
pub(super) fn write(sites: &[(SiteName, Amount)], names: &SiteNames, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{MAGIC}{VERSION}")?;
    writeln!(
        out,
        "# These amounts are accepted: with --baseline, only new sites and larger amounts count.\n\
         # Made by --write-baseline. It can be edited: keep the form of lines; sites in any order."
    )?;
    let named = sites
        .iter()
        .map(|(key, amount)| (names.functions(key).collect::<Vec<_>>(), amount));
    let mut named: Vec<_> = named.collect();
    named.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    for (frames, Amount { bytes, blocks }) in named {
        writeln!(out, "\n{bytes} bytes in {blocks} blocks")?;
        for frame in frames {
            writeln!(out, "    {frame}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str, names: &mut SiteNames) -> Result<Baseline, InputError> {
        Baseline::parse(&Lines::of(Path::new("leaks.txt"), text.to_owned()), names)
    }

    fn written(sites: &[(SiteName, Amount)], names: &SiteNames) -> String {
        let mut out = Vec::new();
        write(sites, names, &mut out).expect("to memory");
        String::from_utf8(out).expect("text")
    }

    fn amount(bytes: u64, blocks: u64) -> Amount {
        Amount { bytes, blocks }
    }

    /// A written baseline is ordered by names, and reads back unchanged.
    #[test]
    fn written_baseline_is_ordered_and_read_back() {
        let mut names = SiteNames::default();
        let mut key = |frames: &[&str]| names.site(frames.iter().copied());
        let sites = [
            (key(&["malloc", "b()", "main"]), amount(480, 12)),
            (
                key(&["malloc", "#odd name, (with) <signs>", "main"]),
                amount(1, 1),
            ),
            (key(&["calloc"]), amount(u64::MAX, 3)),
        ];
        let text = written(&sites, &names);
        let expected = "memleak baseline 1\n\
            # These amounts are accepted: with --baseline, only new sites and larger amounts count.\n\
            # Made by --write-baseline. It can be edited: keep the form of lines; sites in any order.\n\
            \n18446744073709551615 bytes in 3 blocks\n    calloc\n\
            \n1 bytes in 1 blocks\n    malloc\n    #odd name, (with) <signs>\n    main\n\
            \n480 bytes in 12 blocks\n    malloc\n    b()\n    main\n";
        assert_eq!(text, expected);
        let read = parse(&text, &mut names).expect("a baseline");
        assert_eq!(read.0.len(), 3);
        for (key, outstanding) in sites {
            assert_eq!(read.of(&key), outstanding);
        }
        let other = names.site(["malloc", "main"].into_iter());
        assert_eq!(read.of(&other), Amount::default());
    }

    /// A baseline edited by hand is read: comments, other indentation and line ends.
    #[test]
    fn edited() {
        let mut names = SiteNames::default();
        let text =
            "# ours\r\nmemleak baseline 1\r\n1 byte in 1 block\r\n\tmalloc\r\n# at start\r\n  main \r\n\r\n";
        let read = parse(text, &mut names).expect("a baseline");
        let key = names.site(["malloc", "main"].into_iter());
        assert_eq!(read.of(&key), amount(1, 1));
        assert_eq!(parse("memleak baseline 1", &mut names).expect("empty").0.len(), 0);
    }

    /// An invalid baseline is refused, with file, line and remedy.
    #[test]
    fn invalid_baselines_are_refused() {
        let begin = "memleak baseline 1\n";
        for (text, line, part) in [
            (String::new(), 1, "not a baseline"),
            (
                "\n\n480 bytes in 12 blocks\n  malloc\n".to_owned(),
                3,
                "not a baseline",
            ),
            (
                "memleak baseline 2\n".to_owned(),
                1,
                "version `2`, and only version 1",
            ),
            ("memleak baseline \u{1b}\n".to_owned(), 1, "version `\\u{1b}`"),
            (
                format!("{begin}480 bytes\n  malloc\n"),
                2,
                "`480 bytes` is not an amount",
            ),
            (format!("{begin}  malloc\n"), 2, "`malloc` is not an amount"),
            (
                format!("{begin}-1 bytes in 1 blocks\n  malloc\n"),
                2,
                "not an amount",
            ),
            (
                format!("{begin}  1 bytes in 1 blocks\n  malloc\n"),
                2,
                "not an amount",
            ),
            (
                format!("{begin}99999999999999999999 bytes in 1 blocks\n  malloc\n"),
                2,
                "not an amount",
            ),
            (
                format!("{begin}1 bytes in 1 blocks\n\n2 bytes in 1 blocks\n  malloc"),
                2,
                "no site follows",
            ),
            (
                format!("{begin}1 bytes in 1 blocks\n  a\n1 bytes in 1 blocks\n  a\n"),
                4,
                "listed twice",
            ),
            (
                format!("{begin}<<<<<<< ours\n"),
                2,
                "`<<<<<<< ours` is not an amount",
            ),
        ] {
            let error = parse(&text, &mut SiteNames::default())
                .expect_err(&text)
                .to_string();
            assert!(error.starts_with(&format!("leaks.txt:{line}: ")), "{error}");
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }

    proptest! {
        /// No text causes a panic.
        #[test]
        fn nothing_panics(text in "(memleak baseline 1\n)?([0-9]{0,22} bytes in [0-9]{0,3} blocks\n|[ \t]\\PC{0,9}\n|\\PC{0,9}\n){0,9}") {
            let _ = parse(&text, &mut SiteNames::default());
        }

        /// A written baseline reads back unchanged, for any names.
        #[test]
        fn any_baseline_is_read_back(sites in proptest::collection::hash_map(
            proptest::collection::vec("[!-~\u{e4}]([ -~]{0,9}[!-~])?", 1..5), (any::<u64>(), any::<u64>()), 0..9)
        ) {
            let mut names = SiteNames::default();
            let sites: Vec<_> = sites
                .into_iter()
                .map(|(frames, (bytes, blocks))| (names.site(frames.iter().map(String::as_str)), amount(bytes, blocks)))
                .collect();
            let text = written(&sites, &names);
            let read = parse(&text, &mut names).expect("a baseline");
            prop_assert_eq!(read, Baseline(sites.into_iter().collect()));
        }
    }
}
