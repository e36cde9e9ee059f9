//! Files of `/proc/PID`, read up to a bound.

use std::fs::File;
use std::io::{self, Read};

/// Maximum size of files other than `smaps` in bytes.
pub(super) const MAX_BYTES: u64 = 4 << 20;

/// Reads a file of a process, at most `max` bytes of it.
pub(super) fn read(pid: u32, name: &str, max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?
        .take(max)
        .read_to_end(&mut text)?;
    Ok(text)
}
