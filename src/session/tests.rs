use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use unwind_tables::walk::End;

use super::*;
use crate::base::proc_fields::ProcFields;

/// Debian's python3, allocating and freeing in an endless loop.
struct Python(Child);

impl Python {
    fn start() -> Self {
        let child = Command::new("/usr/bin/python3")
            .args(["-c", "print(flush=True)\nwhile True: bytes(2000)"])
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("python3 starts (apt-get install python3)");
        let mut line = [0];
        io::Read::read_exact(&mut child.stdout.take().expect("it was piped"), &mut line)
            .expect("python3 prints a line");
        Self(child)
    }

    /// Runs `act` while the program is stopped outside the kernel, so that no walk is in progress.
    fn paused(&self, act: impl FnOnce()) {
        self.signal("STOP");
        while ProcFields::status(self.0.id())
            .expect("it runs")
            .words("State")
            .next()
            != Some("T")
        {
            std::thread::yield_now();
        }
        act();
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        let status = Command::new("sh").args(["-c", &kill]).status();
        assert!(status.expect("sh runs").success());
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn config(pid: u32) -> TraceConfig {
    let mut config = TraceConfig::of_process(pid);
    config.limits.blocks = Some(1 << 16);
    config.limits.stacks = Some(1 << 12);
    config
}

/// Blocks whose stack was not walked because no scratch was free, and blocks whose stack was.
fn follow_and_count(session: &mut Session<'_>) -> (u64, u64) {
    session
        .follow(Instant::now() + Duration::from_millis(200), &Signals::default())
        .expect("the session goes on");
    let snapshot = session.snapshot().expect("it can be read");
    let blocks = |busy: bool| {
        let stacks = snapshot.stacks.iter();
        stacks
            .filter(|stack| (stack.end == End::ScratchBusy) == busy)
            .map(|stack| stack.allocated.amount.blocks)
            .sum()
    };
    (blocks(true), blocks(false))
}

/// A walk never uses scratch that another walk has taken: while all is taken, blocks are recorded as not
/// walked, and walks resume when it is free again.
///
/// This stands for a walk that is preempted by others on its CPU, which cannot be caused at will.
#[test]
fn walks_do_not_share_room_as_root() {
    let python = Python::start();
    let mut storages = storages();
    let mut session =
        Session::start(&mut storages, &config(python.0.id())).expect("it can be traced (as root)");

    let (busy, walked) = follow_and_count(&mut session);
    assert_eq!(busy, 0);
    assert!(walked > 0);

    python.paused(|| session.live.kernel.mark_scratches(true));
    let (busy_before, walked_before) = follow_and_count(&mut session);
    let (busy, walked) = follow_and_count(&mut session);
    assert!(busy > busy_before && busy_before > 0);
    assert_eq!(walked, walked_before);

    python.paused(|| session.live.kernel.mark_scratches(false));
    let (busy_before, walked_before) = follow_and_count(&mut session);
    let (busy, walked) = follow_and_count(&mut session);
    assert_eq!(busy, busy_before);
    assert!(walked > walked_before);
}
