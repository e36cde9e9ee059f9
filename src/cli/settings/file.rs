//! Settings files: which are read, in which order, and how far each is trusted.
//!
//! memleak mostly runs as root through sudo, and the user's file belongs to a user who may be allowed to run
//! only `memleak -p`. So it is opened with that user's rights, since a link can lead anywhere, and trusted
//! only in what is measured and shown ([`Source::Anyone`]): it cannot make root write a file, contact a
//! server, or trace what was not requested. Root's files are trusted, and the one that `--config` names,
//! which counts as part of the command line. A file that others can write to is refused, whoever owns it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, getegid, geteuid, getgid, getuid};
use thiserror::Error;

use crate::cli::help::Source;
use crate::process::caller::Rights;
use crate::process::launch;

/// System-wide settings.
const SYSTEM: &str = "/etc/memleak/config.toml";

/// Maximum size of a settings file.
const MAX_BYTES: u64 = 64 << 10;

/// Settings files to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileChoice {
    None,
    One(PathBuf),
    /// The user's file and the system-wide one.
    Default,
}

/// Reason why a settings file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    #[error("cannot read settings from `{}`: {error}", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}:{line}: not TOML: a setting is written as format = \"json\"", .path.display())]
    Syntax {
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    #[error(
        "refusing to read settings from `{}`: writable by others; chmod go-w it, or use --no-config",
        .0.display()
    )]
    Writable(PathBuf),
    #[error(
        "refusing to read settings from `{}`: owned by user {owner}; chown it, or use --no-config",
        .path.display()
    )]
    Owner {
        path: PathBuf,
        /// User id.
        owner: u32,
    },
}

/// A settings file and how far it is trusted.
struct Candidate {
    path: PathBuf,
    /// User and group to open it as; it must belong to that user or to root. `None` for a named file: opened
    /// as this process, any owner.
    user: Option<(Uid, Gid)>,
    trust: Source,
}

/// Returns true if this program has privileges that its caller lacks (a set-user-ID bit). Only the command
/// line of the caller is trusted then.
pub(super) fn is_privileged_by_file() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// Path, text and trust of the files that exist, in descending precedence.
pub(super) fn read_all(wanted: &FileChoice) -> Result<Vec<(PathBuf, String, Source)>, FileError> {
    let candidates = match wanted {
        FileChoice::None => Vec::new(),
        FileChoice::One(path) => vec![Candidate {
            path: path.clone(),
            user: None,
            trust: Source::Trusted,
        }],
        FileChoice::Default => default_candidates(),
    };
    let mut files = Vec::new();
    for candidate in candidates {
        match candidate.read() {
            // Default files are optional, and a home directory may be inaccessible.
            Err(FileError::Unreadable { error, .. })
                if *wanted == FileChoice::Default && is_absent(&error) => {}
            Err(error) => return Err(error),
            Ok(text) => files.push((candidate.path, text, candidate.trust)),
        }
    }
    Ok(files)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

fn default_candidates() -> Vec<Candidate> {
    let system = Candidate {
        path: SYSTEM.into(),
        user: Some((Uid::from_raw(0), Gid::from_raw(0))),
        trust: Source::Trusted,
    };
    users().into_iter().chain([system]).collect()
}

/// The user's file; under sudo that of the user who called it.
fn users() -> Option<Candidate> {
    if is_privileged_by_file() {
        return None;
    }
    // If the user that SUDO_UID names does not exist, there is no file.
    let caller = launch::invoking_user().ok()?;
    let caller = caller.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group)));
    let home = match caller {
        Some(_) => launch::invoking_home().ok()??,
        None => std::env::var_os("HOME").map(PathBuf::from)?,
    };
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    // The XDG specification says to ignore a relative path.
    let directory = named
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| home.join(".config"));
    Some(Candidate {
        path: directory.join("memleak/config.toml"),
        user: caller.or(Some((geteuid(), getegid()))),
        trust: match caller {
            Some(_) => Source::Anyone,
            None => Source::Trusted,
        },
    })
}

