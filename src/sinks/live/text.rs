//! Words and numbers as terminal cells.

use std::fmt::Write;
use std::time::Duration;

use leak_report::model::Amount;
use leak_report::render::cells::columns;
pub(super) use leak_report::render::cells::wrap;
pub(crate) use leak_report::render::cells::{fit, width};
use leak_report::render::{rate, short_size};

/// Makes `text` from a process or its files safe for a terminal: every character takes exactly the one or two
/// columns that are counted for it.
///
/// Escapes control characters, and those without a width: combining ones, of which there can be any number,
/// and the invisible ones that reverse the direction of a line. Emoji that terminals may or may not merge
/// with their neighbours are escaped too.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match columns(character) {
            Some(_) => printable.push(character),
            None => printable.extend(character.escape_default()),
        }
    }
    printable
}

/// Rest of a printable text after its first `columns` columns.
pub(super) fn skip(text: &str, columns: usize) -> String {
    let mut skipped = 0;
    let rest = text.chars().skip_while(|&character| {
        let hidden = skipped < columns;
        skipped += self::columns(character).unwrap_or_default();
        hidden
    });
    rest.collect()
}

/// Number with two or three digits and a unit.
pub(super) fn short_count(number: u64) -> String {
    rate(number as f64)
}

/// Signed blocks per second.
pub(super) fn block_rate(net: i64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let per_second = if seconds > 0.0 { net as f64 / seconds } else { 0.0 };
    let sign = if per_second < 0.0 { '-' } else { '+' };
    let magnitude = per_second.abs();
    match magnitude < 99.95 {
        true => format!("{sign}{magnitude:.1}/s"),
        false => format!("{sign}{}/s", rate(magnitude)),
    }
}

pub(super) fn amount(amount: Amount) -> String {
    let Amount { bytes, blocks } = amount;
    format!("{} in {} blocks", short_size(bytes), short_count(blocks))
}

pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let mut text = String::new();
    _ = write!(
        text,
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No name can move the cursor, end a line, reverse it, or take columns that are not counted.
    #[test]
    fn hostile_names() {
        for (name, expected) in [
            ("main", "main"),
            ("naïve", "naïve"),
            ("内存泄漏", "内存泄漏"),
            ("דליפה", "דליפה"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            ("a\nb\tc\u{9b}1m", "a\\nb\\tc\\u{9b}1m"),
            ("\u{202e}evil\u{2066}", "\\u{202e}evil\\u{2066}"),
            ("e\u{301}\u{301}", "e\\u{301}\\u{301}"),
            ("a\u{ad}b\u{200b}c\u{2028}", "a\\u{ad}b\\u{200b}c\\u{2028}"),
            ("\u{1f44d}\u{1f3fd}", "\u{1f44d}\\u{1f3fd}"),
            ("\u{2764}\u{fe0f}", "\u{2764}\\u{fe0f}"),
        ] {
            assert_eq!(printable(name), expected);
        }
        // Each character alone, and as ratatui measures the whole.
        for character in ('\0'..='\u{1ffff}').map(|character| printable(&character.to_string())) {
            let line = ratatui::text::Line::raw(character.as_str());
            assert_eq!(line.width(), width(&character), "{character:?}");
        }
    }

    /// Texts are cut to their columns; wide characters are kept or dropped as a whole.
    #[test]
    fn cutting() {
        for (text, columns, expected) in [
            ("main", 4, "main"),
            ("main", 3, "ma…"),
            ("main", 1, "…"),
            ("main", 0, ""),
            ("内存泄漏", 8, "内存泄漏"),
            ("内存泄漏", 7, "内存泄…"),
            ("内存泄漏", 6, "内存…"),
        ] {
            assert_eq!(fit(text, columns), expected, "{text} {columns}");
            assert!(width(&fit(text, columns)) <= columns);
        }
        assert_eq!(wrap("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrap("0123456789 x", 4), ["0123", "4567", "89 x"]);
        assert_eq!(skip("main", 1), "ain");
        assert_eq!(skip("内存泄漏", 3), "泄漏");
        assert_eq!(skip("main", 9), "");
    }

    /// Numbers have few digits and a unit.
    #[test]
    fn numbers() {
        assert_eq!(short_count(12_345), "12 k");
        assert_eq!(clock(Duration::from_millis(3_661_999)), "1:01:01");
        let second = Duration::from_secs(1);
        for (net, text) in [
            (0, "+0.0/s"),
            (-3, "-3.0/s"),
            (100, "+100/s"),
            (i64::MIN, "-9223372037 G/s"),
        ] {
            assert_eq!(block_rate(net, second), text);
        }
        assert_eq!(block_rate(5, Duration::ZERO), "+0.0/s");
    }
}
