//! Names of processes, traceable or not.

use std::fs::{self, File};
use std::path::PathBuf;

use super::files::read_stat;
use super::target::check_leader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName {
    /// Command name, at most 15 bytes.
    pub comm: String,
    /// Path of the executable; `None` if reading it is not permitted.
    pub exe: Option<PathBuf>,
}

impl ProcessName {
    /// Names of process `pid`; `None` if it does not exist, has exited, or is a thread or a kernel thread.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = read_stat(&File::open(format!("/proc/{pid}/stat")).ok()?).ok()?;
        check_leader(pid).ok()?;
        let is_program = !stat.is_kernel_thread() && !stat.has_exited();
        is_program.then(|| Self {
            comm: stat.comm,
            exe: fs::read_link(format!("/proc/{pid}/exe")).ok(),
        })
    }

    /// True if both run the same program, judged by either name.
    pub fn is_like(&self, other: &Self) -> bool {
        self.comm == other.comm || self.exe.is_some() && self.exe == other.exe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process has names; numbers of no process, and of kernel threads, have none.
    #[test]
    fn names() {
        let own = ProcessName::of(std::process::id()).expect("it runs");
        assert_eq!(own.exe, std::env::current_exe().ok());
        assert!(!own.comm.is_empty());
        // Above the kernel's maximum (PID_MAX_LIMIT).
        assert_eq!(ProcessName::of(1 << 30), None);
        let thread = std::thread::spawn(|| {
            let thread = u32::try_from(nix::unistd::gettid().as_raw()).expect("not negative");
            ProcessName::of(thread)
        });
        assert_eq!(thread.join().expect("no panic"), None);
    }

    /// Either name makes two processes alike; an unknown executable is not like any other.
    #[test]
    fn likeness() {
        let named = |comm: &str, exe: Option<&str>| ProcessName {
            comm: comm.to_owned(),
            exe: exe.map(Into::into),
        };
        let server = named("server", Some("/bin/server"));
        assert!(server.is_like(&named("server", None)));
        assert!(server.is_like(&named("worker", Some("/bin/server"))));
        assert!(!server.is_like(&named("worker", None)));
        assert!(!named("a", None).is_like(&named("b", None)));
    }
}
