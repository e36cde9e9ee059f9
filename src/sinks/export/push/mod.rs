//! Pushes each report as profiles: pprof to a store with Pyroscope's or Parca's protocol, or OTLP to a
//! collector.
//!
//! A separate thread sends them, so that a slow server delays neither tracing nor reports. Unsent profiles
//! are queued up to a limit, oldest dropped first; profiles that a server refuses are not sent again. Each
//! loss is counted by its cause.
//!
//! Each process is its own series of profiles while it runs, and is pushed once more after it has ended, with
//! the memory that was outstanding at its end.

mod api;
mod backoff;
mod client;
mod credentials;
mod envelope;
mod labels;
mod otlp;
mod queue;
mod sender;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flate2::{Compression, GzBuilder};

use super::ExportError;
use client::Client;
pub use credentials::Secret;
use envelope::Series;
use labels::Labeller;
use leak_report::model::{Report, StackRef, TargetFacts};
use leak_report::render::{Amounts, Part, Request, counted};
use queue::Item;
pub(crate) use sender::{Counts, Progress};
use sender::{Sender, Shared, Timing};
pub use settings::{Api, Given, Settings};

/// Converts reports to profiles and queues them for the sending thread.
pub struct Pusher {
    api: Api,
    server: String,
    labeller: Labeller,
    shared: Arc<Shared>,
    timing: Timing,
    /// Instances that had ended by the last report, and so need no further push.
    ended: HashSet<u32>,
}

impl Pusher {
    /// Starts the sending thread. Nothing is sent before the first report.
    pub(super) fn start(settings: &Settings) -> Result<Self, ExportError> {
        Self::start_with(settings, Timing::default())
    }

    fn start_with(settings: &Settings, timing: Timing) -> Result<Self, ExportError> {
        let client = Client::new(settings)?;
        if settings.tells_secrets_in_clear() {
            tracing::warn!(
                "push: {} is not encrypted: anyone on the network path can read the credentials; use \
                 https://",
                settings.server
            );
        }
        let shared = Arc::new(Shared::default());
        let sender = Sender {
            client,
            shared: Arc::clone(&shared),
            timing,
        };
        thread::Builder::new()
            .name("push".to_owned())
            .spawn(move || sender.run())?;
        tracing::info!(
            "push: every report goes to {} ({})",
            settings.server,
            settings.api.name()
        );
        Ok(Self {
            api: settings.api,
            server: settings.server.clone(),
            labeller: Labeller::new(settings),
            shared,
            timing,
            ended: HashSet::new(),
        })
    }

    /// A handle to the live counters.
    pub(super) fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.shared))
    }

    /// Queues the profiles of `report`.
    pub(super) fn take(&mut self, report: &Report) {
        let series = self.series(report);
        for upload in self.api.uploads(&series) {
            self.shared.put(Item {
                upload,
                made: Instant::now(),
                attempts: 0,
            });
        }
        self.ended = ended(report).collect();
    }

    fn series(&self, report: &Report) -> Vec<Series> {
        let mut stacks: HashMap<u32, Vec<StackRef<'_>>> = HashMap::new();
        let only = match &report.targets[..] {
            [target] => Some(target.instance),
            _ => None,
        };
        for stack in report.suspects() {
            // A stack of no known process belongs to the only target.
            let instance = only.unwrap_or(stack.instance);
            stacks.entry(instance).or_default().push(stack);
        }
        let targets = report.targets.iter();
        let is_new = |target: &&TargetFacts| target.ended.is_none() || !self.ended.contains(&target.instance);
        let of_targets = targets
            .filter(is_new)
            .map(|target| (target.instance, Some(target)));
        // Stacks of no known process have instance 0, which no target has.
        let of_none = (0, None);
        of_targets
            .chain([of_none])
            .filter_map(|(instance, target)| self.one_series(report, target, stacks.get(&instance)?))
            .collect()
    }

    fn one_series(
        &self,
        report: &Report,
        target: Option<&TargetFacts>,
        stacks: &[StackRef<'_>],
    ) -> Option<Series> {
        let labels = self.labeller.labels(report, target);
        let (profiles, number) = match self.api {
            Api::Otlp => otlp_request(report, target, stacks, &labels)?,
            Api::Pyroscope | Api::PyroscopeIngest | Api::Parca => {
                let profiles = self.pprof(report, target, stacks);
                let number = profiles.len() as u64;
                (profiles, number)
            }
        };
        (!profiles.is_empty()).then_some(Series {
            labels,
            profiles,
            number,
            until: report.read_at,
            duration: report.compared.since_last,
        })
    }

    fn pprof(&self, report: &Report, target: Option<&TargetFacts>, stacks: &[StackRef<'_>]) -> Vec<Vec<u8>> {
        let profile = |&amounts: &Amounts| {
            // Writing to memory cannot fail.
            let part = Part {
                target,
                amounts,
                names_all: self.api.needs_names(),
            };
            part.render(report, stacks).ok().flatten()
        };
        self.api.parts().iter().filter_map(profile).collect()
    }

    /// Makes one more attempt to send what is queued, within [`Timing::end`], and logs the totals.
    pub(super) fn finish(self) {
        let progress = self.shared.end(self.timing.end);
        let sent = format!(
            "push: {} sent to {}",
            counted(progress.sent, "profile"),
            self.server
        );
        match progress.lost() {
            0 => tracing::info!("{sent}, none lost"),
            lost => tracing::warn!("{sent}, {lost} lost: {}", progress.causes()),
        }
    }
}

/// One compressed request with all profiles of a process, and their number; `None` if all values are 0.
fn otlp_request(
    report: &Report,
    target: Option<&TargetFacts>,
    stacks: &[StackRef<'_>],
    labels: &BTreeMap<String, String>,
) -> Option<(Vec<Vec<u8>>, u64)> {
    let request = Request {
        target,
        resource: labels,
    };
    let (bytes, number) = request.encode(report, stacks, envelope::profile_id)?;
    let mut compressed = GzBuilder::new().write(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    compressed.write_all(&bytes).ok()?;
    Some((vec![compressed.finish().ok()?], number))
}

fn ended(report: &Report) -> impl Iterator<Item = u32> {
    let ended = report.targets.iter().filter(|target| target.ended.is_some());
    ended.map(|target| target.instance)
}

/// `time` in whole seconds, rounded up, with its unit.
fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f64().ceil())
}
