//! Suppression patterns with LeakSanitizer's syntax. Pure.
//!
//! A pattern is searched for anywhere in a name. `*` matches any characters, `^` at the beginning anchors to
//! the beginning of the name, `$` to its end; text after a `$` is ignored. No pattern matches an empty name.
//!
//! LeakSanitizer takes the first match of each piece and does not backtrack: its `new$` does not match
//! `new renew`. Here it does, as the syntax implies. In everything else the two agree.

/// A pattern, split at `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// True if the first piece must begin the name.
    from_begin: bool,
    /// True if the last piece must end the name.
    to_end: bool,
    pieces: Vec<String>,
}

impl Pattern {
    /// Parses a pattern; any text is valid.
    pub(super) fn new(text: &str) -> Self {
        let (text, from_begin) = match text.strip_prefix('^') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (text, to_end) = match text.split_once('$') {
            Some((before, _)) => (before, true),
            None => (text, false),
        };
        Self {
            from_begin,
            to_end,
            pieces: text.split('*').map(str::to_owned).collect(),
        }
    }

    /// Returns whether the pattern matches every name.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(String::is_empty)
    }

    /// Returns whether the pattern matches `name`.
    ///
    /// Taking the first match of each piece is enough, as it leaves the longest rest for the next ones; only
    /// a last piece anchored to the end is matched there.
    pub(super) fn matches(&self, name: &str) -> bool {
        if name.is_empty() {
            return false;
        }
        let [first, between @ ..] = &self.pieces[..] else {
            return false;
        };
        let rest = match (self.from_begin, between.is_empty() && self.to_end) {
            (true, true) => return name == first,
            (false, true) => return name.ends_with(first.as_str()),
            (true, false) => name.strip_prefix(first.as_str()),
            (false, false) => behind(name, first),
        };
        let [between @ .., last] = between else {
            return rest.is_some();
        };
        let rest = between
            .iter()
            .fold(rest, |rest, piece| rest.and_then(|rest| behind(rest, piece)));
        rest.is_some_and(|rest| match self.to_end {
            true => rest.ends_with(last.as_str()),
            false => rest.contains(last.as_str()),
        })
    }
}

/// The text behind the first `piece`.
fn behind<'a>(text: &'a str, piece: &str) -> Option<&'a str> {
    let at = text.find(piece)?;
    text.get(at + piece.len()..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each pattern matches the names it should, and no other.
    #[test]
    fn meanings() {
        for (pattern, name, expected) in [
            ("leak", "LeakLib::leakSlowly()", true),
            ("leak", "Leak", false),
            ("leak", "", false),
            ("*", "", false),
            ("*", "anything", true),
            ("", "anything", true),
            ("^main", "main", true),
            ("^main", "mainly", true),
            ("^main", "domain", false),
            ("main$", "domain", true),
            ("main$", "mainly", false),
            ("^main$", "main", true),
            ("^main$", "mainmain", false),
            ("new$", "new renew", true),
            ("a*b", "xaxbx", true),
            ("a*b", "ba", false),
            ("^a*b$", "a-b-b", true),
            ("^a*b$", "a-b-c", false),
            ("^a*a$", "a", false),
            ("^*b", "ab", true),
            ("a*$", "bab", true),
            ("a*b*c", "a.b.c", true),
            ("a*b*c", "a.c.b", false),
            ("a**c", "abc", true),
            ("/libfoo.so", "/usr/lib/libfoo.so.1", true),
            ("a$b", "ba", true),
            ("a$b", "ab", false),
            ("a^b", "a^b", true),
            ("^^", "^", true),
            ("$", "anything", true),
            ("^$", "anything", false),
            ("operator new(unsigned long)", "operator new(unsigned long)", true),
            ("gr*ße", "größe", true),
        ] {
            let read = Pattern::new(pattern);
            assert_eq!(read.matches(name), expected, "{pattern} of {name}: {read:?}");
        }
        for (pattern, expected) in [("", true), ("^", true), ("$", true), ("**", true), ("a", false)] {
            assert_eq!(Pattern::new(pattern).is_empty(), expected, "{pattern}");
        }
    }

    /// A reference matcher that backtracks.
    fn matches_somehow(pattern: &[char], name: &[char], anchored: bool) -> bool {
        let matches_here = match pattern {
            [] => true,
            ['$', ..] => name.is_empty(),
            ['*', rest @ ..] => return matches_somehow(rest, name, false),
            [first, rest @ ..] => name.first() == Some(first) && matches_somehow(rest, &name[1..], true),
        };
        matches_here || !anchored && !name.is_empty() && matches_somehow(pattern, &name[1..], false)
    }

    proptest! {
        /// `matches` agrees with a matcher that backtracks.
        #[test]
        fn matches_agree_with_backtracking(pattern in "\\^?[ab*]{0,6}\\$?", name in "[ab]{1,8}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            let anchored = pattern.starts_with('^');
            let rest = characters(pattern.strip_prefix('^').unwrap_or(&pattern));
            let expected = matches_somehow(&rest, &characters(&name), anchored);
            prop_assert_eq!(Pattern::new(&pattern).matches(&name), expected);
        }

        /// No pattern or name causes a panic.
        #[test]
        fn nothing_panics(pattern in "\\PC{0,20}", name in "\\PC{0,40}") {
            let _ = Pattern::new(&pattern).matches(&name);
        }
    }
}
