//! The end of the process, where something is that cannot be.

/// Ends the process by SIGILL, in cases that cannot happen. A message is not possible here.
pub(super) fn abort() -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: ends here.
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: ends here.
    unsafe {
        core::arch::asm!("udf #0", options(noreturn))
    };
}
