//! The content of a recording's chunks: the report's own types in their serde form, and the state kept
//! between chunks. Field names are part of the file format.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::chunk::{self, Kind, TooLarge};
use leak_report::model::dictionary::{Import, Limits, Renumbering, Sizes};
use leak_report::model::{AGE_BOUNDS, BlockList, Dictionary, Report, Stack, Text};

/// Bounds of the definitions: far above what can be recorded, as a recording may be from an untrusted source.
pub(super) const LIMITS: Limits = Limits {
    entries: 1 << 22,
    text_bytes: 512 << 20,
    // User stacks have at most 512 frames. The limit for kernel stacks is configurable.
    depth: 1 << 16,
};
/// Maximum number of stacks of one report, and of frames of all its stacks.
pub(super) const MAX_STACKS: usize = 1 << 20;
pub(super) const MAX_FRAMES: usize = 1 << 25;
/// Maximum number of single blocks of one report.
pub(super) const MAX_BLOCKS: usize = 1 << 22;
/// Maximum number of processes of one report, including ended ones.
pub(super) const MAX_TARGETS: usize = 1 << 18;
/// Maximum number of stacks, and of single blocks, of one chunk.
const STACKS_IN_CHUNK: usize = 1 << 11;
const BLOCKS_IN_CHUNK: usize = 1 << 14;
/// Maximum number of bytes of a text; longer ones are cut. Function names have some thousand.
const MAX_TEXT: usize = 1 << 20;
/// Approximate bytes of definitions in one chunk.
const DEFINITION_BYTES: usize = 1 << 20;

/// Single blocks of one stack; a stack's blocks may be split over several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StackBlocks {
    /// Index of the stack in the report, from 0.
    pub(super) stack: usize,
    pub(super) blocks: BlockList,
}

/// A report without its stacks, which precede it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Numbered {
    /// Number among the reports that were made, from 1; recorded numbers can have gaps.
    pub(super) number: u64,
    /// Number of stacks of the report.
    pub(super) stacks: usize,
    /// Upper bounds of the age classes in nanoseconds; the last class has none.
    pub(super) age_bounds_ns: Vec<u64>,
    pub(super) report: Report,
}

/// Totals at the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    /// Number of reports made.
    pub(super) made: u64,
    /// Number of reports recorded.
    pub(super) recorded: u64,
}

/// The bounds of the age classes in nanoseconds; a recording with other bounds cannot be read.
pub(super) fn age_bounds() -> Vec<u64> {
    let nanoseconds = AGE_BOUNDS.iter().map(|bound| u64::try_from(bound.as_nanos()));
    nanoseconds.map(|bound| bound.unwrap_or(u64::MAX)).collect()
}

/// A report encoded as chunks.
pub(super) struct Encoded {
    /// Definitions for this and later reports; must be written even if the report is not.
    pub(super) definitions: Vec<u8>,
    /// Chunks of the report.
    pub(super) report: Vec<u8>,
}

/// Encodes successive reports, each definition once.
#[derive(Default)]
pub(super) struct Encoder {
    /// All definitions so far.
    dictionary: Dictionary,
    /// The last report's dictionary, and the numbers of its entries in the file.
    last: Option<(Arc<Dictionary>, Renumbering)>,
}

impl Encoder {
    /// Encodes a report as chunks.
    pub(super) fn encode(&mut self, number: u64, report: &Report) -> Result<Encoded, TooLarge> {
        let frames: usize = report.stacks().map(|stack| stack.frames().len()).sum();
        let blocks = report.stacks.iter().filter_map(|stack| stack.blocks.as_ref());
        let blocks: usize = blocks.map(|blocks| blocks.listed.len()).sum();
        if report.stacks.len() > MAX_STACKS || frames > MAX_FRAMES || blocks > MAX_BLOCKS {
            return Err(TooLarge);
        }
        let known = self.dictionary.sizes();
        let numbers = self.known(&report.dictionary);
        let mut import = Import::new(&report.dictionary, &mut self.dictionary, numbers, &cut);
        let mut chunks = Vec::new();
        for part in report.stacks.chunks(STACKS_IN_CHUNK) {
            let part: Vec<_> = part.iter().map(|stack| stack.renumbered(&mut import)).collect();
            chunks.extend(chunk::encode(Kind::Stacks, &part)?);
        }
        for mut part in block_parts(&report.stacks) {
            for block in part.iter_mut().flat_map(|stack| &mut stack.blocks.listed) {
                *block = block.renumbered(&mut import);
            }
            chunks.extend(chunk::encode(Kind::Blocks, &part)?);
        }
        let numbered = Numbered {
            number,
            stacks: report.stacks.len(),
            age_bounds_ns: age_bounds(),
            report: report.heading(&mut import),
        };
        chunks.extend(chunk::encode(Kind::Report, &numbered)?);
        self.last = Some((Arc::clone(&report.dictionary), import.into_known()));
        Ok(Encoded {
            definitions: self.definitions(known)?,
            report: chunks,
        })
    }

