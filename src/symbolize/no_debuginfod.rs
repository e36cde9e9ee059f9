//! `debuginfod` of a build without the cargo feature `net`: no server is asked. There are no settings for it, as `cli`
//! refuses its flag; what would be made of settings there is none of either.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::debug_file::BuildId;

/// Which servers are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebuginfodSettings {}

/// Servers, and what came from them.
#[derive(Clone, Copy, Debug)]
pub enum Debuginfod {}

/// How long a missing file is waited for.
#[derive(Clone, Debug, Default)]
pub enum Patience {
    /// Not at all.
    #[default]
    None,
    /// As long as something goes on.
    Long,
    /// Until this is set.
    Until(Arc<AtomicBool>),
}

/// The answer to who looks for a file.
#[allow(dead_code, reason = "nobody is asked")]
#[derive(Debug)]
pub(super) enum Fetch {
    Found(File),
    Missing,
    NotYet,
}

/// Outcome of a fetch.
#[allow(dead_code, reason = "nothing is on its way")]
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
    /// Gets ready to ask servers.
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
