//! Serves the last report over HTTP: as metrics in Prometheus' text format, and as profiles at the paths of
//! Go's `net/http/pprof`, for `go tool pprof` and other clients of these.

mod address;
mod page;
mod profiles;
mod server;
mod sites;
#[cfg(test)]
mod tests;
mod text;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::ExportError;
use super::push::Progress;
pub use address::Address;
use leak_report::model::Report;
use profiles::Profiles;
use server::{Answer, Request};

/// Text of most refusals: the paths of the pages.
const PLACES: &str = "Metrics are at /metrics, profiles at /debug/pprof/heap and /debug/pprof/allocs.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub address: Address,
    /// Number of sites that get their own series; the rest are summed.
    pub sites: usize,
}

/// A running metrics server.
pub struct Metrics {
    sites: usize,
    shared: Arc<Shared>,
}

/// State shared with the server's threads.
struct Shared {
    /// The rendered last report, without the push counters.
    page: Mutex<Arc<str>>,
    /// Profiles of the last report; `None` before the first.
    profiles: Mutex<Option<Arc<Profiles>>>,
    /// Push counters, read at each request.
    progress: Option<Progress>,
}

impl Metrics {
    /// Starts the server.
    pub(super) fn start(settings: &Settings, progress: Option<Progress>) -> Result<Self, ExportError> {
        Self::start_at(settings, progress).map(|(metrics, _)| metrics)
    }

    /// Starts the server and returns its bound address: the kernel chooses the port for port 0.
    fn start_at(settings: &Settings, progress: Option<Progress>) -> Result<(Self, SocketAddr), ExportError> {
        let shared = Arc::new(Shared {
            page: Mutex::new(page::before_reports().into()),
            profiles: Mutex::default(),
            progress,
        });
        let pages = Arc::clone(&shared);
        let address =
            server::start(settings.address.0, move |request| pages.answer(request)).map_err(|error| {
                let address = settings.address;
                ExportError::Listen { address, error }
            })?;
        tracing::info!(
            "metrics: http://{address}/metrics serves the last report, and /debug/pprof/heap its profile"
        );
        if settings.address.is_open() {
            tracing::warn!(
                "metrics: anyone who can connect to {address} can read them, including function names; use \
                 :{} to listen on loopback only",
                address.port()
            );
        }
        let sites = settings.sites;
        Ok((Self { sites, shared }, address))
    }

    /// Makes `report` the one that is served.
    pub(super) fn take(&self, report: &Arc<Report>) {
        let page = page::of_report(report, self.sites).into();
        *self.shared.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
        let profiles = Arc::new(Profiles::of(Arc::clone(report)));
        *self
            .shared
            .profiles
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(profiles);
    }
}

impl Shared {
    fn answer(&self, request: &Request<'_>) -> Answer {
        if request.path == "/metrics" {
            return Answer::page(text::TYPE, self.render().into_bytes().into());
        }
        let profiles = || {
            let last = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
            last.clone()
        };
        profiles::answer(request, profiles).unwrap_or_else(|| Answer::refusal(404, "Not Found", PLACES))
    }

    fn render(&self) -> String {
        let page = Arc::clone(&self.page.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = page.to_string();
        if let Some(progress) = &self.progress {
            text.push_str(&page::of_push(&progress.counts()));
        }
        text
    }
}
