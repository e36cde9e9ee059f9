//! The walk in the kernel, of each architecture, compiled for the host under sanitizers, against the
//! reference walk.
#![no_main]

use std::cell::RefCell;
use std::ffi::c_void;

use memleak_test::any_walk;
use memleak_test::host::{HostStack, HostTables, HostWalk, ReadMemory};

macro_rules! host_walks {
    ($($name:ident)*) => {
        // Each is the `host_walk` of tests/host_bpf/host.c (build.rs).
        unsafe extern "C" {
            $(fn $name(
                tables: *const HostTables,
                read: ReadMemory,
                context: *mut c_void,
                start: *const u64,
                stack: *mut HostStack,
            );)*
        }

        thread_local! {
            static HOSTS: RefCell<[HostWalk; 2]> = RefCell::new([$(HostWalk::new($name)),*]);
        }
    };
}

host_walks! { host_walk_x86 host_walk_arm64 }

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| HOSTS.with_borrow_mut(|hosts| drop(any_walk::check(hosts, bytes))));
