//! Escaping of untrusted text, so that it cannot act on a terminal or mislead a reader.

use std::fmt;

/// Returns `text` on one line, with control characters and invisible characters escaped. Use it for all text
/// that comes from a process or its files.
pub fn printable(text: &str) -> String {
    Printable(text).to_string()
}

/// Text from a process or its files, displayed with control characters and invisible characters escaped: it
/// must not move the terminal's cursor, end a line, or look like other text.
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

/// Returns whether a character is a line separator, a format character (Unicode category Cf), or otherwise
/// invisible. For the attacks they permit see <https://www.unicode.org/reports/tr9/> and
/// <https://www.unicode.org/reports/tr36/>.
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
