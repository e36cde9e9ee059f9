//! Conditions on a diagnosis: whether memory grows, and for which cause. Pure.
//!
//! Only growth counts that is certain: while it is not, and for a cause that is only possible, conditions are
//! inconclusive. Memory that is held without use, and does not grow, is no cause here.

use leak_report::model::diagnosis::{Cause, CauseKind, Certainty, Diagnosis, Growth};
use leak_report::render::{cause_in_words, diagnosis_in_words, printable};

use super::condition::Condition;
use super::facts::MAX_CULPRITS;
use super::outcome::{Culprit, Finding, Outcome};

/// Reason for deciding nothing about a report without a diagnosis.
pub(super) const NONE: &str =
    "the report does not say why memory grows: record one that does with `memleak why --record FILE`";

/// Decides a condition; `doubt` is a reason why a later diagnosis may be missing.
pub(super) fn finding(condition: &Condition, diagnosis: &Diagnosis, doubt: Option<&str>) -> Finding {
    let kind = condition
        .name()
        .and_then(|name| CauseKind::ALL.get(name).copied());
    let is_asked = |cause: &&Cause| cause.grows() && kind.is_none_or(|kind| kind == cause.kind);
    let causes: Vec<_> = diagnosis.causes.iter().filter(is_asked).collect();
    let outcome = match diagnosis.growth {
        Growth::NotSure { .. } => {
            Outcome::Inconclusive("growth is not certain yet: give it more time".to_owned())
        }
        Growth::Grows => of_growth(kind, &causes),
        Growth::Steady { .. } => Outcome::Passed,
    };
    let outcome = match (outcome, doubt) {
        (Outcome::Passed, Some(doubt)) => Outcome::Inconclusive(doubt.to_owned()),
        (outcome, _) => outcome,
    };
    Finding {
        condition: condition.clone(),
        outcome,
        found: match causes.first() {
            Some(cause) if kind.is_some() => cause_in_words(cause),
            Some(_) | None => diagnosis_in_words(diagnosis),
        },
        is_untried: false,
        culprits: causes
            .into_iter()
            .filter_map(culprit)
            .take(MAX_CULPRITS)
            .collect(),
    }
}

/// Outcome for memory that grows for these causes: all there are, or those of the kind that is asked for.
fn of_growth(kind: Option<CauseKind>, causes: &[&Cause]) -> Outcome {
    let is_sure = |cause: &&Cause| cause.certainty > Certainty::Possible;
    if kind.is_none() || causes.iter().any(is_sure) {
        return Outcome::Exceeded;
    }
    match causes.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Inconclusive("something else can explain the growth, too".to_owned()),
    }
}

/// Place in the program that a cause names.
fn culprit(cause: &Cause) -> Option<Culprit> {
    let site = cause.site.as_ref()?;
    let place = site
        .source()
        .map_or_else(String::new, |(file, line)| format!(" {}:{line}", printable(file)));
    Some(Culprit {
        amount: cause.kind.words().to_owned(),
        site: format!("{}{place}", printable(&site.function)),
        source: None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leak_report::samples;

    use super::super::check_diagnosis;
    use super::super::condition::parse;
    use super::*;

    fn status(condition: &str, diagnosis: &Diagnosis) -> Option<u8> {
        check_diagnosis(&[parse(condition).expect("valid")], diagnosis)
    }

    /// A condition is exceeded only by certain growth for its cause. Growth or a cause that is not certain is
    /// inconclusive, and memory that does not grow is no cause.
    #[test]
    fn certain_growth_only() {
        let grows = samples::diagnosis();
        let with = |growth| Diagnosis {
            growth,
            causes: Vec::new(),
            steps: Vec::new(),
            ..samples::diagnosis()
        };
        let steady = with(Growth::Steady { at_most: 1.0 });
        let unsure = with(Growth::NotSure {
            more: Duration::from_secs(60),
        });
        let mut possible = samples::diagnosis();
        possible.causes[0].certainty = Certainty::Possible;
        let all = [&grows, &steady, &unsure, &possible];
        for (condition, expected) in [
            ("cause=kept", [Some(1), None, Some(3), Some(3)]),
            ("cause=lost", [None, None, Some(3), None]),
            ("cause=free_in_allocator", [None, None, Some(3), None]),
            ("grows", [Some(1), None, Some(3), Some(1)]),
        ] {
            let found = all.map(|diagnosis| status(condition, diagnosis));
            assert_eq!(found, expected, "{condition}");
        }
    }

    /// Any of several conditions is enough; conditions on other measures are skipped.
    #[test]
    fn several_conditions() {
        let conditions = ["cause=lost", "cause=kept", "blocks>1"].map(|text| parse(text).expect("valid"));
        let diagnosis = samples::diagnosis();
        assert_eq!(check_diagnosis(&conditions, &diagnosis), Some(1));
        assert_eq!(check_diagnosis(&conditions[2..], &diagnosis), None);
        let finding = finding(&conditions[1], &diagnosis, None);
        let culprit = &finding.culprits[0];
        assert_eq!(
            (culprit.amount.as_str(), culprit.site.as_str()),
            ("kept blocks", "remember app.cpp:54")
        );
        assert!(
            finding.found.starts_with("kept blocks: 95% of the growth"),
            "{}",
            finding.found
        );
    }
}
