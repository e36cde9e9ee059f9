//! Amounts of the page's sites in the last report alone: at its peak, and what their blocks pin.

use std::collections::BTreeMap;

use super::model::{Model, Site};
use crate::model::Amount;

/// Bytes and blocks of an amount, by number of the site on the page, ascending. `sites` maps site numbers of
/// the model to those of the page. The other sites are summed up in the rows `others`, indexed by whether
/// they can be leaks.
pub(super) fn rows(
    model: &Model,
    sites: &BTreeMap<u32, usize>,
    others: &[Option<usize>; 2],
    of: fn(&Site) -> Amount,
) -> Vec<(usize, [u64; 2])> {
    let mut sums: BTreeMap<usize, Amount> = BTreeMap::new();
    for (site, number) in model.sites.values().zip(0..) {
        let of_others = others[usize::from(site.is_suspect)];
        if let Some(number) = sites.get(&number).copied().or(of_others) {
            let sum = sums.entry(number).or_default();
            *sum = *sum + of(site);
        }
    }
    let some = sums.into_iter().filter(|(_, sum)| *sum != Amount::default());
    some.map(|(number, Amount { bytes, blocks })| (number, [bytes, blocks]))
        .collect()
}

/// Shares of each site in the whole of an amount, in bytes and in blocks, from 0 to 1.
#[allow(clippy::cast_precision_loss, reason = "shares need no more than a few digits")]
pub(super) fn shares(model: &Model, of: fn(&Site) -> Amount) -> impl Iterator<Item = [f64; 2]> + '_ {
    let numbers = move |site: &Site| {
        let Amount { bytes, blocks } = of(site);
        [bytes, blocks].map(|number| number as f64)
    };
    let all = model.sites.values().map(numbers);
    let [bytes, blocks] = all.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
    model.sites.values().map(move |site| {
        let [part, part_of_blocks] = numbers(site);
        [part / bytes.max(1.0), part_of_blocks / blocks.max(1.0)]
    })
}
