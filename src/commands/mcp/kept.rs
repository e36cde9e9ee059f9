//! Reports of a running trace: the first, and the last few.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::document::Document;
use super::tools::{Listed, Reports};
use leak_report::model::Report;
use leak_report::render::ReportSink;

/// Maximum number of reports that are kept.
const MAX_REPORTS: usize = 16;

/// The reports, shared by the trace that adds them and the server that reads them.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Number of reports that were made.
    made: u64,
    /// Reports with their numbers, from 1.
    reports: VecDeque<(u64, Arc<Report>)>,
    is_over: bool,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that there will be no more reports.
    pub fn end(&self) {
        self.lock().is_over = true;
    }
}

impl ReportSink for Kept {
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        let mut state = self.lock();
        state.made += 1;
        let number = state.made;
        state.reports.push_back((number, Arc::clone(report)));
        if state.reports.len() > MAX_REPORTS {
            // Keeps the first report: it is the reference for growth since the attach.
            state.reports.remove(1);
        }
        Ok(())
    }
}

impl Reports for Kept {
    fn numbers(&mut self) -> Vec<u64> {
        let state = self.lock();
        state.reports.iter().map(|(number, _)| *number).collect()
    }

    fn about(&mut self, number: u64) -> Listed {
        let state = self.lock();
        let report = state.reports.iter().find(|(known, _)| *known == number);
        Listed {
            file: None,
            time: report.map(|(_, report)| report.time.to_string()),
        }
    }

    fn state(&mut self) -> &'static str {
        match self.lock().is_over {
            true => "the trace is over",
            false => "the trace goes on, and makes further reports",
        }
    }

    fn get(&mut self, number: u64) -> Result<Arc<Document>, String> {
        let state = self.lock();
        let found = state.reports.iter().find(|(known, _)| *known == number);
        let report = found.map(|(_, report)| Arc::clone(report));
        drop(state);
        match report {
            Some(report) => Document::of(&report).map(Arc::new),
            None => Err(format!("report {number} is not kept: see `reports`")),
        }
    }
}
