//! Control flow of a function: which of its instructions return, and whether it only calls another function.
//! Pure: code in, addresses out.
//!
//! Direct jumps of a function are followed wherever they lead: to its parts that the compiler put elsewhere,
//! and out of it by a tail call, since the code there returns in its place. Calls are stepped over.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use thiserror::Error;
use unwind_tables::addr::Svma;
use unwind_tables::elf::ElfView;

use super::linkage::{Bound, Linkage, code_from};
use super::machine::{self, Flow, Target};

/// Maximum number of instructions that are followed in one function.
const MAX_INSTRUCTIONS: usize = 20_000;
/// Maximum number of instructions that are followed in one object, over all queries.
const MAX_IN_ALL: usize = 1 << 21;
/// Maximum number of `ret` instructions of one function.
const MAX_RETS: usize = 64;
/// Maximum depth of calls that are followed to find out whether a function only forwards a call.
const MAX_DEPTH: u8 = 3;

/// Functions of the C++ and C libraries that never return.
const NEVER_RETURN: &[&str] = &[
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_call_unexpected",
    "__cxa_throw_bad_array_new_length",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt17__throw_bad_allocv",
    "_ZSt28__throw_bad_array_new_lengthv",
    "abort",
    "exit",
    "_exit",
    "__stack_chk_fail",
    "__assert_fail",
    "__fortify_fail",
];

/// Reason why the returns of a function are not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoExits {
    /// A jump to a computed address.
    #[error("the target of the jump at {0} is unknown")]
    IndirectJump(Svma),
    /// A jump to a function of another object that is not an allocator's.
    #[error("it jumps to `{0}` of another object, and returns from there")]
    LeavesTo(String),
    /// A jump to an address without code, or to code that cannot be decoded.
    #[error("its code at {0} cannot be decoded")]
    Undecodable(Svma),
    /// More instructions, or more `ret`s, than the maximum.
    #[error("its code is too large to follow")]
    TooLarge,
    /// Every path ends in a call that never returns, or in an endless loop.
    #[error("it has no reachable return instruction")]
    None,
}

/// The code addresses and imports that are allocator functions of one kind.
pub trait AllocatorSet {
    /// True if a function of this object that starts here is in the set.
    fn is_function(&self, svma: Svma) -> bool;
    /// True if another object's function of this name is in the set.
    fn is_import(&self, name: &[u8]) -> bool;
}

pub struct Code<'a> {
    elf: &'a [u8],
    view: &'a ElfView<'a>,
    linkage: &'a Linkage<'a>,
    /// Number of instructions that may still be followed.
    left: Cell<usize>,
    /// Results of [`Code::reach`], by function.
    reaches: RefCell<HashMap<Svma, Rc<Reach<'a>>>>,
}

/// The functions and addresses that a function's instructions lead to.
#[derive(Debug, Default)]
struct Reach<'a> {
    /// Targets of jumps and branches.
    targets: BTreeSet<Svma>,
    /// Targets of calls, within the object.
    called: BTreeSet<Svma>,
    /// Targets of jumps and calls in other objects.
    imports: BTreeSet<&'a [u8]>,
    /// Set if all instructions could be followed.
    is_whole: bool,
}

impl Reach<'_> {
    /// True if a function of `known` is among the targets.
    fn meets(&self, known: &impl AllocatorSet) -> bool {
        let mut local = self.targets.iter().chain(&self.called);
        local.any(|&target| known.is_function(target))
            || self.imports.iter().any(|name| known.is_import(name))
    }
}

/// Continuation of control after an instruction.
enum Step<'a> {
    /// At the next instruction, or at the target of a conditional jump.
    On(Option<Svma>),
    /// At the target of a jump.
    To(Svma),
    /// In another object, by a jump that does not return here.
    Leaves(&'a [u8]),
    /// At the next instruction, after a call.
    Calls(Callee<'a>),
    Returns,
    Ends,
    Unknown,
}

enum Callee<'a> {
    Local(Svma),
    Import(&'a [u8]),
    Unknown,
}

impl<'a> Step<'a> {
    fn jump(bound: Bound<'a>) -> Self {
        match bound {
            Bound::Local(target) => Self::To(target),
            Bound::Import(name) => Self::Leaves(name),
        }
    }
}

impl<'a> From<Bound<'a>> for Callee<'a> {
    fn from(bound: Bound<'a>) -> Self {
        match bound {
            Bound::Local(target) => Self::Local(target),
            Bound::Import(name) => Self::Import(name),
        }
    }
}

