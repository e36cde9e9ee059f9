//! Conditions that say when: when a trace starts (`--start-when`), and when it makes reports
//! (`--report-when`).
//!
//! ```text
//!  /proc, cgroupfs ─ memory ─►  values ─ growth ─►  Condition ─►  start: the trace begins
//!  totals in place ──────────►                              ─►  Triggers: a report each time it becomes true
//! ```
//!
//! Several conditions are alternatives. A value is that of all traced processes together where memleak counts
//! (`outstanding`, `growth`), and of the process with the highest one where the kernel does (`rss`, `anon`,
//! `cgroup`): limits are of processes and cgroups.

mod growth;
mod memory;
mod start;

use std::time::{Duration, Instant};

use crate::base::condition::{self, ConditionError, Unit};
use crate::process::Target;
use growth::Course;
use leak_report::model::{Measured, Reached, Reason};
use memory::{Highest, MemoryReader};
pub(super) use start::wait;

/// A condition of `--start-when`.
pub type StartCondition = condition::Condition<StartMeasure>;

/// A condition of `--report-when`.
pub type ReportCondition = condition::Condition<ReportMeasure>;

/// Parses a condition of `--start-when`.
///
/// # Errors
///
/// Names the character that is wrong, and what to write there.
pub fn parse_start(text: &str) -> Result<StartCondition, ConditionError> {
    condition::parse("--start-when", text)
}

/// Parses a condition of `--report-when`.
///
/// # Errors
///
/// As [`parse_start`].
pub fn parse_report(text: &str) -> Result<ReportCondition, ConditionError> {
    condition::parse("--report-when", text)
}

/// Quantity that the kernel counts for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMeasure {
    /// Resident memory.
    Rss,
    /// Anonymous memory, resident and swapped.
    Anon,
    /// Memory of its cgroup without file cache, or the share of a limit.
    Cgroup,
}

/// Quantity that can be known before a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMeasure {
    Memory(MemoryMeasure),
    /// Growth rate of anonymous memory.
    Growth,
}

impl condition::Measure for StartMeasure {
    const ALL: &'static [(&'static str, Self, Unit)] = &[
        ("rss", Self::Memory(MemoryMeasure::Rss), Unit::Bytes),
        ("anon", Self::Memory(MemoryMeasure::Anon), Unit::Bytes),
        (
            "cgroup",
            Self::Memory(MemoryMeasure::Cgroup),
            Unit::BytesOrPercent,
        ),
        ("growth", Self::Growth, Unit::BytesPerTime),
    ];
}

/// Quantity that can be known during a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportMeasure {
    /// Bytes that were allocated and not freed.
    Outstanding,
    /// Growth rate of these.
    Growth,
    Memory(MemoryMeasure),
}

impl condition::Measure for ReportMeasure {
    const ALL: &'static [(&'static str, Self, Unit)] = &[
        ("outstanding", Self::Outstanding, Unit::Bytes),
        ("rss", Self::Memory(MemoryMeasure::Rss), Unit::Bytes),
        ("anon", Self::Memory(MemoryMeasure::Anon), Unit::Bytes),
        (
            "cgroup",
            Self::Memory(MemoryMeasure::Cgroup),
            Unit::BytesOrPercent,
        ),
        ("growth", Self::Growth, Unit::BytesPerTime),
    ];
}

/// A value, and the process that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    measured: Measured,
    /// `None` if the value is of all traced processes together.
    pid: Option<u32>,
}

impl Value {
    fn of_all(measured: Measured) -> Self {
        Self { measured, pid: None }
    }
}

/// A condition, and whether it was true when last looked at.
#[derive(Debug)]
struct Trigger {
    condition: ReportCondition,
    was_true: bool,
}

impl Trigger {
    /// Returns the condition as reached if it has become true by this value. Without a value, nothing
    /// changes.
    fn look(&mut self, value: Option<Value>) -> Option<Reached> {
        let value = value?;
        let is_true = self.condition.is_exceeded_by(value.measured.value());
        let has_become = is_true && !self.was_true;
        self.was_true = is_true;
        has_become.then(|| reached(&self.condition, value))
    }
}

fn reached<M>(condition: &condition::Condition<M>, value: Value) -> Reached {
    Reached {
        condition: condition.to_string(),
        value: value.measured,
        pid: value.pid,
    }
}

/// The conditions of `--report-when` during a trace. Without any, reports are made at intervals.
#[derive(Debug)]
pub(super) struct Triggers {
    triggers: Vec<Trigger>,
    memory: MemoryReader,
    /// Recent outstanding bytes.
    course: Course,
}

impl Triggers {
    /// Conditions that are looked at each `interval`.
    pub(super) fn new(conditions: &[ReportCondition], interval: Duration) -> Self {
        let triggers = conditions.iter().map(|condition| Trigger {
            condition: condition.clone(),
            was_true: false,
        });
        Self {
            triggers: triggers.collect(),
            memory: MemoryReader::new(),
            course: Course::new(interval),
        }
    }

