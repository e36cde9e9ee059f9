//! The formats that a report can be written in.
//!
//! [`Report`] is plain data that contains everything any format needs; a format is one file with one
//! function. Nothing here resolves symbols, reads a clock, or knows where the output goes.

mod bcc;
mod blocks;
mod calls;
pub mod cells;
mod diagnosis;
mod dialect;
mod elsewhere;
pub mod ends;
mod estimates;
pub mod flame;
mod format;
mod formats;
mod gperftools;
mod health;
mod heaptrack;
mod holders;
mod html;
mod json;
mod kernel;
mod libbpf;
mod makeup;
mod memory;
mod missing;
mod modules;
mod occasion;
mod order;
mod otlp;
mod overhead;
pub mod paint;
mod paths;
mod peak;
mod people;
mod pinned;
mod pprof;
mod recent;
mod regions;
pub mod runtimes;
mod screen;
mod speedscope;
mod summary;
mod suppressed;
#[cfg(test)]
mod tests;
mod text;
pub mod titles;
mod verdict;
mod words;

use std::sync::Arc;

pub use crate::model::printable::printable;
use crate::model::{FrameRef, Report, Vitals};
pub use calls::{Call, CallFormat, Reports};
pub use diagnosis::{
    CauseText, DiagnosisText, growth_in_words as diagnosis_in_words, title as cause_in_words,
};
pub use dialect::{Stage, StderrLine};
pub use ends::explain;
pub use estimates::{error, whole};
pub use format::{Format, Span};
pub use formats::render;
pub use health::{line, losses_in_short};
pub use holders::{chain_in_words, holder_lines, root_in_words};
pub use html::{Limits, Page};
pub use json::{
    DiagnosisJson, FrameJson, JudgementJson, LeftOutJson, LostJson, SCHEMA_VERSION, frames as frames_json,
    render_top as render_top_json, write as write_json,
};
pub use otlp::Request;
pub use overhead::{CHEAP, SAMPLED, cheaper_ways, forecast};
pub use peak::telling as telling_peak;
pub use people::INDENT;
pub use people::People;
pub use pprof::{Amounts, Part, Shown, pulled};
pub use recent::{rate as growth_rate, signed};
pub use screen::Screen;
pub use text::{FrameStyle, end_of, via};
pub use verdict::{
    doubts as verdict_doubts, in_words as verdict_in_words, lines_of as verdict_lines,
    of_stack as verdict_of_stack,
};
pub use words::{counted, percent, rate, share, short_size, size};

/// A frame in one line, without its source: `function+0xoffset [module]`.
pub fn frame_name(frame: FrameRef<'_>) -> String {
    text::named(frame)
}

/// Destination of a trace's reports, one after another, and of other events of the trace.
pub trait ReportSink {
    /// Handles a report, which other sinks may receive too.
    ///
    /// # Errors
    ///
    /// Fails if the report cannot be delivered; the trace ends.
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()>;

    /// Handles a stage of the trace.
    ///
    /// # Errors
    ///
    /// Fails as [`ReportSink::report`] does.
    fn stage(&mut self, stage: &Stage<'_>) -> anyhow::Result<()> {
        _ = stage;
        Ok(())
    }

    /// Handles allocator calls, if they are traced one by one.
    ///
    /// # Errors
    ///
    /// Fails as [`ReportSink::report`] does.
    fn calls(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        _ = calls;
        Ok(())
    }

    /// Called several times a second between reports; `read_vitals` reads the trace's counters at some cost.
    ///
    /// # Errors
    ///
    /// Returns the error of `read_vitals`.
    fn poll(&mut self, read_vitals: &mut dyn FnMut() -> anyhow::Result<Vitals>) -> anyhow::Result<()> {
        _ = read_vitals;
        Ok(())
    }

    /// Called several times a second before the trace begins, while memleak waits for something that `text`
    /// names.
    fn waiting(&mut self, text: &str) {
        _ = text;
    }

    /// Called before a report is made, which can take a while; `is_last` if it is the last of the trace.
    fn report_pending(&mut self, is_last: bool) {
        _ = is_last;
    }
}
