//! Exports reports to monitoring: pushes them as profiles to a profile store ([`push`]) and serves them as
//! metrics ([`metrics`]).
//!
//! Neither delays a running trace. Profiles that cannot be delivered are counted and logged.

mod error;
pub mod metrics;
#[cfg_attr(not(feature = "net"), path = "no_push.rs")]
pub mod push;

use std::sync::Arc;

pub(crate) use error::TOKEN_VARIABLE;
pub use error::{ExportError, SettingsError};
use leak_report::model::Report;
use leak_report::render::ReportSink;
use metrics::Metrics;
use push::Pusher;

/// Export targets; each is off if `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub push: Option<push::Settings>,
    pub metrics: Option<metrics::Settings>,
}

impl Settings {
    /// Returns whether nothing is exported.
    pub fn is_empty(&self) -> bool {
        self.push.is_none() && self.metrics.is_none()
    }
}

/// The running exports.
pub struct Exports {
    pusher: Option<Pusher>,
    metrics: Option<Metrics>,
}

impl Exports {
    /// Starts the exports in `settings`. Nothing is sent before the first report.
    pub fn start(settings: &Settings) -> Result<Self, ExportError> {
        let pusher = settings.push.as_ref().map(Pusher::start).transpose()?;
        let progress = pusher.as_ref().map(Pusher::progress);
        let metrics = settings.metrics.as_ref();
        Ok(Self {
            metrics: metrics
                .map(|settings| Metrics::start(settings, progress))
                .transpose()?,
            pusher,
        })
    }

    /// Sends the queued profiles, for a few seconds at most, and logs how many were sent and lost.
    pub fn finish(self) {
        if let Some(pusher) = self.pusher {
            pusher.finish();
        }
    }
}

impl ReportSink for Exports {
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        if let Some(metrics) = &self.metrics {
            metrics.take(report);
        }
        if let Some(pusher) = &mut self.pusher {
            pusher.take(report);
        }
        Ok(())
    }
}
