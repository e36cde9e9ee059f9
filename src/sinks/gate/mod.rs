//! Checks a trace against conditions, suppressions and a baseline. Findings are logged and, on request,
//! written as annotations and test cases; they determine the exit status.
//!
//! Memory counts as in reports for people: outstanding, not young, of stacks that can be leaks and are not
//! suppressed, at the time of the last report; for an ended program, at its end. The gate reads nothing but
//! reports.

mod baseline;
mod blocks;
mod condition;
mod diagnosed;
mod facts;
mod github;
mod input;
mod junit;
mod outcome;
mod pattern;
mod proposals;
mod settings;
mod site;
mod suppressions;
#[cfg(test)]
mod tests;
mod trend;
mod words;
mod workspace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sinks::output::{Document, OutputError};
use baseline::Baseline;
pub use blocks::check_blocks;
pub use condition::{Condition, Measure, parse};
use facts::{Facts, above_baseline};
pub use input::InputError;
use leak_report::model::diagnosis::Diagnosis;
use leak_report::model::site_name::{SiteName, SiteNames};
use leak_report::model::{Amount, Sampling};
use leak_report::model::{Report, Suppression};
use leak_report::render::{counted, printable, size};
use outcome::{Evidence, Finding, Outcome};
use proposals::Proposal;
pub use settings::{Annotations, MaxLost, Settings, SettingsError};
use site::Site;
use suppressions::Suppressions;
use trend::Trend;
use workspace::Workspace;

/// Parses the text of a suppression file; for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_suppressions(text: &str) -> Result<(), InputError> {
    let lines = input::Lines::of(Path::new("suppressions"), text.to_owned());
    Suppressions::default().add(&lines)
}

/// Exit status if a condition is exceeded.
const EXCEEDED: u8 = 1;
/// Exit status if none is exceeded and one is inconclusive.
const UNRELIABLE: u8 = 3;
/// Maximum number of unused rules that are named.
const MAX_IDLE: usize = 5;

/// Checks reports against conditions, and marks suppressed stacks in them.
pub struct Gate<'a> {
    settings: &'a Settings,
    suppressions: Suppressions,
    baseline: Option<Baseline>,
    documents: Documents,
    names: SiteNames,
    trend: Trend,
    workspace: Workspace,
    /// Taken from the last report.
    last: Option<LastReport>,
    /// Reason why later reports may be missing.
    doubt: Option<String>,
}

/// Files to write at the end.
struct Documents {
    junit: Option<Document>,
    baseline: Option<Document>,
    suppressions: Option<Document>,
}

/// Data kept of the last report.
struct LastReport {
    facts: Facts,
    /// Amounts per site before the baseline is subtracted; empty unless a baseline is to be written.
    outstanding: Vec<(SiteName, Amount)>,
    /// Empty unless suppressions are to be written.
    proposals: Vec<Proposal>,
    /// Suppressed amounts by rule.
    suppressed: Vec<(Arc<Suppression>, Amount)>,
    is_estimated: bool,
}

impl Documents {
    fn prepare(settings: &Settings) -> Result<Self, OutputError> {
        let prepare = |path: Option<&PathBuf>, begin| {
            let document = path.map(|path| Document::prepare(path, begin, settings.overwrite));
            document.transpose()
        };
        Ok(Self {
            junit: prepare(settings.junit.as_ref(), "<?xml")?,
            baseline: prepare(settings.write_baseline.as_ref(), baseline::MAGIC)?,
            suppressions: prepare(settings.write_suppressions.as_ref(), proposals::MAGIC)?,
        })
    }
}

impl<'a> Gate<'a> {
    /// Reads the suppressions and the baseline, and opens the files to write.
    ///
    /// # Errors
    ///
    /// A file cannot be read or parsed, or exists and must not be replaced.
    pub fn open(settings: &'a Settings) -> anyhow::Result<Self> {
        let mut suppressions = Suppressions::default();
        for path in &settings.suppressions {
            suppressions.add_file(path)?;
        }
        let mut names = SiteNames::default();
        let read = |path: &PathBuf| Baseline::read(path, &mut names);
        let baseline = settings.baseline.as_ref().map(read).transpose()?;
        Ok(Self {
            settings,
            suppressions,
            baseline,
            documents: Documents::prepare(settings)?,
            names,
            trend: Trend::default(),
            workspace: Workspace::find(),
            last: None,
            doubt: None,
        })
    }

    /// Checks a report. Returns it with the suppressed stacks marked.
    pub fn check(&mut self, report: &Arc<Report>) -> Arc<Report> {
        let marked = self.marked(report);
        if self.settings.is_enabled() {
            self.last = Some(self.examine(&marked));
        }
        marked
    }

