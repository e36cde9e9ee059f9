//! `debuginfod` of a build without the cargo feature `net`: no server is asked. The types of settings and
//! servers have no values, as `cli` refuses the flag.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::debug_file::BuildId;

/// Servers to ask: this build has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebuginfodSettings {}

/// Access to debuginfod servers: this build has none.
#[derive(Clone, Copy, Debug)]
pub enum Debuginfod {}

/// Time that a caller waits for a missing file.
#[derive(Clone, Debug, Default)]
pub enum Patience {
    /// Not at all.
    #[default]
    None,
    /// As long as there is progress.
    Long,
    /// Until this is set.
    Until(Arc<AtomicBool>),
}

/// Result of looking for a file.
#[allow(dead_code, reason = "no server is asked")]
#[derive(Debug)]
pub(super) enum Fetch {
    Found(File),
    Missing,
    NotYet,
}

/// Outcome of a fetch.
#[allow(dead_code, reason = "no file is ever fetched")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Found,
    Never,
    Awaited,
}

impl DebuginfodSettings {
    /// No servers: this build asks none.
    pub fn of_environment() -> Option<Self> {
        None
    }
}

impl Debuginfod {
    /// Starts access to servers. Cannot be called, as there are no settings.
    ///
    /// # Errors
    ///
    /// None: there are no settings.
    pub fn start(settings: DebuginfodSettings) -> io::Result<Self> {
        match settings {}
    }

    pub(super) fn set_patience(&mut self, _: Patience) {
        match *self {}
    }

    pub(super) fn find(&self, _: &BuildId, _: &Path) -> Fetch {
        match *self {}
    }

    pub(super) fn arrival(&self, _: &BuildId) -> Arrival {
        match *self {}
    }
}
