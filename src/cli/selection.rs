//! Flags that select the allocations to record.

use clap::Args;

use super::config::{ConfigError, parse_max_overhead, parse_sampling, parse_sizes};
use crate::bpf::SizeFilter;
use crate::session::{MaxOverhead, SourceChoice};
use leak_report::model::Sampling;

/// Flags that select the allocations to record.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// Source of events: USDT probes of the process itself, or probes in its allocator.
    ///
    /// A process can sample its allocations itself and announce each sampled block, and its free, by USDT
    /// probes (otel_memory, OpenTelemetry's contract for memory profiling). That costs it next to nothing,
    /// and amounts are estimates. Such a process is traced by its announcements, unless flags select
    /// functions or another sampling.
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t)]
    pub source: SourceChoice,
    /// Record one of N allocations, at a random place among each N of a thread; amounts are estimates.
    #[arg(
        short = 's',
        long = "sample-rate",
        value_name = "N",
        conflicts_with = "sample_bytes"
    )]
    pub sample_rate: Option<String>,
    /// Record one allocation per SIZE bytes allocated, on average; large ones are hardly ever missed.
    ///
    /// Each byte is chosen with a probability of 1/SIZE, for example 512K, and each allocation with a chosen
    /// byte is recorded. Amounts are estimates with a standard error.
    #[arg(long, value_name = "SIZE")]
    pub sample_bytes: Option<String>,
    /// Maximum cost of tracing, in percent of one CPU: above it, fewer allocations are recorded.
    ///
    /// Below the limit, all are recorded. Above it, they are sampled as by --sample-bytes, at a sampling
    /// interval that adapts during the trace, and amounts are estimates. With --sample-bytes SIZE, the
    /// interval is never below SIZE. The cost of the probes alone cannot be reduced; if it exceeds the limit,
    /// memleak warns. A process that announces its blocks at a choice of intervals (--preload) is traced at
    /// the smallest one that stays below the limit.
    #[arg(long, value_name = "PCT", allow_negative_numbers = true)]
    pub max_overhead: Option<String>,
    /// Record only allocations of at least this size, for example 64 or 4K.
    #[arg(short = 'z', long, value_name = "SIZE")]
    pub min_size: Option<String>,
    /// Record only allocations of at most this size.
    #[arg(short = 'Z', long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max_size: Option<String>,
}

impl SelectionArgs {
    /// Checks the flags.
    pub(super) fn check(&self) -> Result<Selected, ConfigError> {
        let sampling = parse_sampling(self.sample_rate.as_deref(), self.sample_bytes.as_deref())?;
        let max_overhead = self.max_overhead.as_deref().map(parse_max_overhead).transpose()?;
        Ok(Selected {
            sampling: match (max_overhead, sampling) {
                (None, sampling) => sampling,
                (Some(_), _) if self.sample_rate.is_some() => return Err(ConfigError::OverheadByCalls),
                (Some(_), Sampling::Bytes(bytes)) => Sampling::Governed(bytes),
                (Some(_), _) => Sampling::Governed(1),
            },
            source: self.source,
            max_overhead,
            sizes: parse_sizes(self.min_size.as_deref(), self.max_size.as_deref())?,
        })
    }
}

/// Validated [`SelectionArgs`].
pub(super) struct Selected {
    pub(super) sampling: Sampling,
    pub(super) source: SourceChoice,
    pub(super) max_overhead: Option<MaxOverhead>,
    pub(super) sizes: Option<SizeFilter>,
}

impl Selected {
    /// Selects announced blocks as the source, for a program that is started with memleak's library.
    pub(super) fn preload(&mut self, is_started: bool) -> Result<(), ConfigError> {
        match (is_started, self.source) {
            (false, _) => Err(ConfigError::PreloadWithoutProgram),
            (true, SourceChoice::Uprobe) => Err(ConfigError::PreloadByProbes),
            (true, SourceChoice::Auto | SourceChoice::Usdt) => {
                self.source = SourceChoice::Usdt;
                Ok(())
            }
        }
    }

    /// Checks the source against flags that select calls of allocators, each paired with true if it is given.
    pub(super) fn check_source(&self, of_allocators: [(&'static str, bool); 5]) -> Result<(), ConfigError> {
        let of_calls = [("-s", matches!(self.sampling, Sampling::Calls(_)))];
        let conflict = of_calls
            .into_iter()
            .chain(of_allocators)
            .find(|(_, given)| *given);
        match (self.source, conflict) {
            (SourceChoice::Usdt, Some((flag, _))) => Err(ConfigError::ChosenByProcess(flag)),
            _ => Ok(()),
        }
    }
}
