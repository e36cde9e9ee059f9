//! Lists of the free blocks of each span: the first word of a free block is the address of the next. A span
//! has the number of its other blocks, so that a list that changes while it is read is noticed.

use std::collections::BTreeMap;

use super::super::heads::Heads;
use super::super::records;
use super::spans::{Kind, Record, Span, Spans};
use crate::Memory;

/// Number of spans, and maximum number of blocks in them, that are read together.
const SPANS: usize = 1 << 9;
const BLOCKS: u64 = 1 << 20;
/// Number of attempts to read a list before a contradiction counts: the program may have changed it
/// meanwhile.
const TRIES: usize = 4;

/// Addresses of free blocks, ascending.
pub(super) type Free = Vec<u64>;

/// Reads the free blocks of all spans. Drops those whose lists contradict themselves or keep changing.
pub(super) fn read(memory: &dyn Memory, spans: &mut Spans) -> Free {
    let mut free = Free::new();
    let has_list = |span: &Span| matches!(span.kind, Kind::Blocks { .. }) && span.record.first != 0;
    // Spans without a list have no free blocks, or contradict themselves.
    let is_odd = |span: &Span| span.record.first == 0 && span.record.used() != span.count();
    let all = spans.all().iter().enumerate();
    let mut left: Vec<usize> = all
        .filter(|(_, span)| has_list(span) || (is_odd(span) && is_of_blocks(span)))
        .map(|(index, _)| index)
        .collect();
    for attempt in 0..TRIES {
        if attempt > 0 {
            refresh(memory, spans, &left);
        }
        let mut again = Vec::new();
        let mut rest = &left[..];
        while let Some((group, others)) = divide(spans, rest) {
            rest = others;
            read_group(memory, spans, group, &mut free, &mut again);
        }
        left = again;
    }
    spans.refuse(&left);
    free.sort_unstable();
    free
}

fn is_of_blocks(span: &Span) -> bool {
    matches!(span.kind, Kind::Blocks { .. })
}

/// Divides spans, by index, into those that are read together and the others.
fn divide<'a>(spans: &Spans, indices: &'a [usize]) -> Option<(&'a [usize], &'a [usize])> {
    let mut blocks = 0;
    let fits = |index: &&usize| {
        blocks += spans.all().get(**index).map_or(0, Span::count);
        blocks <= BLOCKS
    };
    let count = indices.iter().take(SPANS).take_while(fits).count().max(1);
    (!indices.is_empty()).then(|| indices.split_at(count.min(indices.len())))
}

/// Adds the free blocks of some spans, or else their indices to `again`.
fn read_group(memory: &dyn Memory, spans: &Spans, group: &[usize], free: &mut Free, again: &mut Vec<usize>) {
    let some: Vec<&Span> = group.iter().filter_map(|index| spans.all().get(*index)).collect();
    let heads = Heads::read(memory, some.iter().filter_map(|span| span.row()).collect());
    let after = records_at(memory, &some);
    for (row, (span, index)) in some.iter().zip(group).enumerate() {
        let before = free.len();
        let is_same = after.get(&span.at) == Some(&span.record);
        if !is_same || !walk(&heads, row, span, free) {
            free.truncate(before);
            again.push(*index);
        }
    }
}

fn records_at(memory: &dyn Memory, spans: &[&Span]) -> BTreeMap<u64, Record> {
    let mut places: Vec<u64> = spans.iter().map(|span| span.at).collect();
    places.sort_unstable();
    let mut found = BTreeMap::new();
    records::visit(memory, &places, &mut |at, words| {
        found.insert(at, Record::new(words));
    });
    found
}

/// Reads the records of spans again. A span that has another place or class by now will not agree with its
/// blocks.
fn refresh(memory: &dyn Memory, spans: &mut Spans, indices: &[usize]) {
    let some: Vec<&Span> = indices
        .iter()
        .filter_map(|index| spans.all().get(*index))
        .collect();
    let now = records_at(memory, &some);
    for &index in indices {
        let Some(span) = spans.all().get(index) else {
            continue;
        };
        let old = span.record;
        let new = now.get(&span.at).copied();
        let is_same = |new: &Record| {
            let new = (new.start, new.pages, new.class(), new.is_in_use());
            new == (old.start, old.pages, old.class(), old.is_in_use())
        };
        if let Some(new) = new.filter(is_same) {
            spans.update(index, new);
        }
    }
}

/// Adds the free blocks of a span, which is a row of `heads`; returns false if its list contradicts the span.
fn walk(heads: &Heads, row: usize, span: &Span, free: &mut Free) -> bool {
    let mut next = span.record.first;
    for _ in span.record.used()..span.count() {
        let Some(word) = heads.of(row, next) else {
            return false;
        };
        free.push(next);
        next = word;
    }
    next == 0
}
