//! Puts sites into the page's data, as long as they have room, and sums up those that have none.

use std::collections::HashMap;

use unwind_tables::walk::End;

use super::data::{Data, EndRow, KindRow, Process, SiteRow, SnapshotRow};
use super::fit::{COLUMNS, Weight, columns, printed, width};
use super::health::end_number;
use super::model::{AGES, Model};
use super::rows::Row;
use super::snapshot::{Resident, Snapshot};
use super::tables::{Tables, number, printed_text};
use super::visible::visible;
use crate::model::{InstanceEnd, Parts, RegionKind};
use crate::report::ends::{advice, explain};
use crate::report::regions::meaning;

/// Processes that the page lists, beside those that have sites on it.
const MAX_PROCESSES: usize = 256;
// What things take in the file, at most, without texts; see `tables`.
/// The suspicion of a site.
const SUSPICION_BYTES: usize = 64;
/// A site, without what it had.
const SITE_BYTES: usize = 142;
const PROCESS_BYTES: usize = 100;
/// A moment, without its rows; and the memory of a process at it.
const MOMENT_BYTES: usize = 400;
const MEMORY_BYTES: usize = 120;
/// The tables of ends and of kinds, and the names of all fields.
const FIXED_BYTES: usize = 4096;

/// The page's data in the making.
pub(super) struct Builder<'a> {
    model: &'a Model,
    budget: usize,
    used: usize,
    tables: Tables<'a>,
    /// Numbers on the page by those of the model.
    processes: HashMap<u32, usize>,
    sites: HashMap<u32, usize>,
    process_rows: Vec<Process>,
    site_rows: Vec<SiteRow>,
}

impl<'a> Builder<'a> {
    /// Without sites.
    pub(super) fn new(model: &'a Model, budget: usize) -> Self {
        let mut builder = Self {
            model,
            budget,
            used: 0,
            tables: Tables::new(model),
            processes: HashMap::new(),
            sites: HashMap::new(),
            process_rows: Vec::new(),
            site_rows: Vec::new(),
        };
        // Those that run first: many may have come and gone.
        let all = model.processes.values();
        let (running, ended): (Vec<_>, Vec<_>) = all.partition(|target| target.ended.is_none());
        for target in running.into_iter().chain(ended).take(MAX_PROCESSES) {
            builder.process(target.instance);
        }
        builder.used = builder.fixed_bytes();
        builder
    }

    /// What all that is not of sites takes.
    fn fixed_bytes(&self) -> usize {
        let processes = serde_json::to_vec(&self.process_rows).map_or(0, |text| text.len());
        let health = serde_json::to_vec(&self.model.health).map_or(0, |text| text.len());
        let moments = self.model.snapshots.kept.iter();
        let moments = moments.map(|snapshot| MOMENT_BYTES + MEMORY_BYTES * snapshot.memory.len());
        processes + health + moments.sum::<usize>() + FIXED_BYTES
    }

    /// Takes a site, if it has room. Returns whether it had.
    pub(super) fn offer(&mut self, site: u32, weight: &Weight) -> bool {
        let used = self.used.saturating_add(self.cost(site, weight));
        let fits = used <= self.budget;
        if fits {
            self.used = used;
            self.take(site);
        }
        fits
    }

    /// What a site takes in the file, at most.
    fn cost(&self, site: u32, weight: &Weight) -> usize {
        let Some(key) = self.model.sites.key(site) else {
            return usize::MAX;
        };
        let ages = self.ages(site).map_or(0, |ages| printed(&ages));
        let suspicion = self.suspicion(site).map_or(0, |_| SUSPICION_BYTES);
        SITE_BYTES
            + weight.row_bytes
            + ages
            + suspicion
            + self.process_cost(key.instance)
            + self.tables.text_cost(&self.allocator(key.allocator))
            + self.tables.text_cost(&self.rule(site))
            + self.tables.module_cost(key.end_module)
            + self.tables.stack_cost(key.node)
    }

