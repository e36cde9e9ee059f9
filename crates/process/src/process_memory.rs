//! Reading a process's memory.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use unwind_tables::addr::Avma;

#[derive(Debug)]
pub(super) enum ProcessMemory {
    /// `/proc/PID/mem`, which stays bound to this process even if its pid is reused.
    File(File),
    /// `process_vm_readv`, which needs only `CAP_SYS_PTRACE` where the file is readable by its user alone.
    /// The pid alone identifies the process: use it soon.
    Call(Pid),
}

impl ProcessMemory {
    /// Opens the memory of process `pid`.
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        match File::open(format!("/proc/{pid}/mem")) {
            Ok(file) => Ok(Self::File(file)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Self::by_call(pid),
            Err(error) => Err(error),
        }
    }

    fn by_call(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        Ok(Self::Call(Pid::from_raw(pid)))
    }

    /// Fills `bytes` from `address` on, or fails.
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], address: Avma) -> io::Result<()> {
        let pid = match self {
            Self::File(file) => return file.read_exact_at(bytes, address.get()),
            Self::Call(pid) => *pid,
        };
        let wanted = bytes.len();
        let remote = RemoteIoVec {
            base: usize::try_from(address.get()).map_err(io::Error::other)?,
            len: wanted,
        };
        match process_vm_readv(pid, &mut [IoSliceMut::new(bytes)], &[remote])? {
            read if read == wanted => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways read the same, and neither reads unmapped memory.
    #[test]
    fn file_and_system_call_read_the_same() {
        let pid = std::process::id();
        let local = *b"what both ways are to find here!";
        let address = Avma::new(local.as_ptr().addr() as u64);
        for memory in [ProcessMemory::open(pid), ProcessMemory::by_call(pid)] {
            let memory = memory.expect("our own");
            let mut found = [0; 32];
            memory.read_exact_at(&mut found, address).expect("it is mapped");
            assert_eq!(found, local, "{memory:?}");
            assert!(
                memory.read_exact_at(&mut found, Avma::new(16)).is_err(),
                "{memory:?}"
            );
        }
    }
}
