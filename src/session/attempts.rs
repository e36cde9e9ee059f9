//! Attempts to start a trace by one way after another: which ways are worth trying after the kernel has
//! refused a program, and the warnings or the error at the end.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Error, anyhow};
use leak_report::model::{Missing, TracePart};

use super::TraceConfig;
use super::ways::{MAX_WAYS, Way};
use crate::bpf::preflight;
use crate::bpf::{AttachPath, RefusedProgram, Storage, Tolerance, release};

/// Maximum number of attempts to load.
const MAX_ATTEMPTS: usize = MAX_WAYS + TracePart::ALL.len();

/// Storage for each attempt to load.
pub type Storages = [Storage; MAX_ATTEMPTS];

/// Empty storage for a session, which borrows it.
pub fn storages() -> Storages {
    [const { Storage::uninit() }; MAX_ATTEMPTS]
}

/// Time spent on refused programs after which no other way is tried: a kernel whose verifier follows a
/// million instructions before it gives up takes seconds for each, and half a minute under emulation.
const PATIENCE: Duration = Duration::from_secs(20);

/// Hint at the command that writes the data an issue needs.
const TO_REPORT: &str = "to report it: memleak doctor --report";

/// Ways that are left to try, and the results of the others.
pub(super) struct Attempts {
    left: VecDeque<Way>,
    best: Option<Way>,
    pub(super) tolerance: Tolerance,
    /// Programs that the verifier refused, each with its way.
    refused: Vec<(Way, RefusedProgram)>,
    /// Errors of the first such way, and of the last way.
    first: Option<Error>,
    last: Option<Error>,
    /// Ways that were not tried for lack of time.
    untried: Vec<Way>,
}

impl Attempts {
    pub(super) fn new(ways: Vec<Way>, config: &TraceConfig) -> Self {
        Self {
            best: ways.first().copied(),
            left: ways.into(),
            tolerance: Tolerance::breaking(&config.tuning.broken),
            refused: Vec::new(),
            first: None,
            last: None,
            untried: Vec::new(),
        }
    }

    /// The next way to try.
    pub(super) fn next(&mut self) -> Option<Way> {
        while let Some(way) = self.left.pop_front() {
            if !self.is_worth_it(&way) {
                tracing::debug!("{way}: not tried");
            } else if self.tolerance.spent() > PATIENCE {
                self.untried.push(way);
            } else {
                return Some(way);
            }
        }
        None
    }

    /// Returns whether a way can work, given the programs that were refused.
    fn is_worth_it(&self, way: &Way) -> bool {
        let begins_with_python = self.best.is_some_and(|best| best.python);
        let way = self.effective(way);
        let helps = way.python
            || !begins_with_python
            || self.tolerance.lacks(TracePart::Python)
            || self.refused.iter().any(|(of, _)| of.python);
        let refused_again =
            |(of, program): &(Way, RefusedProgram)| way.loads(&program.name) && way.has_the_programs_of(of);
        helps && !self.refused.iter().any(refused_again)
    }

    /// A way without the parts that are left out by now.
    fn effective(&self, way: &Way) -> Way {
        Way {
            python: way.python && !self.tolerance.lacks(TracePart::Python),
            ..*way
        }
    }

    /// Notes that a way failed.
    pub(super) fn failed(&mut self, way: Way, error: Error) {
        tracing::debug!("{way}: {error:#}");
        match RefusedProgram::of(&error) {
            Some(program) if program.is_by_verifier() => {
                self.refused.push((self.effective(&way), program.clone()));
                self.first.get_or_insert(error);
                self.last = None;
            }
            Some(_) | None => self.last = Some(error),
        }
    }

    /// Warns of the parts that the trace lacks by the way that worked. Returns these.
    pub(super) fn succeeded(mut self, way: Way) -> Vec<Missing> {
        for (part, is_missing, of) in [
            (
                TracePart::Python,
                self.best.is_some_and(|best| best.python) && !way.python,
                (|way| way.python) as fn(&Way) -> bool,
            ),
            (
                TracePart::FreeNotes,
                self.best.is_some_and(|best| best.frees.is_some()) && way.frees.is_none(),
                |way| way.frees.is_some(),
            ),
        ] {
            let refused = self.refused.iter().find(|(way, _)| is_missing && of(way));
            if let Some((_, program)) = refused {
                self.tolerance.leave_out(part, &program.name, program.reason());
            }
        }
        warn_of(self.tolerance.missing());
        let by_another = self
            .refused
            .iter()
            .find(|(of, program)| of.path != way.path && !way.path.loads(&program.name));
        if let Some((_, program)) = by_another {
            tracing::warn!("{program}: {}; {TO_REPORT}", instead(way.path));
        }
        self.tolerance.missing().to_vec()
    }

