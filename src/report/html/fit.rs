//! Which sites matter most to the pictures that the page can draw, and what each takes of the file.
//!
//! A picture is of one measure at one moment; a site matters as much as its largest share of any. Sites that have no
//! room are summed up: so each picture loses the least that it can.

use super::model::Model;
use super::rows::Row;
use crate::report::estimates::whole as rounded;

/// Numbers of a row, at most.
pub(super) const COLUMNS: usize = 10;

/// What to know of a site before it is chosen or not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    /// Its largest share of any picture, from 0 to 1.
    pub(super) share: f64,
    /// Bytes that its rows take in the file, at most.
    pub(super) row_bytes: usize,
}

/// The weights of all sites.
pub(super) fn weigh(model: &Model) -> Vec<Weight> {
    let mut weights = vec![Weight::default(); model.sites.len()];
    let width = width(model.are_estimates);
    let mut last = vec![[0; COLUMNS]; model.sites.len()];
    for snapshot in &model.snapshots.kept {
        let totals = snapshot.rows.iter().fold([0.0; MEASURES], |sums, (_, row)| {
            let measures = measures(&row);
            std::array::from_fn(|at| sums[at] + measures[at])
        });
        let mut is_there = vec![false; last.len()];
        for (site, row) in snapshot.rows.iter() {
            let site = site as usize;
            let (Some(weight), Some(last)) = (weights.get_mut(site), last.get_mut(site)) else {
                continue;
            };
            is_there[site] = true;
            let shares = measures(&row)
                .into_iter()
                .zip(totals)
                .filter(|&(_, total)| total > 0.0);
            weight.share = shares.fold(weight.share, |most, (part, total)| most.max(part / total));
            let now = columns(&row);
            if now != *last {
                weight.row_bytes += printed(&now[..width]);
                *last = now;
            }
        }
        for (at, _) in is_there.iter().enumerate().filter(|&(_, is_there)| !is_there) {
            if last[at] != [0; COLUMNS] {
                last[at] = [0; COLUMNS];
                weights[at].row_bytes += printed(&last[at][..width]);
            }
        }
    }
    weights
}

/// How many numbers of [`columns`] the page gets of each row.
pub(super) const fn width(are_estimates: bool) -> usize {
    if are_estimates { COLUMNS } else { 6 }
}

/// A row as the page has it: bytes and blocks of what is outstanding, was allocated, and is young; then the standard errors
/// of the first two pairs, blocks in tenths.
pub(super) fn columns(row: &Row) -> [u64; COLUMNS] {
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

const MEASURES: usize = 4;

/// What pictures are drawn of.
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

/// Characters that numbers take in the file, with a site's number before them and all commas and brackets.
pub(super) fn printed(numbers: &[u64]) -> usize {
    let digits = |number: u64| number.checked_ilog10().map_or(1, |log| log as usize + 1);
    numbers.iter().map(|&number| digits(number) + 1).sum::<usize>() + 12
}