    fn take(&mut self, site: u32) {
        let Some(&key) = self.model.sites.key(site) else {
            return;
        };
        let facts = self.model.facts[site as usize];
        let is_cut = key.end != End::Complete && facts.end_address != 0;
        let allocator = self.allocator(key.allocator);
        let rule = self.rule(site);
        let row = SiteRow(
            i64::try_from(self.process(key.instance)).unwrap_or(-1),
            self.tables.text(allocator),
            key.kind.map_or(-1, kind_number),
            end_number(key.end),
            self.tables.module(key.end_module),
            if is_cut {
                format!("{:x}", facts.end_address)
            } else {
                String::new()
            },
            self.tables.stack(key.node),
            u32::from(facts.is_suspect),
            0,
            facts.lost.bytes,
            facts.lost.blocks,
            self.tables.text(rule),
            facts.owner.frame,
            facts.owner.level,
        );
        self.sites.insert(site, self.site_rows.len());
        self.site_rows.push(row);
    }

    fn allocator(&self, allocator: u32) -> String {
        let name = self.model.allocators.get(allocator as usize);
        name.map_or_else(String::new, |name| visible(name))
    }

    /// What suppresses the site, or no text.
    fn rule(&self, site: u32) -> String {
        let facts = self.model.facts.get(site as usize);
        let rule = facts.and_then(|facts| self.model.rules.get(facts.suppressed_by? as usize));
        rule.map_or_else(String::new, |rule| visible(&rule.rule))
    }

    fn ages(&self, site: u32) -> Option<[u64; 2 * AGES]> {
        let ages = self.model.facts.get(site as usize)?.ages?;
        let numbers = std::array::from_fn(|at| match at % 2 {
            0 => ages[at / 2].bytes,
            _ => ages[at / 2].blocks,
        });
        numbers.iter().any(|&number| number > 0).then_some(numbers)
    }

