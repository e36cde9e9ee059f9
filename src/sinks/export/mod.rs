//! Reports on their way to what watches a fleet: pushed as profiles to a store of such ([`push`]), and told as metrics to
//! who asks for them ([`metrics`]).
//!
//! Neither is ever waited for while a trace goes on. What cannot be delivered is counted and said.

pub mod metrics;
#[cfg_attr(not(feature = "net"), path = "no_push.rs")]
pub mod push;

use std::io;
use std::sync::Arc;

use thiserror::Error;

use leak_report::model::Report;
use leak_report::render::ReportSink;
use metrics::{Address, Metrics};
use push::Pusher;

/// What is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Where profiles are pushed.
    pub push: Option<push::Settings>,
    /// How metrics are served.
    pub metrics: Option<metrics::Settings>,
}

impl Settings {
    /// Whether there is anything to do.
    pub fn is_empty(&self) -> bool {
        self.push.is_none() && self.metrics.is_none()
    }
}

/// The environment variable with the token that servers know us by: no setting, as no flag can have it.
pub(crate) const TOKEN_VARIABLE: &str = "MEMLEAK_PUSH_TOKEN";

/// What was asked for makes no sense.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not the address of a store. The address is left out: it may hold a password.
    #[error(
        "--push needs the address of a server, for example http://localhost:4040, without anything behind a `?` or `#`"
    )]
    Url,
    /// Something about pushing, without an address.
    #[error("{0} needs --push: add --push URL, or leave it out")]
    NothingPushed(&'static str),
    /// Not a label.
    #[error(
        "--push-label `{0}` is not NAME=VALUE with a name of letters, digits and `_` that begins with neither a digit nor \
         `__`"
    )]
    Label(String),
    /// A label twice.
    #[error("--push-label `{0}` is given twice: give each label once")]
    LabelTwice(String),
    /// Not a header. What was given is left out: it may be a password.
    #[error("--push-header {0} is not 'NAME: VALUE' with a name and a value that HTTP can carry")]
    Header(String),
    /// A file with headers.
    #[error("cannot read the headers in `{path}` (--push-header-file): {why}")]
    HeaderFile {
        /// Its name.
        path: String,
        /// Why.
        why: String,
    },
    /// A header that is not the user's.
    #[error("--push-header {0} is set by memleak itself: leave it out")]
    OwnHeader(String),
    /// Two headers that say who we are.
    #[error(
        "{0} and {1} both say who pushes: give only one of them (a user name of --push-user goes with a token of \
         --push-token-file or MEMLEAK_PUSH_TOKEN)"
    )]
    TwoIdentities(&'static str, &'static str),
    /// A name without a password.
    #[error("--push-user needs a password: give it by --push-token-file FILE or in MEMLEAK_PUSH_TOKEN")]
    NoPassword,
    /// A value that no header can carry.
    #[error("{0} holds what no HTTP header can carry: it must be printable ASCII in one line")]
    NotPrintable(&'static str),
    /// Not an address to listen on.
    #[error(
        "--metrics `{0}` is not an address to listen on: give PORT or :PORT for this machine alone, or IP:PORT, for \
         example 127.0.0.1:9464"
    )]
    Address(String),
    /// Something about metrics, without them.
    #[error("{0} needs --metrics: add --metrics ADDRESS, or leave it out")]
    NothingServed(&'static str),
    /// There will be no reports.
    #[error("--push and --metrics need reports, and -t makes none in this format: use only one of them")]
    NoReports,
}

/// What is exported cannot be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The file with the token.
    #[error("cannot read the token in `{path}` (--push-token-file): {why}")]
    Token {
        /// Its name.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file with the authority's certificates.
    #[error("cannot use the certificates in `{path}` (--push-ca): {why}")]
    Authority {
        /// Its name.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The port.
    #[error("cannot serve metrics on {address}: {error}; give --metrics another address")]
    Listen {
        /// Where.
        address: Address,
        /// What the kernel says.
        error: io::Error,
    },
    /// A thread.
    #[error("cannot start a thread")]
    Thread(#[from] io::Error),
}

/// Everything that reports are exported to.
pub struct Exports {
    pusher: Option<Pusher>,
    metrics: Option<Metrics>,
}

impl Exports {
    /// Starts what `settings` ask for. Nothing is sent before there is a report.
    ///
    /// # Errors
    ///
    /// [`ExportError`].
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

    /// Sends what is left, as far as that takes no longer than seconds, and says what became of all.
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
