//! Diagnosis of the process that is shown, in a window over the panes.

use super::Model;
use crate::sinks::live::diagnosing::Diagnosing;

impl Model {
    /// Starts to diagnose the process of the selected site, or else the first one that runs.
    pub(super) fn start_diagnosis(&mut self) {
        let of_site = self.selected().map(|site| site.pid).filter(|&pid| pid != 0);
        let first = self.sample().and_then(|sample| sample.process);
        match of_site.or(first) {
            Some(pid) => {
                self.diagnosis = Some(Diagnosing::start(pid, (self.diagnose)(pid)));
                self.show_diagnosis();
            }
            None => self
                .shell
                .show_text(vec!["There is no process to look at.".to_owned()]),
        }
    }

    /// Shows the answer, or how long it will take.
    pub(in crate::sinks::live) fn show_diagnosis(&mut self) {
        if let Some(diagnosis) = &self.diagnosis {
            self.shell.show_text(diagnosis.lines());
        }
    }

    /// Ends the diagnosis if its window is closed.
    pub(in crate::sinks::live) fn close_diagnosis(&mut self) {
        if !self.shell.shows_text() {
            self.end_diagnosis();
        }
    }

    /// Ends the diagnosis.
    pub(in crate::sinks::live) fn end_diagnosis(&mut self) {
        self.diagnosis = None;
    }
}
