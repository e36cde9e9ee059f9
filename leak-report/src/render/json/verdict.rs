//! Verdicts in JSON: which outstanding blocks the process can still reach.

use std::collections::BTreeMap;

use serde::Serialize;

use super::amount::AmountJson;
use crate::model::{FATES, Judgement, Report, Verdict};

/// The verdict on the blocks of a stack or of all stacks: an amount for each part.
pub(super) struct VerdictJson(pub(super) Verdict);

impl Serialize for VerdictJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = FATES.iter().map(|fate| (fate.field, (fate.of)(&self.0)));
        serializer.collect_map(parts.map(|(field, amount)| (field, AmountJson::from(amount))))
    }
}

/// The verdict of a report, with how it was made.
#[derive(Serialize)]
pub(super) struct JudgementJson {
    /// Sum over all stacks.
    #[serde(flatten)]
    verdict: VerdictJson,
    passes: u32,
    took_ns: u64,
    read_bytes: u64,
    /// Null if no thread was stopped.
    stopped_ns: Option<u64>,
    /// Reasons that did not occur are absent.
    unknown_because: BTreeMap<&'static str, AmountJson>,
    freed_later: AmountJson,
    unreadable_bytes: u64,
}

impl JudgementJson {
    /// `None` if no verdict was asked for.
    pub(super) fn of(report: &Report) -> Option<Self> {
        let Judgement {
            passes,
            took,
            read,
            stopped,
            unjudged,
            freed_later,
            unreadable,
        } = report.judgement.as_ref()?;
        let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reasons = unjudged.iter();
        Some(Self {
            verdict: VerdictJson(report.stacks().map(|stack| stack.judged()).sum()),
            passes: *passes,
            took_ns: nanoseconds(*took),
            read_bytes: *read,
            stopped_ns: stopped.map(nanoseconds),
            unknown_because: reasons
                .map(|(reason, &amount)| (reason.name(), amount.into()))
                .collect(),
            freed_later: (*freed_later).into(),
            unreadable_bytes: *unreadable,
        })
    }
}