    /// Records an earlier report for growth only.
    pub fn note_earlier(&mut self, report: &Arc<Report>) {
        let report = self.marked(report);
        let sites = site::sites(&report, &mut self.names);
        self.note(&report, &sites);
    }

    /// Makes results inconclusive that missing later reports could change: a condition that is not exceeded
    /// in the last report proves nothing then.
    pub fn doubt(&mut self, reason: String) {
        self.doubt = Some(reason);
    }

    /// Logs the findings and writes the requested files. `status` is the traced program's exit status.
    /// Returns the exit status for the findings, or `None` if no condition was exceeded or inconclusive.
    pub fn finish(mut self, status: u8) -> anyhow::Result<Option<u8>> {
        let Some(last) = self.last.take() else {
            return Ok(None);
        };
        let findings = self.findings(&last.facts);
        log_suppressed(&self.suppressions, &last.suppressed);
        findings.iter().for_each(log_finding);
        self.publish(&findings, last)?;
        let decided = decided(&findings);
        if let Some(decided) = decided.filter(|_| status != 0) {
            tracing::info!("status {decided}; the program's own was {status}");
        }
        Ok(decided)
    }

    /// Writes annotations, test cases, the baseline and proposed suppressions, as requested.
    fn publish(self, findings: &[Finding], last: LastReport) -> anyhow::Result<()> {
        if self.settings.annotations == Some(Annotations::GitHub) {
            let mut out = io::stderr().lock();
            // Without standard error there is nowhere left to report a failure.
            _ = github::lines(findings)
                .iter()
                .try_for_each(|line| writeln!(out, "{line}"));
        }
        if let Some(document) = self.documents.junit {
            let run = junit::Run::new(last.facts.read_at, last.facts.elapsed);
            document.publish(|out| junit::write(findings, &run, out))?;
        }
        if let (Some(document), Some(path)) = (self.documents.baseline, &self.settings.write_baseline) {
            document.publish(|out| baseline::write(&last.outstanding, &self.names, out))?;
            log_written(path, last.outstanding.len(), "site", last.is_estimated);
        }
        if let (Some(document), Some(path)) = (self.documents.suppressions, &self.settings.write_suppressions)
        {
            document.publish(|out| proposals::write(&last.proposals, out))?;
            log_written(path, last.proposals.len(), "proposed rule", false);
        }
        Ok(())
    }

    fn findings(&self, facts: &Facts) -> Vec<Finding> {
        let evidence = Evidence {
            facts,
            trend: &self.trend,
            names: &self.names,
            has_baseline: self.baseline.is_some(),
            max_lost: self.settings.max_lost,
            doubt: self.doubt.as_deref(),
        };
        evidence.decide(&self.settings.conditions)
    }

    /// The report with suppressed stacks marked.
    fn marked(&self, report: &Arc<Report>) -> Arc<Report> {
        if self.suppressions.is_empty() {
            return Arc::clone(report);
        }
        let mut marked = Report::clone(report);
        self.suppressions.mark(&mut marked);
        Arc::new(marked)
    }

    fn examine(&mut self, report: &Report) -> LastReport {
        let sites = site::sites(report, &mut self.names);
        self.note(report, &sites);
        let is_written = self.settings.write_baseline.is_some();
        let outstanding = sites
            .iter()
            .filter(|site| is_written && site.outstanding.amount.blocks > 0);
        let is_proposed = self.settings.write_suppressions.is_some();
        LastReport {
            outstanding: outstanding
                .map(|site| (site.key.clone(), site.outstanding.amount))
                .collect(),
            proposals: match is_proposed {
                true => {
                    let baseline = self.baseline.as_ref();
                    let above_baseline =
                        |site: &Site<'_>| above_baseline(baseline, &site.key, site.outstanding).amount;
                    let above_baseline = sites.iter().map(|site| (site, above_baseline(site)));
                    proposals::propose(report, above_baseline, &self.names)
                }
                false => Vec::new(),
            },
            suppressed: suppressed(report),
            is_estimated: report.sampling != Sampling::All,
            facts: Facts::of(
                report,
                &sites,
                self.baseline.as_ref(),
                &mut self.names,
                &mut self.workspace,
            ),
        }
    }

    /// Adds the outstanding memory of running processes to the trend, if a condition is about growth. Ended
    /// processes are left out: memory at a program's end shows what it left after cleaning up, not how it
    /// grew.
    #[allow(
        clippy::cast_precision_loss,
        reason = "growth needs no more than a few digits"
    )]
    fn note(&mut self, report: &Report, sites: &[Site<'_>]) {
        let runs = report.targets.iter().any(|target| target.ended.is_none());
        if !runs || !self.settings.is_about_growth() {
            return;
        }
        let seconds = report.elapsed.as_secs_f64();
        if report.compared.marked.is_some() {
            let marked = report.elapsed.saturating_sub(report.compared.since_baseline);
            self.trend.begin_at(marked.as_secs_f64());
        }
        let baseline = self.baseline.as_ref();
        let running = sites.iter().filter(|site| site.running.amount.blocks > 0);
        let running = running.map(|site| {
            let above_baseline = above_baseline(baseline, &site.key, site.running);
            (&site.key, above_baseline.amount.bytes as f64)
        });
        let variance: f64 = sites.iter().map(|site| site.running.spread.bytes as f64).sum();
        self.trend.note(seconds, running, variance);
    }
}

