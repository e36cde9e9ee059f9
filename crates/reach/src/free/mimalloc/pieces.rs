//! Pieces of mimalloc's memory, segment by segment.

use std::ops::Range;

use super::segments::{Page, Segment};
use super::{Found, search};
use crate::Memory;
use crate::free::Allocator;
use crate::layout::{Arena, Division, Layout, Piece, Pieces, Slab, Usage};
use memleak_process::maps::MapsEntry;

/// Describes the memory of mimalloc; `None` if there is none. Free memory in the segments of a thread is
/// given back by calls of that thread (`mi_collect`), all other by calls of any.
pub(in super::super) fn layout(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Layout> {
    search(memory, maps).map(Found::layout)
}

impl Found {
    fn layout(self) -> Layout {
        let segments = self.segments.iter();
        Layout {
            allocator: Allocator::Mimalloc,
            division: Division::Extents,
            arenas: vec![Arena {
                name: "segments".to_owned(),
                ranges: segments.map(|segment| segment.start..segment.end).collect(),
                gives_top: None,
            }],
            unknown: self.unknown_bytes(),
            refused: 0,
            pieces: Box::new(self),
        }
    }

    fn unknown_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.visit(&mut |piece| {
            if piece.usage == Usage::Unknown {
                bytes += piece.range.end - piece.range.start;
            }
        });
        bytes
    }

    fn visit_segment(&self, segment: &Segment, see: &mut dyn FnMut(&Piece)) {
        let mut whole: Vec<(u64, u64, Option<Usage>)> = Vec::new();
        if !segment.info.is_empty() {
            whole.push((segment.info.start, segment.info.end, Some(Usage::Own)));
        }
        let free = segment.free.iter();
        whole.extend(free.map(|free| (free.start, free.end, Some(Usage::Free))));
        let malformed = segment.malformed.iter();
        whole.extend(malformed.map(|page| (page.start, page.end, Some(Usage::Unknown))));
        whole.extend(segment.pages.iter().map(|page| (page.start, page.end, None)));
        whole.sort_unstable();
        for (start, end, usage) in whole {
            match usage {
                Some(usage) => see(&piece(start, end, usage, None)),
                None => {
                    if let Some(page) = segment.page_of(start) {
                        self.visit_page(page, see);
                    }
                }
            }
        }
    }

    fn visit_page(&self, page: &Page, see: &mut dyn FnMut(&Piece)) {
        let whole = |usage: Usage| piece(page.start, page.end, usage, None);
        if self.is_unknown(page) {
            return see(&whole(Usage::Unknown));
        }
        let is_free = |block: &Range<u64>| self.free.has(block.start);
        if page.row.blocks().all(|block| is_free(&block)) {
            return see(&whole(Usage::Free));
        }
        let is_single = page.row.count == 1;
        let slab = Slab {
            start: page.start,
            bytes: page.end - page.start,
            block: page.row.bytes,
        };
        let slab = (!is_single).then_some(slab);
        if page.start < page.row.start {
            see(&piece(page.start, page.row.start, Usage::Own, slab));
        }
        for block in page.row.blocks() {
            let usage = match is_free(&block) {
                true => Usage::Free,
                false => Usage::Block { address: block.start },
            };
            see(&piece(block.start, block.end, usage, slab));
        }
        // Blocks that were never given out, and a rest that is too small for one.
        if page.row.end() < page.end {
            see(&piece(page.row.end(), page.end, Usage::Free, slab));
        }
    }
}

fn piece(start: u64, end: u64, usage: Usage, slab: Option<Slab>) -> Piece {
    Piece {
        range: start..end,
        usage,
        arena: Some(0),
        slab,
    }
}

impl Pieces for Found {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        for segment in &self.segments {
            self.visit_segment(segment, see);
        }
    }
}
