//! Why processes were killed for lack of memory: the kernel's log says whose memory was short, and files of that cgroup, how much there
//! was. And this process's own chance to be killed.

use std::fs;

use crate::process::kernel_log::{KernelLog, Shortage};
use crate::process::select::MemoryLimits;
use leak_report::model::MemoryLack;

/// Never to be killed for lack of memory (`OOM_SCORE_ADJ_MIN`). The kernel adds thousandths of the memory that there is, of the machine
/// or below the limit, to what each process has, which includes mapped files: below a limit of some ten MiB, nothing less protects
/// memleak, whose own memory is bounded but for verdicts ([`Killable`]).
const OOM_SCORE: i32 = -1000;
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

/// Has the kernel kill others for lack of memory, and not this process. Programs that it starts later inherit that.
pub(super) fn survive() {
    if score().is_some_and(|now| now > OOM_SCORE) {
        set_score(OOM_SCORE);
    }
}

/// While it exists, this process can be killed for lack of memory as any other: for work that takes as much as what is traced has.
#[derive(Debug)]
pub(super) struct Killable {
    before: Option<i32>,
}

impl Killable {
    pub(super) fn begin() -> Self {
        let before = score().filter(|&now| now < 0);
        if before.is_some() {
            set_score(0);
        }
        Self { before }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_score(before);
        }
    }
}

fn score() -> Option<i32> {
    fs::read_to_string(OOM_SCORE_FILE).ok()?.trim().parse().ok()
}

fn set_score(score: i32) {
    if let Err(error) = fs::write(OOM_SCORE_FILE, score.to_string()) {
        tracing::debug!(
            "{OOM_SCORE_FILE}: {error} (it takes CAP_SYS_RESOURCE): out of memory, the kernel may kill memleak"
        );
    }
}
