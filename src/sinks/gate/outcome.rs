//! Decides conditions: passed, exceeded, or inconclusive. Pure.

use super::MaxLost;
use super::condition::{Condition, Measure};
use super::diagnosed;
use super::facts::{Facts, MAX_CULPRITS, SiteFacts, VerdictFacts};
use super::trend::{MIN, Trend};
use super::words::{described, rate, share};
use super::workspace::Source;
use crate::base::condition::Per;
use leak_report::model::site_name::{SiteName, SiteNames};
use leak_report::model::{Amount, Estimate};
use leak_report::render::{self, size};

/// Number of standard errors by which an estimate must be beyond a limit to decide a condition: wrong in 1 of
/// 40 cases.
const ERRORS: f64 = 2.0;

/// Result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The limit is not exceeded.
    Passed,
    Exceeded,
    /// Inconclusive, for this reason.
    Inconclusive(String),
}

/// A condition with its result.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) condition: Condition,
    pub(super) outcome: Outcome,
    /// The measured value in words; empty if it could not be measured.
    pub(super) found: String,
    /// True if the condition passed only because the trace was too short to exceed it.
    pub(super) is_untried: bool,
    /// The sites with the largest values.
    pub(super) culprits: Vec<Culprit>,
}

/// A site named in a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    /// The site's value in words.
    pub(super) amount: String,
    /// The site's functions in words.
    pub(super) site: String,
    /// The site's innermost line in the user's source.
    pub(super) source: Option<Source>,
}

/// Input for deciding conditions.
pub(super) struct Evidence<'a> {
    pub(super) facts: &'a Facts,
    pub(super) trend: &'a Trend,
    pub(super) names: &'a SiteNames,
    pub(super) has_baseline: bool,
    pub(super) max_lost: MaxLost,
    /// Reason why later reports may be missing.
    pub(super) doubt: Option<&'a str>,
}

/// A value and its margin, which is [`ERRORS`] standard errors.
pub(super) type Value = (f64, f64);

/// Amount of each site that a condition limits.
#[derive(Clone, Copy)]
struct Limited {
    of: fn(&SiteFacts) -> Estimate,
    /// Words that follow the amount.
    words: &'static str,
}

/// Outstanding memory beyond the baseline.
const OUTSTANDING: Limited = Limited {
    of: |site| site.amount,
    words: "",
};
const DEFINITELY_LOST: Limited = Limited {
    of: |site| site.lost[0],
    words: " definitely lost",
};
const INDIRECTLY_LOST: Limited = Limited {
    of: |site| site.lost[1],
    words: " indirectly lost",
};

/// Measured values of a condition.
#[derive(Default)]
struct Measured {
    /// The value, or those of all sites; one beyond the limit is enough.
    values: Vec<Value>,
    words: String,
    culprits: Vec<Culprit>,
    is_untried: bool,
}

/// A reason why results may be wrong, and which ones.
pub(super) struct Doubt {
    reason: String,
    about: DoubtKind,
}

/// Direction of a possible error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DoubtKind {
    /// Nothing can be concluded.
    Everything,
    /// Measured values may be too small.
    TooLittle,
    /// Outstanding memory may be measured too large.
    TooMuch,
    /// Lost memory may be measured too small.
    LostTooLittle,
    /// Nothing can be concluded about lost memory.
    Lost,
}

