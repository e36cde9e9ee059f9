//! A verdict without a trace, on all blocks that a process has from its allocator: those that the allocator's
//! structures list.

use std::collections::HashSet;
use std::io;
use std::thread::sleep;
use std::time::Instant;

use thiserror::Error;

use super::holding::classes_of;
use super::subject::{End, Known, Listed, Subject};
use super::{VerdictSettings, WATCH_TIME};
use crate::bpf::{Registers, Storage};
use crate::process::touched::ResidentPages;
use crate::process::{Target, TargetError, maps_of};
use crate::reach::free::{self, Allocator, Listing};
use crate::reach::heap::Block;
use crate::reach::judge::LostBlocks;
use crate::reach::pages::Pages;
use crate::reach::passes::Identity;
use crate::reach::reader::Reader;
use leak_report::model::{Amount, Judgement, Unjudged, Verdict};

/// The verdict on the blocks of one process.
#[derive(Debug)]
pub struct InUse {
    /// The process that was looked at.
    pub target: Target,
    /// Allocators whose blocks these are.
    pub allocators: Vec<Allocator>,
    /// Maximum bytes of arenas that could not be listed at one time.
    pub left: u64,
    pub verdict: Verdict,
    pub facts: Judgement,
    /// By address.
    pub lost: Vec<LostBlock>,
}

/// A block that is lost.
#[derive(Clone, Debug)]
pub struct LostBlock {
    pub block: Block,
    /// True if no other lost block leads to it.
    pub is_definite: bool,
    /// C++ class, if it begins with the address of a table of virtual functions.
    pub class: Option<String>,
}

/// Why there is no verdict on a process that is not traced.
#[derive(Debug, Error)]
pub enum InUseError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(
        "cannot list the blocks of process {0}: it uses no known version of glibc's malloc, musl's, \
         jemalloc, tcmalloc or mimalloc; `memleak --verdict -p {0}` traces any allocator"
    )]
    NotListed(u32),
    #[error("cannot read the memory of process {pid}: {error}; CAP_SYS_PTRACE is needed; try sudo")]
    Unreadable { pid: u32, error: io::Error },
}

/// Maximum number of listings at the end.
const LISTINGS: usize = 3;

/// Makes a verdict on the blocks of process `pid`. Blocks that are called lost are watched for a second.
///
/// # Errors
///
/// An [`InUseError`]; nothing of the process is changed in any case.
pub fn judge_in_use(pid: u32, settings: VerdictSettings) -> Result<InUse, InUseError> {
    let target = Target::open(pid)?;
    let began = Instant::now();
    let unreadable = |error| InUseError::Unreadable { pid, error };
    let mut storage = Storage::uninit();
    let registers = Registers::open(&mut storage);
    let mut registers = registers.inspect_err(|error| tracing::warn!("{error}")).ok();
    let known = Known {
        tags: settings.tags,
        is_untraced: true,
        ..Known::default()
    };
    let mut subject = Subject::new(0, pid, known);
    subject.check().map_err(unreadable)?;
    let list = |subject: &Subject| list(subject).map_err(unreadable);
    let mut first = list(&subject)?;
    if first.allocators.is_empty() {
        return Err(InUseError::NotListed(pid));
    }
    if settings.stops {
        // Returns none, as blocks are listed in the copy.
        let nothing = &mut || Ok(Listed::default());
        subject.judge_at_once(nothing, registers.as_mut(), began + settings.limit);
    }
    let in_copy = subject.take_in_copy();
    let is_of_copy = in_copy.is_some();
    if let Some(in_copy) = in_copy {
        first = in_copy;
    }
    let mut left = first.left;
    while subject.needs_more() && began.elapsed() < settings.limit {
        let listing = list(&subject)?;
        left = left.max(listing.left);
        let listed = Listed {
            blocks: listing.blocks,
            ..Listed::default()
        };
        subject.pass(listed, registers.as_mut(), began + settings.limit);
    }
    let mut facts = Judgement {
        took: began.elapsed(),
        ..Judgement::default()
    };
    subject.add_to(&mut facts);
    sleep(WATCH_TIME);
    let (last, here) = list_again(&subject).map_err(unreadable)?;
    let (found, reason, unjudged) = outcome(subject).map_err(unreadable)?;
    let mut lost: Vec<_> = found.definitely.into_iter().map(|block| (block, true)).collect();
    lost.extend(found.indirectly.into_iter().map(|block| (block, false)));
    lost.sort_by_key(|(block, _)| block.address);
    let lost = with_classes(pid, lost).map_err(unreadable)?;
    let mut in_use = InUse {
        target,
        allocators: first.allocators,
        left,
        verdict: Verdict::default(),
        facts,
        lost,
    };
    let before = first.blocks.iter().map(Block::identity).collect();
    let judged = if is_of_copy { &first.blocks } else { &last };
    in_use.sum(judged, &here, &before, (reason, &unjudged));
    Ok(in_use)
}

