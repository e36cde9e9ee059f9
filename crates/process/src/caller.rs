//! Opens files with the caller's rights: under sudo, those of the user who called it, though memleak is root.
//!
//! The kernel checks that user's file system IDs. The process keeps root's supplementary groups, so that
//! files which only these may read are refused afterwards, by the permissions of the file and of the
//! directories on its way.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Gid, Uid, getegid, geteuid, getgid, getuid, setfsgid, setfsuid};

use super::foreign::{LastLink, OpenError, ResolvedFile, open_in_root};
use super::launch;

const READ: u32 = 0o4;
const SEARCH: u32 = 0o1;

/// The previous file system user and group of this thread, restored on drop.
pub struct Rights {
    user: Uid,
    group: Gid,
}

impl Rights {
    pub fn of(user: Uid, group: Gid) -> Self {
        // In this order: only a privileged user can change the group.
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

/// A user with whose rights files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The one that this process runs as.
    Own,
    /// The user who called sudo.
    Sudo {
        user: u32,
        group: u32,
        /// All groups of the user.
        groups: Vec<u32>,
    },
}

impl Caller {
    /// Determines the caller.
    ///
    /// # Errors
    ///
    /// The environment names a user that does not exist, or this program has privileges by its file, so that
    /// the caller's rights are unknown.
    pub fn find() -> io::Result<Self> {
        if getuid() != geteuid() || getgid() != getegid() {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let found = launch::invoking_groups()?;
        Ok(found.map_or(Self::Own, |(user, group, groups)| Self::Sudo {
            user,
            group,
            groups,
        }))
    }

    /// Opens a regular file of at most `max` bytes, which the caller may read.
    ///
    /// # Errors
    ///
    /// The caller may not, or as [`open_in_root`].
    pub fn open(&self, path: &Path, max: u64) -> Result<ResolvedFile, OpenError> {
        let open = || open_in_root(Path::new("/"), path, LastLink::Follow, max);
        let Self::Sudo { user, group, groups } = self else {
            return open();
        };
        // The process keeps its supplementary groups: try each of the caller's groups as the file system
        // group, the primary one first.
        let mut others = groups.iter().filter(|other| *other != group);
        let mut with = group;
        let opened = loop {
            let opened = {
                let _rights = Rights::of(Uid::from_raw(*user), Gid::from_raw(*with));
                open()
            };
            match (opened, others.next()) {
                (Err(OpenError::System(error)), Some(other))
                    if error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    with = other;
                }
                (opened, _) => break opened?,
            }
        };
        let may_read = self.may(&opened.file.metadata()?, READ);
        let mut above = opened.path.ancestors().skip(1);
        let may_search =
            above.all(|directory| fs::metadata(directory).is_ok_and(|facts| self.may(&facts, SEARCH)));
        match may_read && may_search {
            true => Ok(opened),
            false => Err(io::Error::from(io::ErrorKind::PermissionDenied).into()),
        }
    }

    /// Returns true if a file's permissions give the caller this right.
    fn may(&self, facts: &Metadata, right: u32) -> bool {
        let Self::Sudo { user, groups, .. } = self else {
            return true;
        };
        let shift = match (facts.uid() == *user, groups.contains(&facts.gid())) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        facts.mode() >> shift & right == right
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const DAEMON: u32 = 1;

    /// The user who called sudo opens only files that this user may read, whatever root and root's groups may
    /// read; links and pipes do not change that.
    #[test]
    fn files_of_others_are_refused_as_root() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let make = |name: &str, owner: u32, group: u32, mode: u32| {
            fs::write(at(name), "text\n").expect("ours");
            chown(at(name), Some(owner), Some(group)).expect("root");
            fs::set_permissions(at(name), Permissions::from_mode(mode)).expect("root");
        };
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("ours");
        make("own.c", DAEMON, 0, 0o600);
        make("group.c", 0, 7, 0o640);
        make("all.c", 0, 0, 0o644);
        make("roots.c", 0, 0, 0o600);
        make("roots_group.c", 0, 0, 0o640);
        make("not_own.c", DAEMON, 0, 0o066);
        fs::create_dir(at("closed")).expect("ours");
        make("closed/all.c", 0, 0, 0o644);
        fs::set_permissions(at("closed"), Permissions::from_mode(0o750)).expect("root");
        symlink(at("roots.c"), at("link.c")).expect("ours");
        symlink(at("all.c"), at("good_link.c")).expect("ours");
        mkfifo(&at("pipe.c"), Mode::from_bits_truncate(0o666)).expect("ours");
        let sudo = Caller::Sudo {
            user: DAEMON,
            group: DAEMON,
            groups: vec![DAEMON, 7],
        };
        let opens = |caller: &Caller, name: &str| caller.open(&at(name), 100).is_ok();
        for (name, expected) in [
            ("own.c", true),
            ("group.c", true),
            ("all.c", true),
            ("good_link.c", true),
            ("roots.c", false),
            ("roots_group.c", false),
            ("not_own.c", false),
            ("closed/all.c", false),
            ("link.c", false),
            ("pipe.c", false),
            ("absent.c", false),
        ] {
            assert_eq!(opens(&sudo, name), expected, "{name}");
        }
        // The rights are this process's again.
        assert!(opens(&Caller::Own, "roots.c") && opens(&Caller::Own, "closed/all.c"));
        assert!(!opens(&Caller::Own, "pipe.c"));
        assert!(Caller::Own.open(&at("all.c"), 3).is_err());
        for made_up in ["/proc/self/status", "/dev/zero", "/"] {
            assert!(
                Caller::Own.open(Path::new(made_up), 1 << 20).is_err(),
                "{made_up}"
            );
        }
    }
}
