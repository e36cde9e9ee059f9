//! Patterns of suppressions, as LeakSanitizer has them. Pure.
//!
//! A pattern is text that is looked for anywhere in a name. `*` stands for any characters, `^` at its begin for the
//! begin of the name, `$` for the name's end; what follows a `$` means nothing. Nothing matches a name that is empty.
//!
//! LeakSanitizer takes the first place where a piece of a pattern is found and does not go back: its `new$` does not
//! match `new renew`. Here it does, which is what such a pattern says. In everything else the two agree.

/// A pattern, in the pieces between its `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The first piece must be where the name begins.
    from_begin: bool,
    /// The last piece must be where the name ends.
    to_end: bool,
    pieces: Vec<String>,
}

impl Pattern {
    /// Reads a pattern; any text is one.
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

    /// Whether it says nothing that a name could lack.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.iter().all(String::is_empty)
    }

    /// Whether `name` is meant.
    ///
    /// Each piece is taken where it comes first, as that leaves the most for those behind it; only the last one, if the
    /// name must end with it, is looked for at the end.
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

/// What follows the first `piece` in `text`.
fn behind<'a>(text: &'a str, piece: &str) -> Option<&'a str> {
    let at = text.find(piece)?;
    text.get(at + piece.len()..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each pattern means, and what not.
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

    /// The same by going back wherever a choice was wrong.
    fn matches_somehow(pattern: &[char], name: &[char], anchored: bool) -> bool {
        let here = match pattern {
            [] => true,
            ['$', ..] => name.is_empty(),
            ['*', rest @ ..] => return matches_somehow(rest, name, false),
            [first, rest @ ..] => name.first() == Some(first) && matches_somehow(rest, &name[1..], true),
        };
        here || !anchored && !name.is_empty() && matches_somehow(pattern, &name[1..], false)
    }

    proptest! {
        /// No choice of places would match what is not matched.
        #[test]
        fn no_match_is_missed(pattern in "\\^?[ab*]{0,6}\\$?", name in "[ab]{1,8}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            let anchored = pattern.starts_with('^');
            let rest = characters(pattern.strip_prefix('^').unwrap_or(&pattern));
            let expected = matches_somehow(&rest, &characters(&name), anchored);
            prop_assert_eq!(Pattern::new(&pattern).matches(&name), expected);
        }

        /// Any text is a pattern, and any text a name.
        #[test]
        fn nothing_panics(pattern in "\\PC{0,20}", name in "\\PC{0,40}") {
            let _ = Pattern::new(&pattern).matches(&name);
        }
    }
}
