//! Stack size of a program by the rules of kernels before 6.13, where each chain of calls shares one stack of
//! 512 bytes. Newer kernels give functions stacks of their own and accept more without notice. Tests only.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_rs::libbpf_sys::bpf_insn;

/// `MAX_BPF_STACK` of the kernel's `include/linux/filter.h`.
pub(super) const MAX: u32 = 512;

/// The verifier's `check_max_stack_depth` rounds each function's frame up to a multiple of this many bytes.
const UNIT: u32 = 32;

/// The register that points to the end of a function's frame (r10).
const FRAME: usize = 10;

/// Bytes of stack of the deepest chain of calls. `program`: all its functions, as loaded.
pub(super) fn deepest(program: &[bpf_insn]) -> u32 {
    let callees = |range: std::ops::Range<usize>| range.filter_map(|at| callee(program, at));
    let starts: BTreeSet<usize> = std::iter::once(0).chain(callees(0..program.len())).collect();
    deepest_from(program, &starts, 0)
}

/// Bytes of stack of the deepest chain of calls from the function at `start`. Functions begin at `starts`.
fn deepest_from(program: &[bpf_insn], starts: &BTreeSet<usize>, start: usize) -> u32 {
    let callees = |range: std::ops::Range<usize>| range.filter_map(|at| callee(program, at));
    let mut functions = BTreeMap::new();
    for &start in starts {
        let end = starts.range(start + 1..).next().copied().unwrap_or(program.len());
        let part = part(&program[start..end]).max(1).next_multiple_of(UNIT);
        functions.insert(start, (part, callees(start..end).collect::<BTreeSet<_>>()));
    }
    chain(&functions, start)
}

type Functions = BTreeMap<usize, (u32, BTreeSet<usize>)>;

/// Bytes of stack of the deepest chain from `start`. Terminates: the verifier rejects recursion.
fn chain(functions: &Functions, start: usize) -> u32 {
    let (part, callees) = &functions[&start];
    let below = callees.iter().map(|&callee| chain(functions, callee));
    part + below.max().unwrap_or(0)
}

/// Start of the function that the instruction at `at` calls, or passes to a helper as a callback.
fn callee(program: &[bpf_insn], at: usize) -> Option<usize> {
    const CALL: (u8, u8) = (0x85, 1);
    const ADDRESS: (u8, u8) = (0x18, 4);
    let insn = &program[at];
    let is_function = [CALL, ADDRESS].contains(&(insn.code, insn.src_reg()));
    is_function.then(|| {
        at.checked_add_signed(insn.imm as isize + 1)
            .expect("in the program")
    })
}

/// Bytes of a function's frame: the lowest offset from its end that it accesses or computes an address of.
fn part(function: &[bpf_insn]) -> u32 {
    let mut lowest = 0;
    for (insn, before) in function.iter().zip(offsets_before(function)) {
        let Some(before) = before else { continue };
        let accessed = match insn.code & 7 {
            LOAD => before[usize::from(insn.src_reg())],
            STORE | STORE_REGISTER => before[usize::from(insn.dst_reg())],
            _ => None,
        };
        let computed = after(insn, before)[usize::from(insn.dst_reg())];
        let accessed = accessed.map(|offset| offset + i32::from(insn.off));
        lowest = [accessed, computed].into_iter().flatten().fold(lowest, i32::min);
    }
    lowest.unsigned_abs()
}

/// Offset of each register from the end of the frame, if it is the same on every path to an instruction.
type Offsets = [Option<i32>; 11];

// Classes, operations and sources of `include/uapi/linux/bpf_common.h` and `bpf.h`.
const LOAD: u8 = 1;
const STORE: u8 = 2;
const STORE_REGISTER: u8 = 3;
const JUMP: u8 = 5;
const JUMP_32: u8 = 6;
const COMPUTE: u8 = 7;

/// Offsets before each instruction; `None` for those that are never reached.
fn offsets_before(function: &[bpf_insn]) -> Vec<Option<Offsets>> {
    let mut entry: Offsets = [None; 11];
    entry[FRAME] = Some(0);
    let mut before: Vec<Option<Offsets>> = vec![None; function.len()];
    let mut pending = vec![(0, entry)];
    while let Some((at, offsets)) = pending.pop() {
        let (Some(insn), Some(known)) = (function.get(at), before.get_mut(at)) else {
            continue;
        };
        let joined = match *known {
            None => offsets,
            Some(known) => std::array::from_fn(|register| {
                known[register].filter(|_| known[register] == offsets[register])
            }),
        };
        if *known != Some(joined) {
            *known = Some(joined);
            let after = after(insn, joined);
            pending.extend(next(insn, at).into_iter().flatten().map(|next| (next, after)));
        }
    }
    before
}

fn after(insn: &bpf_insn, mut offsets: Offsets) -> Offsets {
    let (to, from) = (usize::from(insn.dst_reg()), usize::from(insn.src_reg()));
    match (insn.code & 7, insn.code & 0xF0, insn.code & 8 != 0) {
        (JUMP, 0x80, _) => offsets[..6].fill(None),
        (STORE | STORE_REGISTER | JUMP | JUMP_32, ..) => {}
        (COMPUTE, 0xB0, true) => offsets[to] = offsets[from],
        (COMPUTE, 0x00, false) => offsets[to] = offsets[to].map(|offset| offset + insn.imm),
        _ => offsets[to] = None,
    }
    offsets
}

/// Instructions that can follow the one at `at`.
fn next(insn: &bpf_insn, at: usize) -> [Option<usize>; 2] {
    let behind = Some(at + 1);
    let target = at.checked_add_signed(isize::from(insn.off) + 1);
    match (insn.code & 7, insn.code & 0xF0) {
        (JUMP, 0x00) => [target, None],
        // A long jump.
        (JUMP_32, 0x00) => [at.checked_add_signed(insn.imm as isize + 1), None],
        (JUMP, 0x80) => [behind, None],
        (JUMP, 0x90) => [None, None],
        (JUMP | JUMP_32, _) => [behind, target],
        // A 64-bit constant takes the places of two instructions.
        _ if insn.code == 0x18 => [Some(at + 2), None],
        _ => [behind, None],
    }
}

mod tests;
