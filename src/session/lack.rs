//! Reasons why processes were killed for lack of memory: the kernel's log says whose memory was short, and
//! the files of that cgroup say how much it had. Also lowers this process's own chance of being killed.

use std::fs;

use crate::process::kernel_log::{KernelLog, Shortage};
use crate::process::select::MemoryLimits;
use leak_report::model::MemoryLack;

/// Score of a process that is never killed for lack of memory (`OOM_SCORE_ADJ_MIN`). To the memory that each
/// process has, mapped files included, the kernel adds as many thousandths of all memory, of the machine or
/// below the limit: below a limit of some ten MiB, no other score protects memleak. Its own memory is
/// bounded, except for verdicts ([`Killable`]).
const OOM_SCORE: i32 = -1000;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Sources of the reason why a process was killed.
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
    /// Begins to watch a running process; what the log says of an earlier one with its id is forgotten.
    pub(super) fn begin(&mut self, pid: u32) {
        let sources = self.sources.get_or_insert_with(|| Sources {
            log: KernelLog::open(),
            limits: MemoryLimits::new(),
        });
        if let Some(log) = &mut sources.log {
            log.forget(pid);
        }
    }

    /// Returns which memory was short when process `pid` was killed for lack of it, a moment ago.
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

/// Makes the kernel kill other processes for lack of memory instead of this one. Programs that it starts
/// later inherit that.
pub(super) fn survive() {
    if score().is_some_and(|now| now > OOM_SCORE) {
        set_score(OOM_SCORE);
    }
}

/// Guard during which this process can be killed for lack of memory like any other: for work that takes as
/// much memory as the traced processes have.
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