    /// Numbers in the file that are already known for entries of a report's dictionary; empty if it is not
    /// the last report's dictionary.
    fn known(&mut self, dictionary: &Arc<Dictionary>) -> Renumbering {
        let last = self.last.take();
        let same = last.filter(|(last, _)| Arc::ptr_eq(last, dictionary));
        same.map_or_else(Renumbering::default, |(_, numbers)| numbers)
    }

    /// Encodes the definitions added since `known`.
    fn definitions(&self, known: Sizes) -> Result<Vec<u8>, TooLarge> {
        if !self.dictionary.is_within(LIMITS) {
            return Err(TooLarge);
        }
        let mut chunks = Vec::new();
        for piece in self.dictionary.added_since(known, DEFINITION_BYTES) {
            chunks.extend(chunk::encode(Kind::Definitions, &piece)?);
        }
        Ok(chunks)
    }
}

/// A prefix of at most [`MAX_TEXT`] bytes of a longer text; `None` if the text is not longer.
fn cut(text: &Text) -> Option<Arc<str>> {
    let text = &text.text;
    if text.len() <= MAX_TEXT {
        return None;
    }
    let end = (0..=MAX_TEXT).rev().find(|&end| text.is_char_boundary(end))?;
    Some(text[..end].into())
}

/// Splits the blocks of all stacks into parts of at most [`BLOCKS_IN_CHUNK`].
fn block_parts(stacks: &[Stack]) -> Vec<Vec<StackBlocks>> {
    let mut parts = vec![Vec::new()];
    let mut room = BLOCKS_IN_CHUNK;
    for (stack, blocks) in stacks.iter().enumerate() {
        let Some(BlockList { listed, left_out }) = &blocks.blocks else {
            continue;
        };
        let (mut rest, mut left_out) = (listed.as_slice(), *left_out);
        loop {
            // An empty list counts as one block, so that the number of lists in a part is bounded, too.
            if room == 0 {
                parts.push(Vec::new());
                room = BLOCKS_IN_CHUNK;
            }
            let (now, later) = rest.split_at(rest.len().min(room));
            room -= now.len().max(1);
            let last = parts.len() - 1;
            parts[last].push(StackBlocks {
                stack,
                blocks: BlockList {
                    listed: now.to_vec(),
                    left_out: std::mem::take(&mut left_out),
                },
            });
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use unwind_tables::addr::Avma;

    use leak_report::samples;

    use super::*;
    use leak_report::model::{ListedBlock, Weight};

    fn list(count: usize) -> Option<BlockList> {
        let block = |number: usize| ListedBlock {
            address: Avma::new(number as u64),
            size: 1,
            age: Duration::from_nanos(number as u64),
            weight: Weight::of_blocks(3.25),
            class: None,
        };
        Some(BlockList {
            listed: (0..count).map(block).collect(),
            left_out: 7,
        })
    }

    /// For any number of blocks and stacks, no part exceeds a chunk's limit, and all parts together contain
    /// the recorded blocks.
    #[test]
    fn parts_are_bounded() {
        let stack = |blocks: Option<BlockList>| Stack {
            blocks,
            ..samples::full().stacks[0].clone()
        };
        let large = [
            list(0),
            None,
            list(3 * BLOCKS_IN_CHUNK + 1),
            list(BLOCKS_IN_CHUNK - 1),
            list(5),
        ];
        let many = vec![list(1); 2 * STACKS_IN_CHUNK + 1];
        let stacks: Vec<_> = large.into_iter().chain(many).map(stack).collect();
        let parts = block_parts(&stacks);
        for part in &parts {
            let blocks: usize = part.iter().map(|part| part.blocks.listed.len().max(1)).sum();
            assert!(blocks <= BLOCKS_IN_CHUNK);
        }
        let mut read: Vec<Option<BlockList>> = vec![None; stacks.len()];
        for StackBlocks { stack, blocks } in parts.into_iter().flatten() {
            read[stack].get_or_insert_default().append(blocks);
        }
        for (read, recorded) in read.iter().zip(&stacks) {
            assert_eq!(*read, recorded.blocks);
        }
    }
}
