//! The sites that hold most, each with a name that is the same in each report and in other runs of the same builds, and all
//! others together.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::collect::Amount;
use crate::report::owner::{owner, shortened};
use crate::report::{Frame, Report, Stack, printable};

/// The most characters of a function's name: those of templates have no end.
const MOST_CHARACTERS: usize = 200;

/// A site, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) id: String,
    pub(super) pid: u32,
    pub(super) allocator: String,
    pub(super) function: String,
    pub(super) module: String,
    pub(super) held: Amount,
}

/// The `most` sites that hold most, and the sum of all others.
pub(super) fn largest(report: &Report, most: usize) -> (Vec<Site>, Amount) {
    let mut sums: HashMap<(u32, u64), (&Stack, Amount)> = HashMap::new();
    for stack in report.suspects().filter(|stack| stack.shown().blocks > 0) {
        let (_, sum) = sums
            .entry((stack.pid, identity(stack)))
            .or_insert((stack, Amount::default()));
        *sum = [*sum, stack.shown()].into_iter().sum();
    }
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_by_key(|&(key, (_, sum))| (Reverse((sum.bytes, sum.blocks)), key));
    let others = all.split_off(most.min(all.len()));
    let sites = all.into_iter().map(|((pid, id), (stack, held))| {
        let (function, module) = caller(stack);
        Site {
            id: format!("{id:016x}"),
            pid,
            allocator: stack.allocator.to_string(),
            function,
            module,
            held,
        }
    });
    let others = others.into_iter().map(|(_, (_, sum))| sum).sum();
    (sites.collect(), others)
}

/// A hash of the allocator function and of the code that called it, whose algorithm and keys never change.
fn identity(stack: &Stack) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0, 0);
    stack.allocator.as_bytes().hash(&mut hasher);
    stack.end.name().hash(&mut hasher);
    for frame in &stack.frames {
        match &frame.at.place {
            Some((module, svma)) => {
                let path = || module.path.to_string_lossy().into_owned();
                module.build_id.clone().unwrap_or_else(path).hash(&mut hasher);
                svma.get().hash(&mut hasher);
            }
            None => frame.at.pc.get().hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Whose memory it is, and in which module that is.
fn caller(stack: &Stack) -> (String, String) {
    let Some(owner) = owner(stack) else {
        return (String::new(), String::new());
    };
    let function = printable(&shortened(&owner.function, MOST_CHARACTERS));
    (function, module(owner.frame))
}

fn module(frame: &Frame) -> String {
    let place = frame.at.place.as_ref();
    let name = place.and_then(|(module, _)| module.path.file_name());
    name.map_or_else(String::new, |name| printable(&name.to_string_lossy()))
}
