//! Parts of a trace that are missing because the kernel refused a program.

use serde::Serialize;

use crate::model::Missing;

#[derive(Serialize)]
pub(super) struct MissingJson<'a> {
    part: &'static str,
    text: &'static str,
    program: &'a str,
    reason: &'a str,
}

impl<'a> From<&'a Missing> for MissingJson<'a> {
    fn from(missing: &'a Missing) -> Self {
        Self {
            part: missing.part.name(),
            text: missing.part.without(),
            program: &missing.program,
            reason: &missing.reason,
        }
    }
}
