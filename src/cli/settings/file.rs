//! The files that settings are in: which, in which order, and how far each is believed.
//!
//! memleak is run by root, mostly through sudo, and then the user's file is that of a user who may be allowed to run
//! nothing else than `memleak -p`. So it is opened with that user's rights, as a link in it could lead anywhere, and
//! believed only in what is measured and shown ([`Source::Anyone`]): it cannot make root write a file, ask a server, or
//! trace what was not asked for. Root's files are believed, and the one that `--config` names, which is a word of the
//! command line. A file that others can write to is refused, whoever's it is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, getegid, geteuid, getgid, getuid, setfsgid, setfsuid};
use thiserror::Error;

use crate::cli::help::Source;
use crate::process::launch;

/// The machine's settings.
const SYSTEM: &str = "/etc/memleak/config.toml";

/// More is no file of settings.
const MAX_BYTES: u64 = 64 << 10;

/// Which files are to be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// None.
    None,
    /// This one.
    One(PathBuf),
    /// The user's and the machine's.
    Usual,
}

/// A file of settings that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read settings from `{}`: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not TOML.
    #[error("{}:{line}: not TOML: a setting is written as format = \"json\"", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// It could be anybody's.
    #[error(
        "refusing to read settings from `{}`: writable by others; chmod go-w it, or use --no-config",
        .0.display()
    )]
    Writable(PathBuf),
    /// It is somebody else's.
    #[error(
        "refusing to read settings from `{}`: owned by user {owner}; chown it, or use --no-config",
        .path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
}

/// A file, whose word it is.
struct Candidate {
    path: PathBuf,
    /// Who opens it and may own it besides root; anybody for one that was named.
    user: Option<(Uid, Gid)>,
    trust: Source,
}

/// Whether this program has privileges that who started it has not (a set-user-ID bit): then nothing of theirs is
/// believed but their command line.
pub(super) fn is_privileged_by_file() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// The files that there are, with their text, those first that come first.
pub(super) fn read_all(wanted: &Wanted) -> Result<Vec<(PathBuf, String, Source)>, FileError> {
    let candidates = match wanted {
        Wanted::None => Vec::new(),
        Wanted::One(path) => vec![Candidate {
            path: path.clone(),
            user: None,
            trust: Source::Trusted,
        }],
        Wanted::Usual => usual(),
    };
    let mut files = Vec::new();
    for candidate in candidates {
        match candidate.read() {
            // Whoever has no file has no settings; nobody needs to read a home that is closed to them.
            Err(FileError::Unreadable { error, .. }) if *wanted == Wanted::Usual && is_absent(&error) => {}
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

fn usual() -> Vec<Candidate> {
    let system = Candidate {
        path: SYSTEM.into(),
        user: Some((Uid::from_raw(0), Gid::from_raw(0))),
        trust: Source::Trusted,
    };
    users().into_iter().chain([system]).collect()
}

/// The user's file: of who called sudo, if somebody did.
fn users() -> Option<Candidate> {
    if is_privileged_by_file() {
        return None;
    }
    // Whoever SUDO_UID names does not exist: there is no file of theirs.
    let caller = launch::invoking_user().ok()?;
    let caller = caller.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group)));
    let home = match caller {
        Some(_) => launch::invoking_home().ok()??,
        None => std::env::var_os("HOME").map(PathBuf::from)?,
    };
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    // By its specification, a relative one is as good as none.
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
        // A file that was named is the business of who named it, but not that of everybody.
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

    /// With the rights of its user. A pipe in its place is not waited for.
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

/// Rights in file systems that this thread has for a while instead of its own.
struct Rights {
    user: Uid,
    group: Gid,
}

impl Rights {
    fn of(user: Uid, group: Gid) -> Self {
        // In this order: only who may do anything may become another group.
        let group = setfsgid(group);
        Self {
            user: setfsuid(user),
            group,
        }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        setfsuid(self.user);
        setfsgid(self.group);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// A file as its user would have it: that of user 1, who is nobody here, or one that was named.
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

    /// Files that others can write to are nobody's word, nor are those of others; a named file is its namer's.
    #[test]
    fn whose_word_it_is_as_root() {
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

    /// What is no file, or too much of one, is not read; a link leads where its user may go.
    #[test]
    fn strange_files_as_root() {
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
        // The rights are those of before.
        assert_eq!(read(&path("link"), Some(0)).expect("root's"), "secret = 1");
    }

    /// A named file has to be there; the usual ones need not.
    #[test]
    fn absent_files() {
        let missing = PathBuf::from("/nonexistent/config.toml");
        let error = read_all(&Wanted::One(missing)).expect_err("refused").to_string();
        assert!(error.contains("/nonexistent/config.toml"), "{error}");
        assert!(read_all(&Wanted::None).is_ok_and(|files| files.is_empty()));
    }
}
