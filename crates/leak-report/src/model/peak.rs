//! Moment of the highest total, and how far below the true peak that can be.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Amount;

/// Highest total of outstanding memory that was seen since the attach, of all instances that ran at that
/// moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Time since the attach.
    pub elapsed: Duration,
    /// Total at that moment: the sum of what each stack had outstanding.
    pub total: Amount,
    /// Upper bound of the total's bytes, from the first look at the totals to the last.
    pub never_above: u64,
    /// Number of looks at the totals.
    pub looks: u64,
}

impl Peak {
    /// Per cent by which the true peak can be above `total`, rounded up.
    pub fn uncertainty(&self) -> u64 {
        let above = u128::from(self.never_above.saturating_sub(self.total.bytes));
        let percent = (100 * above).div_ceil(u128::from(self.total.bytes.max(1)));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uncertainty is rounded up, and 0 if the total reaches the bound.
    #[test]
    fn uncertainties() {
        let of = |bytes, never_above| {
            let total = Amount { bytes, blocks: 1 };
            Peak {
                total,
                never_above,
                ..Peak::default()
            }
            .uncertainty()
        };
        assert_eq!(of(1000, 1000), 0);
        assert_eq!(of(1000, 1001), 1);
        assert_eq!(of(1000, 1050), 5);
        assert_eq!(of(1000, 1051), 6);
        assert_eq!(of(1000, 900), 0);
        assert_eq!(of(0, 0), 0);
        assert_eq!(of(0, u64::MAX), u64::MAX);
    }
}
