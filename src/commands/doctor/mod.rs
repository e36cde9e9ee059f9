//! `memleak doctor`: says before a trace whether there can be one, and how complete its stacks will be.
//!
//! Reads, and tries to load and attach in this process itself; a process that is asked about is only read. Each
//! finding is one line with its remedy; what they come to is the verdict.

mod attach;
mod json;
mod modules;
mod process;
mod system;
mod text;

use std::io::{self, Write};

use crate::sinks::output;
pub use modules::{ModuleFinding, TableFinding};
pub use process::ProcessFindings;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One object.
    Json,
}

/// What to look at and how to say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The process, if it is about one.
    pub pid: Option<u32>,
    /// The form of the output.
    pub format: Format,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Something will be missing from reports.
    Warning,
    /// There can be no trace.
    Fatal,
}

impl Level {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fatal => "fatal",
        }
    }
}

/// One thing that was found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is about: a stable name.
    pub topic: &'static str,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            level,
            topic,
            text: text.into(),
            remedy: None,
        }
    }

    fn fine(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fine, topic, text)
    }

    fn note(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Note, topic, text)
    }

    fn warning(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Warning, topic, text)
    }

    fn fatal(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fatal, topic, text)
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// Everything that was found out.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// About the machine and this process's rights.
    pub system: Vec<Finding>,
    /// About the process that was asked about.
    pub process: Option<ProcessFindings>,
}

/// What all findings come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The worst level of any finding.
    pub level: Level,
    /// In one line.
    pub text: String,
}

impl Diagnosis {
    /// All findings, those about modules as findings too.
    fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        let process = self.process.iter().flat_map(ProcessFindings::findings);
        self.system.iter().cloned().chain(process)
    }

    /// What it all comes to.
    pub fn verdict(&self) -> Verdict {
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
                None => "processes can be traced here; -p PID looks at one of them".to_owned(),
            },
        };
        Verdict { level, text }
    }
}

/// Looks at everything and writes what it found. Returns whether there can be a trace.
///
/// # Errors
///
/// `out` cannot be written.
pub fn run(options: Options, out: &mut dyn Write) -> io::Result<bool> {
    let mut system = system::findings();
    system.extend(attach::findings());
    let diagnosis = Diagnosis {
        system,
        process: options.pid.map(process::examine),
    };
    match options.format {
        Format::Text => output::paint(output::is_painted(), out, |out| text::render(&diagnosis, out))?,
        Format::Json => json::render(&diagnosis, out)?,
    }
    out.flush()?;
    Ok(diagnosis.verdict().level < Level::Fatal)
}
