//! Hardware breakpoints of a stopped program: at most two instructions that it stops before. Its memory is
//! not written.

use nix::errno::Errno;
use nix::unistd::Pid;
use unwind_tables::addr::Avma;

/// Makes the program stop before `first` and, if given, `second`, until [`clear`].
pub(super) fn set(pid: Pid, first: Avma, second: Option<Avma>) -> Result<(), Errno> {
    machine::set(pid, first, second)
}

pub(super) fn clear(pid: Pid) -> Result<(), Errno> {
    machine::clear(pid)
}

pub(super) fn program_counter(pid: Pid) -> Result<Avma, Errno> {
    machine::program_counter(pid)
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::ffi::{c_long, c_void};
    use std::mem::offset_of;

    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::unistd::Pid;
    use unwind_tables::addr::Avma;

    /// Bits of debug register 7 that enable the first breakpoint on execution, or both. (Intel SDM volume 3,
    /// 17.2.4: bit 2n enables breakpoint n; type and length, from bit 16 on, are 0 for execution.)
    const ENABLE_FIRST: u64 = 1;
    const ENABLE_BOTH: u64 = 1 | 1 << 2;

    pub(super) fn set(pid: Pid, first: Avma, second: Option<Avma>) -> Result<(), Errno> {
        let enable = if second.is_some() {
            ENABLE_BOTH
        } else {
            ENABLE_FIRST
        };
        write(pid, 0, first.get())?;
        write(pid, 1, second.map_or(0, Avma::get))?;
        write(pid, 7, enable)
    }

    pub(super) fn clear(pid: Pid) -> Result<(), Errno> {
        write(pid, 7, 0)
    }

    fn write(pid: Pid, number: usize, value: u64) -> Result<(), Errno> {
        let offset = offset_of!(libc::user, u_debugreg) + number * size_of::<c_long>();
        let offset: *mut c_void = std::ptr::without_provenance_mut(offset);
        ptrace::write_user(pid, offset, value.cast_signed())
    }

    pub(super) fn program_counter(pid: Pid) -> Result<Avma, Errno> {
        Ok(Avma::new(ptrace::getregs(pid)?.rip))
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    #![allow(unsafe_code, reason = "a register set that no library knows")]

    use nix::errno::Errno;
    use nix::libc::{self, c_void};
    use nix::sys::ptrace::{self, regset::NT_PRSTATUS};
    use nix::unistd::Pid;
    use unwind_tables::addr::Avma;

    /// From the kernel's include/uapi/linux/elf.h.
    const NT_ARM_HW_BREAK: usize = 0x402;
    /// Control register for a break on execution of the four bytes at the address in user code: enabled,
    /// privilege and byte mask as in the Arm ARM (D24.3.2, `DBGBCR<n>_EL1`), which the kernel decodes
    /// (`decode_ctrl_reg`).
    const ON_EXECUTION: u32 = 1 | 2 << 1 | 0xf << 5;

    /// The first two registers of `struct user_hwdebug_state` in the kernel's
    /// arch/arm64/include/uapi/asm/ptrace.h: a shorter set leaves the others unchanged.
    #[repr(C)]
    #[derive(Default)]
    struct State {
        info: u32,
        unused: u32,
        registers: [Register; 2],
    }

    #[repr(C)]
    #[derive(Default)]
    struct Register {
        address: u64,
        control: u32,
        unused: u32,
    }

    impl Register {
        fn at(address: Avma) -> Self {
            Self {
                address: address.get(),
                control: ON_EXECUTION,
                unused: 0,
            }
        }
    }

    pub(super) fn set(pid: Pid, first: Avma, second: Option<Avma>) -> Result<(), Errno> {
        let second = second.map(Register::at).unwrap_or_default();
        write(pid, [Register::at(first), second])
    }

    pub(super) fn clear(pid: Pid) -> Result<(), Errno> {
        write(pid, Default::default())
    }

    fn write(pid: Pid, registers: [Register; 2]) -> Result<(), Errno> {
        let mut state = State {
            registers,
            ..State::default()
        };
        let vector = libc::iovec {
            iov_base: (&raw mut state).cast(),
            iov_len: size_of::<State>(),
        };
        let set: *mut c_void = std::ptr::without_provenance_mut(NT_ARM_HW_BREAK);
        // SAFETY: the kernel reads `iov_len` bytes of `state`, which has the kernel's layout.
        let result = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, pid.as_raw(), set, &raw const vector) };
        Errno::result(result).map(drop)
    }

    pub(super) fn program_counter(pid: Pid) -> Result<Avma, Errno> {
        Ok(Avma::new(ptrace::getregset::<NT_PRSTATUS>(pid)?.pc))
    }
}
