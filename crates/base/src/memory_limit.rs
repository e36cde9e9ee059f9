//! The limit on memleak's address space, into which it maps memory that the kernel side writes.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Remedy to append to an out-of-memory error.
pub fn remedy() -> String {
    match getrlimit(Resource::RLIMIT_AS) {
        Ok((limit, _)) if limit < RLIM_INFINITY => format!(
            ": memleak may map {} MiB; raise the limit (ulimit -v unlimited) and try again",
            limit >> 20
        ),
        Ok(_) | Err(_) => {
            ": free memory, raise the limit of memleak's cgroup, or give smaller --max-blocks and \
             --stack-storage-size"
                .to_owned()
        }
    }
}