    /// Its score, growth and parts, if it has any suspicion.
    fn suspicion(&self, site: u32) -> Option<[i64; 6]> {
        let suspicion = self.model.facts.get(site as usize)?.suspicion?;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "of a number out of range the nearest will do"
        )]
        let (growth, percent) = (suspicion.growth as i64, |part: f64| {
            (100.0 * part.clamp(0.0, 1.0)).round() as i64
        });
        let known = |part: Option<f64>| part.map_or(-1, percent);
        Some([
            suspicion.score().into(),
            growth,
            percent(suspicion.certainty),
            percent(suspicion.steadiness),
            known(suspicion.kept),
            known(suspicion.age_spread),
        ])
        .filter(|parts| parts[0] > 0)
    }

    fn process_cost(&self, instance: u32) -> usize {
        if self.processes.contains_key(&instance) {
            return 0;
        }
        let target = self.model.processes.get(&instance);
        let texts = target.map_or(0, |target| {
            let exe = target.exe.as_ref();
            let exe = exe.map_or(0, |exe| printed_text(&visible(&exe.to_string_lossy())));
            printed_text(&visible(&target.comm)) + exe
        });
        PROCESS_BYTES + texts
    }

    /// The number of an instance. One that no report has among its targets stands for several.
    fn process(&mut self, instance: u32) -> usize {
        if let Some(&known) = self.processes.get(&instance) {
            return known;
        }
        let target = self.model.processes.get(&instance);
        let exe = target.and_then(|target| target.exe.as_ref());
        self.process_rows.push(Process {
            pid: target.map(|target| target.pid),
            instance,
            parent: target.and_then(|target| target.parent),
            comm: target.map_or_else(String::new, |target| visible(&target.comm)),
            exe: exe.map(|exe| visible(&exe.to_string_lossy())),
            ended: target.and_then(|target| target.ended).map(InstanceEnd::name),
        });
        let next = self.process_rows.len() - 1;
        self.processes.insert(instance, next);
        next
    }

    /// The data, with the sums of all sites that were not taken.
    pub(super) fn finish(mut self) -> Data {
        let model = self.model;
        let others = self.add_others();
        let mut ages: Vec<_> = self
            .sites
            .iter()
            .filter_map(|(&site, &number)| Some((number, self.ages(site)?)))
            .collect();
        ages.sort_unstable();
        let sites = self.sites.iter();
        let mut suspicions: Vec<_> = sites
            .filter_map(|(&site, &number)| Some((number, self.suspicion(site)?)))
            .collect();
        suspicions.sort_unstable();
        let mut last = vec![[0; COLUMNS]; self.site_rows.len()];
        let snapshots = model.snapshots.kept.iter();
        let snapshots = snapshots
            .map(|snapshot| self.snapshot_row(snapshot, &others, &mut last))
            .collect();
        let Tables {
            texts,
            exact,
            modules,
            frames,
            callers,
            node_frames,
            ..
        } = self.tables;
        Data {
            memleak: env!("CARGO_PKG_VERSION"),
            trace: model.trace.clone(),
            are_estimates: model.are_estimates,
            thinned: model.snapshots.thinned,
            budget: self.budget,
            more_processes: model.processes.len().saturating_sub(self.process_rows.len()),
            processes: self.process_rows,
            strings: texts,
            exact,
            modules,
            frames,
            callers,
            node_frames,
            ends: End::ALL.into_iter().map(|end| end_row(end, model)).collect(),
            kinds: RegionKind::ALL.into_iter().map(kind_row).collect(),
            sites: self.site_rows,
            ages,
            suspicions,
            snapshots,
            health: model.health.clone(),
        }
    }

    /// Makes a row for the sum of those sites that had no room and can be leaks, and for the sum of those that cannot;
    /// returns the numbers of these rows by whether they can.
    fn add_others(&mut self) -> [Option<usize>; 2] {
        let sites = 0..number(self.model.sites.len());
        let merged = sites.filter(|site| !self.sites.contains_key(site));
        let mut counts = [0_u64; 2];
        for site in merged {
            counts[usize::from(self.model.facts[site as usize].is_suspect)] += 1;
        }
        [0, 1].map(|is_suspect| {
            let count = counts[is_suspect];
            (count > 0).then(|| {
                let is_suspect = u32::from(is_suspect == 1);
                let none = String::new();
                self.site_rows.push(SiteRow(
                    -1, 0, -1, 0, 0, none, 0, is_suspect, count, 0, 0, 0, 0, 0,
                ));
                self.site_rows.len() - 1
            })
        })
    }

    /// A moment; `last` is what each site had at the one before it.
    fn snapshot_row(
        &self,
        snapshot: &Snapshot,
        others: &[Option<usize>; 2],
        last: &mut [[u64; COLUMNS]],
    ) -> SnapshotRow {
        let mut now = vec![Row::default(); last.len()];
        let mut all = Row::default();
        for (site, row) in snapshot.rows.iter() {
            all = all.plus(row);
            let of_others = || {
                let facts = self.model.facts.get(site as usize)?;
                others[usize::from(facts.is_suspect)]
            };
            let number = self.sites.get(&site).copied().or_else(of_others);
            if let Some(sum) = number.and_then(|number| now.get_mut(number)) {
                *sum = sum.plus(row);
            }
        }
        let width = width(self.model.are_estimates);
        let mut rows = Vec::new();
        let mut before = 0;
        for (number, (row, last)) in now.iter().zip(last).enumerate() {
            let columns = columns(row);
            if columns != *last {
                rows.push((number - before) as u64);
                rows.extend_from_slice(&columns[..width]);
                *last = columns;
                before = number;
            }
        }
        SnapshotRow {
            time: snapshot.time.to_string(),
            read_at_ms: snapshot.read_at_ms,
            elapsed_ns: u64::try_from(snapshot.elapsed.as_nanos()).unwrap_or(u64::MAX),
            marked: snapshot.marked,
            all: columns(&all)[..width].to_vec(),
            rows,
            memory: snapshot
                .memory
                .iter()
                .filter_map(|resident| self.memory_row(resident))
                .collect(),
        }
    }

    fn memory_row(&self, resident: &Resident) -> Option<(usize, [u64; 9], u64)> {
        let process = *self.processes.get(&resident.instance)?;
        let Parts {
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
        } = resident.parts;
        let parts = [
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
        ];
        Some((process, parts, resident.error))
    }
}

fn end_row(end: End, model: &Model) -> EndRow {
    EndRow {
        name: end.name(),
        meaning: explain(end).meaning,
        advice: visible(&advice(end, model.processes.values())),
    }
}

fn kind_row(kind: RegionKind) -> KindRow {
    KindRow {
        name: kind.name(),
        meaning: meaning(kind),
    }
}

fn kind_number(kind: RegionKind) -> i64 {
    let number = RegionKind::ALL.iter().position(|&other| other == kind);
    number.and_then(|number| i64::try_from(number).ok()).unwrap_or(-1)
}
