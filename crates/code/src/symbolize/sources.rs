//! Reads lines of source files that debug information names, on request.
//!
//! Debug information comes from the target: it can name any file. So a file is only read if its name ends
//! like that of a source, with the caller's rights and in the caller's file system, never in the target's
//! root; and only if it is a regular file of limited size that contains text.

use std::collections::{BTreeMap, btree_map};
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use leak_report::model::{Excerpt, Excerpts, Report, SourcePlace};

use memleak_process::caller::Caller;
use memleak_process::foreign::OpenError;

/// Number of lines shown before and behind the line of a place.
const AROUND: u32 = 3;
/// Maximum number of places of one report.
const MAX_PLACES: usize = 250;
/// Maximum size of a file.
const MAX_BYTES: u64 = 8 << 20;
/// Maximum number of characters of a line.
const MAX_CHARACTERS: usize = 200;
/// Blanks in place of a tab.
const TAB: &str = "    ";
/// Endings of names of source files.
const ENDINGS: [&str; 44] = [
    "ada", "adb", "ads", "asm", "c", "c++", "cc", "cpp", "cr", "cs", "cxx", "d", "def", "f", "f90", "go",
    "h", "h++", "hh", "hpp", "hs", "hxx", "inc", "inl", "ipp", "java", "jl", "js", "kt", "l", "m", "ml",
    "mm", "nim", "pas", "py", "pyx", "rs", "s", "swift", "tcc", "ts", "y", "zig",
];

/// Reason why a place has no excerpt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NoSource,
    Absent,
    Unreadable,
    NoText,
    NoLine,
}

impl Refusal {
    fn in_words(self) -> &'static str {
        match self {
            Self::NoSource => "are in files without an absolute path or a source file's extension",
            Self::Absent => "are in files that do not exist",
            Self::Unreadable => {
                "are in files that you may not read, or that are no regular files of up to 8 MiB"
            }
            Self::NoText => "are in files that are not text",
            Self::NoLine => "are behind the end of their files",
        }
    }
}

/// A file as text, and when it was changed.
type Source = Result<(String, Option<SystemTime>), Refusal>;

/// Reader of the sources of reports.
#[derive(Debug)]
pub struct Sources {
    caller: io::Result<Caller>,
}

impl Sources {
    /// Files are read as who started memleak.
    pub fn of_caller() -> Self {
        Self {
            caller: Caller::find(),
        }
    }

    /// Returns the report with excerpts at the places of its stacks.
    pub fn add_to(&self, report: &Report) -> Report {
        let (places, is_cut) = SourcePlace::all(report, MAX_PLACES);
        let mut excerpts = Excerpts {
            is_cut,
            ..Excerpts::default()
        };
        // Places are in the order of their files.
        let mut files: BTreeMap<&str, Source> = BTreeMap::new();
        for place in &places {
            files.retain(|file, _| *file == place.file);
            let source = match files.entry(&place.file) {
                btree_map::Entry::Occupied(known) => known.into_mut(),
                btree_map::Entry::Vacant(new) => new.insert(self.read(Path::new(&place.file))),
            };
            let found = match source {
                Ok((text, changed)) => excerpt(text, place.line).map(|excerpt| Excerpt {
                    is_newer: is_newer(*changed, place.module.as_deref()),
                    ..excerpt
                }),
                Err(refusal) => Err(*refusal),
            };
            match found {
                Ok(excerpt) => _ = excerpts.known.insert((place.file.clone(), place.line), excerpt),
                Err(refusal) => *excerpts.missing.entry(refusal.in_words()).or_default() += 1,
            }
        }
        Report {
            excerpts: Some(Arc::new(excerpts)),
            ..report.clone()
        }
    }

    fn read(&self, path: &Path) -> Source {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let ending = ending.map(str::to_ascii_lowercase);
        if !path.is_absolute() || !ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) {
            return Err(Refusal::NoSource);
        }
        let caller = self.caller.as_ref().map_err(|_| Refusal::Unreadable)?;
        let file = caller.open(path, MAX_BYTES).map_err(|error| match error {
            OpenError::System(error) if error.kind() == io::ErrorKind::NotFound => Refusal::Absent,
            OpenError::System(_) | OpenError::NotRegular => Refusal::Unreadable,
        })?;
        let changed = file.file.metadata().and_then(|facts| facts.modified()).ok();
        let mut text = Vec::new();
        let read = file.file.take(MAX_BYTES).read_to_end(&mut text);
        read.map_err(|_| Refusal::Unreadable)?;
        match text.contains(&0) {
            true => Err(Refusal::NoText),
            false => Ok((String::from_utf8_lossy(&text).into_owned(), changed)),
        }
    }
}

