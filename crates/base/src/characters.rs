//! Non-ASCII characters that memleak prints, and their substitutes for locales without UTF-8.
//!
//! Names that come from programs and files stay as they are, so that they can be found there.

use std::borrow::Cow;
use std::env;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Each character with its ASCII text, and with one ASCII character for use where columns matter.
const SUBSTITUTES: [(char, &str, &str); 22] = [
    ('…', "...", "~"),
    ('→', "->", ">"),
    ('←', "<-", "<"),
    ('↑', "^", "^"),
    ('↓', "v", "v"),
    ('⇟', "PgDn", "v"),
    ('▼', "v", "v"),
    ('±', "+-", "~"),
    ('µ', "u", "u"),
    ('×', "x", "x"),
    ('✓', "+", "+"),
    ('✗', "x", "x"),
    ('─', "-", "-"),
    ('│', "|", "|"),
    // Heights of bars.
    ('▁', "_", "_"),
    ('▂', ".", "."),
    ('▃', ":", ":"),
    ('▄', "-", "-"),
    ('▅', "=", "="),
    ('▆', "+", "+"),
    ('▇', "*", "*"),
    ('█', "#", "#"),
];

/// Returns true if the user's locale names an encoding other than UTF-8. Without a locale, as in most
/// containers, it returns false: terminals use UTF-8 nevertheless.
pub fn is_ascii_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| names_another(|name| env::var(name).ok()))
}

fn names_another(variable: impl Fn(&str) -> Option<String>) -> bool {
    // The order of precedence in locale(7).
    let named = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
    let mut named = named.filter(|value| !value.is_empty());
    let locale = named.next().map(|value| value.to_ascii_lowercase());
    locale.is_some_and(|locale| !locale.contains("utf-8") && !locale.contains("utf8"))
}

/// Returns text with substitutes for the characters that the user's locale cannot show.
pub fn shown(text: &str) -> Cow<'_, str> {
    match is_ascii_wanted() {
        true => ascii(text),
        false => Cow::Borrowed(text),
    }
}

/// Returns the one-column substitute for a symbol of one character; `None` if it needs or has none.
pub fn in_a_column(symbol: &str) -> Option<&'static str> {
    let mut characters = symbol.chars();
    let (Some(character), None) = (characters.next(), characters.next()) else {
        return None;
    };
    let found = SUBSTITUTES.iter().find(|(known, ..)| *known == character);
    found.map(|(_, _, short)| *short)
}

fn ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut replaced = String::with_capacity(text.len());
    for character in text.chars() {
        match SUBSTITUTES.iter().find(|(known, ..)| *known == character) {
            Some((_, long, _)) => replaced.push_str(long),
            None => replaced.push(character),
        }
    }
    Cow::Owned(replaced)
}

/// Writer that replaces characters with their ASCII substitutes. Bytes that are not UTF-8 pass unchanged.
pub struct Ascii<W: Write>(pub W);

impl<W: Write> Write for Ascii<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for chunk in bytes.utf8_chunks() {
            self.0.write_all(ascii(chunk.valid()).as_bytes())?;
            self.0.write_all(chunk.invalid())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first variable that is set, and not empty, decides.
    #[test]
    fn locales() {
        let names_another = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            names_another(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(!names_another(&[("LANG", "en_US.UTF-8")]));
        assert!(!names_another(&[
            ("LC_ALL", ""),
            ("LC_CTYPE", "C.utf8"),
            ("LANG", "C")
        ]));
        assert!(!names_another(&[]) && !names_another(&[("LANG", "")]));
        assert!(names_another(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]));
        assert!(names_another(&[("LANG", "de_DE.ISO-8859-15")]));
    }

    /// Only characters of the table are replaced; others, and bytes that are not UTF-8, stay.
    #[test]
    fn what_is_replaced() {
        let mut out = Ascii(Vec::new());
        let text = "1 … 2 ± 3 → Caché\n".as_bytes();
        out.write_all(&[text, b"\xff\xe2"].concat()).expect("memory");
        let expected = "1 ... 2 +- 3 -> Caché\n".as_bytes();
        assert_eq!(out.0, [expected, b"\xff\xe2"].concat());
    }

    #[test]
    fn substitutes_are_ascii() {
        for (character, long, short) in SUBSTITUTES {
            assert!(!character.is_ascii() && long.is_ascii() && short.is_ascii());
            assert_eq!(short.len(), 1, "{character}");
        }
    }
}
