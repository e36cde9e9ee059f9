//! Names and lines of CPython's code, from the copied parts of a process's code objects: text, and the table
//! that leads from an instruction to its line.
//!
//! Pure. All bytes are untrusted: they are from a process's memory, which may have changed while they were
//! copied.

mod lines;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use leak_report::model::{Symbol, Symbolized};

pub use self::lines::LineTable;
use memleak_process::python::TextState;

/// Maximum number of bytes of a text that are decoded.
pub const MAX_TEXT: usize = 4096;
/// Characters in place of omitted text, and of a character that is invalid or cannot be shown.
const CUT: char = '…';
const UNKNOWN: char = char::REPLACEMENT_CHARACTER;

/// End of a text that is kept if it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Start,
    End,
}

/// Decodes the text of a `str` with this state and number of characters, of which the bytes at one end were
/// copied. Omitted text is marked by `…`. Control characters and invalid ones become U+FFFD. `None` if there
/// is no text, or if the characters are not in the object itself.
pub fn decode_text(state: TextState, length: u64, bytes: &[u8], kept: Kept) -> Option<String> {
    let width = state.character_bytes().filter(|_| state.is_compact())?;
    let whole = length
        .checked_mul(width as u64)
        .and_then(|whole| usize::try_from(whole).ok());
    let copied = bytes.len().min(whole.unwrap_or(usize::MAX)).min(MAX_TEXT) / width * width;
    let shown = match kept {
        Kept::Start => bytes.get(..copied)?,
        // The copied bytes end with the last character.
        Kept::End => bytes.get(bytes.len() - copied..)?,
    };
    let mut text: String = shown.chunks_exact(width).map(character).collect();
    if text.is_empty() {
        return None;
    }
    match kept {
        _ if whole == Some(copied) => {}
        Kept::Start => text.push(CUT),
        Kept::End => text.insert(0, CUT),
    }
    Some(text)
}

/// Decodes a character of one, two or four bytes. The halves of a surrogate pair are not joined: each is a
/// character.
fn character(bytes: &[u8]) -> char {
    let value = bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u32::from(byte));
    let found = char::from_u32(value).filter(|found| !found.is_control());
    found.unwrap_or(UNKNOWN)
}

/// Known parts of a code object of CPython.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonCode {
    /// Name of the function, with those of classes and functions around it from 3.11 on.
    pub name: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    /// Lines of its instructions; `None` if the table was not copied, or not all of it.
    pub lines: Option<LineTable>,
}

impl PythonCode {
    /// True for the interpreter's own code that makes an object and calls its `__init__`, from 3.12 on
    /// (`_Py_InitCleanup` in `specialize.c`): `__init__` is its name and its file, and it has no line.
    /// `sys._getframe` leaves it out.
    pub fn is_between_functions(&self, first_line: u32) -> bool {
        let is_init = |text: &Option<Arc<str>>| text.as_deref() == Some("__init__");
        first_line == 0 && is_init(&self.name) && is_init(&self.file)
    }

    /// Line of an instruction, which is counted in bytes of the bytecode ([`Layout::instruction`]). Without a
    /// table there is no line: the first line of the function would be wrong.
    ///
    /// [`Layout::instruction`]: memleak_process::python::Layout::instruction
    pub fn line(&self, instruction: Option<u32>) -> Option<u32> {
        let lines = self.lines.as_ref();
        lines.zip(instruction).and_then(|(lines, at)| lines.line(at))
    }

    /// Names for a frame of this code at a line.
    pub fn symbolized(&self, line: Option<u32>) -> Symbolized {
        let name = self.name.clone();
        Symbolized {
            symbol: name.map(|name| Symbol { name, offset: None }),
            file: self.file.clone(),
            line,
            ..Symbolized::default()
        }
    }
}
