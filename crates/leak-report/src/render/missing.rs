//! Lines on the missing parts of a trace.

use crate::model::Report;
use crate::model::printable::Printable;

/// One line for each part that is missing; usually none.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let missing = report.missing.iter();
    missing
        .map(|missing| Printable(&missing.to_string()).to_string())
        .collect()
}
