//! Demangled names as people say them: the standard libraries' defaults are left out. Pure.
//!
//! `std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_replace(…)` is
//! `std::string::_M_replace(…)`. Nothing is guessed: an argument is left out only where it is written as its default is,
//! and what is not known stays as it is. Names are those of C++, with either spelling of `> >`, and of Rust.
//!
//! A constructor keeps the form by which it is told: `std::string::string(…)`, which is also how C++ would have it named.
//!
//! Names come from untrusted files. One pass writes the result and keeps the open brackets beside it; all that is
//! decided is decided by what was written, so that a second pass changes nothing. A closing bracket compares arguments
//! with each other: time is at most length times depth, and no name beyond [`MAX_NAME`] is looked at.

mod defaults;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// Bytes beyond which a name stays as it is. Demangled ones are far below; those of generated code have no limit.
const MAX_NAME: usize = 16 << 10;

/// How formats for people write names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameStyle {
    /// Without the standard libraries' defaults.
    #[default]
    Abbreviated,
    /// As they were demangled.
    Verbatim,
}

impl NameStyle {
    /// The name in this style.
    pub fn show(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Abbreviated => abbreviated(name),
            Self::Verbatim => Cow::Borrowed(name),
        }
    }
}

/// The name without the standard libraries' defaults; borrowed where there are none.
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

/// The name without the hash that ends a Rust name of the older mangling: `::h` and 16 hexadecimal digits.
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

/// What encloses: template arguments, parameters, sizes and tags, what has no name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Angle,
    Round,
    Square,
    Curly,
}

/// A bracket that was opened. Positions are those in what was written.
struct Open {
    bracket: Bracket,
    /// Where the path begins that it belongs to: the bracket itself, if to none.
    path: usize,
    /// Behind the bracket.
    begin: usize,
    /// Which commas are not its own.
    commas: usize,
}

/// The path that is being written: `std::vector<int>::push_back`.
#[derive(Clone, Copy)]
struct Path {
    begin: usize,
    /// Where its last identifier begins, if it ends with one.
    identifier: Option<usize>,
}

/// One pass over a name.
struct Pass<'a> {
    rest: &'a str,
    out: String,
    path: Option<Path>,
    open: Vec<Open>,
    /// How many of each bracket are open.
    counts: [usize; 4],
    /// Commas between arguments of templates that are open.
    commas: Vec<usize>,
    /// Behind the last angle bracket that was closed.
    closed: usize,
    /// Behind the last `operator` with its sign.
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

    /// Goes over one token, if one is left.
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
            // `operator<< <char>` is one path.
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

    /// What no path goes beyond.
    fn separator(&mut self, bytes: usize) {
        self.copy(bytes);
        self.path = None;
    }

    fn is_in(&self, bracket: Bracket) -> bool {
        self.open.last().is_some_and(|open| open.bracket == bracket)
    }

    /// Whether what was written last cannot be longer.
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

    /// `::`, and with it the name of an inline namespace, which nobody writes.
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

    /// Template arguments begin, or what stands for "less" in an expression, whose sides are in parentheses.
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

    /// The end of template arguments, unless it is one of `->` or stands for "greater".
    fn end_angle(&mut self) {
        if !self.is_in(Bracket::Angle) || self.out.ends_with('-') {
            return self.separator(1);
        }
        self.close(Bracket::Angle);
    }

    /// Closes the innermost of these brackets; those that were opened in it have no end. Without one, nothing ends.
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

    /// Whether the brackets hold a mark of the ABI that means nothing to a reader: libstdc++'s of its new strings, on
    /// whatever has one in its type, and all of the standard libraries' own.
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

    /// Ends template arguments: without those that are written as their defaults are, or as the name that the template
    /// has with them.
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

/// Signs that follow `operator`, the longer before those that they begin with.
const OPERATORS: [&str; 38] = [
    "<=>", "->*", "<<=", ">>=", "()", "[]", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "->",
    "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<", ">", "=", "+", "-", "*", "/", "%", "&", "|", "^",
    "!", ",",
];

/// Whether a character is of an identifier; compilers make names with `$`, `'` and any letters, and `~` is of a
/// destructor's.
fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '$' | '\'' | '~')
}
