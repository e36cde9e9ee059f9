//! The protocols by which profiles are pushed. Builds without the feature `net` have them too, because they
//! also parse `--push-api`.

/// Protocols of stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// Pyroscope 1.0 or newer.
    #[default]
    Pyroscope,
    /// Older Pyroscope, by /ingest.
    PyroscopeIngest,
    /// Parca.
    Parca,
    /// OTLP over HTTP, to an OpenTelemetry collector that receives profiles (/v1development/profiles).
    Otlp,
}

impl Api {
    /// All protocols.
    pub const ALL: [Self; 4] = [Self::Pyroscope, Self::PyroscopeIngest, Self::Parca, Self::Otlp];

    /// Name, as in `--push-api`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pyroscope => "pyroscope",
            Self::PyroscopeIngest => "pyroscope-ingest",
            Self::Parca => "parca",
            Self::Otlp => "otlp",
        }
    }
}
