//! Ages and changes in JSON. What was not looked at is null.

use std::time::Duration;

use serde::Serialize;

use super::AmountJson;
use crate::collect::{Ages, Amount};
use crate::leak::Change;
use crate::report::{Report, StackRecent};

/// What a report says of ages and changes.
#[derive(Serialize)]
pub(super) struct RecentJson {
    older_than_ns: Option<u64>,
    since_last: SpanJson,
    since_baseline: BaselineJson,
    /// Of all stacks together, every class.
    ages: Option<Vec<AgeJson>>,
}

#[derive(Serialize)]
struct SpanJson {
    duration_ns: u64,
}

#[derive(Serialize)]
struct BaselineJson {
    duration_ns: u64,
    /// The local time at which the user marked it; null if it is the attach.
    marked: Option<String>,
}

/// What a report says of a stack's ages and changes.
#[derive(Serialize)]
pub(super) struct StackRecentJson {
    young: Option<AmountJson>,
    /// Classes without blocks are left out.
    ages: Option<Vec<AgeJson>>,
    since_last: ChangeJson,
    since_baseline: ChangeJson,
}

/// Blocks of one class.
#[derive(Serialize)]
struct AgeJson {
    /// Younger than this, and not in the class before; null for the oldest.
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
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The classes of an amount that `wanted` wants.
fn classes(ages: Ages, wanted: impl Fn(Amount) -> bool) -> Vec<AgeJson> {
    let classes = ages.classes().filter(|&(_, amount)| wanted(amount));
    classes
        .map(|(bound, amount)| AgeJson {
            up_to_ns: bound.map(nanoseconds),
            amount: amount.into(),
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
            ages: report.ages().map(|ages| classes(ages, |_| true)),
        }
    }
}

impl From<&StackRecent> for StackRecentJson {
    fn from(recent: &StackRecent) -> Self {
        Self {
            young: recent.young.map(AmountJson::from),
            ages: recent.ages.map(|ages| classes(ages, |amount| amount.blocks > 0)),
            since_last: (&recent.since_last).into(),
            since_baseline: (&recent.since_baseline).into(),
        }
    }
}

impl From<&Change> for ChangeJson {
    fn from(change: &Change) -> Self {
        Self {
            allocated: change.allocated.into(),
            freed: change.freed.into(),
            net_bytes: change.net_bytes(),
            net_blocks: change.net_blocks(),
        }
    }
}
