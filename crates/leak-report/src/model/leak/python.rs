//! Places the functions of Python between the native frames of their interpreter. Pure.
//!
//! A thread has two stacks: native frames, among them those of the interpreter's loop, and a chain of Python
//! functions. One native frame of the loop (an *eval frame*) runs a *group* of functions that call each other
//! without leaving it; the outermost of the group is marked as its entry. From the innermost on, the nth eval
//! frame runs the nth group.
//!
//! Both are read independently, so they can differ: in a subinterpreter, the native stack also has the eval
//! frames of the outer interpreter, and the chain does not. If a whole walk and a whole chain have different
//! numbers of eval frames and groups, nothing is placed; if one of them is not whole, it must not have more
//! than the other. Where one of them is not whole, the innermost eval frames take the innermost groups, up to
//! the first place where a native frame may be missing.

#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, FoundBy, Frame};

use super::SiteFrame;
use crate::model::counts::{Count, line};
use crate::model::{Snapshot, StackTotals};

/// Python function that was running or calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// Number of its code object.
    pub code: u32,
    /// Position of its instruction in the code object.
    pub instruction: u32,
    /// True for the outermost function of its eval frame.
    pub is_entry: bool,
}

impl PythonFrame {
    /// Value of `code` for an eval frame whose function is gone: the frame marks a group without functions,
    /// and is its entry.
    pub const NO_CODE: u32 = u32::MAX;

    fn is_function(&self) -> bool {
        self.code != Self::NO_CODE
    }
}

/// Python functions of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PythonChain {
    /// Functions, innermost first.
    pub frames: Vec<PythonFrame>,
    /// False if further callers are missing: there were too many, or one could not be read.
    pub is_whole: bool,
}

/// Allocated blocks of stacks with Python functions, by how many of the functions are in the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonStacks {
    /// Every function.
    pub whole: u64,
    /// Innermost functions only: the chain is not whole, or native frames between them are not known.
    pub in_part: u64,
    /// None: native stack and chain do not match, as in a subinterpreter.
    pub not_placed: u64,
    /// None: the interpreter was not known yet, or there was no room for the chain.
    pub not_read: u64,
}

/// Allocations of stacks with Python functions. They share one text line.
pub const PYTHON: [Count<PythonStacks>; 4] = [
    Count {
        field: "whole",
        of: |stacks| stacks.whole,
        metric: None,
        line: line(|stacks| stacks.whole, "allocation", "have all their frames"),
    },
    Count {
        field: "in_part",
        of: |stacks| stacks.in_part,
        metric: None,
        line: line(
            |stacks| stacks.in_part,
            "allocation",
            "have only the innermost frames (too many, or native frames between them unknown)",
        ),
    },
    Count {
        field: "not_placed",
        of: |stacks| stacks.not_placed,
        metric: None,
        line: line(
            |stacks| stacks.not_placed,
            "allocation",
            "have none (stack and interpreter state disagree, as in a subinterpreter)",
        ),
    },
    Count {
        field: "not_read",
        of: |stacks| stacks.not_read,
        metric: None,
        line: line(
            |stacks| stacks.not_read,
            "allocation",
            "have none (interpreter not yet known, or no room)",
        ),
    },
];

impl PythonStacks {
    /// Sum of all.
    pub fn all(&self) -> u64 {
        self.whole
            .saturating_add(self.in_part)
            .saturating_add(self.not_placed)
            .saturating_add(self.not_read)
    }

    fn add(&mut self, placed: Placed, blocks: u64) {
        let sum = match placed {
            Placed::NothingToPlace => return,
            Placed::Whole => &mut self.whole,
            Placed::InPart => &mut self.in_part,
            Placed::Nothing => &mut self.not_placed,
            Placed::NotRead => &mut self.not_read,
        };
        *sum = sum.saturating_add(blocks);
    }
}

/// Number of the code object and position of the instruction, of a frame made by [`place_python_frames`].
pub fn python_code(frame: &Frame) -> Option<(u32, u32)> {
    code_in(frame.found_by, frame.pc)
}

impl<M> SiteFrame<M> {
    /// Number of the code object and position of the instruction, of a Python function.
    pub fn python_code(&self) -> Option<(u32, u32)> {
        code_in(self.found_by, self.at.pc)
    }
}

fn code_in(found_by: FoundBy, pc: Avma) -> Option<(u32, u32)> {
    let [a, b, c, d, e, f, g, h] = pc.get().to_be_bytes();
    let code = u32::from_be_bytes([a, b, c, d]);
    let instruction = u32::from_be_bytes([e, f, g, h]);
    (found_by == FoundBy::Python).then_some((code, instruction))
}

fn frame_of(python: PythonFrame) -> Frame {
    Frame {
        pc: Avma::new(u64::from(python.code) << 32 | u64::from(python.instruction)),
        found_by: FoundBy::Python,
        exact: true,
    }
}

