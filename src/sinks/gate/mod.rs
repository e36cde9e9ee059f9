//! Holds a trace against what the user allows: conditions, suppressions, a baseline. What fails is said on standard error,
//! and, if asked for, as annotations and as test cases; the exit status follows from it.
//!
//! What counts is what reports for people show: what is outstanding and not young, of stacks that can be leaks and are not
//! suppressed, at the time of the last report; of a program that has ended, what it held then. Nothing here looks at the
//! process: everything comes from its reports.

mod baseline;
mod condition;
mod facts;
mod github;
mod input;
mod junit;
mod pattern;
mod proposals;
mod settings;
mod site;
mod suppressions;
#[cfg(test)]
mod tests;
mod trend;
mod verdict;
mod words;
mod workspace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sinks::output::{Document, OutputError};
use baseline::Baseline;
pub use condition::{Condition, ConditionError, Measure, parse};
use facts::{Facts, beyond};
pub use input::InputError;
use leak_report::model::site_name::{SiteName, SiteNames};
use leak_report::model::{Amount, Sampling};
use leak_report::model::{Report, Suppression};
use leak_report::render::{counted, printable, size};
use proposals::Proposal;
pub use settings::{Annotations, MaxLost, Settings, SettingsError};
use site::Site;
use suppressions::Suppressions;
use trend::Trend;
use verdict::{Evidence, Finding, Verdict};
use workspace::Workspace;

/// Whether the text of a file is one of suppressions: for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_suppressions(text: &str) -> Result<(), InputError> {
    let lines = input::Lines::of(Path::new("suppressions"), text.to_owned());
    Suppressions::default().add(&lines)
}

/// A condition is met.
const EXCEEDED: u8 = 1;
/// A condition cannot be told to hold.
const UNRELIABLE: u8 = 3;
/// Rules that did nothing and are named.
const MAX_IDLE: usize = 5;

/// Checks reports against conditions, and marks what is suppressed in them.
pub struct Gate<'a> {
    settings: &'a Settings,
    suppressions: Suppressions,
    baseline: Option<Baseline>,
    documents: Documents,
    names: SiteNames,
    trend: Trend,
    workspace: Workspace,
    /// Of the last report.
    last: Option<Kept>,
    /// Why there may have been later ones.
    doubt: Option<String>,
}

/// What is written at the end.
struct Documents {
    junit: Option<Document>,
    baseline: Option<Document>,
    suppressions: Option<Document>,
}

/// What is kept of a report.
struct Kept {
    facts: Facts,
    /// What counts, whatever the baseline says; only if it is to be written.
    held: Vec<(SiteName, Amount)>,
    /// Only if they are to be written.
    proposals: Vec<Proposal>,
    /// What was left out, by the rule that did it.
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
    /// Reads what the user allows, and prepares what is to be written.
    ///
    /// # Errors
    ///
    /// A file cannot be read, does not say what it should, or is there and may not be replaced.
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

    /// Checks a report. Returns it with what is suppressed marked, as it is to be shown.
    pub fn check(&mut self, report: &Arc<Report>) -> Arc<Report> {
        let marked = self.marked(report);
        if self.settings.is_enabled() {
            self.last = Some(self.look_at(&marked));
        }
        marked
    }

    /// Notes a report before those that are checked, for how fast things grow. It goes nowhere else.
    pub fn note_earlier(&mut self, report: &Arc<Report>) {
        let report = self.marked(report);
        let sites = site::sites(&report, &mut self.names);
        self.note(&report, &sites);
    }

    /// Notes that there may have been later reports than those that are checked, and why: what the last of them holds
    /// proves nothing then.
    pub fn doubt(&mut self, reason: String) {
        self.doubt = Some(reason);
    }

