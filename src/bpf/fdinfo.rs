//! The kernel's facts about one of our maps or programs: lines with a name and a number
//! (`proc_pid_fdinfo(5)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::base::proc_fields::ProcFields;

/// Reads all facts about a map or program.
pub(super) fn read(object: impl AsFd) -> io::Result<ProcFields> {
    ProcFields::read(format!("/proc/self/fdinfo/{}", object.as_fd().as_raw_fd()))
}

/// Times that the kernel skipped a program because it was already running on that CPU; 0 if the kernel does
/// not count that.
pub(super) fn recursion_misses(program: impl AsFd) -> u64 {
    let fields = read(program).unwrap_or_default();
    fields.number("recursion_misses").unwrap_or_default()
}
