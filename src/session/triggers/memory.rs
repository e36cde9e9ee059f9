//! Memory of processes as the kernel counts it: `/proc/PID/status`, and files of cgroups.

use anyhow::bail;

use super::{MemoryMeasure, Value};
use crate::base::condition::Condition;
use crate::base::proc_fields::ProcFields;
use crate::process::Target;
use crate::process::select::{MemoryLimit, MemoryLimits};
use leak_report::model::Measured;

/// Quantity of which the highest value is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Highest {
    pub(super) measure: MemoryMeasure,
    /// True if it is a share of a limit.
    pub(super) is_share: bool,
}

/// Reads the memory of processes.
#[derive(Debug)]
pub(super) struct MemoryReader {
    limits: MemoryLimits,
}

impl MemoryReader {
    pub(super) fn new() -> Self {
        Self {
            limits: MemoryLimits::new(),
        }
    }

    /// Begins a look: values that were read before are read again.
    pub(super) fn begin(&mut self) {
        self.limits.forget();
    }

    /// The highest value that one of the processes has; `None` if none has any.
    pub(super) fn highest(&mut self, highest: Highest, targets: &[&Target]) -> Option<Value> {
        let values = targets.iter().filter_map(|target| self.value(highest, target));
        values.max_by(|a, b| a.measured.value().total_cmp(&b.measured.value()))
    }

    fn value(&mut self, highest: Highest, target: &Target) -> Option<Value> {
        let pid = target.pid();
        let measured = match (highest.measure, highest.is_share) {
            (MemoryMeasure::Rss, _) => Measured::Bytes(kibibytes(&ProcFields::status(pid).ok()?, "VmRSS")?),
            (MemoryMeasure::Anon, _) => Measured::Bytes(anonymous(pid)?),
            (MemoryMeasure::Cgroup, true) => Measured::Percent(share(&self.limits.of(pid)?)),
            (MemoryMeasure::Cgroup, false) => Measured::Bytes(self.limits.usage_of(pid)?.bytes),
        };
        // Otherwise, the value can be that of another process, which has its pid now.
        let is_its_own = !target.has_exited();
        is_its_own.then_some(Value {
            measured,
            pid: Some(pid),
        })
    }

    /// Fails if no process has a value, because there is no such cgroup.
    pub(super) fn check<M>(
        &mut self,
        highest: Highest,
        condition: &Condition<M>,
        targets: &[&Target],
    ) -> anyhow::Result<()> {
        let [first, ..] = targets else {
            return Ok(());
        };
        if highest.measure != MemoryMeasure::Cgroup || self.highest(highest, targets).is_some() {
            return Ok(());
        }
        let who = match targets {
            [_] => format!("process {} is", first.pid()),
            _ => "the processes are".to_owned(),
        };
        match highest.is_share {
            true => bail!(
                "`{condition}` cannot come true: {who} in no cgroup with a limit (memory.max): give bytes, as in cgroup>1GiB, or \
                 use rss"
            ),
            false => bail!(
                "`{condition}` cannot come true: {who} in no cgroup whose memory is counted (memory.current): use rss or anon"
            ),
        }
    }
}

/// Bytes of anonymous memory, resident and swapped.
pub(super) fn anonymous(pid: u32) -> Option<u64> {
    let status = ProcFields::status(pid).ok()?;
    let swapped = kibibytes(&status, "VmSwap").unwrap_or(0);
    Some(kibibytes(&status, "RssAnon")?.saturating_add(swapped))
}

fn kibibytes(status: &ProcFields, name: &str) -> Option<u64> {
    Some(status.number(name)?.saturating_mul(1024))
}

/// Percentage of a limit that is taken.
fn share(limit: &MemoryLimit) -> f64 {
    let taken = limit.limit.saturating_sub(limit.room);
    match limit.limit {
        0 => 100.0,
        all => 100.0 * taken as f64 / all as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares are of the limit; of a limit of nothing, all is taken.
    #[test]
    fn shares() {
        let of = |limit, room| {
            let cgroup = "/a".to_owned();
            share(&MemoryLimit { cgroup, limit, room })
        };
        assert_eq!(
            [of(200, 50), of(200, 200), of(200, 0), of(0, 0)],
            [75.0, 0.0, 100.0, 100.0]
        );
    }

    /// This process's memory is what it has touched, and is found by its pid.
    #[test]
    fn own_memory() {
        let target = Target::open(std::process::id()).expect("it runs");
        let targets = [&target];
        let mut reader = MemoryReader::new();
        let mut bytes = |measure| {
            reader.begin();
            let is_share = false;
            let value = reader.highest(Highest { measure, is_share }, &targets);
            let value = value.expect("it has some");
            assert_eq!(value.pid, Some(std::process::id()));
            value.measured.value()
        };
        let mut grown = || {
            let before = [bytes(MemoryMeasure::Rss), bytes(MemoryMeasure::Anon)];
            let touched = vec![1_u8; 64 << 20];
            let after = [bytes(MemoryMeasure::Rss), bytes(MemoryMeasure::Anon)];
            assert!(touched.iter().all(|&byte| byte == 1));
            let mut pairs = before.into_iter().zip(after);
            pairs.all(|(before, after)| (60e6..90e6).contains(&(after - before)))
        };
        // Other tests, in this process, allocate and free at the same time.
        assert!((0..50).any(|_| grown()));
    }
}