    /// Returns whether reports are made at intervals.
    pub(super) fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// Looks at all conditions. Returns those that have become true since the last look; `None` if there are
    /// none.
    ///
    /// # Errors
    ///
    /// Returns the error of `outstanding`, which is called if a condition is about these bytes.
    pub(super) fn look(
        &mut self,
        now: Instant,
        targets: &[&Target],
        outstanding: impl FnOnce() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Option<Reason>> {
        let measures = || self.triggers.iter().map(|trigger| trigger.condition.measure());
        let counts = measures().any(|measure| match measure {
            ReportMeasure::Outstanding | ReportMeasure::Growth => true,
            ReportMeasure::Memory(_) => false,
        });
        let outstanding = counts.then(outstanding).transpose()?;
        if let Some(bytes) = outstanding {
            self.course.add(now, bytes);
        }
        self.memory.begin();
        let mut all = Vec::new();
        for trigger in &mut self.triggers {
            let value = match trigger.condition.measure() {
                ReportMeasure::Outstanding => outstanding.map(Measured::Bytes).map(Value::of_all),
                ReportMeasure::Growth => self
                    .course
                    .growth()
                    .map(Measured::BytesPerSecond)
                    .map(Value::of_all),
                ReportMeasure::Memory(measure) => {
                    let is_share = trigger.condition.is_share();
                    self.memory.highest(Highest { measure, is_share }, targets)
                }
            };
            all.extend(trigger.look(value));
        }
        for reached in &all {
            tracing::info!("reporting because {reached}");
        }
        Ok((!all.is_empty()).then_some(Reason::Conditions(all)))
    }

    /// Fails if a condition is about a limit that no cgroup of these processes has.
    ///
    /// # Errors
    ///
    /// Names the condition and the remedy.
    pub(super) fn check(&mut self, targets: &[&Target]) -> anyhow::Result<()> {
        self.memory.begin();
        let conditions = self.triggers.iter().map(|trigger| &trigger.condition);
        let of_cgroups = conditions.filter_map(|condition| match condition.measure() {
            ReportMeasure::Memory(measure) => Some((condition, measure)),
            ReportMeasure::Outstanding | ReportMeasure::Growth => None,
        });
        for (condition, measure) in of_cgroups {
            let is_share = condition.is_share();
            let highest = Highest { measure, is_share };
            self.memory.check(highest, condition, targets)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets one condition look at values; returns which of them it reports.
    fn reported(condition: &str, values: &[Option<u64>]) -> Vec<bool> {
        let condition = parse_report(condition).expect("a condition");
        let mut triggers = Triggers::new(&[condition], Duration::from_secs(1));
        let looks = values.iter().map(|value| {
            let value = value.map(Measured::Bytes).map(Value::of_all);
            triggers.triggers[0].look(value).is_some()
        });
        looks.collect()
    }

    /// A condition reports when it becomes true, and again only after it was false; a value that cannot be
    /// read is neither.
    #[test]
    fn edges() {
        let (low, high) = (Some(10), Some(11));
        assert_eq!(
            reported(
                "outstanding>10",
                &[low, high, high, low, high, None, high, low, None, high]
            ),
            [false, true, false, false, true, false, false, false, false, true]
        );
        assert_eq!(reported("outstanding>=11", &[high, high]), [true, false]);
    }

    /// Outstanding bytes are counted only for the conditions that are about them, and once for all.
    #[test]
    fn counts_when_needed() {
        let conditions = |texts: &[&str]| -> Vec<_> {
            let parsed = texts.iter().map(|text| parse_report(text));
            parsed.map(|condition| condition.expect("a condition")).collect()
        };
        let second = Duration::from_secs(1);
        let mut of_memory = Triggers::new(&conditions(&["rss>1"]), second);
        let looked = of_memory.look(Instant::now(), &[], || panic!("nobody asks"));
        assert_eq!(looked.expect("nothing fails"), None);
        let mut both = Triggers::new(&conditions(&["outstanding>7", "growth>1/s"]), second);
        let mut now = Instant::now();
        let mut look = |bytes| {
            now += second;
            let reason = both.look(now, &[], || Ok(bytes)).expect("nothing fails");
            reason.map_or_else(String::new, |reason| reason.to_string())
        };
        assert_eq!(look(7), "");
        assert_eq!(look(8), "outstanding>7: 8 B");
        let later: Vec<_> = (9..30).map(|at| look(at * 8)).collect();
        let grown: Vec<_> = later.iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(grown, ["growth>1/s: 480 B/min"], "{later:?}");
    }

    /// Each flag has the measures that can be known by then, and refuses the others by name.
    #[test]
    fn measures() {
        for text in [
            "rss>2GiB",
            "anon>=1M",
            "cgroup>80%",
            "cgroup>1GiB",
            "growth>1MiB/min",
        ] {
            assert!(parse_start(text).is_ok() && parse_report(text).is_ok(), "{text}");
        }
        assert!(parse_report("outstanding>256MiB").is_ok());
        let error = parse_start("outstanding>256MiB").expect_err("nothing is traced");
        assert_eq!(
            error.to_string(),
            "--start-when `outstanding>256MiB`, character 1: unknown measure `outstanding`: use one of rss, anon, cgroup, growth"
        );
        let error = parse_report("rss>80%").expect_err("of what?").to_string();
        assert!(error.contains("unknown unit of memory `%`"), "{error}");
    }
}
