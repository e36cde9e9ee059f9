//! Ages and changes in JSON reports.

use serde::Deserialize;

use super::amount::Amount;

/// Ages and changes of a report.
#[derive(Debug, Deserialize)]
pub struct Recent {
    pub older_than_ns: Option<u64>,
    pub since_last: Span,
    pub since_baseline: Baseline,
    pub ages: Option<Vec<Age>>,
}

#[derive(Debug, Deserialize)]
pub struct Span {
    pub duration_ns: u64,
}

#[derive(Debug, Deserialize)]
pub struct Baseline {
    pub duration_ns: u64,
    pub marked: Option<String>,
}

/// Ages and changes of a stack.
#[derive(Debug, Deserialize)]
pub struct StackRecent {
    pub young: Option<Amount>,
    pub ages: Option<Vec<Age>>,
    pub since_last: Change,
    pub since_baseline: Change,
}

#[derive(Debug, Deserialize)]
pub struct Age {
    pub up_to_ns: Option<u64>,
    pub bytes: u64,
    pub blocks: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Change {
    pub allocated: Amount,
    pub freed: Amount,
    pub net_bytes: i64,
    pub net_blocks: i64,
}

/// Returns the sum over all classes of ages.
#[track_caller]
pub fn of_all_ages(ages: &Option<Vec<Age>>) -> Amount {
    let amount = |age: &Age| Amount {
        bytes: age.bytes,
        blocks: age.blocks,
    };
    let ages = ages.as_ref().expect("ages were looked at");
    ages.iter().map(amount).sum()
}

/// The moment of the highest total.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Peak {
    pub elapsed_ns: u64,
    pub bytes: u64,
    pub blocks: u64,
    pub never_above_bytes: u64,
    pub looks: u64,
}

/// Frames that were left out of a stack.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct LeftOut {
    pub after: u64,
    pub frames: u64,
}
