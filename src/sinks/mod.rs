//! Where reports go while a trace runs: output, recordings, the live view, gates, receivers of profiles and metrics, the
//! status line. Each is a [`Consumer`](leak_report::render::Consumer).

use leak_report::render::Format;

use output::Destination;

pub mod export;
pub mod gate;
pub mod live;
pub mod output;
pub mod recording;
pub mod status;

/// Where the reports of a trace go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// Form of the reports.
    pub format: Format,
    /// Where they go.
    pub destination: Destination,
    /// How they are recorded besides.
    pub recording: Option<recording::Settings>,
    /// How they are exported besides.
    pub export: export::Settings,
    /// Conditions, suppressions and baselines that it is checked against.
    pub gate: gate::Settings,
    /// Whether and how reports are shown on the terminal while they are made.
    pub live: Option<LiveConfig>,
}

/// How reports are shown on the terminal while they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// Whether the last report is written when the view is left.
    pub keeps_report: bool,
}
