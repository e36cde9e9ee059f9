//! The kernel side for the other architecture: it compiles, and its programs need no more stack than the
//! oldest supported kernels have.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use libbpf_rs::libbpf_sys::bpf_insn;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use super::{MAX, deepest_from};

/// Opcode of a call.
const CALL: u8 = 0x85;

/// Bytes of an instruction.
const INSN: u64 = 8;

const OTHER: &str = if cfg!(target_arch = "aarch64") {
    "x86"
} else {
    "arm64"
};

/// Compiles an object for the other architecture the way the build script compiles this one's.
fn compile(source: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a writable directory");
    let output = directory.path().join("object.o");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(clang)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(env!("BPF_CLANG_ARGS").split(' '))
        .args(["-g", "-O2", "-target", "bpf", "-c", source, "-o"])
        .arg(&output)
        .arg(format!("-D__TARGET_ARCH_{OTHER}"))
        .arg(format!("-I{}", env!("BPF_HEADERS")))
        .status();
    assert!(status.expect("clang").success());
    std::fs::read(&output).expect("the object")
}

/// Instructions of a section, relocated as if `.text` followed at `text_at`.
fn linked(
    section: &object::Section<'_, '_>,
    file: &object::File<'_>,
    text: SectionIndex,
    text_at: usize,
) -> Vec<bpf_insn> {
    let data = section.data().expect("in the file");
    let mut insns: Vec<_> = data.chunks_exact(8).map(insn).collect();
    let at = if section.index() == text { text_at } else { 0 };
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            continue;
        };
        let symbol = file.symbol_by_index(symbol).expect("there is one");
        let number = usize::try_from(offset / INSN).expect("small");
        let insn = &mut insns[number];
        if symbol.section_index() != Some(text) {
            // A kernel function: BPF_PSEUDO_KFUNC_CALL.
            if insn.code == CALL {
                insn.set_src_reg(2);
            }
            continue;
        }
        let symbol_at = i64::try_from(symbol.address() / INSN).expect("small");
        // A call's target is relative to the next instruction, in instructions; an address is in bytes.
        let within = match insn.code {
            CALL => i64::from(insn.imm) + 1,
            _ => i64::from(insn.imm) / 8,
        };
        let target = i64::try_from(text_at).expect("small") + symbol_at + within;
        let distance = target - i64::try_from(at + number + 1).expect("small");
        insn.imm = i32::try_from(distance).expect("small");
        if insn.code != CALL {
            // BPF_PSEUDO_FUNC
            insn.set_src_reg(4);
        }
    }
    insns
}

fn insn(bytes: &[u8]) -> bpf_insn {
    let mut insn = bpf_insn {
        code: bytes[0],
        off: i16::from_le_bytes([bytes[2], bytes[3]]),
        imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        ..bpf_insn::default()
    };
    insn.set_dst_reg(bytes[1] & 15);
    insn.set_src_reg(bytes[1] >> 4);
    insn
}

/// Bytes of stack of each program, with any settings.
fn stacks(object: &[u8]) -> BTreeMap<String, u32> {
    let file = object::File::parse(object).expect("an object");
    let text = file.section_by_name(".text").expect("every object has one");
    let functions = |section: SectionIndex| {
        let functions = file
            .symbols()
            .filter(move |symbol| symbol.kind() == SymbolKind::Text);
        functions.filter(move |symbol| symbol.section_index() == Some(section))
    };
    let number = |address: u64| usize::try_from(address / INSN).expect("small");
    let mut stacks = BTreeMap::new();
    for section in file.sections().filter(|section| section.index() != text.index()) {
        let mut programs = functions(section.index()).peekable();
        if programs.peek().is_none() {
            continue;
        }
        let length = number(section.size());
        let mut insns = linked(&section, &file, text.index(), length);
        insns.extend(linked(&text, &file, text.index(), length));
        let others = functions(text.index()).map(|function| length + number(function.address()));
        let own: Vec<_> = programs
            .map(|program| (program.name().expect("named"), number(program.address())))
            .collect();
        let starts: BTreeSet<_> = others.chain(own.iter().map(|&(_, start)| start)).collect();
        for (name, start) in own {
            stacks.insert(name.to_owned(), deepest_from(&insns, &starts, start));
        }
    }
    stacks
}

/// No change for one architecture breaks the other's programs, or makes them exceed the stack.
#[test]
fn the_other_machines_programs_have_enough_stack() {
    let mut stacks = stacks(&compile("bpf/memleak.bpf.c"));
    for object in ["bpf/kernel_memory.bpf.c", "bpf/registers.bpf.c"] {
        stacks.extend(self::stacks(&compile(object)));
    }
    for name in [
        "allocation_session",
        "allocation_return",
        "free_entry",
        "mmap_ends",
        "process_fork",
        "kernel_page_free",
        "thread_registers",
    ] {
        assert!(stacks.contains_key(name), "{stacks:?}");
    }
    assert!(
        stacks["allocation_return"] > 200,
        "calls are followed: {stacks:?}"
    );
    let beyond: Vec<_> = stacks.iter().filter(|&(_, &stack)| stack > MAX).collect();
    assert!(beyond.is_empty(), "of {MAX} bytes, for {OTHER}: {beyond:?}");
}
