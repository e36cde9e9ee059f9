//! Processes that share the memory of another: those of `clone` with `CLONE_VM` and without `CLONE_THREAD`,
//! of `vfork` for a moment.

#![allow(unsafe_code, reason = "a system call that no library knows")]

use std::fs;

use nix::errno::Errno;

/// `KCMP_VM` of the kernel's include/uapi/linux/kcmp.h.
const KCMP_VM: libc::c_long = 1;

/// Returns whether two processes have the same memory.
///
/// # Errors
///
/// The kernel's: one of them is gone, comparing is not permitted (`CAP_SYS_PTRACE`), or not supported (a
/// kernel without `CONFIG_KCMP`).
pub fn share_memory(one: u32, other: u32) -> Result<bool, Errno> {
    let [one, other] = [one, other].map(libc::c_long::from);
    // SAFETY: no memory is passed.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    Errno::result(order).map(|order| order == 0)
}

/// Other processes with the memory of process `pid`, ascending. Those that may not be compared are left out.
///
/// # Errors
///
/// The kernel's, for the process itself.
pub fn sharing_with(pid: u32) -> Result<Vec<u32>, Errno> {
    share_memory(pid, pid)?;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut sharing: Vec<u32> = pids
        .filter(|&other| other != pid && share_memory(pid, other) == Ok(true))
        .collect();
    sharing.sort_unstable();
    Ok(sharing)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process shares its memory with itself, and not with one that it has started; one that is gone is an
    /// error.
    #[test]
    fn others_have_their_own() {
        let own = std::process::id();
        let mut child = Command::new("sleep").arg("10").spawn().expect("coreutils");
        // Some containers do not permit the call.
        if let Ok(is_same) = share_memory(own, own) {
            assert!(is_same);
            assert_eq!(share_memory(own, child.id()), Ok(false));
            assert_eq!(sharing_with(own), Ok(vec![]));
            assert_eq!(share_memory(own, 1 << 30), Err(Errno::ESRCH));
        }
        child.kill().expect("ours");
        child.wait().expect("ours");
    }
}