fn functions_of(frames: &[PythonFrame]) -> impl Iterator<Item = Frame> {
    let functions = frames.iter().filter(|frame| frame.is_function());
    functions.copied().map(frame_of)
}

/// Moves the functions of each stack's chain into its frames, each group before the eval frame that runs it,
/// and adds the stack's allocated blocks to [`Snapshot::python`]. `is_eval` tells eval frames from other
/// native ones.
///
/// Must be called before any function that removes frames: the numbers of eval frames and of groups are
/// compared.
pub fn place_python_frames(snapshot: &mut Snapshot, is_eval: impl Fn(&StackTotals, &Frame) -> bool) {
    let mut sums = snapshot.python;
    for stack in &mut snapshot.stacks {
        let placed = match stack.python.take() {
            Some(chain) => place(stack, &chain, &is_eval),
            None if stack.frames.iter().any(|frame| is_eval(stack, frame)) => Placed::NotRead,
            None => Placed::NothingToPlace,
        };
        sums.add(placed, stack.allocated.amount.blocks);
    }
    snapshot.python = sums;
}

/// Part of a chain that is in the frames of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    NothingToPlace,
    Whole,
    InPart,
    Nothing,
    NotRead,
}

fn place(
    stack: &mut StackTotals,
    chain: &PythonChain,
    is_eval: impl Fn(&StackTotals, &Frame) -> bool,
) -> Placed {
    let evals: Vec<usize> = (0..stack.frames.len())
        .filter(|&at| is_eval(stack, &stack.frames[at]))
        .collect();
    let groups = groups(&chain.frames);
    if groups.is_empty() && evals.is_empty() && chain.is_whole {
        return Placed::NothingToPlace;
    }
    let is_whole_walk = stack.end == End::Complete && stack.left_out.is_none();
    let fits = match (is_whole_walk, chain.is_whole) {
        (true, true) => evals.len() == groups.len(),
        (true, false) => evals.len() >= groups.len(),
        (false, true) => evals.len() <= groups.len(),
        (false, false) => true,
    };
    if !fits {
        return Placed::Nothing;
    }
    let known = match is_whole_walk && chain.is_whole {
        true => stack.frames.len(),
        false => known_frames(stack),
    };
    let is_open = known == stack.frames.len() && stack.left_out.is_none() && stack.end != End::Complete;
    let mut placed = insert(
        stack,
        chain,
        &groups,
        evals.iter().copied().filter(|&at| at < known),
    );
    if is_open {
        // The walk ended early: the remaining functions are further out.
        let rest = &chain.frames[placed..];
        stack.frames.extend(functions_of(rest));
        placed = chain.frames.len();
    }
    match placed {
        0 => Placed::Nothing,
        _ if placed == chain.frames.len() && chain.is_whole => Placed::Whole,
        _ => Placed::InPart,
    }
}

/// Frames of each group, from the innermost; the last one can lack its entry.
fn groups(frames: &[PythonFrame]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut start = 0;
    for (at, frame) in frames.iter().enumerate() {
        if frame.is_entry || at + 1 == frames.len() {
            groups.push(start..at + 1);
            start = at + 1;
        }
    }
    groups
}

/// Number of innermost native frames among which none can be missing. A step by frame pointer can skip
/// frames: the callers of functions that keep no frame pointer.
fn known_frames(stack: &StackTotals) -> usize {
    let before_fp = stack.frames.iter().position(|frame| frame.found_by.is_by_fp());
    let before_gap = stack.left_out.map(|left_out| left_out.after as usize);
    let ends = [before_fp, before_gap].into_iter().flatten();
    ends.fold(stack.frames.len(), usize::min)
}

/// Inserts the nth group before the nth of `evals`, which ascend. Returns the number of functions inserted.
fn insert(
    stack: &mut StackTotals,
    chain: &PythonChain,
    groups: &[Range<usize>],
    evals: impl Iterator<Item = usize>,
) -> usize {
    let native = std::mem::take(&mut stack.frames);
    let (mut done, mut placed, mut before_gap) = (0, 0, 0);
    for (eval, group) in evals.zip(groups) {
        stack.frames.extend_from_slice(&native[done..eval]);
        let before = stack.frames.len();
        stack.frames.extend(functions_of(&chain.frames[group.clone()]));
        if stack
            .left_out
            .is_some_and(|left_out| eval < left_out.after as usize)
        {
            before_gap += stack.frames.len() - before;
        }
        (done, placed) = (eval, group.end);
    }
    stack.frames.extend_from_slice(&native[done..]);
    if let Some(left_out) = &mut stack.left_out {
        let inserted = u32::try_from(before_gap).unwrap_or(u32::MAX);
        left_out.after = left_out.after.saturating_add(inserted);
    }
    placed
}
