//! Result of a verdict, which classifies single blocks.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::holding::Holding;
use super::subject::{End, Subject};
use crate::bpf::collect::{Block, Judged, Moment};
use crate::reach::holders::Missing;
use crate::reach::passes::Identity;
use leak_report::model::{Judgement, Unheld, Unjudged};

/// A block: instance, address, and when it was allocated.
pub(super) type Key = (u32, Avma, u64);

/// Verdict on the blocks of all processes that ran when it was made.
#[derive(Debug)]
pub(in crate::session) struct Finding {
    /// Blocks allocated from here on are not judged; `None` if none can have been.
    since: Option<Moment>,
    instances: HashMap<u32, OfInstance>,
    pub(super) holdings: Vec<Holding>,
    pub(super) facts: Judgement,
}

/// Verdict on the blocks of one instance. All that are not named are reachable.
#[derive(Debug)]
enum OfInstance {
    /// Lost blocks with their sizes.
    Settled {
        definitely: HashMap<Identity, u64>,
        indirectly: HashMap<Identity, u64>,
        /// Blocks to which the kernel may have pointers.
        perhaps: HashSet<Identity>,
    },
    /// Blocks that no pass has reached, after too few passes.
    NotSettled(HashSet<Identity>),
    Unreadable,
}

impl Finding {
    pub(super) fn new(since: Option<Moment>, took: Duration, subjects: Vec<Subject>) -> Self {
        let mut facts = Judgement {
            took,
            ..Judgement::default()
        };
        let mut instances = HashMap::new();
        let mut holdings = Vec::new();
        for mut subject in subjects {
            match subject.take_holding() {
                Some(Ok(holding)) => {
                    for (&form, &amount) in &holding.inside {
                        let sum = facts.inside.entry(form).or_default();
                        *sum = *sum + amount;
                    }
                    holdings.push(holding);
                }
                Some(Err(missing)) => *facts.unheld.entry(unheld(missing)).or_default() += 1,
                None => {}
            }
            let instance = subject.instance();
            subject.add_to(&mut facts);
            let of_instance = match subject.end() {
                End::Settled(lost) => OfInstance::Settled {
                    definitely: sizes(lost.definitely),
                    indirectly: sizes(lost.indirectly),
                    perhaps: lost.perhaps.iter().map(|block| block.identity()).collect(),
                },
                End::NotSettled(missed) => {
                    *facts.unheld.entry(Unheld::Time).or_default() += 1;
                    OfInstance::NotSettled(missed.into_iter().collect())
                }
                End::Failed => OfInstance::Unreadable,
            };
            instances.insert(instance, of_instance);
        }
        Self {
            since,
            instances,
            holdings,
            facts,
        }
    }

    /// The verdict on a block that is outstanding.
    pub(super) fn of(&self, block: &Block) -> Judged {
        // Timestamps can be early.
        let at_latest = Duration::from_nanos(block.allocated_at) + Moment::PRECISION;
        if self.since.is_some_and(|since| at_latest >= since.since_boot()) {
            return Judged::Unknown(Unjudged::Young);
        }
        let identity = (block.address, block.allocated_at);
        match self.instances.get(&block.instance) {
            None => Judged::Unknown(Unjudged::Ended),
            Some(OfInstance::Unreadable) => Judged::Unknown(Unjudged::Unreadable),
            Some(OfInstance::NotSettled(missed)) => match missed.contains(&identity) {
                true => Judged::Unknown(Unjudged::NotSettled),
                false => Judged::Reachable,
            },
            Some(OfInstance::Settled {
                definitely,
                indirectly,
                perhaps,
            }) => {
                if definitely.contains_key(&identity) {
                    Judged::DefinitelyLost
                } else if indirectly.contains_key(&identity) {
                    Judged::IndirectlyLost
                } else if perhaps.contains(&identity) {
                    Judged::Unknown(Unjudged::InKernel)
                } else {
                    Judged::Reachable
                }
            }
        }
    }

    /// Lost blocks with their sizes.
    pub(super) fn lost(&self) -> impl Iterator<Item = (Key, u64)> {
        self.instances.iter().flat_map(|(&instance, found)| {
            let (definitely, indirectly) = match found {
                OfInstance::Settled {
                    definitely,
                    indirectly,
                    perhaps: _,
                } => (Some(definitely), Some(indirectly)),
                OfInstance::NotSettled(_) | OfInstance::Unreadable => (None, None),
            };
            let lost = definitely.into_iter().chain(indirectly).flatten();
            lost.map(move |(&(address, at), &size)| ((instance, address, at), size))
        })
    }
}

fn unheld(missing: Missing) -> Unheld {
    match missing {
        Missing::TooManyBlocks => Unheld::TooManyBlocks,
        Missing::Time => Unheld::Time,
    }
}

fn sizes(blocks: Vec<crate::reach::heap::Block>) -> HashMap<Identity, u64> {
    let blocks = blocks.into_iter();
    blocks.map(|block| (block.identity(), block.size)).collect()
}
