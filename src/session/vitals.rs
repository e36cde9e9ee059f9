//! Progress of a trace between reports.

use anyhow::Context;

use super::Session;
use crate::bpf::collect;
use leak_report::model::Vitals;
use leak_report::render::ReportSink;

impl Session<'_> {
    /// Offers the vitals to `reports`, which decide whether to read them.
    pub(super) fn show_vitals(&self, reports: &mut dyn ReportSink) -> anyhow::Result<()> {
        reports.poll(&mut || self.vitals())
    }

    pub(super) fn vitals(&self) -> anyhow::Result<Vitals> {
        let live = &self.live;
        let vitals = collect::vitals(&live.kernel.recorded, live.started.elapsed());
        let vitals = vitals.context("cannot read the counters")?;
        Ok(live.accounting.vitals(vitals))
    }
}
