//! The trial: probes a function that notices changes to its red zone and registers, in a separate process.
#![allow(unsafe_code, reason = "code that is called where it was copied to")]

use std::arch::global_asm;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{ptr, slice};

use libbpf_sys::perf_event_attr;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::super::perf_event::{self, Scope};
use super::Outcome;
use crate::base::helper;

// A function that fills the red zone, and the registers that a system call changes, with its argument,
// executes the probed instruction, and returns 0 if the argument is still in all of them. The instruction is
// at the second label, where there is room for one of up to 10 bytes.
global_asm!(
    ".pushsection .text.memleak_nop10, \"ax\", @progbits",
    ".globl memleak_nop10_function, memleak_nop10_instruction, memleak_nop10_end",
    ".hidden memleak_nop10_function, memleak_nop10_instruction, memleak_nop10_end",
    ".balign 16",
    "memleak_nop10_function:",
    ".set memleak_nop10_at, 8",
    ".rept 16",
    "mov %rdi, -memleak_nop10_at(%rsp)",
    ".set memleak_nop10_at, memleak_nop10_at + 8",
    ".endr",
    "mov %rdi, %rax",
    "mov %rdi, %rcx",
    "mov %rdi, %r11",
    ".balign 16",
    "memleak_nop10_instruction:",
    ".fill 10, 1, 0x90",
    "xor %rdi, %rax",
    "xor %rdi, %rcx",
    "or %rcx, %rax",
    "xor %rdi, %r11",
    "or %r11, %rax",
    ".set memleak_nop10_at, 8",
    ".rept 16",
    "mov -memleak_nop10_at(%rsp), %rcx",
    "xor %rdi, %rcx",
    "or %rcx, %rax",
    ".set memleak_nop10_at, memleak_nop10_at + 8",
    ".endr",
    "ret",
    "memleak_nop10_end:",
    ".popsection",
    options(att_syntax)
);

unsafe extern "C" {
    #[link_name = "memleak_nop10_function"]
    static FUNCTION: u8;
    #[link_name = "memleak_nop10_instruction"]
    static INSTRUCTION: u8;
    #[link_name = "memleak_nop10_end"]
    static END: u8;
}

/// Any number that is not in memory by chance.
const NUMBER: u64 = 0x5bd1_e995_9e37_79b9;
/// Hits after which the kernel has replaced the instruction, if it ever does.
const HITS: usize = 4;

/// Tries a probe on `instruction`, one that does nothing, in a helper process.
pub(super) fn of(instruction: &[u8]) -> Outcome {
    let Ok((mut from, mut to)) = io::pipe() else {
        return Outcome::Trap;
    };
    let helper = helper::start(|| {
        let outcome = attempt(instruction).unwrap_or(Outcome::Trap);
        _ = to.write_all(&[outcome as u8]);
    });
    drop(to);
    let Some(helper) = helper else {
        return Outcome::Trap;
    };
    let mut said = [0];
    let is_said = from.read_exact(&mut said).is_ok();
    _ = waitpid(helper, None);
    match said {
        // The helper was killed, as a traced program would have been.
        _ if !is_said => Outcome::Harmful,
        [said] if said == Outcome::Call as u8 => Outcome::Call,
        [said] if said == Outcome::Harmful as u8 => Outcome::Harmful,
        _ => Outcome::Trap,
    }
}

/// Runs in the helper, which does what a program does under memleak: it is probed alone and among all
/// processes, forks, continues without the probe, and is probed again.
fn attempt(instruction: &[u8]) -> io::Result<Outcome> {
    let code = Code::new(instruction)?;
    if !code.is_unharmed() {
        return Err(io::Error::other("the function does not work without a probe"));
    }
    for scope in [Scope::Thread(std::process::id()), Scope::Cpu(0)] {
        let probe = code.probe(scope)?;
        let is_right = code.is_unharmed();
        if code.first_bytes() == instruction || code.first_bytes()[0] == BREAKPOINT {
            return Ok(Outcome::Trap);
        }
        if !is_right || !code.is_unharmed_in_a_child() {
            return Ok(Outcome::Harmful);
        }
        drop(probe);
        if !code.is_unharmed() || !code.is_unharmed_in_a_child() {
            return Ok(Outcome::Harmful);
        }
    }
    Ok(Outcome::Call)
}

