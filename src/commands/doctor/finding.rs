//! A finding: one line, with its severity and its remedy.

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Something will be missing from reports.
    Warning,
    /// No trace is possible.
    Fatal,
}

impl Level {
    /// Stable name, in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fatal => "fatal",
        }
    }
}

/// A fact about the machine or the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    /// Stable name of its subject.
    pub topic: &'static str,
    pub text: String,
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(level: Level, topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            level,
            topic,
            text: text.into(),
            remedy: None,
        }
    }

    pub(super) fn fine(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fine, topic, text)
    }

    pub(super) fn note(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Note, topic, text)
    }

    pub(super) fn warning(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Warning, topic, text)
    }

    pub(super) fn fatal(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fatal, topic, text)
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
