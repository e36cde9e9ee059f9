//! Return probes that end a process on some kernels, if it is confined by seccomp or has a shadow stack.
//!
//! Since Linux 6.11 on x86-64, a call with a return probe returns to code of the kernel that makes a system
//! call, `uretprobe`. At first, seccomp took it for a call of the process: strict mode ends the process; a
//! filter that does not know the call ends it, or fails the call, after which that code returns to an
//! arbitrary address. Linux 6.14 and corrected releases of 6.12 and 6.13 let the call pass ("seccomp:
//! passthrough uretprobe systemcall without filtering"). Version numbers do not tell these kernels apart, so
//! the call is tried, without a probe.
//!
//! Linux 6.6 to 6.10 give processes shadow stacks (CET), but do not write to them the return address that a
//! return probe sets, so that the process ends at the `ret`. Those kernels lack the system call, which came
//! with the correction ("x86/shstk: Make return uprobe work with shadow stack"). A probe at the `ret` itself
//! changes no address.
#![allow(unsafe_code, reason = "system calls in a process that is there for them")]

use std::fs;
use std::sync::{Once, OnceLock};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

use super::probe::{CallEnd, Probe, ProbedIn};
use crate::base::helper;
use crate::base::proc_fields::ProcFields;

/// Effect of seccomp on the system call of return probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The kernel has no such call.
    Absent,
    /// Seccomp lets the call pass.
    Passes,
    /// Seccomp ends the process, or fails the call.
    Filtered,
}

/// Number of the system call; `None` on machines that have none.
const URETPROBE: Option<libc::c_long> = if cfg!(target_arch = "x86_64") {
    Some(335)
} else {
    None
};

/// Returns the effect on this kernel. Tried once.
fn outcome() -> Outcome {
    static OUTCOME: OnceLock<Outcome> = OnceLock::new();
    *OUTCOME.get_or_init(|| URETPROBE.map_or(Outcome::Absent, of))
}

/// Tries system call `number`. The call of return probes is for the kernel's own code only: once seccomp lets
/// it pass, it ends all other callers by SIGILL.
fn of(number: libc::c_long) -> Outcome {
    if end_of(number, true) == End::ByTheCall {
        return Outcome::Passes;
    }
    match end_of(number, false) {
        End::Unknown => Outcome::Absent,
        End::ByTheCall | End::Other => Outcome::Filtered,
    }
}

/// End of a process that makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The call was made, and ended a process that it is not for.
    ByTheCall,
    /// The kernel does not know the call.
    Unknown,
    Other,
}

fn end_of(number: libc::c_long, is_confined: bool) -> End {
    let process = helper::start(|| {
        // The kernel may kill the process here, which must leave no core dump.
        _ = prctl::set_dumpable(false);
        // SAFETY: the process exists for this call, and uses nothing after it.
        unsafe {
            if is_confined {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT);
            }
            let failed = libc::syscall(number) < 0;
            let status = i32::from(failed && *libc::__errno_location() == libc::ENOSYS);
            libc::syscall(libc::SYS_exit, status);
        }
    });
    match process.map(|process| waitpid(process, None)) {
        Some(Ok(WaitStatus::Signaled(_, Signal::SIGILL, _))) => End::ByTheCall,
        Some(Ok(WaitStatus::Exited(_, 1))) => End::Unknown,
        _ => End::Other,
    }
}

/// Reason why these probes would end a process that has them, with the remedy; `None` if they would not.
/// Warns, once, if they may do so later.
pub(super) fn harm(probed_in: &ProbedIn<'_>, probes: &[Probe]) -> Option<String> {
    static WARNED: Once = Once::new();
    if probes.iter().all(|probe| probe.end != CallEnd::ReturnProbe) {
        return None;
    }
    match outcome() {
        Outcome::Passes => None,
        Outcome::Absent => first(probed_in, has_shadow_stack).map(|pid| {
            format!(
                "a return probe would kill process {pid}, which has a shadow stack: this kernel does not \
                 update shadow stacks for return probes; use Linux 6.11 or newer, or {PRELOAD}"
            )
        }),
        Outcome::Filtered => {
            let confined = first(probed_in, is_confined);
            if confined.is_none() {
                WARNED.call_once(|| {
                    tracing::warn!(
                        "{BY_SECCOMP}: a traced process or child that confines itself by seccomp during the \
                         trace is killed at its next allocation"
                    );
                });
            }
            confined.map(|pid| {
                format!(
                    "a return probe would kill process {pid}, which is confined by seccomp: {BY_SECCOMP}; \
                     use Linux 6.14 or newer, or a corrected 6.12 or 6.13, or {PRELOAD}"
                )
            })
        }
    }
}

const BY_SECCOMP: &str = "on this kernel, seccomp filters the system call that a return probe makes";
const PRELOAD: &str = "start the program with --preload, which needs no return probe";

/// First process with these probes whose status satisfies `is_it`.
fn first(probed_in: &ProbedIn<'_>, is_it: impl Fn(&ProcFields) -> bool) -> Option<u32> {
    let is_it = |pid: &u32| is_it(&ProcFields::status(*pid).unwrap_or_default());
    match probed_in {
        ProbedIn::Process(pid) => Some(*pid).filter(is_it),
        ProbedIn::Families(_, pids) => pids.iter().copied().find(is_it),
        ProbedIn::All => all_processes().find(is_it),
    }
}

/// Returns whether seccomp confines a process: mode 1 of `proc_pid_status(5)` is strict, 2 a filter.
fn is_confined(status: &ProcFields) -> bool {
    status.number("Seccomp").is_some_and(|mode| mode != 0)
}

/// Returns whether a process has a shadow stack, as the kernel's `arch/x86/kernel/cpu/proc.c` writes it since
/// 6.6.
fn has_shadow_stack(status: &ProcFields) -> bool {
    status
        .words("x86_Thread_features")
        .any(|feature| feature == "shstk")
}

fn all_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that seccomp refuses, calls that it lets pass, and calls that do not exist are told apart. The
    /// kernels that tests run on are corrected, or older than the call.
    #[test]
    fn calls_that_seccomp_refuses_are_told() {
        assert_ne!(outcome(), Outcome::Filtered);
        assert_eq!(of(libc::SYS_getpid), Outcome::Filtered);
        assert_eq!(of(4000), Outcome::Absent);
    }

    /// A kernel whose symbols have this call's function has the call.
    #[test]
    fn the_call_is_found_where_the_kernel_has_it() {
        let symbols = fs::read_to_string("/proc/kallsyms").expect("symbols");
        let has_call = symbols.lines().any(|line| line.ends_with(" __x64_sys_uretprobe"));
        assert_eq!(outcome() == Outcome::Passes, has_call);
    }

    #[test]
    fn shadow_stacks() {
        for (text, expected) in [
            (
                "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk \n",
                false,
            ),
            ("x86_Thread_features:\tshstk \n", true),
            ("x86_Thread_features:\twrss shstk \n", true),
            ("Name:\ta\n", false),
        ] {
            let status = ProcFields::from(text.as_bytes());
            assert_eq!(has_shadow_stack(&status), expected, "{text}");
        }
    }

    #[test]
    fn modes() {
        for (text, expected) in [
            ("Name:\ta\nSeccomp:\t0\nSeccomp_filters:\t0\n", false),
            ("Seccomp:\t1\n", true),
            ("Seccomp:\t2\nSeccomp_filters:\t3\n", true),
            ("Name:\ta\n", false),
        ] {
            assert_eq!(
                is_confined(&ProcFields::from(text.as_bytes())),
                expected,
                "{text}"
            );
        }
    }
}
