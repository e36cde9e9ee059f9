//! What the kernel says of a map or program, by a descriptor of ours: lines of a name and a number (`proc_pid_fdinfo(5)`).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// All that it says.
pub(super) fn read(object: impl AsFd) -> io::Result<String> {
    fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_fd().as_raw_fd()))
}

/// The number behind a name, colon included, that begins a line.
pub(crate) fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// How often a program was not run, since it ran already; 0 where the kernel does not say it.
pub(super) fn recursion_misses(program: impl AsFd) -> u64 {
    let text = read(program).unwrap_or_default();
    number(&text, "recursion_misses:").unwrap_or_default()
}
