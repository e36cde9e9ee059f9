//! Builds the page's data: the largest sites, and the sums of all others.
//!
//! A flame graph shows one measure at one moment; a site is ranked by its largest share of any such graph.

use std::collections::{BTreeMap, HashMap};

use unwind_tables::walk::{End, LeftOut};

use super::data::{Data, EndRow, HolderRow, KindRow, Process, SiteRow, SnapshotRow, verdict_numbers};
use super::health::end_number;
use super::last;
use super::memory;
use super::model::{AGES, Model, Site};
use super::rows::Row;
use super::snapshot::Snapshot;
use super::tables::{Tables, number};
use super::visible::visible;
use crate::model::{Amount, Excerpt, InstanceEnd, MemoryKind, RegionKind};
use crate::render::ends::{advice, explain};
use crate::render::estimates::whole as rounded;
use crate::render::regions::meaning;

/// Maximum number of processes that the page lists besides those of its sites.
const MAX_PROCESSES: usize = 256;
/// Maximum number of columns of a row.
const COLUMNS: usize = 10;
/// Number of measures that flame graphs can show.
const MEASURES: usize = 4;

/// The page's data while they are built.
struct Builder<'a> {
    model: &'a Model,
    tables: Tables<'a>,
    /// Process numbers on the page, by instance.
    processes: HashMap<u32, usize>,
    /// Site numbers on the page, by site number in the model.
    sites: BTreeMap<u32, usize>,
    process_rows: Vec<Process>,
    site_rows: Vec<SiteRow>,
}

/// Builds the data of a page that shows at most `sites` sites.
pub(super) fn data(model: &Model, sites: usize) -> Data {
    let shares = largest_shares(model);
    let mut order: Vec<u32> = (0..number(shares.len())).collect();
    order.sort_by(|&a, &b| shares[b as usize].total_cmp(&shares[a as usize]));
    order.truncate(sites);
    let mut builder = Builder::new(model);
    for site in order {
        builder.add(site);
    }
    builder.finish(sites)
}

/// The largest share of each site in any flame graph, from 0 to 1.
fn largest_shares(model: &Model) -> Vec<f64> {
    let mut largest = vec![0.0; model.sites.len()];
    for snapshot in &model.snapshots.kept {
        let totals = snapshot.rows.iter().fold([0.0; MEASURES], |sums, (_, row)| {
            let measures = measures(&row);
            std::array::from_fn(|at| sums[at] + measures[at])
        });
        for (site, row) in snapshot.rows.iter() {
            let shares = measures(&row).into_iter().zip(totals);
            let shares = shares
                .filter(|&(_, total)| total > 0.0)
                .map(|(part, total)| part / total);
            if let Some(known) = largest.get_mut(site as usize) {
                *known = shares.fold(*known, f64::max);
            }
        }
    }
    let of_last: [fn(&Site) -> Amount; 2] = [|site| site.peak, |site| site.pinned];
    for of in of_last {
        for (known, [bytes, blocks]) in largest.iter_mut().zip(last::shares(model, of)) {
            *known = bytes.max(blocks).max(*known);
        }
    }
    largest
}

#[allow(clippy::cast_precision_loss, reason = "shares need no more than a few digits")]
fn measures(row: &Row) -> [f64; MEASURES] {
    let (outstanding, allocated) = (row.outstanding.amount, row.allocated.amount);
    [
        outstanding.bytes,
        outstanding.blocks,
        allocated.bytes,
        allocated.blocks,
    ]
    .map(|number| number as f64)
}

/// Number of [`columns`] of each row that are in the page.
const fn width(are_estimates: bool) -> usize {
    if are_estimates { COLUMNS } else { 6 }
}

/// The columns of a row: bytes and blocks outstanding, allocated and young; then the standard errors of the
/// first two pairs, blocks in tenths.
fn columns(row: &Row) -> [u64; COLUMNS] {
    let [outstanding, allocated] =
        [row.outstanding, row.allocated].map(|estimate| estimate.spread.standard_error());
    [
        row.outstanding.amount.bytes,
        row.outstanding.amount.blocks,
        row.allocated.amount.bytes,
        row.allocated.amount.blocks,
        row.young.bytes,
        row.young.blocks,
        rounded(outstanding.bytes),
        rounded(outstanding.blocks * 10.0),
        rounded(allocated.bytes),
        rounded(allocated.blocks * 10.0),
    ]
}

