//! As whom a program is started: as the user who called sudo, not as root, if that is how we became root.

use std::ffi::CString;
use std::io;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist, setgid, setgroups, setuid};

/// A user to become, with everything that must be looked up before the fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunAs {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
}

impl RunAs {
    /// The user who called sudo; `None` when nobody did, when it was root, or when we are not root.
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
        let unknown = || io::Error::other(format!("SUDO_UID is {uid}, which is no user here"));
        let user = Uid::from_raw(uid.parse().map_err(|_| unknown())?);
        if user.is_root() {
            return Ok(None);
        }
        let User { name, gid, .. } = User::from_uid(user)?.ok_or_else(unknown)?;
        let name = CString::new(name)?;
        Ok(Some(Self {
            user,
            group: gid,
            groups: getgrouplist(&name, gid)?,
        }))
    }

    /// User and group, by number.
    pub(super) fn ids(&self) -> (u32, u32) {
        (self.user.as_raw(), self.group.as_raw())
    }

    /// Becomes this user for good. Three system calls: fit for a child between fork and exec.
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

    /// A known user is looked up, root and nobody's absence need nothing, and nonsense is an error.
    #[test]
    fn who_called_sudo() {
        assert_eq!(RunAs::of(None).expect("fine"), None);
        assert_eq!(RunAs::of(Some("0")).expect("fine"), None);
        // Every Debian system has this user.
        let daemon = RunAs::of(Some("1")).expect("fine").expect("a user");
        assert_eq!((daemon.user, daemon.group), (Uid::from_raw(1), Gid::from_raw(1)));
        assert!(daemon.groups.contains(&Gid::from_raw(1)));
        for nonsense in ["", "x", "-1", "4000000000"] {
            let error = RunAs::of(Some(nonsense)).expect_err(nonsense);
            assert!(error.to_string().contains("SUDO_UID"), "{error}");
        }
    }
}
