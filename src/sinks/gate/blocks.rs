//! Decides conditions on a verdict that was made without a trace (`memleak verdict`): it has sums, but no
//! sites.

use super::condition::{Condition, Measure};
use super::facts::VerdictFacts;
use super::outcome::{self, Finding, Value, of_blocks, of_bytes};
use super::{decided, log_finding};
use leak_report::model::{Amount, Estimate, FATES, Judgement, Verdict};

/// A sum of a verdict that a condition limits.
struct Limited {
    amount: Amount,
    value: fn(&Estimate) -> Value,
    /// Words that follow the amount.
    words: &'static str,
}

/// The sum that `measure` names; `None` if only a trace has this measure.
fn limited(measure: Measure, verdict: &Verdict) -> Option<Limited> {
    let all = || FATES.iter().map(|fate| (fate.of)(verdict)).sum();
    let limited = |amount, value, words| Some(Limited { amount, value, words });
    match measure {
        Measure::Outstanding => limited(all(), of_bytes, ""),
        Measure::Blocks => limited(all(), of_blocks, ""),
        Measure::DefinitelyLost => limited(verdict.definitely_lost, of_bytes, " definitely lost"),
        Measure::DefinitelyLostBlocks => limited(verdict.definitely_lost, of_blocks, " definitely lost"),
        Measure::IndirectlyLost => limited(verdict.indirectly_lost, of_bytes, " indirectly lost"),
        Measure::IndirectlyLostBlocks => limited(verdict.indirectly_lost, of_blocks, " indirectly lost"),
        Measure::Growth
        | Measure::SiteOutstanding
        | Measure::SiteBlocks
        | Measure::SiteGrowth
        | Measure::Allocated
        | Measure::Allocations
        | Measure::Lost
        | Measure::Incomplete
        | Measure::SiteDefinitelyLost
        | Measure::SiteDefinitelyLostBlocks
        | Measure::Cause
        | Measure::Grows => None,
    }
}

impl Measure {
    /// Returns true if a condition on it can be decided without a trace.
    pub fn is_of_blocks(self) -> bool {
        limited(self, &Verdict::default()).is_some()
    }
}

/// Checks a verdict against conditions and logs the findings. Returns the exit status, or `None` if no
/// condition was exceeded or inconclusive. Skips conditions that only a trace can decide.
pub fn check_blocks(conditions: &[Condition], verdict: &Verdict, facts: &Judgement) -> Option<u8> {
    let doubts = outcome::verdict_doubts(&VerdictFacts::judged(facts));
    let findings = conditions.iter().filter_map(|condition| {
        let Limited { amount, value, words } = limited(condition.measure(), verdict)?;
        let exact = Estimate::from(amount);
        let by_value = outcome::outcome_of(condition, &[value(&exact)]);
        Some(Finding {
            condition: condition.clone(),
            outcome: outcome::doubted(by_value, condition, &doubts),
            found: format!("{}{words}", outcome::in_blocks(&exact)),
            is_untried: false,
            culprits: Vec::new(),
        })
    });
    let findings: Vec<_> = findings.collect();
    findings.iter().for_each(log_finding);
    decided(&findings)
}

#[cfg(test)]
mod tests {
    use leak_report::model::Unjudged;

    use super::super::condition::parse;
    use super::*;

    /// Unjudged blocks make conditions on lost blocks inconclusive that would pass; a lost block that was
    /// freed later makes all of them inconclusive.
    #[test]
    fn sums_and_doubts() {
        let amount = |blocks| Amount {
            bytes: 10 * blocks,
            blocks,
        };
        let verdict = Verdict {
            definitely_lost: amount(2),
            indirectly_lost: amount(3),
            reachable: amount(5),
            unknown: amount(0),
        };
        let sure = Judgement::default();
        let mut unsettled = Judgement::default();
        unsettled.unjudged.insert(Unjudged::NotSettled, amount(1));
        let refuted = Judgement {
            freed_later: amount(1),
            ..Judgement::default()
        };
        for (condition, expected) in [
            ("definitely_lost>19", [Some(1), Some(1), Some(3)]),
            ("definitely_lost>20", [None, Some(3), Some(3)]),
            ("definitely_lost.blocks>=2", [Some(1), Some(1), Some(3)]),
            ("indirectly_lost.blocks>3", [None, Some(3), Some(3)]),
            ("indirectly_lost>=30", [Some(1), Some(1), Some(3)]),
            ("outstanding>99", [Some(1), Some(1), Some(1)]),
            ("blocks>10", [None, None, None]),
        ] {
            let conditions = [parse(condition).expect("valid")];
            let found = [&sure, &unsettled, &refuted].map(|facts| check_blocks(&conditions, &verdict, facts));
            assert_eq!(found, expected, "{condition}");
        }
    }
}
