//! Map from pages to records of extents (`rtree_t`, `include/jemalloc/internal/rtree.h`): a tree by bits of
//! the address. Its root is an array in an object's data, all other nodes are in jemalloc's own memory.
//!
//! The root is found by what it leads to: a word of the data leads to a node, the node to a record, and the
//! record is of the very page that belongs at this place of the tree. The page's index in the root then gives
//! the start of the root.

use std::collections::BTreeSet;
use std::ops::Range;

use super::super::records::{PAGE, data, range};
use super::base;
use super::extents;
use crate::Memory;
use memleak_process::maps::MapsEntry;

/// Maximum number of elements that are kept: one for each page of a heap of 64 GiB.
const MAX_ELEMENTS: usize = 1 << 24;
const MAX_TREES: usize = 16;
/// Maximum number of words of one object's data that are tried, as they lead into jemalloc's own memory.
const MAX_WORDS: usize = 1 << 14;
/// Bytes before and behind a root that count as its object's data, too. Other memory can follow the data.
const AROUND: u64 = 4 << 20;
/// Number of elements of a node that are tried as the first of an extent.
const TRIES: usize = 64;
/// Alignment of nodes.
const NODE: u64 = 64;
/// Alignment of records, which leaves elements room for other bits.
const RECORD: u64 = 128;

/// Form of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// Built for addresses of 48 bits: two levels, and a word for an element, which has other bits above the
    /// record's address.
    Packed,
    /// Built for addresses of 57 bits, as on machines that have such: three levels, and two words for an
    /// element.
    Wide,
}

impl Form {
    /// Bits of the address by which a node of each level is indexed.
    const fn bits(self) -> &'static [u32] {
        match self {
            Self::Packed => &[18, 18],
            Self::Wide => &[15, 15, 15],
        }
    }

    /// Lowest of the bits by which a node of a level is indexed.
    fn shift(self, level: usize) -> u32 {
        let below = self.bits().iter().skip(level + 1).sum::<u32>();
        PAGE.trailing_zeros() + below
    }

    fn is_leaf(self, level: usize) -> bool {
        level + 1 == self.bits().len()
    }

    /// Bytes of an element of a level.
    fn stride(self, level: usize) -> u64 {
        match self {
            Self::Wide if self.is_leaf(level) => 16,
            Self::Packed | Self::Wide => 8,
        }
    }

    fn count(self, level: usize) -> u64 {
        self.bits().get(level).map_or(0, |bits| 1 << bits)
    }

    fn node_bytes(self, level: usize) -> u64 {
        self.stride(level) * self.count(level)
    }

    /// Index of an address in a node of a level.
    fn index(self, level: usize, address: u64) -> u64 {
        address >> self.shift(level) & (self.count(level) - 1)
    }

    /// Address of the record in a word of a leaf.
    fn record(self, word: u64) -> u64 {
        match self {
            Self::Packed => word & ((1 << 48) - 1) & !(RECORD - 1),
            Self::Wide => word,
        }
    }
}

/// A root in data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tree {
    form: Form,
    root: u64,
}

/// An element of a leaf: a page, and the record of its extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub record: u64,
    pub page: u64,
}

/// Roots, and the data around them.
pub(super) struct Anchored {
    pub trees: BTreeSet<Tree>,
    pub data: Vec<Range<u64>>,
}

/// Finds all trees.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], base: &[Range<u64>]) -> Anchored {
    let mut found = Anchored {
        trees: BTreeSet::new(),
        data: Vec::new(),
    };
    if base.is_empty() {
        return found;
    }
    for data in data(maps) {
        let mut words = Vec::new();
        memory.visit(&[range(&data)], &mut |start, all| {
            let all = all.iter().zip((start.get()..).step_by(8));
            // Records, which are full of links to others, can be adjacent.
            let can_lead = |word: u64, at: u64| {
                word.is_multiple_of(NODE) && base::has(base, word, PAGE) && !base::has(base, at, 8)
            };
            let leading = all.filter(|(word, at)| can_lead(**word, *at));
            words.extend(
                leading
                    .map(|(word, at)| (*word, at))
                    .take(MAX_WORDS - words.len()),
            );
        });
        for (word, at) in words {
            let is_known = found.trees.iter().any(|tree| tree.range().contains(&at));
            if is_known || found.trees.len() == MAX_TREES {
                continue;
            }
            if let Some(tree) = anchored(memory, base, &data, at, word) {
                let Range { start, end } = tree.range();
                let around = start.saturating_sub(AROUND)..end.saturating_add(AROUND);
                found
                    .data
                    .push(around.start.max(data.start)..around.end.min(data.end));
                found.trees.insert(tree);
            }
        }
    }
    found
}

