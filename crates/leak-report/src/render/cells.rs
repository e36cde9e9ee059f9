//! Width of text in terminal columns, and cutting or wrapping it to a width. The text must be printable
//! already.

use unicode_width::UnicodeWidthChar;

/// Marks a text that was cut.
const ELLIPSIS: char = '…';

/// Width of a character in columns; `None` if it is not shown by itself.
pub fn columns(character: char) -> Option<usize> {
    let is_merged = matches!(character,
        '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}');
    character
        .width()
        .filter(|&columns| (1..=2).contains(&columns) && !is_merged)
}

/// Width of a printable text in columns.
pub fn width(text: &str) -> usize {
    text.chars().filter_map(columns).sum()
}

/// Cuts a printable text to `width` columns, the last of which is then an ellipsis.
pub fn fit(text: &str, width: usize) -> String {
    if self::width(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut fitting = String::new();
    for character in text.chars() {
        let columns = columns(character).unwrap_or_default();
        if columns > left {
            break;
        }
        left -= columns;
        fitting.push(character);
    }
    if width > 0 {
        fitting.push(ELLIPSIS);
    }
    fitting
}

/// Wraps a printable text into lines of at most `columns`, between words where possible.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let taken = lines.last().map_or(0, |line| width(line));
        if taken > 0 && taken + width(word.trim_end()) > columns {
            lines.push(String::new());
        }
        for character in word.chars() {
            let taken = lines.last().map_or(0, |line| width(line));
            if taken + self::columns(character).unwrap_or_default() > columns {
                lines.push(String::new());
            }
            lines.last_mut().into_iter().for_each(|line| line.push(character));
        }
    }
    lines
}
