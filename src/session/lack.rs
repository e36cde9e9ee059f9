//! Why processes were killed for lack of memory: the kernel's log says whose memory was short, and files of that cgroup, how much there
//! was. And this process's own chance to be killed.

use std::fs;

use crate::process::kernel_log::{KernelLog, Shortage};
use crate::process::select::MemoryLimits;
use leak_report::model::MemoryLack;

/// Half of the memory that there is, of the machine or within a limit. The kernel kills the process that has most, and adds this to what
/// each has: memleak is killed first only if it has so much more than any other, and then it should be.
const OOM_SCORE: i32 = -500;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Where to look when a process was killed.
#[derive(Debug, Default)]
pub(super) struct LackWatch {
    /// Opened with the first process.
    sources: Option<Sources>,
}

#[derive(Debug)]
struct Sources {
    /// `None` if it cannot be read.
    log: Option<KernelLog>,
    limits: MemoryLimits,
}

impl LackWatch {
    /// Begins with a process that runs.
    pub(super) fn begin(&mut self, pid: u32) {
        let sources = self.sources.get_or_insert_with(|| Sources {
            log: KernelLog::open(),
            limits: MemoryLimits::new(),
        });
        if let Some(log) = &mut sources.log {
            log.forget(pid);
        }
    }

    /// The memory that was short when a process was killed for it a moment ago.
    pub(super) fn of(&mut self, pid: u32) -> MemoryLack {
        let Some(Sources { log, limits }) = &mut self.sources else {
            return MemoryLack::Unknown;
        };
        let shortage = log.as_mut().and_then(|log| log.shortage(pid));
        match shortage {
            None => MemoryLack::Unknown,
            Some(Shortage::System) => MemoryLack::System,
            Some(Shortage::Cgroup(cgroup)) => MemoryLack::Cgroup(limits.reached(&cgroup)),
        }
    }
}

/// Has the kernel rather kill others than this process, unless it has more than them by far. Programs that it starts later inherit that.
pub(super) fn survive() {
    let now = fs::read_to_string(OOM_SCORE_FILE).ok();
    let now = now.and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_none_or(|now| now <= OOM_SCORE) {
        return;
    }
    if let Err(error) = fs::write(OOM_SCORE_FILE, OOM_SCORE.to_string()) {
        tracing::debug!(
            "{OOM_SCORE_FILE}: {error} (it takes CAP_SYS_RESOURCE): out of memory, the kernel may kill memleak"
        );
    }
}
