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

/// A verdict on many blocks, with how it was made.
#[derive(Serialize)]
pub struct JudgementJson {
    /// Sum over all blocks.
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
    /// Kinds that did not occur are absent.
    not_seen: BTreeMap<&'static str, u64>,
    /// Null if it is not known.
    not_seen_words: Option<u64>,
    /// Forms that did not occur are absent.
    only_inside: BTreeMap<&'static str, AmountJson>,
    /// Reasons that did not occur are absent.
    holders_missing_because: BTreeMap<&'static str, u32>,
}

impl JudgementJson {
    /// The verdict of a report, over all stacks; `None` if none was asked for.
    pub(super) fn of(report: &Report) -> Option<Self> {
        let verdict = report.stacks().map(|stack| stack.judged()).sum();
        report
            .judgement
            .as_ref()
            .map(|judgement| Self::new(verdict, judgement))
    }

    /// A verdict and the facts about it.
    pub fn new(verdict: Verdict, judgement: &Judgement) -> Self {
        let Judgement {
            passes,
            took,
            read,
            stopped,
            unjudged,
            freed_later,
            unreadable,
            hidden,
            hidden_words,
            inside,
            unheld,
        } = judgement;
        let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reasons = unjudged.iter();
        Self {
            verdict: VerdictJson(verdict),
            passes: *passes,
            took_ns: nanoseconds(*took),
            read_bytes: *read,
            stopped_ns: stopped.map(nanoseconds),
            unknown_because: reasons
                .map(|(reason, &amount)| (reason.name(), amount.into()))
                .collect(),
            freed_later: (*freed_later).into(),
            unreadable_bytes: *unreadable,
            not_seen: hidden
                .iter()
                .map(|(place, &count)| (place.name(), count))
                .collect(),
            not_seen_words: Some(*hidden_words).filter(|&words| words != u64::MAX),
            only_inside: inside
                .iter()
                .map(|(form, &amount)| (form.name(), amount.into()))
                .collect(),
            holders_missing_because: unheld
                .iter()
                .map(|(reason, &count)| (reason.name(), count))
                .collect(),
        }
    }
}
