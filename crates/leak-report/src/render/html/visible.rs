//! Makes text from processes and their files safe to read on a page.
//!
//! The page never interprets text as markup; characters without a visible shape could still mislead: control
//! characters, those that change the direction of text, and those of zero width. Each is shown as its escape.
//! A name of many kilobytes is cut, with the number of characters removed.

use crate::model::printable::is_format;

/// Maximum number of characters kept of one text.
const MAX_CHARACTERS: usize = 4096;

/// `text` with every character visible, and of bounded length.
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

    /// Letters of any script are kept; characters without a shape are escaped; long text is cut, with the
    /// number of characters removed.
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
