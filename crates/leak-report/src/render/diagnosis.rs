//! A diagnosis for people: one screen. `memleak why`, reports and the page say the same sentences.

use std::time::Duration;

use serde::Serialize;

use super::{printable, share, short_size, signed};
use crate::model::diagnosis::{Among, Cause, Diagnosis, Growth, Holding, Step};

/// Maximum number of causes that are shown.
const MOST: usize = 5;
/// Width of the label of a fact, in columns.
const LABEL: usize = 5;

/// A diagnosis in words, all printable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosisText {
    /// First line: the process, the time, and whether it grows.
    pub headline: String,
    /// The first causes.
    pub causes: Vec<CauseText>,
    /// Last line: steps of the work, and their costs; empty if they are not known.
    pub steps: String,
}

/// A cause in words, all printable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseText {
    /// Kind of the memory, and its part of the growth.
    pub title: String,
    /// Further facts, each with a label.
    pub facts: Vec<(&'static str, String)>,
}

impl From<&Diagnosis> for DiagnosisText {
    fn from(diagnosis: &Diagnosis) -> Self {
        Self {
            headline: headline(diagnosis),
            causes: diagnosis.causes.iter().take(MOST).map(CauseText::from).collect(),
            steps: steps(&diagnosis.steps),
        }
    }
}

impl DiagnosisText {
    /// Copies it with each text changed by `change`.
    pub(super) fn map(&self, change: fn(&str) -> String) -> Self {
        let cause = |cause: &CauseText| {
            let facts = cause.facts.iter();
            CauseText {
                title: change(&cause.title),
                facts: facts.map(|(label, text)| (*label, change(text))).collect(),
            }
        };
        Self {
            headline: change(&self.headline),
            causes: self.causes.iter().map(cause).collect(),
            steps: change(&self.steps),
        }
    }

    /// Lines: the headline, the causes, each below an empty line, and the steps.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.headline.clone()];
        for (number, cause) in (1..).zip(&self.causes) {
            lines.push(String::new());
            lines.push(format!("{number}. {}", cause.title));
            let facts = cause.facts.iter();
            lines.extend(facts.map(|(label, text)| format!("   {label:<LABEL$} {text}")));
        }
        if !self.steps.is_empty() {
            lines.extend([String::new(), self.steps.clone()]);
        }
        lines
    }
}

impl From<&Cause> for CauseText {
    fn from(cause: &Cause) -> Self {
        let site = cause.site.as_ref().map(|site| {
            let function = printable(&site.function);
            match site.source() {
                Some((file, line)) => format!("{function} {}:{line}", printable(file)),
                None => function,
            }
        });
        let facts = [
            ("by", site),
            ("held", cause.holder.as_deref().map(printable)),
            ("means", Some(printable(&cause.meaning))),
            ("next", Some(printable(&cause.next))),
        ];
        let facts = facts
            .into_iter()
            .filter_map(|(label, text)| Some((label, text.filter(|text| !text.is_empty())?)));
        Self {
            title: title(cause),
            facts: facts.collect(),
        }
    }
}

