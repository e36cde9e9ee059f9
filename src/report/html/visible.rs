//! Text from processes and their files, made so that what one sees is what is there.
//!
//! A page shows text as text whatever it says (no markup is ever made of it); what is left to hide behind are characters
//! without a shape of their own: control characters, those that turn the direction of others, and those of no width. Each
//! is shown as its escape. A name of many kilobytes is cut, and says so.

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

/// Of Unicode's category Cf, and separators of lines: <https://www.unicode.org/reports/tr9/> and
/// <https://www.unicode.org/reports/tr36/> say what can be done with them.
fn is_format(character: char) -> bool {
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
