//! Free memory that blocks pin, of stacks and of a report.

use super::{Estimate, Fragmentation, Report, Stack, TargetFacts};

impl Stack {
    /// Free memory that the outstanding blocks pin, and the number of those that pin any; nothing if that is
    /// not known.
    pub fn pins(&self) -> Estimate {
        self.pinned.unwrap_or_default()
    }
}

impl Report {
    /// Returns whether pinned memory was asked for.
    pub fn asks_for_pinned(&self) -> bool {
        self.targets.iter().any(|target| target.fragmentation.is_some())
    }

    /// Free memory that the blocks of all suspects pin, as shown to people; `None` if it was not asked for,
    /// or is known of no process.
    pub fn pinned(&self) -> Option<Estimate> {
        let mut fragmentations = self
            .targets
            .iter()
            .filter_map(|target| target.fragmentation.as_ref());
        let is_known = fragmentations.any(|fragmentation| fragmentation.known().is_some());
        is_known.then(|| self.suspects().map(|stack| stack.pins()).sum())
    }

    /// Free memory of a process that is pinned by blocks which no stack of the report has: from before the
    /// attach, or not recorded. `None` if it is not known.
    pub fn pinned_by_others(&self, target: &TargetFacts) -> Option<u64> {
        let total = target.fragmentation.as_ref().and_then(Fragmentation::total)?;
        let of_target = |stack: &&Stack| stack.instance == target.instance;
        let stacks = self.stacks.iter().filter(of_target);
        let by_stacks: Estimate = stacks.map(Stack::pins).sum();
        Some(total.pinned_by_blocks().saturating_sub(by_stacks.amount.bytes))
    }
}
