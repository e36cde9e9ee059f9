//! What is in the chunks of a recording: the report's own types, as they are serialised, and what leads from one chunk to
//! the next. Names of fields are names in the file.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::chunk::{self, Kind, TooLarge};
use leak_report::model::dictionary::{Import, Limits, Renumbering, Sizes};
use leak_report::model::{AGE_BOUNDS, BlockList, Dictionary, Report, Stack, Text};

/// Bounds of what definitions may be: far above what can be recorded, since a recording may be anybody's.
pub(super) const LIMITS: Limits = Limits {
    entries: 1 << 22,
    text_bytes: 512 << 20,
    // Walks have 512 frames. The kernel's stacks have a limit of their own, which can be set.
    depth: 1 << 16,
};
/// Stacks and frames of all stacks of one report.
pub(super) const MAX_STACKS: usize = 1 << 20;
pub(super) const MAX_FRAMES: usize = 1 << 25;
/// Single blocks of one report.
pub(super) const MAX_BLOCKS: usize = 1 << 22;
/// Processes of one report, those that ended among them.
pub(super) const MAX_TARGETS: usize = 1 << 18;
/// Stacks, and single blocks, of one chunk.
const STACKS_IN_CHUNK: usize = 1 << 11;
const BLOCKS_IN_CHUNK: usize = 1 << 14;
/// Bytes of a text; what is longer is cut. Names of functions have some thousand.
const MAX_TEXT: usize = 1 << 20;
/// About how many bytes of definitions are in one chunk.
const DEFINITION_BYTES: usize = 1 << 20;

/// Single blocks of a stack; several have blocks of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StackBlocks {
    /// The number of the stack in the report, from 0.
    pub(super) stack: usize,
    pub(super) blocks: BlockList,
}

/// A report without its stacks, which are in the chunks before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Numbered {
    /// The report's number among all that were made, from 1; not all need be recorded.
    pub(super) number: u64,
    /// Stacks of the report.
    pub(super) stacks: usize,
    /// Upper bounds of the classes of ages in nanoseconds, but of the last, which has none.
    pub(super) age_bounds_ns: Vec<u64>,
    pub(super) report: Report,
}

/// The end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    /// Reports that were made.
    pub(super) made: u64,
    /// Those of them that are recorded.
    pub(super) recorded: u64,
}

/// The bounds of the classes of ages, by which recorded ages are counted.
pub(super) fn age_bounds() -> Vec<u64> {
    let nanoseconds = AGE_BOUNDS.iter().map(|bound| u64::try_from(bound.as_nanos()));
    nanoseconds.map(|bound| bound.unwrap_or(u64::MAX)).collect()
}

/// A report in chunks.
pub(super) struct Encoded {
    /// What this report and later ones refer to; must be written whether the report is or not.
    pub(super) definitions: Vec<u8>,
    /// The report.
    pub(super) report: Vec<u8>,
}

/// Encodes one report after another.
#[derive(Default)]
pub(super) struct Encoder {
    /// Everything that was defined.
    dictionary: Dictionary,
    /// The dictionary of the last report, whose numbers are known.
    last: Option<(Arc<Dictionary>, Renumbering)>,
}

impl Encoder {
    /// The chunks of a report.
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
        for part in block_parts(&report.stacks) {
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

    /// The numbers in the file that entries of a report's dictionary are known to have.
    fn known(&mut self, dictionary: &Arc<Dictionary>) -> Renumbering {
        let last = self.last.take();
        let same = last.filter(|(last, _)| Arc::ptr_eq(last, dictionary));
        same.map_or_else(Renumbering::default, |(_, numbers)| numbers)
    }

    /// The chunks of what was defined since there were `known`.
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

/// A text that is longer than a recording has room for, without its end.
fn cut(text: &Text) -> Option<Arc<str>> {
    let text = &text.text;
    if text.len() <= MAX_TEXT {
        return None;
    }
    let end = (0..=MAX_TEXT).rev().find(|&end| text.is_char_boundary(end))?;
    Some(text[..end].into())
}

/// The blocks of all stacks in parts, each of a bounded number of them.
fn block_parts(stacks: &[Stack]) -> Vec<Vec<StackBlocks>> {
    let mut parts = vec![Vec::new()];
    let mut room = BLOCKS_IN_CHUNK;
    for (stack, blocks) in stacks.iter().enumerate() {
        let Some(BlockList { listed, left_out }) = &blocks.blocks else {
            continue;
        };
        let (mut rest, mut left_out) = (listed.as_slice(), *left_out);
        loop {
            // An empty list takes room as a block does, so that a part's lists are bounded, too.
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
        };
        Some(BlockList {
            listed: (0..count).map(block).collect(),
            left_out: 7,
        })
    }

    /// However many blocks there are of a stack, and however many stacks, no part has more than a chunk has room for,
    /// and together they are what they were.
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
