//! The protocols by which profiles are pushed. Known to builds that push nothing, too, as their flag is.

/// Protocols of stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// Pyroscope's, from 1.0 on.
    #[default]
    Pyroscope,
    /// Pyroscope's older /ingest.
    PyroscopeIngest,
    /// Parca's.
    Parca,
}

impl Api {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pyroscope, Self::PyroscopeIngest, Self::Parca];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pyroscope => "pyroscope",
            Self::PyroscopeIngest => "pyroscope-ingest",
            Self::Parca => "parca",
        }
    }
}
