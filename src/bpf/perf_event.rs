//! Opens the kernel's events that programs are attached to or that are read from a ring.

#![allow(unsafe_code, reason = "a system call that no library has")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libbpf_sys::perf_event_attr;

/// Threads and CPUs that an event is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope {
    /// One thread, wherever it runs.
    Thread(u32),
    /// Everything that runs on one CPU.
    Cpu(u32),
}

/// A description of a software event, `config` of `PERF_COUNT_SW_…`.
pub(super) fn software(config: libbpf_sys::perf_sw_ids) -> io::Result<perf_event_attr> {
    Ok(perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>()
            .try_into()
            .map_err(io::Error::other)?,
        config: config.into(),
        ..perf_event_attr::default()
    })
}

/// Opens an event: perf_event_open(2).
pub(super) fn open(event: &perf_event_attr, scope: Scope) -> io::Result<OwnedFd> {
    const ANY: libc::c_int = -1;
    let number = |number: u32| libc::c_int::try_from(number).map_err(io::Error::other);
    let (thread, cpu) = match scope {
        Scope::Thread(thread) => (number(thread)?, ANY),
        Scope::Cpu(cpu) => (ANY, number(cpu)?),
    };
    let no_group: libc::c_int = -1;
    // SAFETY: the kernel reads `event`, of the size that is in it, and writes nothing of ours.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(event),
            thread,
            cpu,
            no_group,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC,
        )
    };
    match RawFd::try_from(descriptor) {
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
