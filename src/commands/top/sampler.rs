//! Samples of all processes, and the table of them.

use std::time::{Duration, Instant};

use super::options::Options;
use super::read::{Machine, Reading, Users, hides_processes};
use super::table::{Full, Row, Table, Trend};
use super::watch::Watch;
use crate::commands::targets::without_wait;
use crate::process::select::{Found, MemoryLimits, SelectError, Selection, Selectors};

/// Samples the memory of the selected processes.
#[derive(Debug)]
pub(super) struct Sampler {
    selection: Selection,
    /// Processes of the first sample, until it is taken.
    first: Option<Vec<Found>>,
    watch: Watch,
    users: Users,
    limits: MemoryLimits,
    began: Instant,
    interval: Duration,
    window: Duration,
    hides_processes: bool,
}

impl Sampler {
    /// Finds the processes.
    ///
    /// # Errors
    ///
    /// Fails if nothing matches, unless `options` waits or has no selectors.
    pub(super) fn new(options: &Options, interval: Duration) -> anyhow::Result<Self> {
        let mut selection = Selection::new(options.selectors.clone())?;
        let first = match selection.scan() {
            // Without selectors, there may be no visible process.
            Err(SelectError::Nothing(_)) if options.waits || options.selectors == Selectors::default() => {
                Vec::new()
            }
            found => found.map_err(without_wait)?,
        };
        let window = options.window_of(interval);
        Ok(Self {
            selection,
            first: Some(first),
            watch: Watch::new(window),
            users: Users::default(),
            limits: MemoryLimits::new(),
            began: Instant::now(),
            interval,
            window,
            hides_processes: hides_processes(),
        })
    }

    /// Reads all processes once. It is no error if nothing matches now.
    ///
    /// # Errors
    ///
    /// Fails if the search for processes fails.
    pub(super) fn sample(&mut self) -> anyhow::Result<()> {
        let found = match self.first.take() {
            Some(found) => found,
            None => match self.selection.scan() {
                Err(SelectError::Nothing(_)) => Vec::new(),
                found => found?,
            },
        };
        let readings = found.into_iter().filter_map(Reading::of).collect();
        self.watch.take(self.began.elapsed(), readings);
        Ok(())
    }

    /// The table of the last sample.
    pub(super) fn table(&mut self) -> Table {
        let machine = Machine::read();
        self.limits.forget();
        let mut table = Table {
            elapsed: self.began.elapsed(),
            interval: self.interval,
            window: self.window,
            machine,
            rows: Vec::new(),
            left_out: self.watch.left_out,
            hides_processes: self.hides_processes,
        };
        for course in self.watch.courses() {
            let mut row = Row {
                pid: course.process.pid,
                start_time: course.process.start_time,
                comm: course.process.comm.clone(),
                uid: course.user,
                user: self.users.name(course.user),
                memory: course.memory,
                samples: course.samples(),
                span: course.span(),
                growth: course.growth(),
                history: course.history(),
                full: None,
            };
            if row.trend() == Trend::Grows {
                row.full = Full::at(row.growth.slope, &machine, self.limits.of(row.pid));
            }
            table.rows.push(row);
        }
        table.sort();
        table
    }
}
