//! Ages and changes in JSON; null if they were not recorded.

use std::time::Duration;

use serde::Serialize;

use super::amount::{AmountJson, ErrorJson};
use crate::model::leak::{Change, Suspicion};
use crate::model::{Ages, Amount, Sampling, StandardError};
use crate::model::{Report, StackRecent};

/// Ages and changes of a report.
#[derive(Serialize)]
pub(super) struct RecentJson {
    older_than_ns: Option<u64>,
    since_last: SpanJson,
    since_baseline: BaselineJson,
    /// Sum over all stacks; all age classes are present.
    ages: Option<Vec<AgeJson>>,
}

#[derive(Serialize)]
struct SpanJson {
    duration_ns: u64,
}

#[derive(Serialize)]
struct BaselineJson {
    duration_ns: u64,
    /// Local time at which the user marked the baseline; null if the baseline is the attach.
    marked: Option<String>,
}

/// Ages and changes of a stack.
#[derive(Serialize)]
pub(super) struct StackRecentJson {
    young: Option<AmountJson>,
    /// Age classes without blocks are omitted.
    ages: Option<Vec<AgeJson>>,
    since_last: ChangeJson,
    since_baseline: ChangeJson,
    suspicion: Option<SuspicionJson>,
}

/// Suspicion of a stack, with the parts of the score.
#[derive(Serialize)]
struct SuspicionJson {
    score: u8,
    reports: u32,
    bytes_per_second: f64,
    certainty: f64,
    steadiness: f64,
    kept: Option<f64>,
    age_spread: Option<f64>,
}

impl From<Suspicion> for SuspicionJson {
    fn from(suspicion: Suspicion) -> Self {
        let score = suspicion.score();
        let Suspicion {
            reports,
            growth,
            certainty,
            steadiness,
            kept,
            age_spread,
        } = suspicion;
        Self {
            score,
            reports,
            bytes_per_second: growth,
            certainty,
            steadiness,
            kept,
            age_spread,
        }
    }
}

/// Blocks of one age class.
#[derive(Serialize)]
struct AgeJson {
    /// Upper bound, exclusive; the lower one is that of the class before. Null for the oldest class.
    up_to_ns: Option<u64>,
    #[serde(flatten)]
    amount: AmountJson,
}

#[derive(Serialize)]
struct ChangeJson {
    allocated: AmountJson,
    freed: AmountJson,
    net_bytes: i64,
    net_blocks: i64,
    /// Only for estimates: an upper bound, since blocks both allocated and freed in the time count twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    net_standard_error_at_most: Option<ErrorJson>,
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The age classes whose amount satisfies `wanted`.
fn classes(report: &Report, ages: Ages, wanted: impl Fn(Amount) -> bool) -> Vec<AgeJson> {
    let classes = ages.classes().filter(|(_, class)| wanted(class.amount));
    classes
        .map(|(bound, class)| AgeJson {
            up_to_ns: bound.map(nanoseconds),
            amount: AmountJson::of(report, class),
        })
        .collect()
}

impl From<&Report> for RecentJson {
    fn from(report: &Report) -> Self {
        let compared = &report.compared;
        Self {
            older_than_ns: compared.older.map(nanoseconds),
            since_last: SpanJson {
                duration_ns: nanoseconds(compared.since_last),
            },
            since_baseline: BaselineJson {
                duration_ns: nanoseconds(compared.since_baseline),
                marked: compared.marked.map(|time| time.to_string()),
            },
            ages: report.ages().map(|ages| classes(report, ages, |_| true)),
        }
    }
}

impl StackRecentJson {
    pub(super) fn of(recent: &StackRecent, report: &Report) -> Self {
        let has_blocks = |amount: Amount| amount.blocks > 0;
        Self {
            young: recent.young.map(|young| AmountJson::of(report, young)),
            ages: recent.ages.map(|ages| classes(report, ages, has_blocks)),
            since_last: ChangeJson::of(&recent.since_last, report),
            since_baseline: ChangeJson::of(&recent.since_baseline, report),
            suspicion: recent.suspicion.map(Into::into),
        }
    }
}

impl ChangeJson {
    fn of(change: &Change, report: &Report) -> Self {
        let StandardError { bytes, blocks } = change.net_spread().standard_error();
        let is_estimate = report.sampling != Sampling::All;
        Self {
            allocated: AmountJson::of(report, change.allocated),
            freed: AmountJson::of(report, change.freed),
            net_bytes: change.net_bytes(),
            net_blocks: change.net_blocks(),
            net_standard_error_at_most: is_estimate.then_some(ErrorJson { bytes, blocks }),
        }
    }
}
