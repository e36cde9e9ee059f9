//! Abbreviation of source paths: the common directory of a report's paths is written once.
//!
//! Paths with a common directory are those of one program; standard headers are elsewhere, and the C
//! library's paths are relative. If not all paths share one, the directory that saves the most characters is
//! abbreviated.

use std::collections::BTreeMap;

use crate::model::StackRef;
use crate::model::printable::Printable;

/// Maximum number of directories considered in one path, outermost first: paths come from files that anyone
/// can write.
const MAX_DIRECTORIES: usize = 32;

/// Replaces the abbreviated directory; its width is in characters.
const MARK: &str = "…/";
const MARK_WIDTH: usize = 2;

/// The directory to abbreviate in a report's paths, with its trailing slash; `None` if that would save
/// nothing.
#[derive(Debug, Default)]
pub(super) struct Paths(Option<String>);

impl Paths {
    /// The directory to abbreviate in all source paths of `stacks`.
    pub(super) fn of(stacks: &[StackRef<'_>]) -> Self {
        let frames = stacks.iter().flat_map(|stack| stack.frames());
        let files = frames.flat_map(|frame| {
            let inlined = frame.inlined().map(|inlined| inlined.file);
            inlined.chain([frame.file()]).flatten()
        });
        Self::common(files)
    }

    fn common<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let mut directories: BTreeMap<&str, usize> = BTreeMap::new();
        let mut all = 0;
        for file in files.filter(|file| file.starts_with('/')) {
            all += 1;
            let slashes = file.match_indices('/').skip(1).take(MAX_DIRECTORIES);
            for (slash, _) in slashes {
                *directories.entry(&file[..=slash]).or_default() += 1;
            }
        }
        // The directory is still written once, and each use of it costs the mark.
        let saved = |directory: &str, count: usize| directory.len().saturating_sub(MARK_WIDTH) * (count - 1);
        let useful = directories
            .into_iter()
            .filter(|&(directory, count)| saved(directory, count) > 0);
        // A directory that all paths share wins over any other; the longest of these saves most.
        let best = useful.max_by_key(|&(directory, count)| (count == all, saved(directory, count)));
        Self(best.map(|(directory, _)| directory.to_owned()))
    }

    /// Splits a path into the mark, if it is abbreviated, and the rest.
    pub(super) fn shorten<'a>(&self, path: &'a str) -> (&'static str, &'a str) {
        let directory = self.0.as_deref();
        match directory.and_then(|directory| path.strip_prefix(directory)) {
            Some(rest) => (MARK, rest),
            None => ("", path),
        }
    }

    /// Explanation of the mark; `None` if it is not used.
    pub(super) fn line(&self) -> Option<String> {
        let directory = self.0.as_deref()?;
        Some(format!("{MARK} is {}", Printable(directory)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(files: &[&str]) -> Option<String> {
        Paths::common(files.iter().copied()).0
    }

    /// A directory that all paths share is abbreviated, down to the last; for one path, or nothing in common,
    /// there is none.
    #[test]
    fn directory_shared_by_all_paths() {
        for (files, expected) in [
            (
                &["/home/me/app/a.c", "/home/me/app/b.c"][..],
                Some("/home/me/app/"),
            ),
            (&["/home/me/app/a.c", "/home/me/lib/b.c"], Some("/home/me/")),
            (
                &["/home/me/app/a.c", "./csu/start.c", "/home/me/app/a.c"],
                Some("/home/me/app/"),
            ),
            (&["/home/me/app/a.c"], None),
            (&["a.c", "b.c"], None),
            (&["/a.c", "/b.c"], None),
            (&["/s/a.c", "/s/b.c"], Some("/s/")),
            (&[], None),
        ] {
            assert_eq!(common(files).as_deref(), expected, "{files:?}");
        }
    }

    /// If not all paths share a directory, the one that saves most is abbreviated.
    #[test]
    fn directory_shared_by_most_paths() {
        let files = [
            "/home/me/app/src/main.cpp",
            "/home/me/app/src/cache.cpp",
            "/home/me/app/src/cache.cpp",
            "/usr/include/c++/12/bits/new_allocator.h",
            "/usr/include/c++/12/bits/alloc_traits.h",
        ];
        assert_eq!(common(&files).as_deref(), Some("/home/me/app/src/"));
    }

    /// The rest of a path follows the mark; other paths are shown in full.
    #[test]
    fn shortened_paths() {
        let paths = Paths(Some("/src/app/".to_owned()));
        assert_eq!(paths.shorten("/src/app/x/a.c"), ("…/", "x/a.c"));
        assert_eq!(paths.shorten("/src/apple/a.c"), ("", "/src/apple/a.c"));
        assert_eq!(paths.line().as_deref(), Some("…/ is /src/app/"));
        assert_eq!(Paths::default().shorten("/a"), ("", "/a"));
        assert_eq!(Paths::default().line(), None);
    }

    /// A path of only slashes takes no more memory than any other.
    #[test]
    fn paths_are_not_trusted() {
        let evil = "/".repeat(1 << 20);
        let found = common(&[&evil, &evil]).expect("they begin alike");
        assert!(found.len() <= MAX_DIRECTORIES + 1);
    }
}
