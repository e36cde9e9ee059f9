//! Flags of kernel mode: a trace without a process.

use clap::Args;

use super::config::ConfigError;
use crate::session::KernelConfig;

/// Flags for tracing the kernel's own allocations.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// Without a process: trace the kernel's per-CPU allocations too.
    #[arg(short = 'P', long)]
    pub percpu: bool,
    /// Accepted for compatibility with bcc; always on.
    ///
    /// A block whose address is allocated again is taken as freed, and counted as a missed free.
    #[arg(short = 'F', long)]
    pub wa_missing_free: bool,
}

impl KernelArgs {
    /// Checks the flags; `None` if a process is traced. `of_processes`: flags that need a process, and
    /// whether each is given.
    pub(super) fn check(
        &self,
        is_process: bool,
        of_processes: &[(&'static str, bool)],
    ) -> Result<Option<KernelConfig>, ConfigError> {
        if is_process {
            return match self.percpu {
                true => Err(ConfigError::KernelFlag("--percpu")),
                false => Ok(None),
            };
        }
        match of_processes.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(ConfigError::ProcessFlag(flag)),
            None => Ok(Some(KernelConfig { percpu: self.percpu })),
        }
    }
}
