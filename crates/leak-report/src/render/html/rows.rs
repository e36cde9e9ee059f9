//! Amounts of each site at one moment, packed into few bytes.
//!
//! A trace of hours has dozens of moments and some hundred thousand sites, most of which do not change or are
//! empty; a row takes about ten bytes here, and 100 as numbers in memory.

use std::iter;

use crate::model::{Amount, Estimate, Spread};

/// Amounts of a site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Outstanding, including young blocks.
    pub(super) outstanding: Estimate,
    /// Everything allocated since the attach.
    pub(super) allocated: Estimate,
    /// The young part of the outstanding amount; 0 where ages are unknown.
    pub(super) young: Amount,
}

impl Row {
    /// The sum of both rows; saturates.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            outstanding: self.outstanding + other.outstanding,
            allocated: self.allocated + other.allocated,
            young: self.young + other.young,
        }
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        [
            self.outstanding.amount.bytes,
            self.outstanding.amount.blocks,
            self.allocated.amount.bytes,
            self.allocated.amount.blocks,
            self.young.bytes,
            self.young.blocks,
        ]
    }

    fn variances(&self) -> [u128; VARIANCES] {
        [
            self.outstanding.spread.bytes,
            self.outstanding.spread.blocks,
            self.allocated.spread.bytes,
            self.allocated.spread.blocks,
        ]
    }
}

const NUMBERS: usize = 6;
const VARIANCES: usize = 4;

/// Packed rows by site, ascending; empty rows are omitted.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    are_estimates: bool,
}

impl Rows {
    /// Packs `rows`; several rows of one site are added up.
    pub(super) fn pack(mut rows: Vec<(u32, Row)>, are_estimates: bool) -> Self {
        rows.sort_by_key(|&(site, _)| site);
        rows.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.plus(next.1);
            }
            same
        });
        let mut packed = Self {
            bytes: Vec::new(),
            are_estimates,
        };
        let mut last = 0;
        for (site, row) in rows.into_iter().filter(|(_, row)| *row != Row::default()) {
            packed.put(u128::from(site - last));
            last = site;
            row.numbers()
                .into_iter()
                .for_each(|number| packed.put(number.into()));
            if are_estimates {
                row.variances()
                    .into_iter()
                    .for_each(|variance| packed.put(variance));
            }
        }
        packed.bytes.shrink_to_fit();
        packed
    }

    /// Appends a number as LEB128: seven bits in each byte, lowest first; the top bit is set if more follow.
    fn put(&mut self, mut number: u128) {
        while number >= 0x80 {
            self.bytes.push(0x80 | low_bits(number));
            number >>= 7;
        }
        self.bytes.push(low_bits(number));
    }

    /// Unpacks the rows, with their sites.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Row)> + '_ {
        let mut rest = self.bytes.as_slice();
        let mut site = 0;
        iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            site += u32::try_from(take(&mut rest)).unwrap_or_default();
            Some((site, self.take_row(&mut rest)))
        })
    }

    fn take_row(&self, rest: &mut &[u8]) -> Row {
        let numbers: [u64; NUMBERS] = std::array::from_fn(|_| u64::try_from(take(rest)).unwrap_or_default());
        let variances: [u128; VARIANCES] = match self.are_estimates {
            true => std::array::from_fn(|_| take(rest)),
            false => [0; VARIANCES],
        };
        let amount = |at: usize| Amount {
            bytes: numbers[at],
            blocks: numbers[at + 1],
        };
        let spread = |at: usize| Spread {
            recorded: 0,
            bytes: variances[at],
            blocks: variances[at + 1],
        };
        let estimate = |at: usize| Estimate {
            amount: amount(at),
            spread: spread(at),
        };
        Row {
            outstanding: estimate(0),
            allocated: estimate(2),
            young: amount(4),
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "of seven bits")]
fn low_bits(number: u128) -> u8 {
    (number & 0x7f) as u8
}

fn take(rest: &mut &[u8]) -> u128 {
    let mut number = 0;
    let mut shift = 0;
    while let Some((&byte, more)) = rest.split_first() {
        *rest = more;
        number |= u128::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    number
}