impl Candidate {
    fn read(&self) -> Result<String, FileError> {
        let path = || self.path.clone();
        let unreadable = |error| FileError::Unreadable { path: path(), error };
        let file = self.open().map_err(unreadable)?;
        let facts = file.metadata().map_err(unreadable)?;
        if !facts.is_file() {
            return Err(unreadable(io::Error::other("it is not a regular file")));
        }
        // A named file may be writable by its group, but not by everyone.
        let others = if self.user.is_some() { 0o022 } else { 0o002 };
        if facts.mode() & others != 0 {
            return Err(FileError::Writable(path()));
        }
        let owner = facts.uid();
        if self
            .user
            .is_some_and(|(user, _)| ![0, user.as_raw()].contains(&owner))
        {
            return Err(FileError::Owner { path: path(), owner });
        }
        let mut text = String::new();
        let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
        read.map_err(unreadable)?;
        match text.len() as u64 > MAX_BYTES {
            true => Err(unreadable(io::Error::other("it is larger than 64 KiB"))),
            false => Ok(text),
        }
    }

    /// Opens the file with the rights of `user`. O_NONBLOCK: does not wait for a writer if the path is a
    /// pipe.
    fn open(&self) -> io::Result<File> {
        let _rights = self.user.map(|(user, group)| Rights::of(user, group));
        open(&self.path)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Reads a settings file as that of a user, or as a named one.
    fn read(path: &Path, user: Option<u32>) -> Result<String, FileError> {
        let candidate = Candidate {
            path: path.to_owned(),
            user: user.map(|user| (Uid::from_raw(user), Gid::from_raw(user))),
            trust: Source::Anyone,
        };
        candidate.read()
    }

    fn make(path: &Path, text: &str, mode: u32, owner: u32) {
        fs::write(path, text).expect("our own directory");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own file");
        chown(path, Some(owner), Some(owner)).expect("root: these tests give files away");
    }

    /// Files that others own or can write to are refused; a named file may have any owner.
    #[test]
    fn owners_of_settings_files_as_root() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("our own");
        let path = directory.path().join("config.toml");
        for (mode, owner, user, expected) in [
            (0o644, 0, Some(0), "top = 1"),
            (0o600, 1, Some(1), "top = 1"),
            (0o644, 0, Some(1), "top = 1"),
            (0o664, 0, Some(0), "chmod go-w"),
            (0o646, 1, Some(1), "chmod go-w"),
            (0o644, 1, Some(0), "owned by user 1"),
            (0o644, 2, Some(1), "owned by user 2"),
            (0o600, 0, Some(1), "Permission denied"),
            (0o664, 2, None, "top = 1"),
            (0o666, 0, None, "chmod go-w"),
        ] {
            make(&path, "top = 1", mode, owner);
            let read = read(&path, user).unwrap_or_else(|error| error.to_string());
            assert!(read.contains(expected), "{mode:o} {owner} {user:?}: {read}");
        }
    }

    /// Files that are not regular or too large are refused; a link is followed with the user's rights only.
    #[test]
    fn irregular_and_large_files_are_refused_as_root() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("our own");
        let path = |name: &str| directory.path().join(name);
        make(&path("large"), &"#".repeat(70_000), 0o644, 0);
        make(&path("secret"), "secret = 1", 0o600, 0);
        fs::write(path("bytes"), b"top = \xff").expect("our own directory");
        mkfifo(&path("pipe"), Mode::from_bits_truncate(0o644)).expect("our own directory");
        symlink(path("secret"), path("link")).expect("our own directory");
        for (name, user, expected) in [
            ("large", None, "larger than 64 KiB"),
            ("pipe", Some(0), "not a regular file"),
            ("bytes", Some(0), "UTF-8"),
            (".", Some(0), "not a regular file"),
            ("none", Some(0), "No such file"),
            ("link", Some(1), "Permission denied"),
        ] {
            let error = read(&path(name), user).expect_err(name).to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        // The thread has its previous rights again.
        assert_eq!(read(&path("link"), Some(0)).expect("root's"), "secret = 1");
    }

    /// A named file must exist; default ones need not.
    #[test]
    fn absent_files() {
        let missing = PathBuf::from("/nonexistent/config.toml");
        let error = read_all(&FileChoice::One(missing))
            .expect_err("refused")
            .to_string();
        assert!(error.contains("/nonexistent/config.toml"), "{error}");
        assert!(read_all(&FileChoice::None).is_ok_and(|files| files.is_empty()));
    }
}
