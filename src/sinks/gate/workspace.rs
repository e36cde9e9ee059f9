//! Finds the line of the user's own source that a stack comes from: the innermost frame whose file is in the
//! working tree.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use leak_report::model::StackRef;
use leak_report::render::printable;

/// A line of the user's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Path relative to the root of the tree.
    pub(super) file: String,
    pub(super) line: u32,
}

/// The working tree.
#[derive(Clone, Debug)]
pub(super) struct Workspace {
    /// Absolute path that file names are relative to.
    root: PathBuf,
    /// Base of relative paths in debug information: the root, or below it.
    directory: PathBuf,
    /// Results of [`Self::file`].
    known: HashMap<String, Option<String>>,
}

impl Workspace {
    /// The working directory, within the tree of `GITHUB_WORKSPACE` if it is in that.
    pub(super) fn find() -> Self {
        let directory = std::env::current_dir().unwrap_or_default();
        let root = std::env::var_os("GITHUB_WORKSPACE").map(PathBuf::from);
        Self::of(directory, root)
    }

    fn of(directory: PathBuf, root: Option<PathBuf>) -> Self {
        let root = root.filter(|root| root.is_absolute() && directory.starts_with(root));
        Self {
            root: root.unwrap_or_else(|| directory.clone()),
            directory,
            known: HashMap::new(),
        }
    }

    /// The innermost line of a stack, inlined ones included, whose file is in the tree.
    pub(super) fn locate(&mut self, stack: StackRef<'_>) -> Option<Source> {
        stack.frames().find_map(|frame| {
            let inlined = frame.inlined().map(|inlined| (inlined.file, inlined.line));
            let mut lines = inlined.chain([(frame.file(), frame.line())]);
            lines.find_map(|(file, line)| {
                let (file, line) = (self.file(file?)?, line?);
                Some(Source { file, line })
            })
        })
    }

    /// The path of a file relative to the root, if it exists in the tree.
    fn file(&mut self, file: &str) -> Option<String> {
        if let Some(known) = self.known.get(file) {
            return known.clone();
        }
        let path = lexical(&self.directory.join(file));
        let inside = path.strip_prefix(&self.root).ok();
        let inside = inside.filter(|inside| *inside != Path::new("") && path.is_file());
        let inside = inside.map(|inside| printable(&inside.to_string_lossy()));
        self.known.insert(file.to_owned(), inside.clone());
        inside
    }
}

/// Resolves `.` and `..` lexically: debug information has many of them, in directories that may not exist.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(component),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Files of the tree are found by absolute and relative paths; other files, and directories, are not.
    #[test]
    fn workspace_files_are_found() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = tree.path();
        fs::create_dir_all(root.join("sub/src")).expect("a directory");
        for file in ["sub/src/a.c", "top.c"] {
            fs::write(root.join(file), "").expect("a file");
        }
        let absolute = |file: &str| root.join(file).to_string_lossy().into_owned();
        let mut below = Workspace::of(root.join("sub"), Some(root.to_owned()));
        for (file, expected) in [
            (absolute("sub/src/a.c"), Some("sub/src/a.c")),
            (absolute("sub/build/../src/./a.c"), Some("sub/src/a.c")),
            ("src/a.c".to_owned(), Some("sub/src/a.c")),
            ("./build/../src/a.c".to_owned(), Some("sub/src/a.c")),
            ("../top.c".to_owned(), Some("top.c")),
            (absolute("top.c"), Some("top.c")),
            (absolute("missing.c"), None),
            (absolute("sub/src"), None),
            (absolute(""), None),
            ("../../../../../../etc/passwd".to_owned(), None),
            ("/etc/passwd".to_owned(), None),
            (String::new(), None),
        ] {
            for _ in 0..2 {
                assert_eq!(below.file(&file).as_deref(), expected, "{file}");
            }
        }
        let mut alone = Workspace::of(root.join("sub"), None);
        assert_eq!(alone.file("src/a.c").as_deref(), Some("src/a.c"));
        assert_eq!(alone.file("../top.c"), None);
        let mut elsewhere = Workspace::of(root.join("sub"), Some("/etc".into()));
        assert_eq!(elsewhere.file("/etc/passwd"), None);
    }
}
