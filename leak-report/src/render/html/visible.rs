//! Text from processes and their files, made so that what one sees is what is there.
//!
//! A page shows text as text whatever it says (no markup is ever made of it); what is left to hide behind are characters
//! without a shape of their own: control characters, those that turn the direction of others, and those of no width. Each
//! is shown as its escape. A name of many kilobytes is cut, and says so.

use crate::model::printable::is_format;

/// Characters that are kept of one text.
const MAX_CHARACTERS: usize = 4096;

/// `text` with everything in it visible, and of bounded length.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_CHARACTERS));
    let mut characters = text.chars();
    for character in characters.by_ref().take(MAX_CHARACTERS) {
        match character.is_control() || is_format(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
    }
    let more = characters.count();
    if more > 0 {
        shown.push_str(&format!("… (and {more} characters)"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters of any script stay; what has no shape is escaped; what is long is cut, and says how much is missing.
    #[test]
    fn texts() {
        for (text, expected) in [
            ("std::vector<größe, 日本>", "std::vector<größe, 日本>"),
            (
                "</script><img src=x onerror=alert(1)>&amp;",
                "</script><img src=x onerror=alert(1)>&amp;",
            ),
            ("a\u{1b}[2J\n", "a\\u{1b}[2J\\u{a}"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("a\u{200b}b\u{feff}\u{2028}", "a\\u{200b}b\\u{feff}\\u{2028}"),
            ("", ""),
        ] {
            assert_eq!(visible(text), expected, "{text:?}");
        }
        let long = visible(&"é".repeat(MAX_CHARACTERS + 7));
        assert!(long.ends_with("é… (and 7 characters)"), "{long}");
    }
}
