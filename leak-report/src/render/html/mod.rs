//! A page for a browser: one file with all reports of a trace, that needs no network and asks for none.
//!
//! The page is `page/`, whose scripts are as much the program as this is; here is what it is given: [`model`] keeps of
//! each report what the page shows, compactly, since a trace can be long; [`builder`] chooses the largest sites, sums up all
//! others, and makes [`data`] of them, which is what the page reads, and [`document`] puts it all together so that nothing that came from a process can be anything but text.
//!
//! Nothing is left out in silence: reports that were thinned out, sites that were summed up and lists that were cut say
//! so, with numbers, and the sums over all sites are those of the reports to the byte.

mod builder;
mod data;
mod document;
mod health;
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

/// How much a page may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Moments that it can show; of more, those are left out whose neighbours are nearest. At least 2.
    pub snapshots: usize,
    /// Sites that it shows one by one; the others are summed up.
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

/// A page in the making: reports go in one by one, in their order.
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
    /// `out` takes no more.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        document::write(&builder::data(&self.model, self.limits.sites), out)
    }
}

/// Writes the page of one report.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Page::default();
    page.add(report);
    page.write(out)
}
