//! The walk in the kernel, compiled for the host under sanitizers, against the reference walk.
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "tests need more of it")]

#[path = "../../common/any_walk.rs"]
mod any_walk;
#[path = "../../common/host.rs"]
mod host;

use std::cell::RefCell;
use std::ffi::c_void;

use host::{HostStack, HostTables, HostWalk, ReadMemory};

unsafe extern "C" {
    fn host_walk(
        tables: *const HostTables,
        read: ReadMemory,
        context: *mut c_void,
        start: *const u64,
        stack: *mut HostStack,
    );
}

thread_local! {
    static HOST: RefCell<HostWalk> = RefCell::new(HostWalk::new(host_walk));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| HOST.with_borrow_mut(|host| drop(any_walk::check(host, bytes))));