impl Evidence<'_> {
    /// Decides each condition.
    pub(super) fn decide(&self, conditions: &[Condition]) -> Vec<Finding> {
        let doubts = self.doubts();
        let decided = conditions
            .iter()
            .map(|condition| self.decide_one(condition, &doubts));
        decided.collect()
    }

    fn decide_one(&self, condition: &Condition, doubts: &[Doubt]) -> Finding {
        if let (true, Some(diagnosis)) = (condition.measure().is_of_diagnosis(), &self.facts.diagnosis) {
            return diagnosed::finding(condition, diagnosis, self.doubt);
        }
        let (outcome, measured) = match self.measure(condition) {
            Err(reason) => (Outcome::Inconclusive(reason), Measured::default()),
            Ok(measured) => (
                doubted(outcome_of(condition, &measured.values), condition, doubts),
                measured,
            ),
        };
        Finding {
            condition: condition.clone(),
            outcome,
            found: measured.words,
            is_untried: measured.is_untried,
            culprits: measured.culprits,
        }
    }

    fn measure(&self, condition: &Condition) -> Result<Measured, String> {
        let facts = self.facts;
        if condition.measure().is_of_verdict() && facts.verdict.is_none() {
            return Err("no verdict was made on which blocks are lost: trace with --verdict".to_owned());
        }
        match condition.measure() {
            Measure::Outstanding => Ok(self.in_all(OUTSTANDING, of_bytes)),
            Measure::Blocks => Ok(self.in_all(OUTSTANDING, of_blocks)),
            Measure::SiteOutstanding => Ok(self.at_one_site(OUTSTANDING, condition, of_bytes)),
            Measure::SiteBlocks => Ok(self.at_one_site(OUTSTANDING, condition, of_blocks)),
            Measure::DefinitelyLost => Ok(self.in_all(DEFINITELY_LOST, of_bytes)),
            Measure::DefinitelyLostBlocks => Ok(self.in_all(DEFINITELY_LOST, of_blocks)),
            Measure::SiteDefinitelyLost => Ok(self.at_one_site(DEFINITELY_LOST, condition, of_bytes)),
            Measure::SiteDefinitelyLostBlocks => Ok(self.at_one_site(DEFINITELY_LOST, condition, of_blocks)),
            Measure::IndirectlyLost => Ok(self.in_all(INDIRECTLY_LOST, of_bytes)),
            Measure::IndirectlyLostBlocks => Ok(self.in_all(INDIRECTLY_LOST, of_blocks)),
            Measure::Growth => self.growth(condition, false),
            Measure::SiteGrowth => self.growth(condition, true),
            Measure::Allocated => Ok(self.allocated(&facts.most_allocated[0], of_bytes)),
            Measure::Allocations => Ok(self.allocated(&facts.most_allocated[1], of_blocks)),
            Measure::Lost => Ok(self.lost()),
            Measure::Incomplete => Ok(self.incomplete()),
            Measure::Cause | Measure::Grows => Err(diagnosed::NONE.to_owned()),
        }
    }

    /// Measures the amount of all sites.
    fn in_all(&self, held: Limited, value: fn(&Estimate) -> Value) -> Measured {
        let beyond = self.beyond(held, value);
        let all: Estimate = beyond.iter().map(|site| (held.of)(site)).sum();
        let sites = render::counted(beyond.len() as u64, "site");
        Measured {
            values: vec![value(&all)],
            words: format!(
                "{}{} at {sites}{}",
                in_blocks(&all),
                held.words,
                self.baseline_words(held)
            ),
            culprits: self.culprits(held, beyond.into_iter()),
            ..Measured::default()
        }
    }

    /// Measures the amount of each site.
    fn at_one_site(&self, held: Limited, condition: &Condition, value: fn(&Estimate) -> Value) -> Measured {
        let beyond = self.beyond(held, value);
        let largest = beyond.first().map(|site| (held.of)(site)).unwrap_or_default();
        let sites = render::counted(beyond.len() as u64, "site");
        let too_much = |site: &&SiteFacts| condition.is_exceeded_by(value(&(held.of)(site)).0);
        Measured {
            values: beyond.iter().map(|site| value(&(held.of)(site))).collect(),
            words: format!(
                "{}{} at the largest of {sites}{}",
                in_blocks(&largest),
                held.words,
                self.baseline_words(held)
            ),
            culprits: self.culprits(held, beyond.iter().copied().filter(too_much)),
            ..Measured::default()
        }
    }

    /// Sites with a value above 0, largest first.
    fn beyond(&self, held: Limited, value: fn(&Estimate) -> Value) -> Vec<&SiteFacts> {
        let value = |site: &SiteFacts| value(&(held.of)(site)).0;
        let sites = self.facts.sites.iter();
        let mut beyond: Vec<_> = sites.filter(|site| value(site) > 0.0).collect();
        beyond.sort_by(|a, b| value(b).total_cmp(&value(a)));
        beyond
    }

    fn culprits<'s>(&self, held: Limited, sites: impl Iterator<Item = &'s SiteFacts>) -> Vec<Culprit> {
        let culprit = |site: &SiteFacts| Culprit {
            amount: format!("{}{}", in_blocks(&(held.of)(site)), held.words),
            site: described(self.names, &site.key, self.facts.style),
            source: site.source.clone(),
        };
        sites.take(MAX_CULPRITS).map(culprit).collect()
    }

    /// A baseline accepts only outstanding memory: memory that it accepted may be lost now.
    fn baseline_words(&self, held: Limited) -> &'static str {
        match self.has_baseline && held.words.is_empty() {
            true => " beyond the baseline",
            false => "",
        }
    }

    fn growth(&self, condition: &Condition, of_one: bool) -> Result<Measured, String> {
        let trend = self.trend;
        let Some(slope) = trend.slope() else {
            return self.too_short();
        };
        let per = condition.per().unwrap_or(Per::SECOND);
        let mut sites: Vec<(&SiteName, f64)> = trend.slopes().filter(|(_, rate)| *rate > 0.0).collect();
        sites.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let too_much = |&&(_, rate): &&(&SiteName, f64)| !of_one || condition.is_exceeded_by(rate);
        let culprits = sites.iter().filter(too_much).take(MAX_CULPRITS);
        let culprits = culprits.map(|&(key, speed)| Culprit {
            amount: rate(speed, per),
            site: described(self.names, key, self.facts.style),
            source: self.facts.site(key).and_then(|site| site.source.clone()),
        });
        let over = format!("over {} reports in {:.1} s", trend.moments(), trend.seconds());
        let (values, fastest) = match of_one {
            true => {
                let values = sites.iter().map(|&(key, rate)| (rate, self.slope_error(key)));
                let largest = sites.first().map_or(0.0, |(_, rate)| *rate);
                (
                    values.collect(),
                    format!("{} at the fastest site", rate(largest, per)),
                )
            }
            false => (vec![(slope.rate, ERRORS * slope.error)], rate(slope.rate, per)),
        };
        Ok(Measured {
            values,
            words: format!("{fastest} {over}"),
            culprits: culprits.collect(),
            ..Measured::default()
        })
    }

    /// Margin of a site's growth rate, on the assumption that its error at the first moment was as large as
    /// it is now.
    fn slope_error(&self, site: &SiteName) -> f64 {
        let spread = self.facts.site(site).map(|site| site.amount.spread);
        let error = spread.unwrap_or_default().standard_error().bytes;
        ERRORS * std::f64::consts::SQRT_2 * error / self.trend.seconds()
    }

    /// Result with too few reports: passed if all processes have ended, as they did not grow; inconclusive if
    /// one still runs.
    fn too_short(&self) -> Result<Measured, String> {
        let made = match self.trend.moments() {
            1 => "1 report was".to_owned(),
            more => format!("{more} reports were"),
        };
        let words = format!(
            "{made} made after the warm-up (the first half of the trace) while a traced process ran, and \
             growth needs at least {MIN}"
        );
        match self.facts.is_over {
            true => Ok(Measured {
                words: format!("too short to tell, as {words} (a shorter INTERVAL makes more)"),
                is_untried: true,
                ..Measured::default()
            }),
            false => Err(format!("{words}: trace longer, or give a shorter INTERVAL")),
        }
    }

    fn allocated(&self, largest: &[SiteFacts], value: fn(&Estimate) -> Value) -> Measured {
        let all = &self.facts.allocated;
        Measured {
            values: vec![value(all)],
            words: in_blocks(all),
            culprits: self.culprits(OUTSTANDING, largest.iter()),
            ..Measured::default()
        }
    }

    fn lost(&self) -> Measured {
        Measured {
            values: vec![(self.lost_percent(), 0.0)],
            words: self.lost_words(),
            ..Measured::default()
        }
    }

    fn lost_words(&self) -> String {
        let losses = &self.facts.losses;
        format!(
            "{} of what was allocated ({}, {})",
            share(self.lost_percent()),
            render::counted(losses.blocks, "block"),
            size(losses.bytes)
        )
    }

    /// The larger of the lost shares of blocks and of bytes.
    fn lost_percent(&self) -> f64 {
        let Facts {
            losses,
            events,
            recorded_bytes,
            ..
        } = self.facts;
        let bytes = recorded_bytes.saturating_add(losses.bytes);
        let blocks = events.allocations.max(losses.blocks);
        percent(losses.blocks, blocks).max(percent(losses.bytes, bytes))
    }

    fn incomplete(&self) -> Measured {
        let [complete, all] = self.facts.walks;
        let incomplete = all.saturating_sub(complete);
        let percent = percent(incomplete, all);
        Measured {
            values: vec![(percent, 0.0)],
            words: format!(
                "{} of allocations ({incomplete} of {all}) have no complete stack",
                share(percent)
            ),
            ..Measured::default()
        }
    }

    /// Reasons why results may be wrong.
    fn doubts(&self) -> Vec<Doubt> {
        let Facts { losses, events, .. } = self.facts;
        let frees = percent(losses.frees, events.frees.saturating_add(losses.frees));
        let (is_lossy, misses_frees) = (
            self.max_lost.is_exceeded_by(self.lost_percent()),
            self.max_lost.is_exceeded_by(frees),
        );
        let doubt = |about, reason| Doubt { reason, about };
        let doubts = [
            (events.allocations == 0).then(|| {
                let reason = "no allocation was seen, so nothing can be decided";
                doubt(DoubtKind::Everything, reason.to_owned())
            }),
            self.doubt
                .map(|reason| doubt(DoubtKind::Everything, reason.to_owned())),
            is_lossy.then(|| {
                let reason = format!(
                    "{} was lost, more than --max-lost {}: the report gives the cause, and the option to \
                     change",
                    self.lost_words(),
                    self.max_lost
                );
                doubt(DoubtKind::TooLittle, reason)
            }),
            (losses.processes > 0).then(|| {
                let reason = format!(
                    "{} processes were not traced, as there were too many",
                    losses.processes
                );
                doubt(DoubtKind::TooLittle, reason)
            }),
            (losses.beginnings > 0).then(|| {
                let programs = render::counted(losses.beginnings, "program");
                let reason = format!(
                    "the first allocations of {programs} that a traced process executed were not seen"
                );
                doubt(DoubtKind::TooLittle, reason)
            }),
            misses_frees.then(|| {
                let reason = format!(
                    "{} of frees were not seen, more than --max-lost {}: their blocks count as outstanding",
                    share(frees),
                    self.max_lost
                );
                doubt(DoubtKind::TooMuch, reason)
            }),
        ];
        let of_verdict = self.facts.verdict.iter().flat_map(verdict_doubts);
        doubts.into_iter().flatten().chain(of_verdict).collect()
    }
}

