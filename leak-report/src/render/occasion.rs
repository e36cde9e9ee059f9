//! Lines on why a report was made.

use crate::model::Report;
use crate::model::printable::Printable;

/// Lines below the header; mostly none.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let reason = report
        .reason
        .as_ref()
        .map(|reason| format!("Reported because {}", Printable(&reason.to_string())));
    reason.into_iter().collect()
}
