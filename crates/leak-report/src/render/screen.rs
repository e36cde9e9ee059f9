//! Lines that fit the terminal.

use std::io::{self, Write};

use super::cells::wrap;

/// Width of the output, and whether it is verbose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// Columns of the terminal; `None` if lines can have any length.
    pub width: Option<usize>,
    /// True if each report contains everything.
    pub is_verbose: bool,
}

/// Writes a text in lines that fit the screen, with a hanging indent.
pub(super) fn write_wrapped(text: &str, indent: &str, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    let Some(width) = screen.width else {
        return writeln!(out, "{indent}{text}");
    };
    let deeper = "  ";
    let columns = width.saturating_sub(indent.len() + deeper.len()).max(1);
    for (at, line) in wrap(text, columns).into_iter().enumerate() {
        let hang = if at == 0 { "" } else { deeper };
        writeln!(out, "{indent}{hang}{}", line.trim_end())?;
    }
    Ok(())
}