/// A visitor's decision about the path beyond an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Continue,
    Stop,
}

impl<'a> Code<'a> {
    pub fn new(elf: &'a [u8], view: &'a ElfView<'a>, linkage: &'a Linkage<'a>) -> Self {
        Self {
            elf,
            view,
            linkage,
            left: Cell::new(MAX_IN_ALL),
            reaches: RefCell::default(),
        }
    }

    /// The `ret` instructions that end calls of the function at `entry`.
    ///
    /// Where it jumps to a function of `probed`, that function's probes see the end of the call.
    pub fn exits(&self, entry: Svma, probed: &impl AllocatorSet) -> Result<Vec<Svma>, NoExits> {
        let mut rets = BTreeSet::new();
        let mut seen_elsewhere = false;
        self.follow(entry, |at, step| {
            match step {
                Step::Returns => {
                    rets.insert(at);
                }
                Step::Unknown => return Err(NoExits::IndirectJump(at)),
                Step::To(target) if probed.is_function(*target) => {
                    seen_elsewhere = true;
                    return Ok(Visit::Stop);
                }
                Step::Leaves(name) if probed.is_import(name) => seen_elsewhere = true,
                Step::Leaves(name) if !never_returns(name) => {
                    return Err(NoExits::LeavesTo(String::from_utf8_lossy(name).into_owned()));
                }
                Step::On(_) | Step::To(_) | Step::Leaves(_) | Step::Calls(_) | Step::Ends => {}
            }
            Ok(Visit::Continue)
        })?;
        match rets.len() {
            0 if !seen_elsewhere => Err(NoExits::None),
            0..=MAX_RETS => Ok(rets.into_iter().collect()),
            _ => Err(NoExits::TooLarge),
        }
    }

    /// True if every path through the function at `entry` leads through a function of `known`, so that probes
    /// there see every call.
    pub fn forwards(&self, entry: Svma, known: &impl AllocatorSet) -> bool {
        self.forwards_within(entry, known, MAX_DEPTH, &mut HashMap::new())
    }

    /// Implements [`Code::forwards`]. `found` caches results by function and remaining depth of calls.
    fn forwards_within(
        &self,
        entry: Svma,
        known: &impl AllocatorSet,
        depth: u8,
        found: &mut HashMap<(Svma, u8), bool>,
    ) -> bool {
        if let Some(&forwards) = found.get(&(entry, depth)) {
            return forwards;
        }
        let mut forwarded = false;
        let mut does_more = false;
        let followed = self.follow(entry, |_, step| {
            let passes_on = match step {
                Step::To(target) => known.is_function(*target),
                Step::Leaves(name) => {
                    does_more |= !known.is_import(name) && !never_returns(name);
                    known.is_import(name)
                }
                Step::Calls(Callee::Import(name)) => known.is_import(name),
                Step::Calls(Callee::Local(target)) => {
                    let mut within = || depth > 0 && self.forwards_within(*target, known, depth - 1, found);
                    known.is_function(*target) || within()
                }
                Step::Returns | Step::Unknown => {
                    does_more = true;
                    false
                }
                Step::Calls(Callee::Unknown) | Step::On(_) | Step::Ends => false,
            };
            forwarded |= passes_on;
            Ok(if passes_on { Visit::Stop } else { Visit::Continue })
        });
        let forwards = followed.is_ok() && forwarded && !does_more;
        found.insert((entry, depth), forwards);
        forwards
    }

    /// True if the function at `entry` reaches no function of `known`, neither itself nor through a function
    /// that it calls.
    ///
    /// Calls at the next level are not followed: they lead to rare ends, such as messages before an abort.
    pub fn is_leaf(&self, entry: Svma, known: &impl AllocatorSet) -> bool {
        let itself = self.reach(entry);
        let by_others = || {
            itself
                .called
                .iter()
                .any(|&called| self.reach(called).meets(known))
        };
        itself.is_whole && !itself.meets(known) && !by_others() && self.left.get() > 0
    }

