//! Verdicts on outstanding blocks: whether the process can still reach them.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Amount;

/// Outstanding blocks of a stack, in memcheck's categories. The four add up to what is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// Blocks that no pointer leads to, neither from a root nor from a lost block; of a circle of lost
    /// blocks, one.
    pub definitely_lost: Amount,
    /// Blocks that only lost blocks lead to.
    pub indirectly_lost: Amount,
    /// Blocks that the process can still reach.
    pub reachable: Amount,
    /// Blocks that could not be judged.
    pub unknown: Amount,
}

/// One of the four parts of a [`Verdict`], with its names.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// Field in JSON.
    pub field: &'static str,
    /// Words in reports for people, as memcheck has them.
    pub words: &'static str,
    /// The part of a verdict.
    pub of: fn(&Verdict) -> Amount,
}

/// The parts of a [`Verdict`], the worst first.
pub const FATES: [Fate; 4] = [
    Fate {
        field: "definitely_lost",
        words: "definitely lost",
        of: |verdict| verdict.definitely_lost,
    },
    Fate {
        field: "indirectly_lost",
        words: "indirectly lost",
        of: |verdict| verdict.indirectly_lost,
    },
    Fate {
        field: "reachable",
        words: "still reachable",
        of: |verdict| verdict.reachable,
    },
    Fate {
        field: "unknown",
        words: "unknown",
        of: |verdict| verdict.unknown,
    },
];

impl Verdict {
    /// Returns whether any block is lost, directly or indirectly.
    pub fn has_lost(&self) -> bool {
        self.definitely_lost.blocks > 0 || self.indirectly_lost.blocks > 0
    }

    /// Sort key that ranks by what is definitely lost, then by what is indirectly lost; larger keys come
    /// first.
    pub fn rank(&self) -> [u64; 4] {
        let (definitely, indirectly) = (self.definitely_lost, self.indirectly_lost);
        [
            definitely.bytes,
            definitely.blocks,
            indirectly.bytes,
            indirectly.blocks,
        ]
    }
}

impl Add for Verdict {
    type Output = Self;

    /// Adds part by part; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            definitely_lost: self.definitely_lost + other.definitely_lost,
            indirectly_lost: self.indirectly_lost + other.indirectly_lost,
            reachable: self.reachable + other.reachable,
            unknown: self.unknown + other.unknown,
        }
    }
}

impl Sum for Verdict {
    fn sum<I: Iterator<Item = Self>>(verdicts: I) -> Self {
        verdicts.fold(Self::default(), Add::add)
    }
}

/// Reason why a block could not be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unjudged {
    /// Allocated, or freed, while the verdict was made.
    Young,
    /// Its process has ended.
    Ended,
    /// The time limit ended the verdict before enough passes agreed.
    NotSettled,
    /// The memory of its process could not be read.
    Unreadable,
    /// The only pointer to it may be in the kernel: in a request under way, or unread in a pipe, for
    /// instance.
    InKernel,
}

impl Unjudged {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::Young,
        Self::Ended,
        Self::NotSettled,
        Self::Unreadable,
        Self::InKernel,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Young => "young",
            Self::Ended => "ended",
            Self::NotSettled => "not_settled",
            Self::Unreadable => "unreadable",
            Self::InKernel => "in_kernel",
        }
    }

    /// Words in reports for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Young => "allocated or freed during the verdict",
            Self::Ended => "of processes that have ended",
            Self::NotSettled => "not judged within --verdict-limit",
            Self::Unreadable => "in memory that could not be read",
            Self::InKernel => "that only the kernel may point to",
        }
    }
}

/// Kind of pointer into a block, other than one to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inside {
    /// Behind a length or an element count, as `new[]` stores it.
    LengthPrefix,
    /// At the second base class of a C++ object with several.
    SecondBase,
    /// At the characters of a reference-counted string of libstdc++.
    String,
    /// At any other place: memcheck calls such a block possibly lost.
    Elsewhere,
}

impl Inside {
    /// Every form.
    pub const ALL: [Self; 4] = [
        Self::LengthPrefix,
        Self::SecondBase,
        Self::String,
        Self::Elsewhere,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LengthPrefix => "length_prefix",
            Self::SecondBase => "second_base",
            Self::String => "string",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// Words in reports for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::LengthPrefix => "behind a length",
            Self::SecondBase => "at a second base",
            Self::String => "at the text of a string",
            Self::Elsewhere => "elsewhere (possibly lost to memcheck)",
        }
    }
}

/// Place outside of a process's memory that contains something, possibly pointers, and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hidden {
    /// Pipes of which the process has both ends: unread bytes.
    Pipes,
    /// Local sockets of which the process has both ends: unread bytes.
    Sockets,
    /// POSIX message queues: unread messages.
    Queues,
    /// Pending signals beyond the number that is read: their values.
    Signals,
    /// Contexts of asynchronous I/O (`io_setup`): operations under way.
    AioContexts,
    /// Instances of io_uring: operations under way.
    IoUrings,
    /// Files of `/proc` that could not be read, or that are beyond the limits on what is read.
    Unread,
}

