//! Stacks that hold blocks of others.

use std::collections::HashMap;

use super::{PathId, Report, Stack, StackRef, Step, TextId};

/// Stacks of a report, by the allocator and path that identify them in steps.
#[derive(Debug)]
pub struct StepStacks<'a> {
    report: &'a Report,
    stacks: HashMap<(TextId, Option<PathId>), &'a Stack>,
}

impl<'a> StepStacks<'a> {
    /// Indexes the stacks of `report`; if none has holders, the index is empty.
    pub fn of(report: &'a Report) -> Self {
        let held = report.stacks.iter().any(|stack| stack.held.is_some());
        let stacks = report.stacks.iter().filter(|_| held);
        Self {
            report,
            stacks: stacks
                .map(|stack| ((stack.allocator, stack.path), stack))
                .collect(),
        }
    }

    /// The stack of a step; `None` if the report does not have it.
    pub fn get(&self, step: &Step) -> Option<StackRef<'a>> {
        let stack = self.stacks.get(&(step.allocator, step.path))?;
        Some(self.report.stack(stack))
    }
}
