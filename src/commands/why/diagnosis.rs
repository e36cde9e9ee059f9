//! Result of a diagnosis.

use std::time::Duration;

use crate::process::Target;
use memleak_why::{Answer, Observed};

/// A diagnosis, and facts about how it was made.
pub(super) struct Diagnosis<'a> {
    pub(super) target: &'a Target,
    pub(super) observed: &'a Observed,
    pub(super) answer: Answer,
    pub(super) took: Duration,
}