/// Finds the tree whose root has the word `child` at `at`.
fn anchored(
    memory: &dyn Memory,
    base: &[Range<u64>],
    data: &Range<u64>,
    at: u64,
    child: u64,
) -> Option<Tree> {
    [Form::Packed, Form::Wide].into_iter().find_map(|form| {
        let page = probe(memory, base, form, 1, child)?;
        let root = at.checked_sub(8 * form.index(0, page))?;
        let tree = Tree { form, root };
        let range = tree.range();
        (data.start <= range.start && range.end <= data.end).then_some(tree)
    })
}

/// Finds the first page of an extent that is at the right place below `node`.
fn probe(memory: &dyn Memory, base: &[Range<u64>], form: Form, level: usize, node: u64) -> Option<u64> {
    let mut children = Vec::new();
    let node = Node {
        form,
        level,
        at: node,
    };
    visit_node(memory, base, node, &mut |index, word| {
        if children.len() < TRIES {
            children.push((index, word));
        }
    });
    children.into_iter().find_map(|(index, word)| {
        let page = if form.is_leaf(level) {
            extents::first_page(memory, base, form.record(word))
        } else {
            probe(memory, base, form, level + 1, word)
        };
        page.filter(|page| form.index(level, *page) == index)
    })
}

/// Node of a tree, by its address.
#[derive(Clone, Copy)]
struct Node {
    form: Form,
    level: usize,
    at: u64,
}

/// Calls `see` with the index and the first word of each element whose first word is not 0.
fn visit_node(memory: &dyn Memory, base: &[Range<u64>], node: Node, see: &mut dyn FnMut(u64, u64)) {
    let Node { form, level, at } = node;
    let bytes = form.node_bytes(level);
    if at.is_multiple_of(8) && base::has(base, at, bytes) {
        visit_elements(memory, form.stride(level), at..at + bytes, see);
    }
}

fn visit_elements(memory: &dyn Memory, stride: u64, node: Range<u64>, see: &mut dyn FnMut(u64, u64)) {
    memory.visit(&[range(&node)], &mut |start, words| {
        let offset = start.get().saturating_sub(node.start);
        for (&word, offset) in words.iter().zip((offset..).step_by(8)) {
            if word != 0 && offset.is_multiple_of(stride) {
                see(offset / stride, word);
            }
        }
    });
}

impl Tree {
    fn range(&self) -> Range<u64> {
        self.root..self.root.saturating_add(self.form.node_bytes(0))
    }

    /// Reads all elements whose record differs from that of the element before. An extent can have several
    /// pages.
    pub(super) fn elements(&self, memory: &dyn Memory, base: &[Range<u64>]) -> Vec<Element> {
        let form = self.form;
        let mut nodes = Vec::new();
        visit_elements(memory, 8, self.range(), &mut |index, node| {
            nodes.push((node, index << form.shift(0)));
        });
        let mut elements = Vec::new();
        for level in 1..form.bits().len() {
            // Each node is read once, and none overlaps another: so no more is read than there is.
            nodes.sort_unstable();
            nodes.dedup_by(|next, last| next.0 < last.0.saturating_add(form.node_bytes(level)));
            let mut below = Vec::new();
            for &(node, prefix) in &nodes {
                let mut last = 0;
                let node = Node {
                    form,
                    level,
                    at: node,
                };
                visit_node(memory, base, node, &mut |index, word| {
                    let page = prefix | index << form.shift(level);
                    let record = form.record(word);
                    if !form.is_leaf(level) {
                        below.push((word, page));
                    } else if record != last {
                        // Elements of pages that are in no extent now still have other bits.
                        if record != 0 && elements.len() < MAX_ELEMENTS {
                            elements.push(Element { record, page });
                        }
                        last = record;
                    }
                });
            }
            nodes = below;
        }
        elements
    }
}
