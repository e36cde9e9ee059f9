//! Suppressions: rules of the user's that leave stacks out, in LeakSanitizer's file format. Marks reports.
//!
//! A line is `leak:PATTERN` (see `pattern`), empty, or begins with `#`. A stack is suppressed if the pattern matches, of
//! any of its frames, the path of the module, the name of a function, inlined ones too, or the path of a source file;
//! or the name of the allocator function, which LeakSanitizer's stacks have for their first frame. So they have
//! `operator new`, which it replaces by its own: of that, the name alone counts, or a rule about libstdc++ would be about all
//! of C++.
//!
//! Functions are matched by their exact names and as reports abbreviate them, so that what was read can be written here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::input::{InputError, Lines};
use super::pattern::Pattern;
use crate::model::{Frame, ModuleFacts, Report, Stack, Suppression};
use crate::model::{Symbolized, abbreviated};
use crate::report::printable;

/// The only kind of rule that is about leaks.
const KIND: &str = "leak";

/// Rules, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Suppressions(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    pattern: Pattern,
    /// As reports have it.
    named: Arc<Suppression>,
}

impl Suppressions {
    /// Reads a file's rules and adds them.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it is no rule.
    pub(super) fn add_file(&mut self, path: &Path) -> Result<(), InputError> {
        self.add(&Lines::read(path)?)
    }

    /// Adds the rules of these lines.
    pub(super) fn add(&mut self, lines: &Lines) -> Result<(), InputError> {
        for (number, line) in lines.iter() {
            let line = line.trim_start_matches([' ', '\t']).trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let shown = printable(line);
            let wrong = |problem: String| lines.wrong(number, problem);
            let Some((KIND, text)) = line.split_once(':') else {
                return Err(wrong(format!(
                    "`{shown}` is no suppression: write {KIND}:PATTERN, PATTERN being a part of a function's, source \
                     file's or module's name"
                )));
            };
            let pattern = Pattern::new(text);
            if pattern.is_empty() && !text.contains('*') {
                return Err(wrong(format!(
                    "`{shown}` would suppress everything: give a pattern, or {KIND}:* if that is meant"
                )));
            }
            self.0.push(Rule {
                pattern,
                named: Arc::new(Suppression {
                    rule: shown,
                    place: lines.place(number),
                }),
            });
        }
        Ok(())
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Suppression>> {
        self.0.iter().map(|rule| &rule.named)
    }

    /// Says of each stack which rule suppresses it: the first that matches in the innermost frame where any does.
    pub(super) fn mark(&self, report: &mut Report) {
        let mut matcher = Matcher::new(&self.0);
        let marks: Vec<_> = report
            .stacks
            .iter()
            .map(|stack| matcher.of_stack(stack))
            .collect();
        for (stack, mark) in report.stacks.iter_mut().zip(marks) {
            stack.suppressed_by = mark
                .and_then(|rule| self.0.get(rule))
                .map(|rule| rule.named.clone());
        }
    }
}

/// Finds rules, and remembers which those of frames are: a report's stacks have most of their frames in common.
///
/// What is remembered is found by where it lies in memory, hence only as long as the report is borrowed.
struct Matcher<'a> {
    rules: &'a [Rule],
    of_modules: HashMap<*const ModuleFacts, Option<usize>>,
    of_names: HashMap<*const Symbolized, Option<usize>>,
}

impl<'a> Matcher<'a> {
    fn new(rules: &'a [Rule]) -> Self {
        Self {
            rules,
            of_modules: HashMap::new(),
            of_names: HashMap::new(),
        }
    }

    fn of_stack(&mut self, stack: &Stack) -> Option<usize> {
        let is_new = |frame: &&Frame| symbol(frame).is_some_and(|name| name.starts_with("operator new"));
        let of_new = stack.frames.iter().take_while(is_new).count();
        let (of_new, frames) = stack.frames.split_at(of_new);
        let names = [&*stack.allocator]
            .into_iter()
            .chain(of_new.iter().filter_map(symbol));
        let rule = names.into_iter().find_map(|name| self.of_function(name));
        rule.or_else(|| frames.iter().find_map(|frame| self.of_frame(frame)))
    }

    fn of_frame(&mut self, frame: &Frame) -> Option<usize> {
        let module = frame.at.place.as_ref().map(|(module, _)| module);
        let of_module = module.and_then(|module| match self.of_modules.get(&Arc::as_ptr(module)) {
            Some(&known) => known,
            None => {
                let rule = self.of_text(&module.path.to_string_lossy());
                self.of_modules.insert(Arc::as_ptr(module), rule);
                rule
            }
        });
        of_module.or_else(|| match self.of_names.get(&Arc::as_ptr(&frame.names)) {
            Some(&known) => known,
            None => {
                let rule = self.of_names(&frame.names);
                self.of_names.insert(Arc::as_ptr(&frame.names), rule);
                rule
            }
        })
    }

    /// Functions and files, innermost first.
    fn of_names(&self, names: &Symbolized) -> Option<usize> {
        let inlined = names.inlined.iter();
        let inlined = inlined.map(|inlined| (inlined.symbol.as_deref(), inlined.file.as_deref()));
        let symbol = names.symbol.as_ref().map(|symbol| symbol.name.as_str());
        inlined
            .chain([(symbol, names.file.as_deref())])
            .find_map(|(function, file)| {
                let of_function = function.and_then(|name| self.of_function(name));
                of_function.or_else(|| self.of_text(file?))
            })
    }

    /// Of a function's name, by either of its forms; each is a name of its own, with a begin and an end.
    fn of_function(&self, name: &str) -> Option<usize> {
        match abbreviated(name) {
            Cow::Borrowed(name) => self.of_text(name),
            Cow::Owned(short) => self.rules.iter().position(|rule| {
                let Rule { pattern, .. } = rule;
                pattern.matches(name) || pattern.matches(&short)
            }),
        }
    }

    fn of_text(&self, text: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.pattern.matches(text))
    }
}

fn symbol(frame: &Frame) -> Option<&str> {
    let symbol = frame.names.symbol.as_ref();
    symbol.map(|symbol| symbol.name.as_str())
}
