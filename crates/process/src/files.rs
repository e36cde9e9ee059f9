//! Files of `/proc/PID`, read by pid alone.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::maps;
use super::stat::Stat;

/// Maximum size of a maps file in bytes. Larger ones need more than 65530 mappings, the default limit, with
/// long names.
const MAX_MAPS_BYTES: u64 = 64 << 20;
/// Maximum number of a process's threads that are looked at.
pub(super) const MAX_THREADS: usize = 1 << 16;

/// Reads all mappings of process `pid`, ascending. The pid alone identifies it: call this only while it is
/// known to run.
pub fn maps_of(pid: u32) -> io::Result<Vec<maps::MapsEntry>> {
    let whole = maps::parse_whole(&read_maps(pid)?, MAX_MAPS_BYTES);
    whole.ok_or_else(|| io::Error::other(format!("/proc/{pid}/maps is longer than {MAX_MAPS_BYTES} bytes")))
}

/// Waits up to about 200 ms until no thread of process `pid` runs, after it was asked to stop. Returns false
/// if one still does.
pub fn is_stopped(pid: u32) -> bool {
    const TRIES: u32 = 200;
    const PAUSE: Duration = Duration::from_millis(1);
    let is_stopped = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
        for thread in threads.take(MAX_THREADS) {
            let stat = File::open(thread?.path().join("stat")).and_then(|stat| read_stat(&stat))?;
            if !matches!(stat.state, b'T' | b'Z' | b'X') {
                return Ok(false);
            }
        }
        Ok::<_, io::Error>(true)
    };
    for _ in 0..TRIES {
        if is_stopped().unwrap_or(false) {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

pub(super) fn read_maps(pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?
        .take(MAX_MAPS_BYTES)
        .read_to_end(&mut text)?;
    Ok(text)
}

pub(super) fn read_stat(file: &File) -> io::Result<Stat> {
    // The longest possible line, 52 numbers and a name, has some 1100 bytes.
    let mut text = [0; 2048];
    let length = file.read_at(&mut text, 0)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "unknown format");
    Stat::parse(text.get(..length).unwrap_or_default()).ok_or_else(malformed)
}
