//! Single blocks of stacks (`-a`), of which there can be more than a chunk has room for.

use super::chunk::TooLarge;
use super::decode::duration;
use super::schema::{self, BLOCKS_IN_CHUNK, List, MOST_BLOCKS, STACKS_IN_CHUNK};
use super::tables::Wrong;
use crate::model::Stack;
use crate::model::{BlockList, ListedBlock, Weight};
use unwind_tables::addr::Avma;

/// What is in one chunk.
pub(super) type Part = List<schema::Blocks, STACKS_IN_CHUNK>;

/// The blocks of all stacks, in parts of which each fits into a chunk.
pub(super) fn parts(stacks: &[Stack]) -> Result<Vec<Part>, TooLarge> {
    let lists = || {
        (0..)
            .zip(stacks)
            .filter_map(|(at, stack)| Some((at, stack.blocks.as_ref()?)))
    };
    if lists().map(|(_, blocks)| blocks.listed.len()).sum::<usize>() > MOST_BLOCKS {
        return Err(TooLarge);
    }
    let mut parts = vec![Part::default()];
    let mut room = BLOCKS_IN_CHUNK;
    for (stack, BlockList { listed, left_out }) in lists() {
        let mut left = listed.as_slice();
        let mut left_out = *left_out;
        loop {
            let last = parts.len() - 1;
            if room == 0 || parts[last].0.len() == STACKS_IN_CHUNK {
                parts.push(Part::default());
                room = BLOCKS_IN_CHUNK;
                continue;
            }
            let (now, later) = left.split_at(left.len().min(room));
            room -= now.len();
            parts[last].0.push(schema::Blocks {
                stack,
                listed: now.iter().map(entry).collect(),
                left_out: std::mem::take(&mut left_out),
            });
            left = later;
            if left.is_empty() {
                break;
            }
        }
    }
    parts.retain(|part| !part.0.is_empty());
    Ok(parts)
}

fn entry(block: &ListedBlock) -> schema::Block {
    let ListedBlock {
        address,
        size,
        age,
        weight,
    } = block;
    schema::Block {
        address: address.get(),
        size: *size,
        age_ns: age.as_nanos(),
        stands_for: weight.blocks(),
    }
}

/// Adds blocks to their stack's.
pub(super) fn add(stacks: &mut [Stack], part: schema::Blocks) -> Result<(), Wrong> {
    let schema::Blocks {
        stack,
        listed: List(listed),
        left_out,
    } = part;
    let stack = usize::try_from(stack)
        .ok()
        .and_then(|stack| stacks.get_mut(stack));
    let stack = stack.ok_or_else(|| Wrong("blocks of a stack that is not there".to_owned()))?;
    let blocks = stack.blocks.get_or_insert_with(BlockList::default);
    blocks.left_out = blocks.left_out.saturating_add(left_out);
    blocks.listed.extend(listed.into_iter().map(|block| ListedBlock {
        address: Avma::new(block.address),
        size: block.size,
        age: duration(block.age_ns),
        weight: Weight::of_blocks(block.stands_for),
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
            ..crate::report::sample().stacks[0].clone()
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
        let parts = parts(&stacks).expect("there is room");
        for part in &parts {
            let blocks: usize = part.0.iter().map(|blocks| blocks.listed.0.len()).sum();
            assert!(part.0.len() <= STACKS_IN_CHUNK && blocks <= BLOCKS_IN_CHUNK);
        }
        let mut read: Vec<_> = stacks.iter().map(|_| stack(None)).collect();
        for blocks in parts.into_iter().flat_map(|part| part.0) {
            add(&mut read, blocks).expect("the stack is there");
        }
        for (read, recorded) in read.iter().zip(&stacks) {
            assert_eq!(read.blocks, recorded.blocks);
        }
        let stray = schema::Blocks {
            stack: read.len() as u64,
            ..schema::Blocks::default()
        };
        assert!(add(&mut read, stray).is_err());
    }
}
