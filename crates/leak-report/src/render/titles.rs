//! Titles of sites: the responsible function, up to a maximum length.

use std::borrow::Cow;
use std::fmt;

use crate::model::owner::{Owner, owner};
use crate::model::printable::Printable;
use crate::model::{NameStyle, Report, StackRef};

/// A site's title, printable: the responsible function with its parameters.
pub fn title(stack: StackRef<'_>, names: NameStyle) -> String {
    match owner(stack) {
        Some(owner) => Printable(&shortened(&names.show(&owner.alone()), MAX_TITLE)).to_string(),
        None => format!("[no stack: {}]", stack.end.name()),
    }
}

/// ` [pid]` to follow a title if there are several processes.
pub(super) fn process_mark(stack: StackRef<'_>, report: &Report) -> String {
    match report.targets.len() {
        0 | 1 => String::new(),
        _ => format!(" [{}]", stack.pid),
    }
}

/// A title for tables: the function without its parameters, its source line if known, and the process if
/// there are several.
pub fn short_title(stack: StackRef<'_>, report: &Report) -> String {
    let process = process_mark(stack, report);
    let Some(owner) = owner(stack) else {
        return format!("{}{process}", title(stack, report.names));
    };
    let name = function_title(&owner, report.names);
    format!("{}{process}{}", Printable(&name), Source(&owner))
}

/// The responsible function without its parameters; not escaped for printing.
pub fn function_title(owner: &Owner<'_>, names: NameStyle) -> String {
    let name = names.show(&owner.function);
    shortened(without_parameters(&name), MAX_TITLE).into_owned()
}

/// Maximum number of characters of a title: names of template instances have no bound.
const MAX_TITLE: usize = 300;

/// Displays ` file:line` of the responsible function, without the file's directory.
struct Source<'a>(&'a Owner<'a>);

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(file), Some(line)) = self.0.source() else {
            return Ok(());
        };
        let base = file.rsplit('/').next().unwrap_or(file);
        write!(f, " {}:{line}", Printable(base))
    }
}

/// A demangled name without its parameters and what follows them.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else {
        return name;
    };
    let mut depth = 0_usize;
    let opening = name[..=end].char_indices().rev().find(|&(_, character)| {
        match character {
            ')' => depth += 1,
            '(' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    let function = opening.map_or("", |(at, _)| &name[..at]);
    // `(anonymous namespace)` follows a path or nothing, and `operator()` needs its parentheses.
    match function.ends_with("operator") || function.is_empty() || function.ends_with("::") {
        true => name,
        false => function,
    }
}

/// Cuts a name after `max` characters: names of template instances have no bound.
pub fn shortened(name: &str, max: usize) -> Cow<'_, str> {
    match name.char_indices().nth(max) {
        None => name.into(),
        Some((end, _)) => format!("{}…", &name[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{frame, inlined, report, stack};

    /// The owner is the first function of the program's own, inlined ones first; without one, the innermost
    /// frame's; without frames, there is none.
    #[test]
    fn owners() {
        let new = || frame("libstdc++.so.6.0.30", "operator new(unsigned long)");
        let push = || frame("app", "std::vector<int>::push_back(int&&)");
        let insert = || frame("app", "Cache::insert(int)");
        for (frames, expected) in [
            (
                vec![new(), push(), insert(), frame("app", "main")],
                Some(("Cache::insert(int)", 2)),
            ),
            (
                vec![new(), inlined("app", "main", &["std::move<int>(int&)", "fill()"])],
                Some(("fill()", 1)),
            ),
            (
                vec![frame("libc.so.6", "strdup"), insert()],
                Some(("Cache::insert(int)", 1)),
            ),
            (
                vec![frame("app", "strdup"), insert()],
                Some(("Cache::insert(int)", 1)),
            ),
            (vec![frame("libc.so.6", "strdup")], Some(("strdup", 0))),
            (vec![], None),
        ] {
            let report = report(vec![stack(frames)]);
            let found = owner(report.stack(&report.stacks[0]));
            let found = found.as_ref().map(|found| (&*found.function, found.at.0));
            assert_eq!(found, expected);
        }
    }

    /// Titles in tables have no parameters; parentheses that belong to a name are kept.
    #[test]
    fn short_names() {
        for (name, expected) in [
            ("main", "main"),
            ("Auditor::make(char const*)", "Auditor::make"),
            ("Auditor::get(int) const", "Auditor::get"),
            ("f(void (*)(int))", "f"),
            ("Box<void (int)>::put(int)", "Box<void (int)>::put"),
            ("(anonymous namespace)::fill(int)", "(anonymous namespace)::fill"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("app::(anonymous namespace)", "app::(anonymous namespace)"),
            ("Call::operator()(int) const", "Call::operator()"),
            ("Call::operator()", "Call::operator()"),
            (
                "main::{lambda(int)#1}::operator()(int) const",
                "main::{lambda(int)#1}::operator()",
            ),
            (")", ")"),
            ("a)b(", "a)b("),
            ("", ""),
        ] {
            assert_eq!(without_parameters(name), expected);
        }
    }

    /// A long name is cut at a character boundary, with an ellipsis.
    #[test]
    fn long_names() {
        assert_eq!(shortened("Cache", 5), "Cache");
        assert_eq!(shortened("Caché2", 5), "Caché…");
    }
}
