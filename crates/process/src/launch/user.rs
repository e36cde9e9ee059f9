//! The user to start a program as: the one who called sudo, not root, if memleak is root because of sudo.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, geteuid, setgid, setgroups, setuid};

use super::account::Account;

/// A user to switch to, with all data that must be looked up before the fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunAs {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
    name: OsString,
    home: PathBuf,
    /// Home directory of root, which sudo may have put into the environment.
    roots_home: Option<PathBuf>,
}

impl RunAs {
    /// The user who called sudo; `None` without sudo, if root called it, or if memleak does not run as root.
    pub(super) fn find() -> io::Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        Self::of(std::env::var("SUDO_UID").ok().as_deref())
    }

    fn of(uid: Option<&str>) -> io::Result<Option<Self>> {
        let Some(uid) = uid else {
            return Ok(None);
        };
        let unknown = || io::Error::other(format!("SUDO_UID is {uid}, but no such user exists"));
        let user = Uid::from_raw(uid.parse().map_err(|_| unknown())?);
        if user.is_root() {
            return Ok(None);
        }
        let account = Account::of(user)?.ok_or_else(unknown)?;
        let root = Account::of(Uid::from_raw(0))?;
        Ok(Some(Self {
            user,
            group: account.group,
            groups: account.groups()?,
            name: account.name,
            home: account.home,
            roots_home: root.map(|root| root.home),
        }))
    }

    /// Variables that name the user and its home. sudo sets them to root's, whose home this user cannot read;
    /// a home that is not root's was kept by sudo, and is left unchanged.
    pub(super) fn environment(&self, home: Option<&OsStr>) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![("USER", self.name.clone()), ("LOGNAME", self.name.clone())];
        if home.is_none() || home.map(Path::new) == self.roots_home.as_deref() {
            variables.push(("HOME", self.home.clone().into()));
        }
        variables
    }

    pub(super) fn ids(&self) -> (u32, u32) {
        (self.user.as_raw(), self.group.as_raw())
    }

    /// IDs of the user, of its group, and of all its groups.
    pub(super) fn all_ids(&self) -> (u32, u32, Vec<u32>) {
        let groups = self.groups.iter().map(|group| group.as_raw());
        (self.user.as_raw(), self.group.as_raw(), groups.collect())
    }

    pub(super) fn into_home(self) -> PathBuf {
        self.home
    }

    /// Switches to this user for good. Makes three system calls only: safe between fork and exec.
    pub(super) fn become_user(&self) -> io::Result<()> {
        setgroups(&self.groups)?;
        setgid(self.group)?;
        setuid(self.user)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A known user is looked up, root and an unset SUDO_UID need no switch, and nonsense is an error.
    #[test]
    fn user_of_sudo_is_looked_up() {
        assert_eq!(RunAs::of(None).expect("fine"), None);
        assert_eq!(RunAs::of(Some("0")).expect("fine"), None);
        // Every Debian system has this user.
        let daemon = RunAs::of(Some("1")).expect("fine").expect("a user");
        assert_eq!((daemon.user, daemon.group), (Uid::from_raw(1), Gid::from_raw(1)));
        assert!(daemon.groups.contains(&Gid::from_raw(1)));
        let name = |variable| (variable, OsString::from("daemon"));
        let kept = [name("USER"), name("LOGNAME")];
        let home = ("HOME", OsString::from("/usr/sbin"));
        assert_eq!(daemon.environment(Some(OsStr::new("/home/somebody"))), kept);
        let [user, logname] = kept;
        let all = [user, logname, home];
        for roots in [None, Some(OsStr::new("/root"))] {
            assert_eq!(daemon.environment(roots), all);
        }
        for nonsense in ["", "x", "-1", "4000000000"] {
            let error = RunAs::of(Some(nonsense)).expect_err(nonsense);
            assert!(error.to_string().contains("SUDO_UID"), "{error}");
        }
    }
}
