//! Shortens demangled names for people by removing the standard libraries' default arguments. Pure.
//!
//! `std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_replace(…)` becomes
//! `std::string::_M_replace(…)`. Nothing is guessed: an argument is removed only if it is spelled exactly
//! like its default, and unknown names are unchanged. Supports C++, with either spelling of `> >`, and Rust.
//!
//! A constructor keeps the form that identifies it: `std::string::string(…)`, which is also its name in C++.
//!
//! Names come from untrusted files. One pass writes the result and keeps a stack of the open brackets;
//! decisions depend on the output, so that a second pass changes nothing. A closing bracket compares
//! arguments with each other: time is at most length times depth, and names longer than [`MAX_NAME`] are not
//! processed.

mod defaults;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// Maximum length in bytes of a name that is shortened. Demangled names are far shorter; those of generated
/// code have no limit.
const MAX_NAME: usize = 16 << 10;

/// Style of names in formats for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameStyle {
    /// Without the standard libraries' default arguments.
    #[default]
    Abbreviated,
    /// Names as they were demangled.
    Verbatim,
}

impl NameStyle {
    /// Returns the name in this style.
    pub fn show(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Abbreviated => abbreviated(name),
            Self::Verbatim => Cow::Borrowed(name),
        }
    }
}

/// Removes the standard libraries' default arguments; returns the name borrowed if there are none.
pub fn abbreviated(name: &str) -> Cow<'_, str> {
    let marks = ["std::", "alloc::", "core::", "> >", "[abi:", "::h"];
    if name.len() > MAX_NAME || !marks.iter().any(|mark| name.contains(mark)) {
        return Cow::Borrowed(name);
    }
    let mut pass = Pass::over(name);
    while pass.step().is_some() {}
    let short = without_hash(&pass.out);
    match short == name {
        true => Cow::Borrowed(name),
        false => Cow::Owned(short.to_owned()),
    }
}

/// Removes the hash at the end of a Rust name in legacy mangling: `::h` and 16 hexadecimal digits.
fn without_hash(name: &str) -> &str {
    let mut name = name;
    while let Some((rest, hash)) = name.rsplit_once("::h") {
        let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || rest.is_empty() {
            break;
        }
        name = rest;
    }
    name
}

/// Kind of bracket. Angle brackets enclose template arguments, round ones parameters, square ones sizes and
/// ABI tags, curly ones unnamed entities such as lambdas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Angle,
    Round,
    Square,
    Curly,
}

/// Opened bracket. Positions are offsets in the output.
struct Open {
    bracket: Bracket,
    /// Start of the path that the bracket belongs to, or of the bracket itself.
    path: usize,
    /// Position behind the bracket.
    begin: usize,
    /// Length of [`Pass::commas`] when the bracket was opened: later commas are inside it.
    commas: usize,
}

/// Path that is being written: `std::vector<int>::push_back`.
#[derive(Clone, Copy)]
struct Path {
    begin: usize,
    /// Start of its last identifier, if it ends with one.
    identifier: Option<usize>,
}

/// One pass over a name.
struct Pass<'a> {
    rest: &'a str,
    out: String,
    path: Option<Path>,
    open: Vec<Open>,
    /// Number of open brackets of each kind.
    counts: [usize; 4],
    /// Positions of commas between the arguments of open templates.
    commas: Vec<usize>,
    /// Position behind the last closed angle bracket.
    closed: usize,
    /// Position behind the last `operator` and its sign.
    operator: usize,
}

impl<'a> Pass<'a> {
    fn over(name: &'a str) -> Self {
        Self {
            rest: name,
            out: String::with_capacity(name.len()),
            path: None,
            open: Vec::new(),
            counts: [0; 4],
            commas: Vec::new(),
            closed: 0,
            operator: 0,
        }
    }

    /// Processes one token; returns `None` at the end.
    fn step(&mut self) -> Option<()> {
        let next = self.rest.chars().next()?;
        match next {
            _ if is_identifier(next) => self.identifier(),
            ':' if self.rest.starts_with("::") => self.scope(),
            '<' => self.angle(),
            '(' => self.open(Bracket::Round),
            '[' => self.open(Bracket::Square),
            '{' => self.open(Bracket::Curly),
            '>' => self.end_angle(),
            ')' => self.close(Bracket::Round),
            ']' => self.close(Bracket::Square),
            '}' => self.close(Bracket::Curly),
            // Keeps the path open: `operator<< <char>` is one path.
            ' ' if self.operator == self.out.len() && self.rest.starts_with(" <") => {
                self.copy(1);
                self.operator = self.out.len();
            }
            ',' => {
                if self.is_in(Bracket::Angle) {
                    self.commas.push(self.out.len());
                }
                self.separator(1);
            }
            _ => self.separator(next.len_utf8()),
        }
        Some(())
    }

    fn copy(&mut self, bytes: usize) {
        let (token, rest) = self.rest.split_at(bytes);
        self.out.push_str(token);
        self.rest = rest;
    }

    /// Copies a token that ends the path.
    fn separator(&mut self, bytes: usize) {
        self.copy(bytes);
        self.path = None;
    }

    fn is_in(&self, bracket: Bracket) -> bool {
        self.open.last().is_some_and(|open| open.bracket == bracket)
    }

    /// Returns whether the last identifier of the output is complete.
    fn is_ended(&self) -> bool {
        !self.rest.starts_with(is_identifier)
    }