    /// The targets of the function at `entry`. Allocators call a few functions from many places: each is
    /// followed once.
    fn reach(&self, entry: Svma) -> Rc<Reach<'a>> {
        if let Some(known) = self.reaches.borrow().get(&entry) {
            return Rc::clone(known);
        }
        let mut reach = Reach::default();
        let followed = self.follow(entry, |_, step| {
            match *step {
                Step::To(target) | Step::On(Some(target)) => {
                    reach.targets.insert(target);
                }
                Step::Calls(Callee::Local(target)) => {
                    reach.called.insert(target);
                }
                Step::Leaves(name) | Step::Calls(Callee::Import(name)) => {
                    reach.imports.insert(name);
                }
                Step::On(None)
                | Step::Calls(Callee::Unknown)
                | Step::Returns
                | Step::Ends
                | Step::Unknown => {}
            }
            Ok(Visit::Continue)
        });
        reach.is_whole = followed.is_ok();
        let reach = Rc::new(reach);
        self.reaches.borrow_mut().insert(entry, Rc::clone(&reach));
        reach
    }

    /// Visits every instruction that can be reached from `entry`, each once. A path that is stopped is not
    /// followed further.
    fn follow(
        &self,
        entry: Svma,
        mut visit: impl FnMut(Svma, &Step<'a>) -> Result<Visit, NoExits>,
    ) -> Result<(), NoExits> {
        let mut seen = HashSet::new();
        let mut branches = vec![entry];
        while let Some(start) = branches.pop() {
            let code = code_from(self.elf, self.view, start).ok_or(NoExits::Undecodable(start))?;
            for instruction in machine::instructions(self.view.architecture(), code, start) {
                let at = instruction.at;
                let step = self.step(instruction.flow).ok_or(NoExits::Undecodable(at))?;
                if !seen.insert(at) {
                    break;
                }
                if seen.len() > MAX_INSTRUCTIONS || self.left.get() == 0 {
                    return Err(NoExits::TooLarge);
                }
                self.left.set(self.left.get() - 1);
                if visit(at, &step)? == Visit::Stop {
                    break;
                }
                let next = instruction.next;
                match step {
                    Step::On(target) => branches.extend(target),
                    // Another function starts behind this call: the callee never returns.
                    Step::Calls(_) if self.linkage.is_start(next) => break,
                    Step::Calls(Callee::Import(name)) if never_returns(name) => break,
                    Step::Calls(_) => {}
                    Step::To(target) => {
                        branches.push(target);
                        break;
                    }
                    Step::Leaves(_) | Step::Returns | Step::Ends | Step::Unknown => break,
                }
            }
        }
        Ok(())
    }

    /// Resolves PLT entries and slots; `None` if the bytes are not an instruction.
    fn step(&self, flow: Flow) -> Option<Step<'a>> {
        Some(match flow {
            Flow::Next => Step::On(None),
            Flow::Branch(target) => Step::On(Some(target)),
            Flow::Jump(Target::Code(target)) => self.plt(target).map_or(Step::To(target), Step::jump),
            Flow::Jump(Target::Slot(slot)) => self.linkage.bound_to(slot).map_or(Step::Unknown, Step::jump),
            Flow::Jump(Target::Computed) | Flow::Unknown => Step::Unknown,
            Flow::Call(Target::Code(target)) => {
                Step::Calls(self.plt(target).map_or(Callee::Local(target), Callee::from))
            }
            Flow::Call(Target::Slot(slot)) => {
                Step::Calls(self.linkage.bound_to(slot).map_or(Callee::Unknown, Callee::from))
            }
            Flow::Call(Target::Computed) => Step::Calls(Callee::Unknown),
            Flow::Return => Step::Returns,
            Flow::Ends => Step::Ends,
            Flow::Invalid => return None,
        })
    }

    fn plt(&self, target: Svma) -> Option<Bound<'a>> {
        let code = code_from(self.elf, self.view, target)?;
        self.linkage.bound_behind(self.view.architecture(), code, target)
    }
}

fn never_returns(name: &[u8]) -> bool {
    NEVER_RETURN.iter().any(|known| known.as_bytes() == name)
}

#[cfg(test)]
mod tests;
