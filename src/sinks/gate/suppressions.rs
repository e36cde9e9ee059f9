//! Suppressions: the user's rules for leaving stacks out, in LeakSanitizer's file format. Marks reports.
//!
//! A line is `leak:PATTERN` (see `pattern`), empty, or begins with `#`. A stack is suppressed if the pattern
//! matches, for any frame, the path of the module, the name of a function, including inlined ones, or the
//! path of a source file; or the name of the allocator function, which is the first frame of LeakSanitizer's
//! stacks. That includes `operator new`, which LeakSanitizer replaces by its own: of its frame only the name
//! counts, or a rule about libstdc++ would match all of C++.
//!
//! Functions are matched by their exact names and as reports abbreviate them, so that names can be copied
//! from a report.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::input::{InputError, Lines};
use super::pattern::Pattern;
use leak_report::model::abbreviated;
use leak_report::model::{FrameId, FrameRef, Report, StackRef, Suppression};
use leak_report::render::printable;

/// The only kind of rule about leaks.
const KIND: &str = "leak";

/// Rules, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Suppressions(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    pattern: Pattern,
    /// Rule and location as reports name them.
    named: Arc<Suppression>,
}

impl Suppressions {
    /// Adds the rules of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line is not a rule.
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
                    "`{shown}` is not a suppression: write {KIND}:PATTERN, PATTERN being a part of a function's, source \
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

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Suppression>> {
        self.0.iter().map(|rule| &rule.named)
    }

    /// Marks each stack with the rule that suppresses it: the first that matches the innermost frame with a
    /// match.
    pub(super) fn mark(&self, report: &mut Report) {
        let mut matcher = Matcher::new(&self.0);
        let marks: Vec<_> = report.stacks().map(|stack| matcher.of_stack(stack)).collect();
        for (stack, mark) in report.stacks.iter_mut().zip(marks) {
            stack.suppressed_by = mark
                .and_then(|rule| self.0.get(rule))
                .map(|rule| rule.named.clone());
        }
    }
}

/// Finds the rules for stacks. Results are cached by frame, as the stacks of a report share most frames.
struct Matcher<'a> {
    rules: &'a [Rule],
    known: HashMap<FrameId, Option<usize>>,
}

impl<'a> Matcher<'a> {
    fn new(rules: &'a [Rule]) -> Self {
        Self {
            rules,
            known: HashMap::new(),
        }
    }

    fn of_stack(&mut self, stack: StackRef<'_>) -> Option<usize> {
        let is_new = |frame: &FrameRef<'_>| {
            frame
                .function()
                .is_some_and(|name| name.starts_with("operator new"))
        };
        let of_new = stack.frames().take_while(is_new);
        let names = [stack.allocator()]
            .into_iter()
            .chain(of_new.clone().filter_map(FrameRef::function));
        let rule = names.into_iter().find_map(|name| self.of_function(name));
        let mut frames = stack.frames().skip(of_new.count());
        rule.or_else(|| frames.find_map(|frame| self.of_frame(frame)))
    }

    fn of_frame(&mut self, frame: FrameRef<'_>) -> Option<usize> {
        if let Some(&known) = self.known.get(&frame.id()) {
            return known;
        }
        let of_module = frame.module().and_then(|module| self.of_text(module.path()));
        let rule = of_module.or_else(|| self.of_names(frame));
        self.known.insert(frame.id(), rule);
        rule
    }

    /// Matches functions and files of a frame, innermost inlined function first.
    fn of_names(&self, frame: FrameRef<'_>) -> Option<usize> {
        let inlined = frame.inlined().map(|inlined| (inlined.symbol, inlined.file));
        let mut functions = inlined.chain([(frame.function(), frame.file())]);
        functions.find_map(|(function, file)| {
            let of_function = function.and_then(|name| self.of_function(name));
            of_function.or_else(|| self.of_text(file?))
        })
    }

    /// Matches the exact and the abbreviated name separately, each with its own beginning and end.
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