/// Reasons why the verdict on lost blocks may be wrong or incomplete.
pub(super) fn verdict_doubts(facts: &VerdictFacts) -> Vec<Doubt> {
    let VerdictFacts {
        freed_later,
        unjudged,
    } = facts;
    let blocks = |amount: &Amount| render::counted(amount.blocks, "block");
    let freed = (freed_later.blocks > 0).then(|| Doubt {
        reason: format!(
            "{} that an earlier verdict called lost {} freed since: a verdict of this trace was false",
            blocks(freed_later),
            if freed_later.blocks == 1 { "was" } else { "were" }
        ),
        about: DoubtKind::Lost,
    });
    let unjudged = (unjudged.blocks > 0).then(|| Doubt {
        reason: format!("{} could not be judged: the report says why", blocks(unjudged)),
        about: DoubtKind::LostTooLittle,
    });
    freed.into_iter().chain(unjudged).collect()
}

/// Decides by the values and their margins.
pub(super) fn outcome_of(condition: &Condition, values: &[Value]) -> Outcome {
    let exceeds = |offset: f64| {
        let mut values = values.iter();
        values.any(|(value, error)| condition.is_exceeded_by(value + offset * error))
    };
    if exceeds(-1.0) {
        Outcome::Exceeded
    } else if exceeds(1.0) {
        Outcome::Inconclusive(
            "the limit is within two standard errors of the estimate: record more allocations (a smaller --sample-bytes \
             or -s, or neither)"
                .to_owned(),
        )
    } else {
        Outcome::Passed
    }
}