/// Lists the blocks several times, as a block that is missing from one listing of changing memory need not
/// have been freed. Returns the last listing, and the identities in all of them.
fn list_again(subject: &Subject) -> io::Result<(Vec<Block>, HashSet<Identity>)> {
    let mut last = Vec::new();
    let mut here = HashSet::new();
    for _ in 0..LISTINGS {
        last = list(subject)?.blocks;
        here.extend(last.iter().map(Block::identity));
        if subject.has_all_lost(&here) {
            break;
        }
    }
    Ok((last, here))
}

/// Lost blocks, and those that could not be judged, with the reason.
fn outcome(subject: Subject) -> io::Result<(LostBlocks, Unjudged, HashSet<Identity>)> {
    match subject.end() {
        End::Settled(found) => {
            let perhaps = found.perhaps.iter().map(Block::identity).collect();
            Ok((found, Unjudged::InKernel, perhaps))
        }
        End::NotSettled(missed) => {
            let missed = missed.into_iter().collect();
            Ok((LostBlocks::default(), Unjudged::NotSettled, missed))
        }
        End::Failed => Err(io::Error::other("it ended, or executed another program")),
    }
}

/// Lists the blocks that the process has now; without blocks and allocators if no allocator's structures are
/// found.
fn list(subject: &Subject) -> io::Result<Listing> {
    let mappings = maps_of(subject.pid())?;
    let reader = Reader::new(subject.pid(), subject.pages(&mappings)?);
    Ok(free::blocks_in_use(&reader, &mappings).unwrap_or_default())
}

/// Reads the classes of lost blocks, by address.
fn with_classes(pid: u32, lost: Vec<(Block, bool)>) -> io::Result<Vec<LostBlock>> {
    let blocks: Vec<_> = lost.iter().map(|(block, _)| *block).collect();
    let pages = Pages::read(&ResidentPages::open(pid)?, &maps_of(pid)?)?;
    let mut classes = classes_of(pid, &Reader::new(pid, pages), &blocks);
    let lost = lost.into_iter().map(|(block, is_definite)| LostBlock {
        block,
        is_definite,
        class: classes.remove(&block.address),
    });
    Ok(lost.collect())
}

impl InUse {
    /// Sums `blocks` by verdict: those of the copy by which it was made, or those in use at the end. Blocks
    /// missing from `first`, or `unjudged` for a reason, are unknown. Lost blocks missing from `here` were
    /// freed.
    fn sum(
        &mut self,
        blocks: &[Block],
        here: &HashSet<Identity>,
        first: &HashSet<Identity>,
        (reason, unjudged): (Unjudged, &HashSet<Identity>),
    ) {
        let is_gone = |lost: &mut LostBlock| !here.contains(&lost.block.identity());
        for freed in self.lost.extract_if(.., is_gone) {
            self.facts.freed_later = self.facts.freed_later + amount(&freed.block);
        }
        let mut judged: HashSet<Identity> = HashSet::new();
        for lost in &self.lost {
            let part = match lost.is_definite {
                true => &mut self.verdict.definitely_lost,
                false => &mut self.verdict.indirectly_lost,
            };
            *part = *part + amount(&lost.block);
            judged.insert(lost.block.identity());
        }
        for block in blocks.iter().filter(|block| !judged.contains(&block.identity())) {
            let unknown = match block.identity() {
                identity if unjudged.contains(&identity) => Some(reason),
                identity if !first.contains(&identity) => Some(Unjudged::Young),
                _ => None,
            };
            let part = match unknown {
                Some(reason) => {
                    let sum = self.facts.unjudged.entry(reason).or_default();
                    *sum = *sum + amount(block);
                    &mut self.verdict.unknown
                }
                None => &mut self.verdict.reachable,
            };
            *part = *part + amount(block);
        }
    }
}

fn amount(block: &Block) -> Amount {
    Amount {
        bytes: block.size,
        blocks: 1,
    }
}
