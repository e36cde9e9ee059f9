//! Reason of a report.

use serde::Serialize;

use crate::model::{Reached, Reason};

#[derive(Serialize)]
pub(super) struct ReasonJson<'a> {
    kind: &'static str,
    /// Conditions that became true; empty at the end.
    conditions: Vec<ReachedJson<'a>>,
}

#[derive(Serialize)]
struct ReachedJson<'a> {
    condition: &'a str,
    value: f64,
    unit: &'static str,
    /// Null if the value is of all traced processes.
    pid: Option<u32>,
}

impl<'a> From<&'a Reason> for ReasonJson<'a> {
    fn from(reason: &'a Reason) -> Self {
        Self {
            kind: match reason {
                Reason::Conditions(_) => "conditions",
                Reason::End => "end",
            },
            conditions: reason.reached().iter().map(ReachedJson::from).collect(),
        }
    }
}

impl<'a> From<&'a Reached> for ReachedJson<'a> {
    fn from(reached: &'a Reached) -> Self {
        let Reached {
            condition,
            value,
            pid,
        } = reached;
        Self {
            condition,
            value: value.value(),
            unit: value.unit(),
            pid: *pid,
        }
    }
}
