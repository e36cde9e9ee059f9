//! Holders of blocks that are still reachable: chains of pointers from a root to the blocks of a stack.
//!
//! `T` is a text, or its id in a [`Dictionary`](super::Dictionary).

use std::ops::Add;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::dictionary::Import;
use super::{Amount, PathId, TextId, TextKind};

/// Kind of place where a chain of pointers begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootKind {
    /// Data of an object: variables that are global, or static.
    Data,
    /// Thread-local data.
    ThreadLocal,
    /// Stack of a thread.
    Stack,
    /// Registers of a thread.
    Registers,
    /// Words that the kernel keeps for the process: data of epoll and of timers.
    Kernel,
    /// Memory that the program mapped by itself.
    Mapped,
    /// Memory of the allocator outside all known blocks: blocks from before the trace, and unrecorded ones.
    Untraced,
}

impl RootKind {
    /// Every kind, in the order in which holders are looked for.
    pub const ALL: [Self; 7] = [
        Self::Data,
        Self::ThreadLocal,
        Self::Stack,
        Self::Registers,
        Self::Kernel,
        Self::Mapped,
        Self::Untraced,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::ThreadLocal => "thread_local",
            Self::Stack => "stack",
            Self::Registers => "registers",
            Self::Kernel => "kernel",
            Self::Mapped => "mapped",
            Self::Untraced => "untraced",
        }
    }

    /// Words in reports for people, for a root that has no other name.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::ThreadLocal => "thread-local data",
            Self::Stack => "the stack",
            Self::Registers => "registers",
            Self::Kernel => "the kernel (epoll, timers)",
            Self::Mapped => "mapped memory",
            Self::Untraced => "memory allocated before the trace",
        }
    }
}

/// Root: place where a chain of pointers begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Root<T = Arc<str>> {
    /// Kind of place.
    pub kind: RootKind,
    /// File of the object whose data it is.
    pub object: Option<T>,
    /// Section of the object, if no variable is known to be there.
    pub section: Option<T>,
    /// Variable, demangled.
    pub symbol: Option<T>,
    /// Bytes from the beginning of the section to the first pointer found, where no variable is known.
    pub offset: u64,
    /// Source file that declares the variable.
    pub file: Option<T>,
    /// Line in that file.
    pub line: Option<u32>,
    /// Thread whose stack, registers or data it is.
    pub thread: Option<ThreadName<T>>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadName<T = Arc<str>> {
    /// ID in memleak's own pid namespace.
    pub tid: u32,
    /// Name that it has given itself, or that of the program; empty if not known.
    pub name: T,
}

/// Step of a chain: blocks of one stack that lead from the root to other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step {
    /// Allocator function of the stack.
    pub allocator: TextId,
    /// Frames of the stack.
    pub path: Option<PathId>,
    /// True if the chain passes several of its blocks, one after the other like nodes of a list, or
    /// alternating with blocks of other stacks.
    #[serde(default, skip_serializing_if = "super::amount::is_default")]
    pub repeats: bool,
}

/// Chain of pointers, and the amount that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Blocks of the stack that are held by it.
    pub amount: Amount,
    /// Root of the chain.
    pub root: Root<TextId>,
    /// Stacks of the blocks in between, from the root on.
    #[serde(default, skip_serializing_if = "super::amount::is_default")]
    pub via: Vec<Step>,
    /// True if further steps are left out.
    #[serde(default, skip_serializing_if = "super::amount::is_default")]
    pub is_cut: bool,
}

/// C++ class of blocks, identified by the vtable that their first word points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Demangled name.
    pub name: TextId,
    /// Outstanding blocks of the stack that are of this class.
    pub amount: Amount,
}

/// Numbers of blocks of a stack that were examined for their classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedAt {
    /// Examined blocks; each counts as one, even if it stands for more.
    pub blocks: u64,
    /// Examined blocks without a class.
    pub without: u64,
    /// Recorded blocks that the examined ones were chosen from.
    pub of: u64,
}

impl LookedAt {
    /// Returns true if there was no room to examine any of them.
    pub fn is_none(self) -> bool {
        self.blocks == 0 && self.of > 0
    }
}

impl Add for LookedAt {
    type Output = Self;

    /// Adds; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            without: self.without.saturating_add(other.without),
            of: self.of.saturating_add(other.of),
        }
    }
}

/// Holders and classes of the outstanding blocks of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    /// Chains that hold most, in descending order of bytes.
    pub by: Vec<Holder>,
    /// Amount that all other chains hold.
    pub others: Amount,
    /// Lower bound of what would be lost with the blocks of the stack, these included; `None` if it was not
    /// determined.
    pub retained: Option<Amount>,
    /// Classes of its blocks, in descending order of blocks.
    pub classes: Vec<Class>,
    /// Set if classes were looked for without a verdict.
    #[serde(skip_serializing_if = "super::amount::is_default")]
    pub looked: Option<LookedAt>,
}

impl<T> Root<T> {
    /// Creates a root of which only the kind is known.
    pub fn of(kind: RootKind) -> Self {
        Self {
            kind,
            object: None,
            section: None,
            symbol: None,
            offset: 0,
            file: None,
            line: None,
            thread: None,
        }
    }

    /// Converts all texts.
    pub fn map<'a, U>(&'a self, mut other: impl FnMut(TextKind, &'a T) -> U) -> Root<U> {
        let mut text = |kind, text: &'a Option<T>| text.as_ref().map(|text| other(kind, text));
        Root {
            kind: self.kind,
            object: text(TextKind::File, &self.object),
            section: text(TextKind::Section, &self.section),
            symbol: text(TextKind::Variable, &self.symbol),
            offset: self.offset,
            file: text(TextKind::Source, &self.file),
            line: self.line,
            thread: self.thread.as_ref().map(|thread| ThreadName {
                tid: thread.tid,
                name: other(TextKind::Thread, &thread.name),
            }),
        }
    }
}

impl Held {
    /// Copies this with the ids of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        let holder = |holder: &Holder, import: &mut Import<'_>| Holder {
            root: holder.root.map(|_, &text| import.text(text)),
            via: holder.via.iter().map(|step| step.renumbered(import)).collect(),
            ..*holder
        };
        Self {
            by: self.by.iter().map(|by| holder(by, import)).collect(),
            classes: self
                .classes
                .iter()
                .map(|class| Class {
                    name: import.text(class.name),
                    ..*class
                })
                .collect(),
            ..*self
        }
    }

    /// Every id of a text, and of a path.
    pub fn ids(&self) -> (Vec<TextId>, Vec<PathId>) {
        let mut texts: Vec<_> = self.classes.iter().map(|class| class.name).collect();
        let mut paths = Vec::new();
        for holder in &self.by {
            holder.root.map(|_, &text| texts.push(text));
            texts.extend(holder.via.iter().map(|step| step.allocator));
            paths.extend(holder.via.iter().filter_map(|step| step.path));
        }
        (texts, paths)
    }
}

impl Step {
    fn renumbered(self, import: &mut Import<'_>) -> Self {
        Self {
            allocator: import.text(self.allocator),
            path: self.path.map(|path| import.path(path)),
            ..self
        }
    }
}