    /// Says what the last report came to, and writes what is to be written. `status` is that of the program that was
    /// traced. Returns the exit status that follows; `None` if nothing does.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn finish(mut self, status: u8) -> anyhow::Result<Option<u8>> {
        let Some(last) = self.last.take() else {
            return Ok(None);
        };
        let findings = self.findings(&last.facts);
        say_suppressed(&self.suppressions, &last.suppressed);
        findings.iter().for_each(say);
        self.publish(&findings, last)?;
        let decided = decided(&findings);
        if let Some(decided) = decided.filter(|_| status != 0) {
            tracing::info!("status {decided}; the program's own was {status}");
        }
        Ok(decided)
    }

    /// Writes findings for others, and what counts.
    fn publish(self, findings: &[Finding], last: Kept) -> anyhow::Result<()> {
        if self.settings.annotations == Some(Annotations::GitHub) {
            let mut out = io::stderr().lock();
            // Nothing is left to tell if standard error is gone.
            _ = github::lines(findings)
                .iter()
                .try_for_each(|line| writeln!(out, "{line}"));
        }
        if let Some(document) = self.documents.junit {
            let run = junit::Run::new(last.facts.read_at, last.facts.elapsed);
            document.publish(|out| junit::write(findings, &run, out))?;
        }
        if let (Some(document), Some(path)) = (self.documents.baseline, &self.settings.write_baseline) {
            document.publish(|out| baseline::write(&last.held, &self.names, out))?;
            say_written(path, last.held.len(), "site", last.is_estimated);
        }
        if let (Some(document), Some(path)) = (self.documents.suppressions, &self.settings.write_suppressions)
        {
            document.publish(|out| proposals::write(&last.proposals, out))?;
            say_written(path, last.proposals.len(), "proposed rule", false);
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

    /// The report, with what is suppressed marked.
    fn marked(&self, report: &Arc<Report>) -> Arc<Report> {
        if self.suppressions.is_empty() {
            return Arc::clone(report);
        }
        let mut marked = Report::clone(report);
        self.suppressions.mark(&mut marked);
        Arc::new(marked)
    }

    fn look_at(&mut self, report: &Report) -> Kept {
        let sites = site::sites(report, &mut self.names);
        self.note(report, &sites);
        let is_written = self.settings.write_baseline.is_some();
        let held = sites.iter().filter(|_| is_written);
        let is_proposed = self.settings.write_suppressions.is_some();
        Kept {
            held: held.map(|site| (site.key.clone(), site.held.amount)).collect(),
            proposals: match is_proposed {
                true => {
                    let baseline = self.baseline.as_ref();
                    let beyond = |site: &Site<'_>| beyond(baseline, &site.key, site.held).amount;
                    let beyond = sites.iter().map(|site| (site, beyond(site)));
                    proposals::propose(report, beyond, &self.names)
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

    /// Notes what runs and what it holds now, if growth is asked for. What has ended grows no more: what a program holds at
    /// its end says what it left, after it may have cleaned up, not how it grew.
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
            let beyond = beyond(baseline, &site.key, site.running);
            (&site.key, beyond.amount.bytes as f64)
        });
        let variance: f64 = sites.iter().map(|site| site.running.spread.bytes as f64).sum();
        self.trend.note(seconds, running, variance);
    }
}

/// What was left out, by the rule that did it.
fn suppressed(report: &Report) -> Vec<(Arc<Suppression>, Amount)> {
    let mut sums: Vec<(Arc<Suppression>, Amount)> = Vec::new();
    for stack in report.stacks() {
        let (Some(by), held) = (&stack.suppressed_by, stack.shown()) else {
            continue;
        };
        match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, by)) {
            Some((_, sum)) => *sum = *sum + held,
            None => sums.push((by.clone(), held)),
        }
    }
    sums.retain(|(_, held)| held.blocks > 0);
    sums
}

/// What each rule left out; which ones did nothing, as they may hide something else one day.
fn say_suppressed(suppressions: &Suppressions, used: &[(Arc<Suppression>, Amount)]) {
    for (by, held) in used {
        let (bytes, blocks) = (size(held.bytes), counted(held.blocks, "block"));
        tracing::info!("suppressed: {bytes} in {blocks} by {}", named(by));
    }
    let is_idle = |rule: &&Arc<Suppression>| !used.iter().any(|(by, _)| Arc::ptr_eq(by, rule));
    let idle: Vec<_> = suppressions.iter().filter(is_idle).collect();
    if !idle.is_empty() {
        let some: Vec<_> = idle.iter().take(MAX_IDLE).map(|rule| named(rule)).collect();
        let more = if idle.len() > some.len() { ", …" } else { "" };
        let rules = counted(idle.len() as u64, "rule");
        tracing::info!(
            "nothing outstanding is suppressed by {rules}: {}{more}",
            some.join(", ")
        );
    }
}

fn named(Suppression { rule, place }: &Suppression) -> String {
    format!("{rule} ({})", printable(place))
}

/// A line for a condition, and one for each site to look at.
fn say(finding: &Finding) {
    let Finding { condition, found, .. } = finding;
    match &finding.verdict {
        Verdict::Held if finding.is_untried => tracing::warn!("{condition}: not exceeded: {found}"),
        Verdict::Held => tracing::info!("{condition}: not exceeded: {found}"),
        Verdict::Exceeded => tracing::error!("{condition}: exceeded: {found}"),
        Verdict::Unsure(reason) if found.is_empty() => {
            tracing::error!("{condition}: inconclusive: {reason}")
        }
        Verdict::Unsure(reason) => tracing::error!("{condition}: inconclusive: {found}, but {reason}"),
    }
    if finding.verdict == Verdict::Held {
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

fn say_written(path: &Path, count: usize, noun: &str, is_estimated: bool) {
    let estimated = match is_estimated {
        true => ", as estimated: not every allocation was recorded",
        false => "",
    };
    let count = counted(count as u64, noun);
    tracing::info!("wrote {count} to {}{estimated}", path.display());
}

/// The status that findings make: what is exceeded weighs more than what cannot be told.
fn decided(findings: &[Finding]) -> Option<u8> {
    let any = |is_such: fn(&Verdict) -> bool| findings.iter().any(|finding| is_such(&finding.verdict));
    if any(|verdict| *verdict == Verdict::Exceeded) {
        Some(EXCEEDED)
    } else if any(|verdict| matches!(verdict, Verdict::Unsure(_))) {
        Some(UNRELIABLE)
    } else {
        None
    }
}
