//! User accounts, from the system's name services (files, directories, whatever `nsswitch.conf` names).
//!
//! Name services are modules that libc loads. A static program cannot load them safely, as they must match
//! the libc that is linked into it; it runs the system's `getent` and `id` instead.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User, getgrouplist};

use memleak_base::system;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: OsString,
    pub(super) group: Gid,
    pub(super) home: PathBuf,
}

impl Account {
    /// Looks up a user; `None` if it does not exist.
    pub(super) fn of(user: Uid) -> io::Result<Option<Self>> {
        if cfg!(target_feature = "crt-static") {
            return Self::from_commands(user);
        }
        let found = User::from_uid(user)?;
        Ok(found.map(|User { name, gid, dir, .. }| Self {
            name: name.into(),
            group: gid,
            home: dir,
        }))
    }

    /// ID of the user with this name; `None` if it does not exist.
    pub(super) fn id_of(name: &str) -> io::Result<Option<u32>> {
        if cfg!(target_feature = "crt-static") {
            return Self::id_from_command(name);
        }
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn id_from_command(name: &str) -> io::Result<Option<u32>> {
        let line = ask("getent", ["passwd".as_ref(), "--".as_ref(), name.as_ref()])?;
        let fields = line.as_ref().map(|line| line.split(|&byte| byte == b':'));
        // A number is a name for libc, and an ID for getent.
        let mut fields = fields.into_iter().flatten();
        let is_named = fields.next() == Some(name.as_bytes());
        let id = fields.nth(1).and_then(|id| str::from_utf8(id).ok()?.parse().ok());
        Ok(id.filter(|_| is_named))
    }

    /// All groups of this user, the primary group included.
    pub(super) fn groups(&self) -> io::Result<Vec<Gid>> {
        if cfg!(target_feature = "crt-static") {
            return self.groups_from_command();
        }
        let name = CString::new(self.name.as_encoded_bytes())?;
        Ok(getgrouplist(&name, self.group)?)
    }

    fn from_commands(user: Uid) -> io::Result<Option<Self>> {
        let Some(line) = ask("getent", ["passwd".as_ref(), user.to_string().as_ref()])? else {
            return Ok(None);
        };
        let found = Self::parse(&line);
        found.map(Some).ok_or_else(|| {
            io::Error::other(format!(
                "the output of getent passwd {user} is not a passwd entry"
            ))
        })
    }

    /// Parses a line of passwd(5).
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<_> = line.split(|&byte| byte == b':').collect();
        let [name, _, _, group, _, home, _] = fields[..] else {
            return None;
        };
        let owned = |field: &[u8]| OsString::from_vec(field.to_owned());
        Some(Self {
            name: owned(name),
            group: Gid::from_raw(std::str::from_utf8(group).ok()?.parse().ok()?),
            home: owned(home).into(),
        })
    }

    fn groups_from_command(&self) -> io::Result<Vec<Gid>> {
        let unknown = || {
            io::Error::other(format!(
                "`id -G` cannot list the groups of {}",
                self.name.display()
            ))
        };
        let line = ask("id", ["-G".as_ref(), "--".as_ref(), &*self.name])?.ok_or_else(unknown)?;
        let line = String::from_utf8_lossy(&line);
        let groups = line
            .split_whitespace()
            .map(|group| group.parse().map(Gid::from_raw));
        groups.collect::<Result<_, _>>().map_err(|_| unknown())
    }
}

/// First line that a system program prints; `None` if it fails.
fn ask<const N: usize>(name: &str, arguments: [&OsStr; N]) -> io::Result<Option<Vec<u8>>> {
    let answer = system::command(name).and_then(|mut command| command.args(arguments).output());
    let answer =
        answer.map_err(|error| io::Error::new(error.kind(), format!("cannot run `{name}`: {error}")))?;
    let line = answer.stdout.split(|&byte| byte == b'\n').next();
    Ok(line.filter(|_| answer.status.success()).map(<[u8]>::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `getent` and `id` give the same as libc, for every user of the system and for one that does not exist.
    #[test]
    fn commands_and_libc_agree() {
        let numbers = std::fs::read_to_string("/etc/passwd").expect("there");
        let numbers = numbers
            .lines()
            .filter_map(|line| line.split(':').nth(2)?.parse().ok());
        for number in numbers.chain([3_999_999_999]) {
            let user = Uid::from_raw(number);
            let account = Account::of(user).expect("looked up");
            assert_eq!(Account::from_commands(user).expect("asked"), account);
            let Some(account) = account else { continue };
            let sorted = |mut groups: Vec<Gid>| {
                groups.sort_unstable_by_key(|group| group.as_raw());
                groups
            };
            let groups = account.groups_from_command().expect("asked");
            assert_eq!(sorted(groups), sorted(account.groups().expect("looked up")));
        }
        for name in ["root", "daemon", "nobody", "no-such-user", "", "-h", "0", "a:b"] {
            let id = Account::id_of(name).expect("looked up");
            assert_eq!(Account::id_from_command(name).expect("asked"), id, "{name}");
        }
        for line in [
            "",
            "daemon",
            "daemon:x:1:x:daemon:/usr/sbin:/sbin/nologin",
            "a:b:1:1:c:d:e:f",
        ] {
            assert_eq!(Account::parse(line.as_bytes()), None, "{line}");
        }
    }
}