/// Checks a diagnosis against conditions and logs the findings. Returns the exit status, or `None` if no
/// condition was exceeded or inconclusive. Skips conditions on other measures.
pub fn check_diagnosis(conditions: &[Condition], diagnosis: &Diagnosis) -> Option<u8> {
    let conditions = conditions
        .iter()
        .filter(|condition| condition.measure().is_of_diagnosis());
    let findings: Vec<_> = conditions
        .map(|condition| diagnosed::finding(condition, diagnosis, None))
        .collect();
    findings.iter().for_each(log_finding);
    decided(&findings)
}

/// Sums the suppressed amounts by rule.
fn suppressed(report: &Report) -> Vec<(Arc<Suppression>, Amount)> {
    let mut sums: Vec<(Arc<Suppression>, Amount)> = Vec::new();
    for stack in report.stacks() {
        let (Some(by), outstanding) = (&stack.suppressed_by, stack.shown()) else {
            continue;
        };
        match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, by)) {
            Some((_, sum)) => *sum = *sum + outstanding,
            None => sums.push((by.clone(), outstanding)),
        }
    }
    sums.retain(|(_, outstanding)| outstanding.blocks > 0);
    sums
}

/// Logs what each rule suppressed, and the rules that suppressed nothing, as they may later hide something
/// else.
fn log_suppressed(suppressions: &Suppressions, used: &[(Arc<Suppression>, Amount)]) {
    for (by, outstanding) in used {
        let (bytes, blocks) = (size(outstanding.bytes), counted(outstanding.blocks, "block"));
        tracing::info!("suppressed: {bytes} in {blocks} by {}", named(by));
    }
    let is_idle = |rule: &&Arc<Suppression>| !used.iter().any(|(by, _)| Arc::ptr_eq(by, rule));
    let idle: Vec<_> = suppressions.iter().filter(is_idle).collect();
    if !idle.is_empty() {
        let some: Vec<_> = idle.iter().take(MAX_IDLE).map(|rule| named(rule)).collect();
        let more = if idle.len() > some.len() { ", …" } else { "" };
        let rules = counted(idle.len() as u64, "rule");
        tracing::info!("{rules} suppressed nothing: {}{more}", some.join(", "));
    }
}

fn named(Suppression { rule, place }: &Suppression) -> String {
    format!("{rule} ({})", printable(place))
}

/// Logs one line for a finding, and one for each of its sites unless the condition passed.
fn log_finding(finding: &Finding) {
    let Finding { condition, found, .. } = finding;
    match &finding.outcome {
        Outcome::Passed if finding.is_untried => tracing::warn!("{condition}: not exceeded: {found}"),
        Outcome::Passed => tracing::info!("{condition}: not exceeded: {found}"),
        Outcome::Exceeded => tracing::error!("{condition}: exceeded: {found}"),
        Outcome::Inconclusive(reason) if found.is_empty() => {
            tracing::error!("{condition}: inconclusive: {reason}")
        }
        Outcome::Inconclusive(reason) => tracing::error!("{condition}: inconclusive: {found}, but {reason}"),
    }
    if finding.outcome == Outcome::Passed {
        return;
    }
    for culprit in &finding.culprits {
        let place = culprit.source.as_ref();
        let place = place.map_or_else(String::new, |source| {
            format!(" ({}:{})", source.file, source.line)
        });
        tracing::info!("  {}: {}{place}", culprit.amount, culprit.site);
    }
}

fn log_written(path: &Path, count: usize, noun: &str, is_estimated: bool) {
    let estimated = match is_estimated {
        true => ", as estimated: not every allocation was recorded",
        false => "",
    };
    let count = counted(count as u64, noun);
    tracing::info!("wrote {count} to {}{estimated}", path.display());
}

/// The exit status for the findings; exceeded takes precedence over inconclusive.
fn decided(findings: &[Finding]) -> Option<u8> {
    let any = |is_such: fn(&Outcome) -> bool| findings.iter().any(|finding| is_such(&finding.outcome));
    if any(|outcome| *outcome == Outcome::Exceeded) {
        Some(EXCEEDED)
    } else if any(|outcome| matches!(outcome, Outcome::Inconclusive(_))) {
        Some(UNRELIABLE)
    } else {
        None
    }
}
