//! Ways to follow mapping calls.

use std::fmt;

use super::trampolines::try_function;

/// Ways to see the beginning and the end of a mapping call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallHooks {
    /// The kernel's functions for these system calls: other calls cost nothing. Needs BPF trampolines, which
    /// Linux on arm64 did not have at first.
    Functions,
    /// Tracepoints, whose use slows down every system call of every process.
    Tracepoints,
}

impl CallHooks {
    /// All hooks, the cheapest first.
    pub const ALL: [Self; 2] = [Self::Functions, Self::Tracepoints];

    /// Hooks that this kernel has, the cheapest first. Functions are tried.
    pub fn supported() -> Vec<Self> {
        let is_supported = |hooks: &Self| match hooks {
            Self::Functions => match try_function(&format!("{FUNCTION_PREFIX}brk")) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!("the kernel's functions cannot be traced: {error}");
                    false
                }
            },
            Self::Tracepoints => true,
        };
        Self::ALL.into_iter().filter(is_supported).collect()
    }
}

impl fmt::Display for CallHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Functions => "their functions",
            Self::Tracepoints => "tracepoints",
        })
    }
}

/// Prefix of the kernel's functions of system calls, which have the registers as their only argument.
pub(super) const FUNCTION_PREFIX: &str = match cfg!(target_arch = "aarch64") {
    true => "__arm64_sys_",
    false => "__x64_sys_",
};
