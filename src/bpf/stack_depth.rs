//! Stack size of a program by the rules of kernels before 6.13, where each chain of calls shares one stack of 512 bytes.
//! Newer kernels give functions stacks of their own and accept more without notice. Tests only.

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
    // Offset of each register from the end of the frame, where known.
    let mut offsets = [None; 11];
    offsets[FRAME] = Some(0_i32);
    let mut lowest = 0;
    for insn in function {
        let (to, from) = (usize::from(insn.dst_reg()), usize::from(insn.src_reg()));
        // Classes, operations and sources of `include/uapi/linux/bpf_common.h` and `bpf.h`.
        let (class, operation, is_register) = (insn.code & 7, insn.code & 0xF0, insn.code & 8 != 0);
        let accessed = match class {
            1 => offsets[from],
            2 | 3 => offsets[to],
            _ => None,
        };
        lowest = accessed.map_or(lowest, |offset: i32| lowest.min(offset + i32::from(insn.off)));
        match (class, operation, is_register) {
            // Stores and jumps change no register; calls change only registers that hold no frame address by then.
            (2 | 3 | 5 | 6, ..) => {}
            (7, 0xB0, true) => offsets[to] = offsets[from],
            (7, 0x00, false) => offsets[to] = offsets[to].map(|offset| offset + insn.imm),
            _ => offsets[to] = None,
        }
        lowest = offsets[to].map_or(lowest, |offset| lowest.min(offset));
    }
    lowest.unsigned_abs()
}

mod tests;
