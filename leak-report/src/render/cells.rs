//! Texts as columns of a terminal: how wide they are, and what of them fits. For texts that are printable already.

use unicode_width::UnicodeWidthChar;

/// Stands for what did not fit.
const ELLIPSIS: char = '…';

/// Columns of a character that can be shown.
pub fn columns(character: char) -> Option<usize> {
    let is_merged = matches!(character,
        '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}');
    character
        .width()
        .filter(|&columns| (1..=2).contains(&columns) && !is_merged)
}

/// Columns of a printable text.
pub fn width(text: &str) -> usize {
    text.chars().filter_map(columns).sum()
}

/// The part of a printable text that fits into `width` columns; its last one says that there is more.
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

/// A printable text as lines of at most `columns`, broken between words where that is possible.
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
