//! The flag that permits asking servers for debug files.

use clap::Args;

use super::config::ConfigError;
use crate::symbolize::debuginfod::DebuginfodSettings;

/// Sources of names beyond this machine.
#[derive(Debug, Args)]
pub struct DebuginfodArgs {
    /// Fetch missing debug files from the servers in DEBUGINFOD_URLS or in /etc/debuginfod.
    ///
    /// Servers are asked only for objects whose code is on a stack, and only by build-id. Their files are
    /// kept in the cache of debuginfod's clients (DEBUGINFOD_CACHE_PATH). Only the last report waits for
    /// them.
    #[arg(long)]
    pub debuginfod: bool,
}

impl DebuginfodArgs {
    /// Settings from the environment, if the flag is given.
    pub(super) fn check(&self) -> Result<Option<DebuginfodSettings>, ConfigError> {
        if !self.debuginfod {
            return Ok(None);
        }
        if !cfg!(feature = "net") {
            return Err(ConfigError::without_net("--debuginfod"));
        }
        let settings = DebuginfodSettings::of_environment();
        settings.map(Some).ok_or(ConfigError::NoDebuginfodServer)
    }
}
