//! Words that the kernel keeps for a process are found where it shows them, and what it does not show is named.

use std::path::Path;

use crate::common::program::{Program, compile, directory};
use leak_report::model::Hidden;
use memleak::process::kept;

/// Data of an epoll and the value of a timer are found; a pipe and a pending signal are named.
#[test]
fn epoll_and_timers() {
    let path = compile(&directory("kept"), "processes/kept.c", &["-O1"]);
    let program = Program::start(&path, &[]);
    program.expect("ready");
    let kept = kept::read(program.pid()).expect("it runs");
    // Only kernels that can checkpoint processes show timers.
    let has_timers = Path::new("/proc/self/timers").exists();
    let all = [0x5a5a_0003_dead_bee1, 0x5a5a_0003_dead_bee2];
    assert_eq!(kept.words, all[..if has_timers { 2 } else { 1 }]);
    let count = |kind| kept.hidden.get(&kind).copied();
    // Standard input is a pipe, too.
    assert_eq!(count(Hidden::Pipes), Some(2), "{kept:?}");
    assert_eq!(count(Hidden::Signals), Some(1), "{kept:?}");
}
