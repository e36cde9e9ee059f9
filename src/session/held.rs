//! Puts holders and classes of blocks into a report: by sites, instead of stack records. Pure.

use std::collections::HashMap;

use super::verdict::{Holding, OfStack};
use crate::reach::chains::Chain;
use leak_report::model::{
    Amount, Class, Dictionary, Held, Holder, LookedAt, Root, Sampling, Stack, Step, TextId, TextKind,
};

/// Maximum number of chains of a stack that are listed, and of classes.
const MAX_HOLDERS: usize = 3;
const MAX_CLASSES: usize = 8;

/// Chain by sites: root; numbers of sites, each with true if it repeats; true if steps are left out.
type Key = (Root<TextId>, Vec<(usize, bool)>, bool);

/// Fills in the holders of `stacks`, each of which has `records`.
pub(super) fn fill(
    stacks: &mut [Stack],
    records: &[Vec<u32>],
    holdings: &[Holding],
    sampling: Sampling,
    dictionary: &mut Dictionary,
) {
    let sites: HashMap<u32, usize> = records
        .iter()
        .zip(0..)
        .flat_map(|(records, site)| records.iter().map(move |&record| (record, site)))
        .collect();
    let steps: Vec<_> = stacks.iter().map(|stack| (stack.allocator, stack.path)).collect();
    let roots: Vec<Vec<Root<TextId>>> = holdings
        .iter()
        .map(|holding| {
            let mut named = |root: &Root| root.map(|kind, text| dictionary.add_text(kind, text));
            holding.roots.iter().map(&mut named).collect()
        })
        .collect();
    for ((stack, records), own) in stacks.iter_mut().zip(records).zip(0..) {
        let mut sum = Sum::default();
        let judged = stack.verdict.is_some();
        for (holding, roots) in holdings.iter().zip(&roots) {
            for of_stack in records.iter().filter_map(|record| holding.by_stack.get(record)) {
                // Without a verdict on the stack, the holders are of other blocks.
                if judged || of_stack.looked.is_some() {
                    sum.add(of_stack, |chain| key(chain, roots, &sites, own));
                }
            }
        }
        let scale = Scale::of(stack, sampling);
        let step = |&(site, repeats): &(usize, bool)| {
            let (allocator, path) = steps[site];
            Step {
                allocator,
                path,
                repeats,
            }
        };
        stack.held = sum.held(scale, step, |name| dictionary.add_text(TextKind::Class, name));
    }
}

/// Converts a chain to a site into a chain of sites; `None` if part of it is unknown. Each site is in it
/// once, and the site that it leads to is not.
fn key(chain: &Chain, roots: &[Root<TextId>], sites: &HashMap<u32, usize>, own: usize) -> Option<Key> {
    let root = roots.get(chain.root as usize)?.clone();
    let mut via: Vec<(usize, bool)> = Vec::new();
    for step in &chain.via {
        let site = *sites.get(&step.stack)?;
        if site == own {
            return Some((root, via, false));
        }
        match via.iter().position(|(known, _)| *known == site) {
            Some(known) => {
                via.truncate(known + 1);
                via[known].1 = true;
            }
            None => via.push((site, step.repeats)),
        }
    }
    Some((root, via, chain.is_cut))
}

/// Sums of the records of a site.
#[derive(Default)]
struct Sum {
    by: HashMap<Key, Amount>,
    others: Amount,
    retained: Option<Amount>,
    classes: HashMap<String, Amount>,
    looked: Option<LookedAt>,
}

impl Sum {
    fn add(&mut self, of_stack: &OfStack, key: impl Fn(&Chain) -> Option<Key>) {
        for (chain, amount) in &of_stack.by {
            let sum = match chain.as_ref().and_then(&key) {
                Some(key) => self.by.entry(key).or_default(),
                None => &mut self.others,
            };
            *sum = *sum + *amount;
        }
        if let Some(retained) = of_stack.retained {
            self.retained = Some(self.retained.unwrap_or_default() + retained);
        }
        if let Some(looked) = of_stack.looked {
            self.looked = Some(self.looked.unwrap_or_default() + looked);
        }
        for (class, amount) in &of_stack.classes {
            let sum = self.classes.entry(class.clone()).or_default();
            *sum = *sum + *amount;
        }
    }

    /// Returns the sums for the report; `None` if nothing was found.
    fn held(
        self,
        scale: Scale,
        step: impl Fn(&(usize, bool)) -> Step,
        mut name: impl FnMut(&str) -> TextId,
    ) -> Option<Box<Held>> {
        let unlooked = self.looked.is_some_and(LookedAt::is_none);
        if self.by.is_empty() && self.others.blocks == 0 && self.classes.is_empty() && !unlooked {
            return None;
        }
        let mut by: Vec<_> = self.by.into_iter().collect();
        by.sort_by(|(a, more), (b, less)| {
            (less.bytes, less.blocks)
                .cmp(&(more.bytes, more.blocks))
                .then_with(|| a.cmp(b))
        });
        let rest = by.split_off(by.len().min(MAX_HOLDERS));
        let others = rest.into_iter().map(|(_, amount)| amount).sum::<Amount>() + self.others;
        let mut classes: Vec<_> = self.classes.into_iter().collect();
        classes.sort_by(|(a, more), (b, less)| {
            (less.blocks, less.bytes)
                .cmp(&(more.blocks, more.bytes))
                .then_with(|| a.cmp(b))
        });
        classes.truncate(MAX_CLASSES);
        // Classes of blocks that were looked at are counts of these, and not scaled.
        let of_class = if self.looked.is_some() { Scale::One } else { scale };
        Some(Box::new(Held {
            by: by
                .into_iter()
                .map(|((root, via, is_cut), amount)| Holder {
                    amount: scale.of_amount(amount),
                    root,
                    via: via.iter().map(&step).collect(),
                    is_cut,
                })
                .collect(),
            others: scale.of_amount(others),
            // Not estimated from samples: sampled blocks lead to only a part of what is retained.
            retained: self.retained.filter(|_| matches!(scale, Scale::One)),
            classes: classes
                .into_iter()
                .map(|(class, amount)| Class {
                    name: name(&class),
                    amount: of_class.of_amount(amount),
                })
                .collect(),
            looked: self.looked,
        }))
    }
}

/// Number of blocks that a recorded one of a site stands for, on average.
#[derive(Clone, Copy)]
enum Scale {
    One,
    Of { outstanding: u64, recorded: u64 },
}

impl Scale {
    fn of(stack: &Stack, sampling: Sampling) -> Self {
        match sampling {
            Sampling::All => Self::One,
            Sampling::Bytes(_) | Sampling::Calls(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
                Self::Of {
                    outstanding: stack.outstanding.amount.blocks,
                    recorded: stack.outstanding.spread.recorded.max(1),
                }
            }
        }
    }

    fn of_amount(self, amount: Amount) -> Amount {
        let scaled = |number: u64| match self {
            Self::One => number,
            Self::Of {
                outstanding,
                recorded,
            } => {
                let scaled = u128::from(number) * u128::from(outstanding) / u128::from(recorded);
                u64::try_from(scaled).unwrap_or(u64::MAX)
            }
        };
        Amount {
            bytes: scaled(amount.bytes),
            blocks: scaled(amount.blocks),
        }
    }
}
