//! The flags that say which allocations are recorded.

use clap::Args;

use crate::bpf::{Sampling, SizeFilter};
use crate::config::{ConfigError, parse_sampling, parse_sizes};

/// Which allocations are recorded.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// Record one of N allocations, at a random place among each N of a thread; amounts are estimates then.
    #[arg(
        short = 's',
        long = "sample-rate",
        value_name = "N",
        conflicts_with = "sample_bytes"
    )]
    pub sample_rate: Option<String>,
    /// Record an allocation for each N bytes allocated, on average, so that large ones are hardly ever missed.
    ///
    /// Each byte is chosen with a probability of 1 to N, in bytes or with K, M, G, and each allocation with a chosen byte is
    /// recorded. Amounts are estimates with a standard error.
    #[arg(long, value_name = "N")]
    pub sample_bytes: Option<String>,
    /// Record only allocations of at least this size, in bytes or with K, M, G.
    #[arg(short = 'z', long, value_name = "SIZE")]
    pub min_size: Option<String>,
    /// Record only allocations of at most this size.
    #[arg(short = 'Z', long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max_size: Option<String>,
}

impl SelectionArgs {
    /// What the flags mean.
    pub(super) fn check(&self) -> Result<(Sampling, Option<SizeFilter>), ConfigError> {
        let sampling = parse_sampling(self.sample_rate.as_deref(), self.sample_bytes.as_deref())?;
        let sizes = parse_sizes(self.min_size.as_deref(), self.max_size.as_deref())?;
        Ok((sampling, sizes))
    }
}
