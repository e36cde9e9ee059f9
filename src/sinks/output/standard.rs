//! Standard output, which may be missing when memleak is started.
//!
//! Before `main`, Rust opens /dev/null in place of a standard stream that is closed: all that is written
//! would be lost without an error.
#![allow(unsafe_code, reason = "a function that is called before `main`")]

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::error::OutputError;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader, or the start of a static program, calls the functions in this section without arguments
// (gABI, "Initialization and Termination Functions"), after libc is initialized; the function calls nothing
// that needs more.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    IS_CLOSED.store(fstat(io::stdout()) == Err(Errno::EBADF), Ordering::Relaxed);
}

/// Returns standard output.
///
/// # Errors
///
/// Fails like [`check_open`].
pub fn output() -> Result<Stdout, OutputError> {
    check_open().map(|()| io::stdout())
}

/// Checks that there is standard output to write to.
///
/// # Errors
///
/// Fails if memleak was started without it (`>&-`).
pub fn check_open() -> Result<(), OutputError> {
    match IS_CLOSED.load(Ordering::Relaxed) {
        true => Err(OutputError::Closed),
        false => Ok(()),
    }
}
