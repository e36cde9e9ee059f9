//! Sums of blocks by the verdict on them. Pure.

use std::collections::{BTreeMap, HashMap};

use leak_report::model::{Amount, Unjudged, Verdict, WeightedAmount};

/// Verdict on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Judged {
    DefinitelyLost,
    IndirectlyLost,
    Reachable,
    Unknown(Unjudged),
}

/// Blocks by the verdict on them, of each stack record.
#[derive(Clone, Debug, Default)]
pub struct JudgedBlocks(HashMap<(u32, Judged), WeightedAmount>);

impl JudgedBlocks {
    pub(super) fn add(&mut self, record: u32, judged: Judged, amount: WeightedAmount) {
        let sum = self.0.entry((record, judged)).or_default();
        *sum = *sum + amount;
    }

    /// Verdict on the outstanding blocks of the stack with these records. Blocks that were not seen are
    /// unknown, for the reason `unseen`; everything unknown is added to `unjudged`.
    pub fn of(
        &self,
        records: &[u32],
        outstanding: Amount,
        unseen: Unjudged,
        unjudged: &mut BTreeMap<Unjudged, Amount>,
    ) -> Verdict {
        // Totals are read a moment after the blocks: blocks that were freed in between are in none of the
        // four.
        let mut left = outstanding;
        let mut take = |judged| {
            let sums = records.iter().filter_map(|record| self.0.get(&(*record, judged)));
            let sum = sums.fold(WeightedAmount::default(), |sum, amount| sum + *amount);
            let sum = sum.rounded().amount;
            let taken = Amount {
                bytes: sum.bytes.min(left.bytes),
                blocks: sum.blocks.min(left.blocks),
            };
            left = left.less(taken);
            taken
        };
        let mut verdict = Verdict {
            definitely_lost: take(Judged::DefinitelyLost),
            indirectly_lost: take(Judged::IndirectlyLost),
            reachable: take(Judged::Reachable),
            unknown: Amount::default(),
        };
        let known = Unjudged::ALL.map(|reason| (reason, take(Judged::Unknown(reason))));
        for (reason, amount) in known.into_iter().chain([(unseen, left)]) {
            if amount != Amount::default() {
                let sum = unjudged.entry(reason).or_default();
                *sum = *sum + amount;
                verdict.unknown = verdict.unknown + amount;
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use leak_report::model::Weight;

    use super::*;

    /// The four add up to the outstanding amount, whatever was freed or allocated since the blocks were read.
    #[test]
    fn the_four_add_up() {
        let mut blocks = JudgedBlocks::default();
        for (record, judged) in [
            (1, Judged::DefinitelyLost),
            (2, Judged::DefinitelyLost),
            (2, Judged::Reachable),
            (2, Judged::Unknown(Unjudged::NotSettled)),
            (3, Judged::IndirectlyLost),
        ] {
            blocks.add(record, judged, Weight::ONE.of(10));
        }
        for (outstanding, expected) in [
            (5, [2, 0, 1, 2]),
            (4, [2, 0, 1, 1]),
            (2, [2, 0, 0, 0]),
            (0, [0, 0, 0, 0]),
        ] {
            let amount = |blocks| Amount {
                bytes: 10 * blocks,
                blocks,
            };
            let mut unjudged = BTreeMap::new();
            let verdict = blocks.of(&[1, 2], amount(outstanding), Unjudged::Young, &mut unjudged);
            let Verdict {
                definitely_lost,
                indirectly_lost,
                reachable,
                unknown,
            } = verdict;
            assert_eq!(
                [definitely_lost, indirectly_lost, reachable, unknown],
                expected.map(amount)
            );
            let reasons: Amount = unjudged.values().copied().sum();
            assert_eq!(reasons, unknown);
            assert_eq!(unjudged.contains_key(&Unjudged::Young), outstanding == 5);
        }
    }
}