/// First byte of a probe that is hit by a trap.
const BREAKPOINT: u8 = 0xcc;
const PAGE: usize = 4096;

/// A copy of the function, in a file that only this process has.
pub(super) struct Code {
    file: OwnedFd,
    /// The function as it is mapped.
    function: extern "C" fn(u64) -> u64,
    /// Bytes from its beginning to the instruction, and (`length`) of the instruction.
    offset: usize,
    length: usize,
}

impl Code {
    pub(super) fn new(instruction: &[u8]) -> io::Result<Self> {
        let (start, at, end) = (&raw const FUNCTION, &raw const INSTRUCTION, &raw const END);
        // SAFETY: the labels are of one piece of code, in this order, which nothing writes to.
        let mut code = unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }.to_vec();
        let offset = at.addr() - start.addr();
        let room = code.get_mut(offset..offset + instruction.len());
        room.ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(instruction);
        code.resize(PAGE, BREAKPOINT);
        let file = memfd_create("memleak probes this", MFdFlags::MFD_CLOEXEC)?;
        File::from(file.try_clone()?).write_all(&code)?;
        let length = NonZeroUsize::new(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: the mapping is new and is never removed; its file is not changed after this.
        let mapped = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0) }?;
        // SAFETY: the code is a function of this type, and needs nothing outside of itself.
        let function =
            unsafe { mem::transmute::<*mut libc::c_void, extern "C" fn(u64) -> u64>(mapped.as_ptr()) };
        Ok(Self {
            file,
            function,
            offset,
            length: instruction.len(),
        })
    }

    /// The instruction as it is in memory.
    pub(super) fn first_bytes(&self) -> Vec<u8> {
        let at = (self.function as *const u8).wrapping_add(self.offset);
        // SAFETY: within the page, which only the kernel changes. Each read is volatile, since the compiler
        // does not know of such changes.
        (0..self.length)
            .map(|index| unsafe { ptr::read_volatile(at.wrapping_add(index)) })
            .collect()
    }

    /// Returns true if calls leave the red zone and the registers unchanged.
    pub(super) fn is_unharmed(&self) -> bool {
        (0..HITS).all(|_| (self.function)(NUMBER) == 0)
    }

    /// Returns true if that holds in a forked child, too, which begins with the code as it is now. The child
    /// is confined by seccomp: the page may make a system call, which is not the child's own.
    fn is_unharmed_in_a_child(&self) -> bool {
        // SAFETY: this process has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                // The kernel may kill the child here, which must leave no core dump.
                _ = prctl::set_dumpable(false);
                // SAFETY: the mode has no pointer. If it is refused because a filter is in force, the child
                // keeps that filter.
                unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
                let status = i32::from(!self.is_unharmed());
                // SAFETY: exits the process, by the call that strict mode permits, or else in the usual way.
                unsafe {
                    libc::syscall(libc::SYS_exit, status);
                    libc::_exit(status)
                }
            }
            Ok(ForkResult::Parent { child }) => {
                matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
            }
            Err(_) => false,
        }
    }

    /// Probes the instruction, until the event is closed.
    fn probe(&self, scope: Scope) -> io::Result<OwnedFd> {
        let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        let mut event = perf_event_attr {
            type_: kind.trim().parse().map_err(io::Error::other)?,
            size: size_of::<perf_event_attr>()
                .try_into()
                .map_err(io::Error::other)?,
            ..perf_event_attr::default()
        };
        event.__bindgen_anon_3.uprobe_path = path.as_ptr().expose_provenance() as u64;
        event.__bindgen_anon_4.probe_offset = self.offset as u64;
        perf_event::open(&event, scope)
    }
}
