//! `live` of a build without the cargo feature `tui`: there is no view, and messages are printed at once.
//! `cli` refuses `--live` before any of this is used.

#[allow(dead_code, reason = "nothing holds messages back")]
#[path = "live/messages.rs"]
mod messages;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;

use super::output::Output;
use crate::session::Signals;
use crate::session::TraceConfig;
use leak_report::model::Report;
use leak_report::render::ReportSink;
pub use messages::Messages;

/// The view; no value exists.
#[derive(Clone, Copy, Debug)]
pub enum LiveView {}

/// Error of opening the view, which this build does not have.
#[derive(Clone, Copy, Debug, Error)]
#[error("this memleak was built without the cargo feature `tui`")]
pub struct NoView;

impl LiveView {
    /// Fails: there is no view.
    ///
    /// # Errors
    ///
    /// Always fails with [`NoView`].
    pub fn open(
        _: &TraceConfig,
        _: &Signals,
        _: &Arc<AtomicBool>,
        _: &Messages,
        _: Option<Output>,
    ) -> Result<Self, NoView> {
        Err(NoView)
    }

    /// Restores the terminal.
    ///
    /// # Errors
    ///
    /// None: there is no view.
    pub fn finish(&mut self, _: bool) -> anyhow::Result<()> {
        match *self {}
    }
}

impl ReportSink for LiveView {
    fn report(&mut self, _: &Arc<Report>) -> anyhow::Result<()> {
        match *self {}
    }
}
