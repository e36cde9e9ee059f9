//! The environment that a process was started with (`/proc/PID/environ`). A process can overwrite it, as
//! those do that change their title.

use std::fs::File;
use std::io::Read;

/// Maximum number of bytes read. Linux allows a quarter of the stack limit, usually 2 MiB.
const MAX: u64 = 4 << 20;

/// Returns true if a process's environment makes CPython allocate Python's objects with mimalloc.
pub fn has_python_use_mimalloc(pid: u32) -> bool {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ"));
    // If it cannot be read, the process has ended.
    let read = file.and_then(|file| file.take(MAX).read_to_end(&mut text));
    read.is_ok() && asks_for_mimalloc(&text)
}

/// Looks at the first variable of this name, as `getenv` does.
fn asks_for_mimalloc(environment: &[u8]) -> bool {
    let mut variables = environment.split(|&byte| byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"PYTHONMALLOC="));
    matches!(value, Some(b"mimalloc" | b"mimalloc_debug"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable is found by its whole name and value.
    #[test]
    fn allocator_of_python() {
        for environment in ["PYTHONMALLOC=mimalloc", "A=b\0PYTHONMALLOC=mimalloc_debug\0C=\0"] {
            assert!(asks_for_mimalloc(environment.as_bytes()), "{environment}");
        }
        for environment in [
            "",
            "\0",
            "PYTHONMALLOC=malloc\0",
            "PYTHONMALLOC=mimalloc2\0",
            "MYPYTHONMALLOC=mimalloc\0",
            "PYTHONMALLOC=\0PYTHONMALLOC=mimalloc\0",
        ] {
            assert!(!asks_for_mimalloc(environment.as_bytes()), "{environment}");
        }
    }
}