/// Steps of the work, each with its time, and its cost for the process.
fn steps(steps: &[Step]) -> String {
    let step = |step: &Step| {
        let seconds = step.took.as_secs_f64();
        let cost = match (step.cost, step.is_given_up) {
            (Some(cost), true) => format!(" (given up: {} of a CPU)", share(cost)),
            (Some(cost), false) => format!(" ({} of a CPU)", share(cost)),
            (None, _) => String::new(),
        };
        format!("{} {seconds:.0} s{cost}", printable(&step.what))
    };
    match steps {
        [] => String::new(),
        steps => format!(
            "looked at: {}",
            steps.iter().map(step).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Kind of a cause, and its part of the growth, or its amount if it does not grow.
pub fn title(cause: &Cause) -> String {
    let what = cause.kind.words();
    let bytes = short_size(cause.amount.bytes);
    match cause.grows() {
        true => {
            let (part, rate) = (share(cause.share), per_second(cause.bytes_per_second));
            let certainty = cause.certainty.name();
            format!("{what}: {part} of the growth, {rate}, {bytes} by now ({certainty})")
        }
        false => format!("{what}: {bytes}, which do not grow"),
    }
}

/// First line: the process, the time, and whether it grows.
fn headline(diagnosis: &Diagnosis) -> String {
    let growth = growth_in_words(diagnosis);
    let compared = diagnosis
        .among
        .as_ref()
        .map_or(Duration::ZERO, |among| among.took);
    let seconds = diagnosis.took.saturating_sub(compared).as_secs_f64();
    match (&diagnosis.process, &diagnosis.among) {
        (Some(process), None) => {
            let size = short_size(process.bytes);
            format!(
                "{}, {size}, looked at for {seconds:.0} s: {growth}",
                named(process)
            )
        }
        (Some(process), Some(among)) => {
            let (all, size) = (of_all(among), short_size(process.bytes));
            let name = named(process);
            format!("{all}, {name} grows fastest: {size}, looked at for {seconds:.0} s, {growth}")
        }
        (None, Some(among)) => of_none(among, diagnosis.growth),
        // Not made by memleak; a recording can have anything.
        (None, None) => growth,
    }
}

/// First line if no process grows: who holds most.
fn of_none(among: &Among, growth: Growth) -> String {
    let seconds = among.took.as_secs_f64();
    let more = match growth {
        Growth::Grows | Growth::Steady { .. } => String::new(),
        Growth::NotSure { more } => format!(" for certain (not sure yet: {})", minutes(more)),
    };
    let largest = among
        .largest
        .iter()
        .map(|holding| format!("{} {}", named(holding), short_size(holding.bytes)));
    let largest: Vec<_> = largest.collect();
    let most = match largest.is_empty() {
        true => String::new(),
        false => format!("; most of it is held by {}", largest.join(", ")),
    };
    format!(
        "{}, none grows in anonymous memory within {seconds:.0} s{more}{most}",
        of_all(among)
    )
}

fn of_all(among: &Among) -> String {
    let processes = super::counted(among.processes, "process");
    format!("of {processes}")
}

fn named(process: &Holding) -> String {
    format!("{} ({})", printable(&process.comm), process.pid)
}

/// Answer to whether memory grows, in words.
pub fn growth_in_words(diagnosis: &Diagnosis) -> String {
    match diagnosis.growth {
        Growth::Grows => format!("grows by {}", per_second(diagnosis.bytes_per_second)),
        Growth::Steady { at_most } => format!("does not grow (by at most {})", per_second(at_most)),
        Growth::NotSure { more } => format!("not sure yet: {}", minutes(more)),
    }
}

fn minutes(more: Duration) -> String {
    let minutes = more.as_secs().div_ceil(60).max(1);
    super::counted(minutes, "more minute")
}

fn per_second(rate: f64) -> String {
    format!("{}/s", signed(rate).trim_start_matches('+'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    /// Processes that were compared are in the first line; if none grows, so are the largest.
    #[test]
    fn of_several_processes() {
        let mut diagnosis = samples::diagnosis();
        let holding = |comm: &str, bytes| Holding {
            pid: 7,
            comm: comm.to_owned(),
            bytes,
        };
        diagnosis.among = Some(Among {
            processes: 143,
            took: Duration::from_secs(15),
            largest: Vec::new(),
        });
        let first = |diagnosis: &Diagnosis| DiagnosisText::from(diagnosis).headline;
        assert_eq!(
            first(&diagnosis),
            "of 143 processes, server (4242) grows fastest: 29.5 MiB, looked at for 45 s, grows by 1.0 MiB/s"
        );
        diagnosis.process = None;
        diagnosis.growth = Growth::Steady { at_most: 0.0 };
        let among = diagnosis.among.as_mut().expect("several");
        among.largest = vec![holding("data\nbase", 3 << 20), holding("web", 1 << 20)];
        assert_eq!(
            first(&diagnosis),
            "of 143 processes, none grows in anonymous memory within 15 s; most of it is held by data\\nbase (7) 3.0 MiB, web (7) 1.0 MiB"
        );
        diagnosis.growth = Growth::NotSure {
            more: Duration::from_secs(70),
        };
        let unsure = first(&diagnosis);
        assert!(
            unsure.contains(
                "none grows in anonymous memory within 15 s for certain (not sure yet: 2 more minutes);"
            ),
            "{unsure}"
        );
    }

    /// Text of a recording cannot act on a terminal, whichever field it is in; empty sentences have no line.
    #[test]
    fn hostile_text() {
        let mut diagnosis = samples::diagnosis();
        let hostile = "a\u{1b}[2J\nb";
        let process = diagnosis.process.as_mut().expect("one");
        process.comm = hostile.to_owned();
        let cause = &mut diagnosis.causes[0];
        cause.holder = Some(hostile.to_owned());
        cause.meaning = hostile.to_owned();
        cause.next = String::new();
        let site = cause.site.as_mut().expect("a place");
        (site.function, site.file) = (hostile.into(), Some(hostile.into()));
        let lines = DiagnosisText::from(&diagnosis).lines();
        assert!(
            lines.iter().all(|line| !line.contains(char::is_control)),
            "{lines:?}"
        );
        let of_first = lines[3..6].iter().map(|line| line.split_whitespace().next());
        assert_eq!(
            of_first.collect::<Vec<_>>(),
            [Some("by"), Some("held"), Some("means")]
        );
        assert_eq!(lines[6], "");
    }
}
