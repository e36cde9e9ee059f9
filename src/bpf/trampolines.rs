//! Finds out whether programs can be attached to the kernel's functions, with a program of two instructions:
//! loading the object for that takes a hundred times as long.

#![allow(unsafe_code, reason = "functions of libbpf that libbpf-rs does not have")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libbpf_rs::libbpf_sys::{self, bpf_insn, bpf_prog_load_opts};

/// Instructions of a program that does nothing: `r0 = 0; exit`.
const NOTHING: [u8; 2] = [0xb7, 0x95];
/// License of the program, which calls nothing that requires a certain one.
const LICENSE: &CStr = c"MIT";

/// Attaches a program that does nothing to the beginning of a function of the kernel, and detaches it.
///
/// # Errors
///
/// The kernel has no such function, refuses the program, or cannot attach it.
pub(super) fn try_function(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name is a string that ends in zero.
    let id = unsafe { libbpf_sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), libbpf_sys::BPF_TRACE_FENTRY) };
    let options = bpf_prog_load_opts {
        sz: size_of::<bpf_prog_load_opts>() as u64,
        expected_attach_type: libbpf_sys::BPF_TRACE_FENTRY,
        attach_btf_id: u32::try_from(id).map_err(|_| io::Error::from_raw_os_error(id.saturating_neg()))?,
        ..Default::default()
    };
    let instructions = NOTHING.map(|code| bpf_insn {
        code,
        ..Default::default()
    });
    // SAFETY: the kernel reads all of the instructions and the options, and the strings, which end in zero.
    let program = owned(unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_TRACING,
            ptr::null(),
            LICENSE.as_ptr(),
            instructions.as_ptr(),
            instructions.len() as u64,
            ptr::from_ref(&options).cast_mut(),
        )
    })?;
    // SAFETY: the program is open. Its options have its function, so that no name is read.
    owned(unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) }).map(drop)
}

/// Takes over a descriptor that libbpf returned, or a negated error.
fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    match descriptor {
        // SAFETY: libbpf opened it for its caller, and nothing else knows it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    }
}
