//! All findings, and what they mean together.

use super::finding::{Finding, Level};
use super::process::ProcessFindings;

/// All findings.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Findings about the machine and this process's rights.
    pub system: Vec<Finding>,
    /// Findings about the process to examine.
    pub process: Option<ProcessFindings>,
}

/// Summary of all findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The worst level of any finding.
    pub level: Level,
    /// Summary in one line.
    pub text: String,
}

impl Diagnosis {
    /// All findings, including those about modules and probes.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        let process = self.process.iter().flat_map(ProcessFindings::findings);
        self.system.iter().cloned().chain(process)
    }

    pub fn summary(&self) -> Summary {
        let level = self
            .findings()
            .map(|finding| finding.level)
            .max()
            .unwrap_or(Level::Fine);
        let texts = |level| {
            let of_level = self.findings().filter(move |finding| finding.level == level);
            of_level.map(|finding| finding.text)
        };
        let subject = match &self.process {
            Some(_) => "this process",
            None => "this machine",
        };
        let text = match level {
            Level::Fatal => format!(
                "cannot trace: {}",
                texts(Level::Fatal).collect::<Vec<_>>().join("; ")
            ),
            Level::Warning => {
                let mut warnings = texts(Level::Warning);
                let first = warnings.next().unwrap_or_default();
                let more = match warnings.count() {
                    0 => String::new(),
                    more => format!("; and {more} more above"),
                };
                format!("{subject} can be traced, but: {first}{more}")
            }
            Level::Fine | Level::Note => match &self.process {
                Some(_) => "this process can be traced, and its stacks should be complete".to_owned(),
                None => "processes can be traced here; -p PID examines one of them".to_owned(),
            },
        };
        Summary { level, text }
    }
}
