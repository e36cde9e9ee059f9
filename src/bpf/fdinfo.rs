//! What the kernel says of a map or program, by a descriptor of ours: lines of a name and a number (`proc_pid_fdinfo(5)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::base::proc_fields::ProcFields;

/// All that it says.
pub(super) fn read(object: impl AsFd) -> io::Result<ProcFields> {
    ProcFields::read(format!("/proc/self/fdinfo/{}", object.as_fd().as_raw_fd()))
}

/// How often a program was not run, since it ran already; 0 where the kernel does not say it.
pub(super) fn recursion_misses(program: impl AsFd) -> u64 {
    let fields = read(program).unwrap_or_default();
    fields.number("recursion_misses").unwrap_or_default()
}
