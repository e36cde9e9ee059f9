//! Verdicts on stacks and on a report.

use super::{Estimate, Report, Stack, Verdict};

impl Stack {
    /// Verdict on the outstanding blocks; all zero if none was asked for.
    pub fn judged(&self) -> Verdict {
        self.verdict.unwrap_or_default()
    }

    /// Amount that is definitely lost, with its share of the variance of what is outstanding.
    pub fn definitely_lost(&self) -> Estimate {
        self.outstanding.part(self.judged().definitely_lost)
    }

    /// Amount that is indirectly lost, with its share of the variance of what is outstanding.
    pub fn indirectly_lost(&self) -> Estimate {
        self.outstanding.part(self.judged().indirectly_lost)
    }
}

impl Report {
    /// Sum of the verdicts on the suspects, as shown to people; `None` if none was asked for.
    pub fn verdict(&self) -> Option<Verdict> {
        self.judgement.as_ref()?;
        Some(self.suspects().map(|stack| stack.judged()).sum())
    }
}
