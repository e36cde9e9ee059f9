//! Selection of processes by name.
//!
//! A name must be the whole name of the process or of its executable, never a part of it. The kernel keeps 15
//! bytes of a process's name (`TASK_COMM_LEN`). Of a longer name, only these are compared, and the executable
//! or the command line must confirm the rest.

use std::path::{Path, PathBuf};

use super::Reason;

/// Bytes of a process's name that the kernel keeps.
const MAX_COMM: usize = 15;

/// Suffix of the link to an executable that was deleted or replaced.
const DELETED: &str = " (deleted)";

/// Number of words of a command line that can be the name: a script's comes after its interpreter and perhaps
/// an option.
const MAX_WORDS: usize = 3;

/// A name that processes are selected by, or the absolute path of an executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameQuery(String);

impl NameQuery {
    /// A query for a name that is not empty; `None` for an empty one.
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self(name.to_owned()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares the names of a process; executable and command line are read only if they decide.
    pub(super) fn matches(
        &self,
        comm: &str,
        exe: impl FnOnce() -> Option<PathBuf>,
        words: impl FnOnce() -> Vec<String>,
    ) -> Option<Reason> {
        let name = self.0.as_str();
        if name.starts_with('/') {
            let exe = exe()?;
            let is_same = exe == Path::new(name) || exe.to_str().is_some_and(|exe| without_mark(exe) == name);
            return is_same.then_some(Reason::Executable);
        }
        if name.len() <= MAX_COMM && comm == name {
            return Some(Reason::Name);
        }
        let file = exe().and_then(|exe| Some(exe.file_name()?.to_str()?.to_owned()));
        if file.is_some_and(|file| file == name || without_mark(&file) == name) {
            return Some(Reason::Executable);
        }
        let kept = name.as_bytes().get(..MAX_COMM)?;
        let is_begun = name.len() > MAX_COMM && comm == String::from_utf8_lossy(kept);
        let is_named = |word: &String| word.rsplit('/').next() == Some(name);
        (is_begun && words().iter().take(MAX_WORDS).any(is_named)).then_some(Reason::CommandLine)
    }
}

fn without_mark(path: &str) -> &str {
    path.strip_suffix(DELETED).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reason(name: &str, comm: &str, exe: &str, words: &[&str]) -> Option<Reason> {
        let query = NameQuery::new(name).expect("not empty");
        let words = words.iter().map(ToString::to_string).collect();
        query.matches(comm, || (!exe.is_empty()).then(|| exe.into()), || words)
    }

    /// The process's own name comes first, then that of the file it runs; neither is matched in part.
    #[test]
    fn whole_names() {
        for (name, comm, exe, expected) in [
            ("nginx", "nginx", "/usr/sbin/nginx", Some(Reason::Name)),
            ("node", "MainThread", "/usr/bin/node", Some(Reason::Executable)),
            (
                "nginx",
                "x",
                "/usr/sbin/nginx (deleted)",
                Some(Reason::Executable),
            ),
            ("x (deleted)", "y", "/x (deleted)", Some(Reason::Executable)),
            (
                "/usr/sbin/nginx",
                "nginx",
                "/usr/sbin/nginx",
                Some(Reason::Executable),
            ),
            (
                "/usr/sbin/nginx",
                "a",
                "/usr/sbin/nginx (deleted)",
                Some(Reason::Executable),
            ),
            ("/usr/sbin/nginx", "nginx", "/opt/nginx", None),
            ("/usr/sbin/nginx", "nginx", "", None),
            ("nginx", "my-nginx", "/opt/my-nginx", None),
            ("nginx", "nginx-debug", "/opt/nginx-debug", None),
            ("nginx", "bash", "/opt/nginx/bash", None),
            ("Nginx", "nginx", "/usr/sbin/nginx", None),
            ("nginx", "nginx\n", "", None),
            ("nginx", "", "", None),
            ("ngin.", "nginx", "", None),
        ] {
            assert_eq!(reason(name, comm, exe, &[name]), expected, "{name} {comm} {exe}");
        }
        assert_eq!(NameQuery::new(""), None);
    }

    /// A name that the kernel has cut is confirmed by the file or the command line.
    #[test]
    fn cut_names() {
        let (name, comm) = ("systemd-journald", "systemd-journal");
        assert_eq!(reason(name, comm, "", &[]), None);
        assert_eq!(
            reason(name, comm, "/usr/bin/systemd-journalctl", &["systemd-journalctl"]),
            None
        );
        let of_file = reason(name, comm, "/usr/lib/systemd-journald", &[]);
        assert_eq!(of_file, Some(Reason::Executable));
        for words in [
            &["/lib/systemd/systemd-journald"][..],
            &["/usr/bin/python3", "-u", "/opt/systemd-journald"],
        ] {
            assert_eq!(
                reason(name, comm, "/usr/bin/python3", words),
                Some(Reason::CommandLine)
            );
            assert_eq!(reason(name, "vim", "/usr/bin/vim", words), None);
        }
        let late = ["sh", "-a", "-b", "systemd-journald"];
        assert_eq!(reason(name, comm, "/bin/sh", &late), None);
        // The name that `ps` shows matches, too: a name of exactly 15 bytes is not taken for a cut one.
        assert_eq!(reason(comm, comm, "", &[]), Some(Reason::Name));
        // Cut within a character.
        let name = "fourteen-bytesé-server";
        let comm = String::from_utf8_lossy(&name.as_bytes()[..15]).into_owned();
        assert_eq!(reason(name, &comm, "", &[name]), Some(Reason::CommandLine));
        assert_eq!(reason(name, "fourteen-bytes", "", &[name]), None);
    }
}