impl<'a> Builder<'a> {
    /// A builder without sites.
    fn new(model: &'a Model) -> Self {
        let mut builder = Self {
            model,
            tables: Tables::new(&model.dictionary, model.style),
            processes: HashMap::new(),
            sites: BTreeMap::new(),
            process_rows: Vec::new(),
            site_rows: Vec::new(),
        };
        // Running processes first: there may be many that have ended.
        let all = model.processes.values();
        let (running, ended): (Vec<_>, Vec<_>) = all.partition(|target| target.ended.is_none());
        for target in running.into_iter().chain(ended).take(MAX_PROCESSES) {
            builder.process(target.instance);
        }
        builder
    }

    fn site(&self, site: u32) -> Option<&'a Site> {
        self.model.sites.get_index(site as usize).map(|(_, site)| site)
    }

    fn add(&mut self, number: u32) {
        let Some(site) = self.site(number) else {
            return;
        };
        let (stack, dictionary) = (&site.stack, &self.model.dictionary);
        let end_at = stack.end_at.map(|at| dictionary.location(at));
        let end_at = end_at.map(|at| (at.place.map_or(at.pc.get(), |place| place.svma.get()), at.place));
        let end_address = end_at.map_or(0, |(address, _)| address);
        let is_cut = stack.end != End::Complete && end_address != 0;
        let rule = stack.suppressed_by.as_ref().map_or("", |by| by.rule.as_str());
        let end_address = match is_cut {
            true => format!("{end_address:x}"),
            false => String::new(),
        };
        let row = SiteRow {
            process: i64::try_from(self.process(stack.instance)).unwrap_or(-1),
            allocator: self.tables.text(dictionary.text(stack.allocator)),
            kind: stack.kind.map_or(-1, kind_number),
            end: end_number(stack.end),
            end_module: self
                .tables
                .module(end_at.and_then(|(_, place)| Some(place?.module))),
            end_address,
            node: self.tables.stack(stack.path),
            is_suspect: site.is_suspect,
            merged: 0,
            lost: [site.lost.bytes, site.lost.blocks],
            rule: self.tables.text(rule),
            owner: [site.owner.frame, site.owner.level],
        };
        self.sites.insert(number, self.site_rows.len());
        self.site_rows.push(row);
    }

    /// Collects facts about sites, by their number on the page.
    fn by_site<T: Ord>(&self, of: impl Fn(u32) -> Option<T>) -> Vec<(usize, T)> {
        let sites = self.sites.iter();
        let mut known: Vec<_> = sites
            .filter_map(|(&site, &number)| Some((number, of(site)?)))
            .collect();
        known.sort_unstable();
        known
    }

    fn ages(&self, site: u32) -> Option<[u64; 2 * AGES]> {
        let ages = self.site(site)?.ages?;
        let numbers = std::array::from_fn(|at| match at % 2 {
            0 => ages[at / 2].bytes,
            _ => ages[at / 2].blocks,
        });
        numbers.iter().any(|&number| number > 0).then_some(numbers)
    }

    /// Score, growth and parts of a site's suspicion; `None` if the score is 0 or unknown.
    fn suspicion(&self, site: u32) -> Option<[i64; 6]> {
        let suspicion = self.site(site)?.suspicion?;
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

    /// Lines about who holds a site's blocks.
    fn lines(&self, site: u32) -> Vec<String> {
        let lines = self.site(site).map_or(&[][..], |site| &site.holders.lines);
        lines.iter().map(|line| visible(line)).collect()
    }

    /// Chains that hold blocks of the sites on the page.
    fn holders(&self) -> Vec<HolderRow> {
        let mut rows = Vec::new();
        for (&site, &number) in &self.sites {
            let Some(holders) = self.site(site).map(|site| &site.holders) else {
                continue;
            };
            let retained = holders.retained.map(|retained| retained.bytes);
            for (chain, amount) in &holders.chains {
                let chain = chain.iter().map(|title| visible(title)).collect();
                rows.push(HolderRow {
                    site: number,
                    path: chain,
                    bytes: amount.bytes,
                    blocks: amount.blocks,
                    retained,
                });
            }
        }
        rows.sort_unstable();
        rows
    }

    /// Number of an instance on the page. An instance that is not a target of any report stands for several
    /// processes.
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
            exe: exe.map(|exe| visible(exe)),
            ended: target.and_then(|target| target.ended).map(InstanceEnd::name),
        });
        let next = self.process_rows.len() - 1;
        self.processes.insert(instance, next);
        next
    }

    /// The complete data, with the sums of the sites that were not added.
    fn finish(mut self, limit: usize) -> Data {
        let model = self.model;
        let others = self.add_others();
        let left_out = self.by_site(|site| {
            let LeftOut { after, frames } = self.site(site)?.stack.left_out?;
            Some([after, frames])
        });
        let ages = self.by_site(|site| self.ages(site));
        let suspicions = self.by_site(|site| self.suspicion(site));
        let verdicts = self.by_site(|site| Some(verdict_numbers(&self.site(site)?.verdict?)));
        let peaks = last::rows(model, &self.sites, &others, |site| site.peak);
        let pins = last::rows(model, &self.sites, &others, |site| site.pinned);
        let held = self.by_site(|site| Some(self.lines(site)).filter(|lines| !lines.is_empty()));
        let holders = self.holders();
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
            sources: model.sources.iter().map(source_row).collect(),
            are_estimates: model.are_estimates,
            thinned: model.snapshots.thinned,
            limit,
            more_processes: model.processes.len().saturating_sub(self.process_rows.len()),
            processes: self.process_rows,
            strings: texts.into_iter().collect(),
            exact,
            modules: modules.into_iter().collect(),
            frames,
            callers,
            node_frames,
            ends: End::ALL.into_iter().map(|end| end_row(end, model)).collect(),
            kinds: RegionKind::ALL.into_iter().map(kind_row).collect(),
            memory_kinds: MemoryKind::ALL.into_iter().map(memory::kind_row).collect(),
            sites: self.site_rows,
            left_out,
            ages,
            suspicions,
            verdicts,
            peaks,
            pins,
            held,
            holders,
            peak: model.peak.clone(),
            verdict: model.verdict.clone(),
            diagnosis: model.diagnosis.clone(),
            pinned: model.pinned.clone(),
            snapshots,
            health: model.health.clone(),
        }
    }

    /// Adds a row for the sum of the remaining sites that can be leaks, and one for those that cannot;
    /// returns the numbers of these rows, indexed by whether they can.
    fn add_others(&mut self) -> [Option<usize>; 2] {
        let sites = 0..number(self.model.sites.len());
        let merged = sites.filter(|site| !self.sites.contains_key(site));
        let mut counts = [0_u64; 2];
        for site in merged {
            counts[usize::from(self.site(site).is_some_and(|site| site.is_suspect))] += 1;
        }
        [0, 1].map(|is_suspect| {
            let count = counts[is_suspect];
            (count > 0).then(|| {
                self.site_rows.push(SiteRow {
                    process: -1,
                    kind: -1,
                    is_suspect: is_suspect == 1,
                    merged: count,
                    ..SiteRow::default()
                });
                self.site_rows.len() - 1
            })
        })
    }

    /// A snapshot as the changes since the one before it; `last` has the rows of that one and is updated.
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
            let of_others = || others[usize::from(self.site(site)?.is_suspect)];
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
            reason: snapshot.reason.clone(),
            all: columns(&all)[..width].to_vec(),
            rows,
            memory: snapshot
                .memory
                .iter()
                .filter_map(|resident| {
                    let process = *self.processes.get(&resident.instance)?;
                    Some(memory::row(process, resident))
                })
                .collect(),
        }
    }
}

fn source_row(((file, line), excerpt): (&(String, u32), &Excerpt)) -> (String, u32, u32, bool, Vec<String>) {
    let lines = excerpt.lines.iter().map(|line| visible(line));
    (
        visible(file),
        *line,
        excerpt.first,
        excerpt.is_newer,
        lines.collect(),
    )
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
