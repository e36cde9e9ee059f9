//! `push` of a build without the cargo feature `net`: nothing is pushed. `cli` refuses its flags, so no value
//! of `Settings`, and of the types made from it, ever exists.

#[path = "push/api.rs"]
mod api;

use super::ExportError;
pub use api::Api;
use leak_report::model::Report;

/// Settings of pushing; no value exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {}

/// Sends profiles; no value exists.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pusher {}

/// Handle to the counters of pushing; no value exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {}

/// Counters of pushing, of which this build has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts;

impl Pusher {
    pub(super) fn start(settings: &Settings) -> Result<Self, ExportError> {
        match *settings {}
    }

    pub(super) fn progress(&self) -> Progress {
        match *self {}
    }

    pub(super) fn take(&mut self, _: &Report) {
        match *self {}
    }

    pub(super) fn finish(self) {
        match self {}
    }
}

impl Progress {
    pub(super) fn counts(&self) -> Counts {
        match *self {}
    }
}
