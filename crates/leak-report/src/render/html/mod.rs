//! A self-contained HTML page with all reports of a trace, which makes no network requests.
//!
//! The page is a program too: its scripts are in `page/`, and the modules here produce their input. [`model`]
//! keeps the part of each report that the page shows, in compact form, since a trace can be long. [`builder`]
//! chooses the largest sites, sums up all others, and makes [`data`] of them, which the page reads.
//! [`document`] assembles the file so that nothing from a process can be anything but text.
//!
//! Nothing is omitted silently: dropped reports, merged sites and truncated lists are shown with their
//! numbers, and the sums over all sites equal those of the reports to the byte.

mod builder;
mod data;
mod document;
mod health;
mod last;
mod memory;
mod model;
mod rows;
mod snapshot;
mod tables;
#[cfg(test)]
mod tests;
mod visible;

use std::io::{self, Write};

use crate::model::Report;
use model::Model;

/// Limits on the content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of snapshots, at least 2; beyond it, those with the nearest neighbours are dropped.
    pub snapshots: usize,
    /// Maximum number of sites shown one by one; the others are summed up.
    pub sites: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            snapshots: 60,
            sites: 4000,
        }
    }
}

/// A page to which reports are added one by one, in their order.
#[derive(Default)]
pub struct Page {
    limits: Limits,
    model: Model,
}

impl Page {
    /// A page without reports.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            model: Model::default(),
        }
    }

    /// Adds the next report.
    pub fn add(&mut self, report: &Report) {
        self.model.add(report, self.limits.snapshots.max(2));
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        document::write(&builder::data(&self.model, self.limits.sites), out)
    }
}

/// Writes a page of one report.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::default();
    page.add(report);
    page.write(out)
}
