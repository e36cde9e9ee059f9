//! The sites with most lost or outstanding memory, each with an ID that is stable across reports and across
//! runs of the same builds, and the sum of all others.

use std::cmp::Reverse;
use std::collections::HashMap;

use leak_report::model::owner::owner;
use leak_report::model::{Amount, FrameRef, StackRef};
use leak_report::model::{ModuleRef, Report, SiteId};
use leak_report::render::printable;
use leak_report::render::titles::shortened;

/// Maximum number of characters of a function name: C++ template names are unbounded.
const MAX_CHARACTERS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) id: String,
    pub(super) pid: u32,
    pub(super) allocator: String,
    pub(super) function: String,
    pub(super) module: String,
    pub(super) amounts: Amounts,
}

/// Amounts of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) outstanding: Amount,
    /// Zero without a verdict.
    pub(super) definitely_lost: Amount,
    /// Free memory that its blocks pin; zero if that is not known.
    pub(super) pinned: Amount,
}

impl Amounts {
    fn of(stack: StackRef<'_>) -> Self {
        Self {
            outstanding: stack.shown(),
            definitely_lost: stack.judged().definitely_lost,
            pinned: stack.pins().amount,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            outstanding: self.outstanding + other.outstanding,
            definitely_lost: self.definitely_lost + other.definitely_lost,
            pinned: self.pinned + other.pinned,
        }
    }

    fn rank(self) -> [u64; 4] {
        let (lost, held) = (self.definitely_lost, self.outstanding);
        [lost.bytes, lost.blocks, held.bytes, held.blocks]
    }
}

/// Returns the `max` largest sites and the sum of all others. Ranks sites by definitely lost bytes and
/// blocks, then by outstanding ones.
pub(super) fn largest(report: &Report, max: usize) -> (Vec<Site>, Amounts) {
    let mut sums: HashMap<(u32, SiteId), (StackRef<'_>, Amounts)> = HashMap::new();
    for stack in report.suspects() {
        let amounts = Amounts::of(stack);
        if amounts.rank() == [0; 4] {
            continue;
        }
        let (_, sum) = sums
            .entry((stack.pid, stack.site()))
            .or_insert((stack, Amounts::default()));
        *sum = sum.plus(amounts);
    }
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_by_key(|&(key, (_, sum))| (Reverse(sum.rank()), key));
    let others = all.split_off(max.min(all.len()));
    let sites = all.into_iter().map(|((pid, id), (stack, amounts))| {
        let (function, module) = caller(stack);
        Site {
            id: id.to_string(),
            pid,
            allocator: stack.allocator().to_string(),
            function,
            module,
            amounts,
        }
    });
    let others = others.into_iter().map(|(_, (_, sum))| sum);
    let others = others.fold(Amounts::default(), Amounts::plus);
    (sites.collect(), others)
}

/// The responsible function and its module; empty if there is none.
fn caller(stack: StackRef<'_>) -> (String, String) {
    let Some(owner) = owner(stack) else {
        return (String::new(), String::new());
    };
    let function = printable(&shortened(&owner.alone(), MAX_CHARACTERS));
    (function, module(owner.frame))
}

fn module(frame: FrameRef<'_>) -> String {
    match frame.is_python() {
        true => "[python]".to_owned(),
        false => printable(frame.module().map_or("", ModuleRef::file_name)),
    }
}