impl Hidden {
    /// Every place.
    pub const ALL: [Self; 7] = [
        Self::Pipes,
        Self::Sockets,
        Self::Queues,
        Self::Signals,
        Self::AioContexts,
        Self::IoUrings,
        Self::Unread,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pipes => "pipes",
            Self::Sockets => "sockets",
            Self::Queues => "queues",
            Self::Signals => "signals",
            Self::AioContexts => "aio_contexts",
            Self::IoUrings => "io_urings",
            Self::Unread => "unread",
        }
    }

    /// Words for one and for several in reports for people.
    pub const fn words(self) -> [&'static str; 2] {
        match self {
            Self::Pipes => ["pipe", "pipes"],
            Self::Sockets => ["socket", "sockets"],
            Self::Queues => ["message queue", "message queues"],
            Self::Signals => ["pending signal", "pending signals"],
            Self::AioContexts => ["context of asynchronous I/O", "contexts of asynchronous I/O"],
            Self::IoUrings => ["io_uring", "io_urings"],
            Self::Unread => ["file of /proc", "files of /proc"],
        }
    }
}

/// Reason why the holders of a process's blocks were not determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unheld {
    /// The process has more blocks than the search for holders supports.
    TooManyBlocks,
    /// The time limit ended the search.
    Time,
}

impl Unheld {
    /// Every reason.
    pub const ALL: [Self; 2] = [Self::TooManyBlocks, Self::Time];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooManyBlocks => "too_many_blocks",
            Self::Time => "time",
        }
    }

    /// Words in reports for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::TooManyBlocks => "too many blocks",
            Self::Time => "no time left (--verdict-limit)",
        }
    }
}

/// Facts about the verdict of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judgement {
    /// Number of passes over the memory of the process that needed most of them.
    pub passes: u32,
    /// Time from the first listing of blocks to the verdict.
    pub took: Duration,
    /// Bytes that were read, in all passes.
    pub read: u64,
    /// Longest time for which a thread was stopped; `None` if none was.
    pub stopped: Option<Duration>,
    /// Blocks that could not be judged, by reason; reasons that did not occur are absent.
    pub unjudged: BTreeMap<Unjudged, Amount>,
    /// Blocks that an earlier verdict of the trace called lost, and that the process has freed since: that
    /// verdict was false.
    pub freed_later: Amount,
    /// Bytes of present mapped memory that could not be read: pointers in them were not seen.
    pub unreadable: u64,
    /// Places that may contain pointers and could not be read, with the number of each kind; kinds that did
    /// not occur are absent.
    pub hidden: BTreeMap<Hidden, u64>,
    /// Maximum number of words in these places, each of which can be a pointer that holds a block; `u64::MAX`
    /// if that is not known.
    pub hidden_words: u64,
    /// Reachable blocks that only pointers other than to their start lead to, by kind of pointer; kinds that
    /// did not occur are absent.
    pub inside: BTreeMap<Inside, Amount>,
    /// Number of processes whose holders were not determined, by reason; reasons that did not occur are
    /// absent.
    pub unheld: BTreeMap<Unheld, u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn amount(blocks: u64) -> Amount {
        Amount {
            bytes: 10 * blocks,
            blocks,
        }
    }

    fn verdict(parts: [u64; 4]) -> Verdict {
        let [definitely_lost, indirectly_lost, reachable, unknown] = parts.map(amount);
        Verdict {
            definitely_lost,
            indirectly_lost,
            reachable,
            unknown,
        }
    }

    /// Sums are taken part by part; the table of parts has each field of the type once, under its serde name.
    #[test]
    fn sums_and_names() {
        let sum: Verdict = [verdict([1, 2, 3, 4]), verdict([10, 20, 30, u64::MAX / 10])]
            .into_iter()
            .sum();
        assert_eq!(sum.definitely_lost, amount(11));
        assert_eq!(sum.unknown.bytes, u64::MAX);
        let json = serde_json::to_value(verdict([1, 2, 3, 4])).expect("plain data");
        for (fate, blocks) in FATES.iter().zip(1..) {
            assert_eq!(json[fate.field]["blocks"], blocks, "{}", fate.field);
            assert_eq!((fate.of)(&verdict([1, 2, 3, 4])).blocks, blocks);
        }
        for reason in Unjudged::ALL {
            assert_eq!(serde_json::to_value(reason).expect("plain data"), reason.name());
        }
        for form in Inside::ALL {
            assert_eq!(serde_json::to_value(form).expect("plain data"), form.name());
        }
        for place in Hidden::ALL {
            assert_eq!(serde_json::to_value(place).expect("plain data"), place.name());
        }
    }

    /// Definitely lost bytes rank above any amount of indirectly lost ones; only lost blocks count as lost.
    #[test]
    fn ranks() {
        assert!(verdict([1, 0, 0, 0]).rank() > verdict([0, 900, 900, 0]).rank());
        assert!(verdict([0, 1, 0, 0]).rank() > verdict([0, 0, 900, 900]).rank());
        assert!(verdict([0, 1, 0, 0]).has_lost() && !verdict([0, 0, 5, 5]).has_lost());
    }

    /// A report's verdict leaves out suppressed stacks, and is there only if one was asked for.
    #[test]
    fn totals() {
        let mut report = samples::judged();
        let all = report.verdict().expect("a verdict");
        assert_eq!(all.definitely_lost.blocks, 8);
        report.stacks[0].suppressed_by = Some(std::sync::Arc::new(crate::model::Suppression {
            rule: "leak:x".to_owned(),
            place: "supp:1".to_owned(),
        }));
        assert_eq!(report.verdict().expect("a verdict").definitely_lost.blocks, 0);
        report.judgement = None;
        assert_eq!(report.verdict(), None);
    }
}