/// Lines of a text around one.
fn excerpt(text: &str, line: u32) -> Result<Excerpt, Refusal> {
    let first = line.saturating_sub(AROUND).max(1);
    let lines = (1..=line.saturating_add(AROUND)).zip(text.lines());
    let lines: Vec<_> = lines
        .filter(|(number, _)| *number >= first)
        .map(|(_, text)| {
            text.replace('\t', TAB)
                .chars()
                .take(MAX_CHARACTERS)
                .collect::<String>()
        })
        .collect();
    let before = usize::try_from(line.saturating_sub(first)).unwrap_or(usize::MAX);
    match line > 0 && lines.len() > before {
        true => Ok(Excerpt {
            first,
            lines,
            is_newer: false,
        }),
        false => Err(Refusal::NoLine),
    }
}

/// True if a file was changed after the module was; false if one of these times is not known.
fn is_newer(changed: Option<SystemTime>, module: Option<&str>) -> bool {
    let built = module.and_then(|module| fs::metadata(module).ok()?.modified().ok());
    changed.zip(built).is_some_and(|(changed, built)| changed > built)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An excerpt has the lines around the given one, as far as there are any; a file that is too short is
    /// refused.
    #[test]
    fn lines_around_a_line() {
        let text: String = (1..=9).map(|number| format!("line {number}\n")).collect();
        let around = |line| excerpt(&text, line).map(|excerpt| (excerpt.first, excerpt.lines.len()));
        for (line, expected) in [
            (1, Ok((1, 4))),
            (2, Ok((1, 5))),
            (5, Ok((2, 7))),
            (9, Ok((6, 4))),
            (10, Err(Refusal::NoLine)),
            (0, Err(Refusal::NoLine)),
            (u32::MAX, Err(Refusal::NoLine)),
        ] {
            assert_eq!(around(line), expected, "{line}");
        }
        let long = excerpt(&format!("\t{}\n", "x".repeat(1000)), 1).expect("a line");
        assert_eq!(long.lines[0].len(), MAX_CHARACTERS);
        assert!(long.lines[0].starts_with("    x"));
        assert_eq!(excerpt("", 1), Err(Refusal::NoLine));
    }

    /// Files that are no source, no text or too large are refused, and so are relative paths.
    #[test]
    fn what_is_no_source() {
        let directory = tempfile::tempdir().expect("a directory");
        let sources = Sources {
            caller: Ok(Caller::Own),
        };
        let read = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, content).expect("ours");
            sources.read(&path).map(|(text, _)| text)
        };
        assert_eq!(read("a.c", b"int\xff;\n"), Ok("int\u{fffd};\n".to_owned()));
        assert_eq!(read("A.CPP", b"x"), Ok("x".to_owned()));
        for (name, content, expected) in [
            ("shadow", &b"root:x:\n"[..], Refusal::NoSource),
            ("key.pem", b"secret", Refusal::NoSource),
            ("c", b"x", Refusal::NoSource),
            ("b.c", b"\x7fELF\0", Refusal::NoText),
        ] {
            assert_eq!(read(name, content), Err(expected), "{name}");
        }
        let large = fs::File::create(directory.path().join("large.c")).expect("ours");
        large.set_len(MAX_BYTES + 1).expect("a hole");
        for (path, expected) in [
            (directory.path().join("large.c"), Refusal::Unreadable),
            (directory.path().join("absent.c"), Refusal::Absent),
            ("a.c".into(), Refusal::NoSource),
            ("/etc/shadow".into(), Refusal::NoSource),
        ] {
            assert_eq!(sources.read(&path).map(drop), Err(expected), "{}", path.display());
        }
        let unknown = Sources {
            caller: Err(io::Error::from(io::ErrorKind::PermissionDenied)),
        };
        assert_eq!(
            unknown.read(&directory.path().join("a.c")).map(drop),
            Err(Refusal::Unreadable)
        );
    }
}
