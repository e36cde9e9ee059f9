//! Pieces of tcmalloc's memory, span by span.

use std::collections::BTreeSet;

use unwind_tables::addr::Avma;

use super::{Found, Kind, Span, search};
use crate::Memory;
use crate::free::Allocator;
use crate::layout::{Arena, Division, Layout, Piece, Pieces, Slab, Usage};
use crate::ranges::joined;
use memleak_process::maps::MapsEntry;

/// Index of the only arena.
const SPANS: usize = 0;

/// Describes the memory of all tcmallocs of a process.
pub(in super::super) fn layouts(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Layout> {
    search(memory, maps).into_iter().map(Found::layout).collect()
}

impl Found {
    fn layout(self) -> Layout {
        let spans = self.spans.iter();
        let spans = joined(
            spans
                .map(|span| Avma::new(span.start)..Avma::new(span.end))
                .collect(),
        );
        let page_heap = Arena {
            name: "page heap".to_owned(),
            ranges: spans
                .iter()
                .map(|range| range.start.get()..range.end.get())
                .collect(),
            gives_top: None,
        };
        let unknown = self.unknown_classes();
        let unknown = self.spans.iter().filter(|span| span.is_of(&unknown));
        Layout {
            allocator: Allocator::Tcmalloc,
            division: Division::Extents,
            arenas: vec![page_heap],
            unknown: unknown.map(|span| span.end - span.start).sum(),
            refused: self.spans.malformed(),
            pieces: Box::new(self),
        }
    }

    /// Classes with free blocks that are not known.
    fn unknown_classes(&self) -> BTreeSet<usize> {
        if !self.threads.are_found() {
            return (0..self.statics.sizes.count()).collect();
        }
        let unknown = self.rounds.iter().flat_map(|round| &round.unknown);
        unknown.copied().collect()
    }

    /// Use of a block.
    fn usage(&self, address: u64) -> Usage {
        let is_in = |list: &[u64]| list.binary_search(&address).is_ok();
        if is_in(&self.free) {
            Usage::Free
        } else if self.rounds.iter().any(|round| is_in(&round.cached)) {
            Usage::Cached
        } else {
            Usage::Block { address }
        }
    }

    fn visit_span(&self, span: &Span, unknown: &BTreeSet<usize>, see: &mut dyn FnMut(&Piece)) {
        let whole = |usage: Usage| Piece {
            range: span.start..span.end,
            usage,
            arena: Some(SPANS),
            slab: None,
        };
        match span.kind {
            Kind::Large => see(&whole(Usage::Block { address: span.start })),
            Kind::Free | Kind::Returned => see(&whole(Usage::Free)),
            Kind::Blocks { .. } if span.is_of(unknown) => see(&whole(Usage::Unknown)),
            Kind::Blocks { bytes, .. } => {
                let slab = Some(Slab {
                    start: span.start,
                    bytes: span.end - span.start,
                    block: bytes,
                });
                let mut behind = span.start;
                for block in span.blocks() {
                    behind = block.end;
                    see(&Piece {
                        usage: self.usage(block.start),
                        range: block,
                        arena: Some(SPANS),
                        slab,
                    });
                }
                // Too small for another block.
                if behind < span.end {
                    see(&Piece {
                        range: behind..span.end,
                        usage: Usage::Own,
                        arena: Some(SPANS),
                        slab,
                    });
                }
            }
        }
    }
}

impl Pieces for Found {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        let unknown = self.unknown_classes();
        for span in self.spans.iter() {
            self.visit_span(span, &unknown, see);
        }
        let own = self.own().map(|own| Avma::new(own.start)..Avma::new(own.end));
        for own in joined(own.collect()) {
            see(&Piece {
                range: own.start.get()..own.end.get(),
                usage: Usage::Own,
                arena: None,
                slab: None,
            });
        }
    }
}