/// Makes an outcome inconclusive if a doubt could change it.
pub(super) fn doubted(outcome: Outcome, condition: &Condition, doubts: &[Doubt]) -> Outcome {
    let measure = condition.measure();
    // Shares are relative to what was seen, and allocations do not depend on frees.
    let is_share = matches!(measure, Measure::Lost | Measure::Incomplete);
    let is_outstanding = !is_share && !matches!(measure, Measure::Allocated | Measure::Allocations);
    // Missed allocations can only hide an excess, and missed frees can only cause one, so each can change one
    // verdict.
    let applies = |doubt: &&Doubt| match (doubt.about, &outcome) {
        (DoubtKind::Everything, Outcome::Passed) => true,
        (DoubtKind::TooLittle, Outcome::Passed) => !is_share,
        (DoubtKind::TooMuch, Outcome::Exceeded) => is_outstanding,
        (DoubtKind::Lost, Outcome::Passed | Outcome::Exceeded)
        | (DoubtKind::LostTooLittle, Outcome::Passed) => measure.is_of_verdict(),
        _ => false,
    };
    match doubts.iter().find(applies) {
        Some(doubt) => Outcome::Inconclusive(doubt.reason.clone()),
        None => outcome,
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "beyond 2^53 one more or less decides nothing"
)]
pub(super) fn of_bytes(estimate: &Estimate) -> Value {
    let error = estimate.spread.standard_error();
    (estimate.amount.bytes as f64, ERRORS * error.bytes)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "beyond 2^53 one more or less decides nothing"
)]
pub(super) fn of_blocks(estimate: &Estimate) -> Value {
    let error = estimate.spread.standard_error();
    (estimate.amount.blocks as f64, ERRORS * error.blocks)
}

/// Formats an amount, with its standard error if it is an estimate.
pub(super) fn in_blocks(estimate: &Estimate) -> String {
    let Amount { bytes, blocks } = estimate.amount;
    let error = estimate.spread.standard_error();
    let exact = format!("{} in {}", size(bytes), render::counted(blocks, "block"));
    match error.bytes > 0.0 || error.blocks > 0.0 {
        true => format!(
            "{exact} (± {:.0} B and {:.0} blocks, standard error)",
            error.bytes, error.blocks
        ),
        false => exact,
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a share needs no more than a few digits"
)]
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}
