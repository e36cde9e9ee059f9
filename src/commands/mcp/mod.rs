//! `memleak mcp`: answers questions about reports by the Model Context Protocol, on standard input and
//! output.
//!
//! ```text
//! recordings, JSON reports ─► source ─┐
//! a trace ─► kept ────────────────────┴─► document ─► tools ─► protocol ◄─► standard input and output
//! ```
//!
//! Reads only the sources that the command line names, and writes only answers, each of bounded length:
//! neither the client nor the names in a report can cause anything else.

mod document;
mod kept;
mod lines;
mod protocol;
mod source;
#[cfg(test)]
mod tests;
mod tools;

use std::io::{self, BufRead, Write};

pub use kept::Kept;
use lines::Line;
use protocol::Server;
pub use source::{Files, is_process};
pub use tools::Reports;

/// Answers requests until the input ends.
///
/// # Errors
///
/// Fails if the input cannot be read, or the output not written.
pub fn serve(reports: &mut dyn Reports, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut server = Server::new(reports);
    loop {
        let answer = match lines::next(input)? {
            Line::End => return Ok(()),
            Line::Whole(line) if line.trim_ascii().is_empty() => None,
            Line::Whole(line) => server.answer(&line),
            Line::TooLong => Some(protocol::too_long()),
        };
        if let Some(answer) = answer {
            leak_report::render::write_json(&answer, output)?;
            output.write_all(b"\n")?;
            output.flush()?;
        }
    }
}
