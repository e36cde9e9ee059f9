//! The last report as metrics, for Prometheus and what else reads its text format, on request.

mod page;
mod server;
mod sites;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::push::Progress;
use super::{ExportError, SettingsError};
use leak_report::model::Report;

/// How metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub address: Address,
    /// How many sites have series of their own.
    pub sites: usize,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl Address {
    /// What `text` means: without a host, this machine alone.
    ///
    /// # Errors
    ///
    /// It is no address.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let refused = || SettingsError::Address(text.to_owned());
        let local = |port: &str| Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), decimal(port)?));
        let address = match text.rsplit_once(':') {
            None => local(text),
            Some(("" | "localhost", port)) => local(port),
            Some(_) => text.parse().ok(),
        };
        address.map(Self).ok_or_else(refused)
    }

    /// Whether others can reach it.
    fn is_open(self) -> bool {
        match self.0.ip() {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn decimal(text: &str) -> Option<u16> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal)
}

/// Metrics that are served.
pub struct Metrics {
    sites: usize,
    shared: Arc<Shared>,
}

/// What the server reads.
struct Shared {
    /// What the last report says.
    page: Mutex<Arc<str>>,
    /// How far pushing has come.
    progress: Option<Progress>,
}

impl Metrics {
    /// Listens from now on.
    pub(super) fn start(settings: &Settings, progress: Option<Progress>) -> Result<Self, ExportError> {
        Self::start_at(settings, progress).map(|(metrics, _)| metrics)
    }

    /// The same, and where that is: the kernel chooses the port for port 0.
    fn start_at(settings: &Settings, progress: Option<Progress>) -> Result<(Self, SocketAddr), ExportError> {
        let shared = Arc::new(Shared {
            page: Mutex::new(page::before_reports().into()),
            progress,
        });
        let pages = Arc::clone(&shared);
        let address = server::start(settings.address.0, move || pages.render()).map_err(|error| {
            let address = settings.address;
            ExportError::Listen { address, error }
        })?;
        tracing::info!("metrics: http://{address}/metrics has what the last report says");
        if settings.address.is_open() {
            tracing::warn!(
                "metrics: everyone who reaches {address} can read them, names of functions among them; :{} is for this \
                 machine alone",
                address.port()
            );
        }
        let sites = settings.sites;
        Ok((Self { sites, shared }, address))
    }

    /// From now on, `report` is what is served.
    pub(super) fn take(&self, report: &Report) {
        let page = page::of_report(report, self.sites).into();
        *self.shared.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

impl Shared {
    fn render(&self) -> String {
        let page = Arc::clone(&self.page.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = page.to_string();
        if let Some(progress) = &self.progress {
            text.push_str(&page::of_push(&progress.counts()));
        }
        text
    }
}
