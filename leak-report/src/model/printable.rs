//! Text that acts on nobody who reads it.

use std::fmt;

/// `text` in one line, with control characters escaped and those that cannot be seen: to be used for all that comes from a
/// process or its files.
pub fn printable(text: &str) -> String {
    Printable(text).to_string()
}

/// Text from the process or its files, with control characters escaped, and those that cannot be seen: it must not move the
/// terminal's cursor or end a line, nor look like another.
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character.is_control() || is_format(character) {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// Of Unicode's category Cf, and separators of lines: <https://www.unicode.org/reports/tr9/> and
/// <https://www.unicode.org/reports/tr36/> say what can be done with them.
pub fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