    /// Error of a trace that no way has started.
    pub(super) fn into_error(self, config: &TraceConfig) -> Error {
        let remedies = self.remedies(config);
        let names: Vec<_> = self
            .refused
            .iter()
            .map(|(_, program)| program.name.as_str())
            .collect();
        let mut others: Vec<_> = names
            .iter()
            .skip(1)
            .filter(|name| Some(*name) != names.first())
            .collect();
        others.dedup();
        let others = match others.is_empty() {
            true => String::new(),
            false => {
                let others: Vec<_> = others.into_iter().copied().collect();
                format!("; and by other ways {}", others.join(", "))
            }
        };
        match self.last.or(self.first) {
            // A missing privilege in the last way says more than an earlier refusal.
            Some(error) => explain(error, &[others, remedies].concat()),
            None => anyhow!("cannot trace: no way to attach was given"),
        }
    }

    /// Flags that can help after a refusal, as they lead to something that was not tried.
    fn remedies(&self, config: &TraceConfig) -> String {
        let is_refused = |beginning| {
            self.refused
                .iter()
                .any(|(_, program)| program.name.starts_with(beginning))
        };
        let with_python = self.refused.iter().any(|(way, _)| way.python);
        let without_python = self.refused.iter().any(|(way, _)| !way.python);
        let mut remedies = Vec::new();
        if with_python && !without_python {
            remedies.push("--python off".to_owned());
        }
        if let Some(way) = self
            .untried
            .iter()
            .find(|way| self.refused.iter().all(|(of, _)| of.path != way.path))
        {
            remedies.push(format!("--attach {:?}", way.path).to_lowercase());
        } else if config.tuning.attach.len() < AttachPath::ALL.len() {
            remedies.push("another way to attach, without --attach".to_owned());
        }
        if is_refused("usdt_") {
            remedies.push("--source uprobe".to_owned());
        }
        if let Some(flag) = config.count.counted.flag() {
            remedies.push(format!("a trace without {flag}"));
        }
        let late = match self.untried.len() {
            0 => String::new(),
            untried => format!(
                "; {untried} other ways were not tried after {:.0} s in the verifier",
                self.tolerance.spent().as_secs_f64()
            ),
        };
        match remedies.is_empty() {
            true => format!("{late}; try another kernel"),
            false => format!("{late}; try {}", remedies.join(" or ")),
        }
    }
}

/// Consequence of another way than the best one.
fn instead(path: AttachPath) -> String {
    let cost = match path {
        AttachPath::Session => "",
        AttachPath::Multi | AttachPath::Perf => {
            ", by which an allocation that is not recorded takes two traps"
        }
    };
    format!("traces use {} instead{cost}", path.in_words())
}

/// Warns of each part that is missing.
pub(super) fn warn_of(missing: &[Missing]) {
    for missing in missing {
        let Missing {
            part,
            program,
            reason,
        } = missing;
        let (without, release) = (part.without(), release());
        if *part == TracePart::KernelBulk && !missing.is_by_verifier() {
            tracing::warn!("this kernel does not allow its functions to be traced (fentry): {without}");
            continue;
        }
        tracing::warn!(
            "{without}: the kernel (Linux {release}) refused the program {program}: {reason}; {TO_REPORT}"
        );
    }
}

/// Adds an explanation to an error: obstacles of this system if there are any; else, for a refused program,
/// `advice` and how to report it.
pub(super) fn explain(error: Error, advice: &str) -> Error {
    let obstacles = preflight::obstacles();
    if !obstacles.is_empty() {
        let all: Vec<_> = obstacles.iter().map(ToString::to_string).collect();
        return error.context(all.join("; "));
    }
    match RefusedProgram::of(&error) {
        Some(_) => anyhow!("{error:#}{advice}; {TO_REPORT}"),
        None => error,
    }
}

#[cfg(test)]
mod tests;
