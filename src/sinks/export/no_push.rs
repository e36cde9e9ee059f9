//! `push` of a build without the cargo feature `net`: nothing is pushed. There are no settings for it, as `cli` refuses its
//! flags; what would be made of settings there is none of either.

#[path = "push/api.rs"]
mod api;

use super::ExportError;
pub use api::Api;
use leak_report::model::Report;

/// Where profiles are pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {}

/// Profiles on their way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pusher {}

/// How far pushing has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {}

/// Outcome of pushing so far.
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
