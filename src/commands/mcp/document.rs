//! The part of a report's JSON (`docs/report.schema.json`) that tools answer from. It is parsed from reports
//! that this memleak makes, and from files that come from elsewhere.

use std::collections::BTreeMap;

use serde::Deserialize;

use leak_report::model::Report;
use leak_report::render::{Format, render};

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Amount {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    fn without(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

/// A report.
#[derive(Debug, Deserialize)]
pub struct Document {
    pub(super) duration_ns: u64,
    pub(super) source: String,
    pub(super) sampling: Option<serde_json::Value>,
    pub(super) targets: Vec<Target>,
    pub(super) outstanding: Amount,
    pub(super) allocated: Amount,
    pub(super) lost: Amount,
    pub(super) unwinding: Unwinding,
    #[serde(default)]
    pub(super) verdict: Option<Verdict>,
    pub(super) stacks: Vec<Stack>,
    /// Sum of the stacks that `-T` left out of the file.
    #[serde(default)]
    pub(super) others: Option<Others>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) exe: Option<String>,
    pub(super) ended: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Unwinding {
    /// Number of walks by their end.
    pub(super) allocations: BTreeMap<String, u64>,
}

/// Outstanding amounts, by verdict.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Verdict {
    pub(super) definitely_lost: Amount,
    pub(super) indirectly_lost: Amount,
    pub(super) reachable: Amount,
    pub(super) unknown: Amount,
}

#[derive(Debug, Deserialize)]
pub(super) struct Others {
    pub(super) stacks: u64,
    pub(super) outstanding: Amount,
}

#[derive(Debug, Deserialize)]
pub(super) struct Stack {
    pub(super) pid: u32,
    pub(super) allocator: String,
    pub(super) site: String,
    pub(super) responsible: Option<Responsible>,
    outstanding: Amount,
    pub(super) allocated: Amount,
    young: Option<Amount>,
    pub(super) suspicion: Option<Suspicion>,
    #[serde(default)]
    pub(super) verdict: Option<Verdict>,
    pub(super) end: String,
    pub(super) frames: Vec<Frame>,
    #[serde(default)]
    pub(super) suppressed_by: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Responsible {
    pub(super) symbol: String,
    /// Index in the stack's frames.
    frame: usize,
    /// Index among the functions that are inlined in that frame.
    inlined: Option<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Suspicion {
    pub(super) score: u64,
    pub(super) bytes_per_second: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Frame {
    pub(super) module: Option<String>,
    pub(super) address: Option<String>,
    pub(super) pc: String,
    #[serde(flatten)]
    pub(super) function: Function,
    pub(super) inlined: Vec<Function>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function {
    symbol: Option<String>,
    #[serde(default)]
    symbol_short: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

impl Function {
    /// Name, as formats for people show it.
    pub(super) fn name(&self) -> Option<&str> {
        self.symbol_short.as_deref().or(self.symbol.as_deref())
    }
}

impl Stack {
    /// The responsible function, with its place in the source.
    pub(super) fn responsible_function(&self) -> Option<&Function> {
        let responsible = self.responsible.as_ref()?;
        let frame = self.frames.get(responsible.frame)?;
        match responsible.inlined {
            Some(number) => frame.inlined.get(number),
            None => Some(&frame.function),
        }
    }

    /// Outstanding blocks without young ones.
    pub(super) fn shown(&self) -> Amount {
        self.outstanding.without(self.young.unwrap_or_default())
    }
}

impl Document {
    /// Parses a line of `--format json`.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|error| format!("not a report of memleak in JSON: {error}"))
    }

    pub(super) fn of(report: &Report) -> Result<Self, String> {
        let mut line = Vec::new();
        render(report, Format::Json, &mut line).map_err(|error| error.to_string())?;
        Self::parse(&line)
    }
}
