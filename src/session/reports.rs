//! Decides when reports are made, at intervals or by conditions, and makes them.

use std::sync::Arc;
use std::time::Instant;

use super::schedule::Schedule;
use super::triggers::Triggers;
use super::{Signals, TraceConfig};
use crate::process::Target;
use leak_report::model::{Reason, Report};
use leak_report::render::ReportSink;

/// Source of reports: traced processes, or the kernel.
pub(super) trait Traced {
    /// Follows the source until `deadline`, sending calls to `reports` as they arrive. Returns whether the
    /// trace ended before.
    fn follow_until(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<bool>;

    /// Makes the report if one is due. With `ending`, processes are detached in any case.
    fn due_report(
        &mut self,
        config: &TraceConfig,
        signals: &Signals,
        ending: bool,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<Option<Report>>;

    /// Processes that run.
    fn running(&self) -> Vec<&Target>;

    /// Outstanding bytes, read in place.
    fn outstanding_bytes(&self) -> anyhow::Result<u64>;
}

/// Makes reports until all are made, the end is requested, or nothing is left to trace.
pub(super) fn make_reports(
    traced: &mut impl Traced,
    config: &TraceConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<()> {
    let mut schedule = Schedule::begin(config, Instant::now());
    let mut triggers = Triggers::new(&config.schedule.report_when, config.schedule.interval);
    triggers.check(&traced.running())?;
    loop {
        let next = schedule.next(Instant::now());
        let stopping = traced.follow_until(next, signals, reports)?;
        let has_conditions = !triggers.is_empty();
        let reason = match has_conditions && !stopping {
            true => triggers.look(Instant::now(), &traced.running(), || traced.outstanding_bytes())?,
            false => None,
        };
        let ending = schedule.is_last(reason.is_some() || !has_conditions) || stopping;
        if !ending && has_conditions && reason.is_none() {
            continue;
        }
        if config.is_report_due(ending) {
            reports.report_pending(ending);
        }
        if let Some(report) = traced.due_report(config, signals, ending, reports)? {
            let reason = has_conditions.then(|| reason.unwrap_or(Reason::End));
            reports.report(&Arc::new(Report { reason, ..report }))?;
        }
        if ending {
            return Ok(());
        }
    }
}