    fn identifier(&mut self) {
        let begin = self.out.len();
        let end = self.rest.find(|other| !is_identifier(other));
        self.copy(end.unwrap_or(self.rest.len()));
        let path = self.path.map_or(begin, |path| path.begin);
        self.path = Some(Path {
            begin: path,
            identifier: Some(begin),
        });
        if &self.out[begin..] == "operator" {
            if let Some(sign) = OPERATORS.iter().find(|sign| self.rest.starts_with(**sign)) {
                self.copy(sign.len());
                self.operator = self.out.len();
            }
        } else if let Some(short) = defaults::prelude(&self.out[path..]) {
            self.replace(path, short);
        } else if let Some((bytes, class)) = defaults::constructed(&self.out[path..begin], &self.out[begin..])
        {
            self.replace(self.out.len() - bytes, &class);
        }
    }

    /// Replaces the end of the path, from `from` on.
    fn replace(&mut self, from: usize, short: &str) {
        self.out.truncate(from);
        self.out.push_str(short);
        if let Some(path) = &mut self.path {
            path.identifier = Some(from);
        }
    }

    /// Handles `::`; removes the inline namespace before it, which people do not write.
    fn scope(&mut self) {
        let path = self.path.unwrap_or(Path {
            begin: self.out.len(),
            identifier: None,
        });
        let namespace = path
            .identifier
            .filter(|&at| defaults::is_inline(&self.out[path.begin..at], &self.out[at..]));
        match namespace {
            Some(at) => {
                self.out.truncate(at);
                self.rest = &self.rest[2..];
            }
            None => self.copy(2),
        }
        self.path = Some(Path {
            begin: path.begin,
            identifier: None,
        });
    }

    /// Handles `<`: opens template arguments, or copies a less-than sign of an expression, whose operands are
    /// in parentheses.
    fn angle(&mut self) {
        if self.out.ends_with(')') && self.operator != self.out.len() {
            let sign = ["<<", "<=", "<"];
            let sign = sign.into_iter().find(|sign| self.rest.starts_with(sign));
            return self.separator(sign.map_or(1, str::len));
        }
        self.open(Bracket::Angle);
    }

    fn open(&mut self, bracket: Bracket) {
        let path = self.path.map_or(self.out.len(), |path| path.begin);
        self.separator(1);
        self.counts[bracket as usize] += 1;
        self.open.push(Open {
            bracket,
            path,
            begin: self.out.len(),
            commas: self.commas.len(),
        });
    }

    /// Handles `>`: closes template arguments, unless it is part of `->` or a greater-than sign.
    fn end_angle(&mut self) {
        if !self.is_in(Bracket::Angle) || self.out.ends_with('-') {
            return self.separator(1);
        }
        self.close(Bracket::Angle);
    }

    /// Closes the innermost bracket of this kind and drops the unclosed ones inside it. If none is open, the
    /// bracket is copied.
    fn close(&mut self, bracket: Bracket) {
        if self.counts[bracket as usize] == 0 {
            return self.separator(1);
        }
        while let Some(open) = self.open.pop() {
            self.counts[open.bracket as usize] -= 1;
            if open.bracket == bracket {
                self.end(&open);
                break;
            }
            self.commas.truncate(open.commas);
        }
    }

    fn end(&mut self, open: &Open) {
        match open.bracket {
            Bracket::Angle => self.end_arguments(open),
            Bracket::Square if self.is_tag(open) => {
                self.rest = &self.rest[1..];
                self.out.truncate(open.begin - 1);
            }
            Bracket::Round | Bracket::Square | Bracket::Curly => self.copy(1),
        }
        self.path = Some(Path {
            begin: open.path,
            identifier: None,
        });
    }

    /// Returns true if the brackets contain an ABI tag that readers do not need: libstdc++'s `cxx11`, on any
    /// function with such a string in its type, or any tag of the standard libraries' own functions.
    fn is_tag(&self, open: &Open) -> bool {
        let name = &self.out[open.path..open.begin - 1];
        let tag = self.out[open.begin..].strip_prefix("abi:");
        let tag = tag.filter(|tag| tag.chars().all(is_identifier));
        let after = self.rest[1..].chars().next();
        tag.is_some_and(|tag| tag == "cxx11" || name.starts_with("std::"))
            && (name.ends_with(is_identifier) || self.operator + 1 == open.begin)
            && !name.ends_with("operator")
            && !after.is_some_and(is_identifier)
    }

    /// Closes template arguments: removes those spelled like their defaults, or replaces the template by its
    /// alias.
    fn end_arguments(&mut self, open: &Open) {
        if self.out.ends_with(' ') && self.closed + 1 == self.out.len() {
            self.out.pop();
        }
        self.rest = &self.rest[1..];
        let commas = self.commas.split_off(open.commas);
        let begins = std::iter::once(open.begin).chain(commas.iter().map(|comma| comma + 1));
        let ends = commas.iter().copied().chain([self.out.len()]);
        let arguments: Vec<&str> = begins
            .zip(ends)
            .map(|(begin, end)| self.out[begin..end].trim())
            .collect();
        let template = &self.out[open.path..open.begin - 1];
        let kept = defaults::kept(template, &arguments);
        let alias = match &arguments[..kept] {
            [character] if self.is_ended() => defaults::alias(template, character),
            _ => None,
        };
        if let Some(alias) = alias {
            self.out.truncate(open.path);
            self.out.push_str(&alias);
        } else {
            if let Some(&end) = commas.get(kept - 1) {
                self.out.truncate(end);
            }
            self.out.push('>');
        }
        self.closed = self.out.len();
    }
}

/// Signs that can follow `operator`; a sign precedes its own prefixes.
const OPERATORS: [&str; 38] = [
    "<=>", "->*", "<<=", ">>=", "()", "[]", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "->",
    "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<", ">", "=", "+", "-", "*", "/", "%", "&", "|", "^",
    "!", ",",
];

/// Returns whether a character can be part of an identifier. Compilers use `$`, `'` and any letters in names;
/// `~` is part of a destructor's name.
fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '$' | '\'' | '~')
}
