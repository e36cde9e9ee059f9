//! Files under a root directory that is not ours, such as `/proc/PID/root`.
//!
//! A symbolic link in there means a path in there: `/usr/lib/debug -> /debug` is the target's `/debug`, not
//! the host's. The kernel would follow it to the host's, so links are followed here, component by component.
//! Not a security boundary: who can rename files in that root can win a race against it. What is opened is
//! only ever read as a debug file, and used only if its identity is the module's.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Links followed in one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Larger files are not opened, in bytes.
const MAX_FILE: u64 = 4 << 30;

/// A file under a root.
pub(super) struct Opened {
    /// The file.
    pub(super) file: File,
    /// Where it lies, in that root: without links, so that names beside it can be made of it.
    pub(super) path: PathBuf,
}

/// Opens the regular file that `path` names for a process whose root is `root`.
pub(super) fn open_regular(root: &Path, path: &Path) -> io::Result<Opened> {
    let inside = resolve(path, |link| match fs::read_link(root.join(link)) {
        Ok(target) => Ok(Some(target)),
        // Not a link.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    })?;
    let path = root.join(&inside);
    // Opening a device can act on it, so what it is comes first; the second look is at what was opened.
    check_regular(&fs::symlink_metadata(&path)?)?;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(Opened {
        file,
        path: Path::new("/").join(inside),
    })
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match (metadata.is_file(), metadata.len()) {
        (true, 0..=MAX_FILE) => Ok(()),
        (true, _) => Err(io::ErrorKind::FileTooLarge.into()),
        (false, _) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// `path` relative to its root, without links and `..`, given what each link holds.
///
/// `..` in the root is the root. The result never leaves it.
fn resolve(path: &Path, mut link: impl FnMut(&Path) -> io::Result<Option<PathBuf>>) -> io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    // Components still to go, the next one last.
    let mut rest: Vec<Step> = steps(path);
    let mut links = 0;
    while let Some(step) = rest.pop() {
        let name = match step {
            Step::Root => {
                resolved = PathBuf::new();
                continue;
            }
            Step::Up => {
                resolved.pop();
                continue;
            }
            Step::Name(name) => name,
        };
        resolved.push(name);
        if let Some(target) = link(&resolved)? {
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::other("too many symbolic links"));
            }
            resolved.pop();
            rest.extend(steps(&target));
        }
    }
    Ok(resolved)
}

enum Step {
    Root,
    Up,
    Name(OsString),
}

/// The steps of `path`, last one first.
fn steps(path: &Path) -> Vec<Step> {
    let step = |component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links of a made-up root.
    fn link(path: &Path) -> io::Result<Option<PathBuf>> {
        let target = match path.to_str() {
            Some("lib") => "usr/lib",
            Some("usr/lib/debug") => "/debug",
            Some("usr/up") => "../../../../etc",
            Some("loop") => "/loop/x",
            Some("self") => "self",
            Some("missing") => return Err(io::ErrorKind::NotFound.into()),
            _ => return Ok(None),
        };
        Ok(Some(target.into()))
    }

    /// Absolute links start at the root again, and no number of `..` leads out of it.
    #[test]
    fn links_stay_inside() {
        let cases = [
            ("/bin/sh", "bin/sh"),
            ("/lib/x.so", "usr/lib/x.so"),
            ("/lib/debug/.build-id/ab", "debug/.build-id/ab"),
            ("/usr/up/passwd", "etc/passwd"),
            ("/../../etc/./passwd", "etc/passwd"),
            ("/usr/lib/../up/../x", "x"),
            ("/", ""),
        ];
        for (path, expected) in cases {
            assert_eq!(
                resolve(Path::new(path), link).expect(path),
                Path::new(expected),
                "{path}"
            );
        }
    }

    /// Links in a circle and missing components are errors.
    #[test]
    fn endless_links_end() {
        for path in ["/loop/y", "/self", "/missing/x"] {
            assert!(resolve(Path::new(path), link).is_err(), "{path}");
        }
    }

    /// Devices and directories are not opened, and a link to the host's file is looked for inside.
    #[test]
    fn only_regular_files_open() {
        let root = Path::new("/");
        assert!(open_regular(root, Path::new("/dev/null")).is_err());
        assert!(open_regular(root, Path::new("/etc")).is_err());
        assert!(open_regular(root, Path::new("/proc/self/exe")).is_ok());
        assert!(open_regular(Path::new("/proc/self"), Path::new("exe")).is_err());
    }
}
