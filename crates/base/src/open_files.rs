//! The limit on open files. Files that a process has mapped as code stay open, and each probe, BPF program
//! and map is an open file, too.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to its maximum.
pub fn raise_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // If this fails, fewer files can be read, and that is logged.
        _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Returns the current limit.
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Remedy to append to an error that is due to the limit.
pub fn remedy() -> String {
    let limit = limit();
    format!(": memleak may have {limit} files open; raise the limit (ulimit -n 4096) and try again")
}
