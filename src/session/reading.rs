//! Phases of a report. Each makes the value that the next one needs, so that their order is in types: a
//! [`Quiet`] trace is read; a [`Reading`] has all that a report needs of the kernel side, so that probes can
//! be detached before it is described.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;

use super::describe::{self, Processes, Shown};
use super::pinned::{self, Pinned};
use super::verdict::{Holding, Judging};
use super::{Session, Signals, View, classes};
use crate::bpf::collect::{BlockTable, LiveBlocks, Moment};
use crate::process::History;
use leak_report::model::{CheckedWalks, Judgement, Overhead, Report, Snapshot};

/// A trace whose walks and ends of memory are all accounted, at a moment.
pub(super) struct Quiet {
    view: View,
    moment: Moment,
    judging: Option<Judging>,
}

/// All that a report needs of the kernel side and of the processes' memory.
pub(super) struct Reading {
    view: View,
    snapshot: Snapshot,
    blocks: Option<LiveBlocks>,
    judgement: Option<Judgement>,
    holdings: Option<Vec<Holding>>,
    pinned: Option<Pinned>,
    overhead: Option<Overhead>,
}

impl Session<'_> {
    /// Judges blocks, if the report has a verdict, and brings all accounts up to date. `is_last`: no report
    /// follows.
    pub(super) fn quiet(&mut self, view: &View, is_last: bool, signals: &Signals) -> anyhow::Result<Quiet> {
        let judging = self.judge(view, is_last, signals)?;
        // At a program's end, no block is young.
        let age = |older| {
            if self.live.stops.is_at_end() {
                Duration::ZERO
            } else {
                older
            }
        };
        let view = View {
            older: view.older.map(age),
            ..*view
        };
        self.live.settle_accounts()?;
        // The moment comes before the snapshot, so that every block that is old by then is in the totals.
        let moment = Moment::now();
        if view.older.is_some_and(|older| older < Moment::PRECISION) {
            // Even blocks whose timestamps are early are then in the totals if they look old.
            sleep(Moment::PRECISION);
        }
        self.live.finish_all_walks()?;
        Ok(Quiet {
            view,
            moment,
            judging,
        })
    }

    /// Reads all that a report needs while probes are attached.
    pub(super) fn read(&mut self, quiet: Quiet, signals: &Signals) -> anyhow::Result<Reading> {
        let Quiet {
            view,
            moment,
            judging,
        } = quiet;
        let mut snapshot = self.snapshot()?;
        if let Some(peak) = &self.peak {
            peak.describe(&mut snapshot);
        }
        let overhead = self
            .meter
            .as_ref()
            .map(|meter| meter.overhead(self.live.attach.probes()));
        let (mut blocks, judging) = self.read_blocks(moment, &view, signals, judging)?;
        let (judgement, holdings) = judging.map(|judging| self.judgement(judging)).unzip();
        let wanted = classes::Wanted::new(&view, holdings.is_some(), blocks.as_ref());
        let classes = self.classes(moment, wanted, signals)?;
        if let Some(blocks) = &mut blocks {
            blocks.set_classes(classes.listed);
        }
        let pinned = self.pinned(moment, &view, signals)?;
        // The snapshot may have stacks of instances and in mappings that are newer than those read last.
        self.live.observe()?;
        self.live.reload_all()?;
        self.live.finish_all_walks()?;
        self.live.warn_of_silence();
        self.live.read_not_announced();
        self.live.add_not_announced(&mut snapshot);
        if let Some(membership) = &self.membership {
            snapshot.losses.processes += membership.left_out();
        }
        if self.live.accounting.probes_allocators() {
            snapshot.losses.beginnings = self.live.missed_beginnings(&snapshot);
        }
        // Only now that `read_blocks` has listed the blocks of ended instances.
        self.live.forget_ended()?;
        Ok(Reading {
            view,
            snapshot,
            blocks,
            judgement,
            holdings: holdings.or(classes.of_sites),
            pinned,
            overhead,
        })
    }

    /// Finds what blocks pin that were not allocated later than `moment`; `None` if the view does not ask for
    /// it.
    fn pinned(&mut self, moment: Moment, view: &View, signals: &Signals) -> anyhow::Result<Option<Pinned>> {
        if !view.pinned {
            return Ok(None);
        }
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let running = self.live.roster.running();
        let processes: Vec<_> = running
            .map(|process| (process.facts.instance, process.facts.pid))
            .collect();
        let endings = self.live.kernel.processes.endings();
        let find = move || pinned::find(&table, &processes, &endings, moment);
        let found = self.meanwhile(signals, find)?;
        Ok(Some(found.context("cannot read the block table")?))
    }

    /// Names and describes a reading, with `top` stacks in text.
    pub(super) fn describe(&mut self, reading: Reading, top: usize) -> Report {
        let Reading {
            view,
            mut snapshot,
            blocks,
            judgement,
            holdings,
            pinned,
            overhead,
        } = reading;
        self.live.add_accounts(&mut snapshot, &mut self.symbolizer);
        self.live.describe_memory(&snapshot);
        self.live.describe_fragmentation(pinned.as_ref());
        self.log_reading(&snapshot);
        self.read_names_of_generated_code();
        self.place_python_frames(&mut snapshot);
        let recently = self.since.recently(&snapshot, blocks.as_ref());
        let without_providers = self.live.without_providers(&snapshot);
        let origin = Processes {
            all: &self.live.roster,
            modules: self.live.code.modules(),
            tables: self.live.code.tables(),
            allocators: self.live.attach.probes().catalog(),
            symbolizer: &mut self.symbolizer,
            facts: &mut self.facts,
            perf_maps: &self.perf_maps,
            python: &self.python_names,
            unknown: History::default(),
        };
        let shown = Shown {
            view: &view,
            top,
            unwind: self.live.code.unwind(),
            walked: without_providers.is_some().then_some(&snapshot),
            holdings: holdings.as_deref().unwrap_or_default(),
            pinned: pinned.as_ref(),
        };
        let visible = without_providers.as_ref().unwrap_or(&snapshot);
        let report = describe::report(origin, visible, &recently, shown, |_| ());
        let roster = &self.live.roster;
        self.since.reported(&snapshot, blocks.as_ref(), |instance| {
            roster.get(instance).is_some_and(|process| !process.is_live())
        });
        self.symbolizer.release();
        self.live.code.modules().release();
        let targets = self.live.roster.all();
        Report {
            targets: targets.map(|process| process.facts.clone()).collect(),
            overhead,
            missing: self.live.missing.clone(),
            judgement: judgement.map(|judgement| Judgement {
                unjudged: report.judgement.unwrap_or_default().unjudged,
                ..judgement
            }),
            ..report
        }
    }

    /// Logs what a reading says about the trace itself.
    fn log_reading(&self, snapshot: &Snapshot) {
        if snapshot.events.probe_hits == 0 {
            let (probes, growth) = (self.live.attach.probes(), self.live.growth_without_calls());
            tracing::warn!("{}", self.live.accounting.nothing_seen(probes, growth));
        }
        if self.live.asked.checks_walks {
            let CheckedWalks {
                checked,
                recalled,
                different,
            } = snapshot.walks;
            tracing::info!("walks checked: {checked}, of which {recalled} recalled; different: {different}");
        }
    }
}
