//! Claim: for one small object per hard case, the table says exactly this rule at exactly this address.

use crate::common::build::{cc, transform};
use object::{Object, ObjectSection, ObjectSymbol};
use unwind_tables::addr::Svma;
use unwind_tables::coverage::CfiSource;
use unwind_tables::image::Image;
use unwind_tables::program::{Op, Opcode, PC, Programs, SP};
use unwind_tables::rule::Reason::{CfaExpression, FpRegister, Malformed, OffsetRange, RaRegister};
use unwind_tables::rule::Register::{Fp, Sp};
use unwind_tables::rule::{CfaRule, FrameRule, Saved, UnwindRule};
use unwind_tables::verify::verify;
use unwind_tables::{Compiled, compile};

const RA: Saved = Saved::AtCfa(-8);
const BARE: &[&str] = &["-shared", "-nostdlib", "-Wl,--build-id=none"];

const fn sp(offset: i32) -> CfaRule {
    CfaRule::Offset { register: Sp, offset }
}

const fn deref(register: unwind_tables::rule::Register, at: i32, offset: i32) -> CfaRule {
    CfaRule::Deref { register, at, offset }
}

const fn frame(cfa: CfaRule, ra: Saved, fp: Saved) -> UnwindRule {
    UnwindRule::Frame(FrameRule {
        cfa,
        ra,
        ra_signed: false,
        fp,
        signal_frame: false,
    })
}

/// Meaning of a directive.
#[derive(Debug)]
enum Expected {
    /// A rule, or the equivalent program if the rule does not pack.
    Rule(UnwindRule),
    Program(&'static [Op]),
}
use Expected::{Program, Rule};

impl Expected {
    fn described(&self) -> Result<UnwindRule, Vec<Op>> {
        let mut programs = Programs::default();
        let rule = match *self {
            Program(ops) => return Err(ops.to_vec()),
            Rule(UnwindRule::Frame(frame)) => programs.rule(frame).expect("a rule"),
            Rule(rule) => rule,
        };
        // The only program, without its end.
        programs
            .ops()
            .split_last()
            .map_or(Ok(rule), |(_, ops)| Err(ops.to_vec()))
    }
}

const fn rule_frame(cfa: CfaRule, ra: Saved, fp: Saved) -> Expected {
    Rule(frame(cfa, ra, fp))
}

const fn constant(value: i32) -> Op {
    Op::with(Opcode::Constant, 0, value)
}

const DEREF: Op = Op::deref();
const SET_CFA: Op = Op::plain(Opcode::SetCfa);
const SET_RA: Op = Op::plain(Opcode::SetRa);
const SET_FP: Op = Op::plain(Opcode::SetFp);
const SET_SP: Op = Op::plain(Opcode::SetSp);

/// An ordinary frame whose caller's frame pointer these ops compute.
macro_rules! and_fp {
    ($($op:expr),+) => {
        Program(&[Op::register(SP, 8), SET_CFA, Op::cfa(-8), DEREF, SET_RA, $($op),+, SET_FP])
    };
}

/// Call frame directives and their meaning, applied after `cfa = rsp + 8`, `ra = *(cfa - 8)`.
const DIRECTIVES: &[(&str, Expected)] = &[
    ("", rule_frame(sp(8), RA, Saved::Same)),
    (
        ".cfi_def_cfa_offset 540128",
        rule_frame(sp(540_128), RA, Saved::Same),
    ),
    (".cfi_def_cfa_offset 12", rule_frame(sp(12), RA, Saved::Same)),
    (
        ".cfi_def_cfa rbp, 16\n.cfi_offset rbp, -16",
        rule_frame(
            CfaRule::Offset {
                register: Fp,
                offset: 16,
            },
            RA,
            Saved::AtCfa(-16),
        ),
    ),
    (
        ".cfi_offset rbp, -16\n.cfi_same_value rbp",
        rule_frame(sp(8), RA, Saved::Same),
    ),
    (
        ".cfi_offset rbp, -16\n.cfi_restore rbp",
        rule_frame(sp(8), RA, Saved::Same),
    ),
    (".cfi_register rbp, rbp", rule_frame(sp(8), RA, Saved::Same)),
    (
        ".cfi_offset rip, -24",
        rule_frame(sp(8), Saved::AtCfa(-24), Saved::Same),
    ),
    // GCC's DRAP: cfa = *(rbp - 8), rbp = *(rbp + 0).
    (
        ".cfi_escape 0x0f,3,0x76,0x78,0x06\n.cfi_escape 0x10,6,2,0x76,0",
        rule_frame(
            deref(Fp, -8, 0),
            RA,
            Saved::At {
                register: Fp,
                offset: 0,
            },
        ),
    ),
    // OpenSSL's: *(rsp + 24) + 8, and the same sum written with a literal.
    (
        ".cfi_escape 0x0f,5,0x77,24,0x06,0x23,8",
        rule_frame(deref(Sp, 24, 8), RA, Saved::Same),
    ),
    (
        ".cfi_escape 0x0f,5,0x77,24,0x06,0x38,0x22",
        rule_frame(deref(Sp, 24, 8), RA, Saved::Same),
    ),
    // A return address in a slot of its own: *(rsp + 40).
    (
        ".cfi_escape 0x10,16,2,0x77,40",
        rule_frame(
            sp(8),
            Saved::At {
                register: Sp,
                offset: 40,
            },
            Saved::Same,
        ),
    ),
    // glibc's `__restore_rt` gives rsp the value of the CFA.
    (
        ".cfi_escape 0x0f,4,0x77,0xa0,1,0x06\n.cfi_escape 0x10,7,3,0x77,0xa0,1",
        rule_frame(deref(Sp, 160, 0), RA, Saved::Same),
    ),
    (
        ".cfi_signal_frame",
        Rule(UnwindRule::Frame(FrameRule {
            cfa: sp(8),
            ra: RA,
            ra_signed: false,
            fp: Saved::Same,
            signal_frame: true,
        })),
    ),
    // GNU ld's PLT with 10 instead of 11, as in PLTs for IBT.
    (
        ".cfi_escape 0x0f,11,0x77,8,0x80,0,0x3f,0x1a,0x3a,0x2a,0x33,0x24,0x22",
        rule_frame(CfaRule::Plt { threshold: 10 }, RA, Saved::Same),
    ),
    // A PLT entry that saves rbp: no linker writes it, and no packed rule expresses it.
    (
        ".cfi_escape 0x0f,11,0x77,8,0x80,0,0x3f,0x1a,0x3a,0x2a,0x33,0x24,0x22\n.cfi_offset rbp, -16",
        Program(&[
            Op::register(SP, 8),
            Op::register(PC, 0),
            constant(15),
            Op::plain(Opcode::And),
            constant(10),
            Op::plain(Opcode::GreaterEqual),
            constant(3),
            Op::plain(Opcode::ShiftLeft),
            Op::plain(Opcode::Plus),
            SET_CFA,
            Op::cfa(-8),
            DEREF,
            SET_RA,
            Op::cfa(-16),
            DEREF,
            SET_FP,
        ]),
    ),
    (".cfi_undefined rip", Rule(UnwindRule::EndOfStack)),
    (
        ".cfi_undefined rip\n.cfi_def_cfa rax, 8",
        Rule(UnwindRule::EndOfStack),
    ),
    (
        ".cfi_def_cfa rax, 8",
        Program(&[Op::register(0, 8), SET_CFA, Op::cfa(-8), DEREF, SET_RA]),
    ),
    (
        ".cfi_escape 0x0f,3,0x70,8,0x06",
        Program(&[Op::register(0, 8), DEREF, SET_CFA, Op::cfa(-8), DEREF, SET_RA]),
    ),
    // *(rsp + 8 + r9 * 8) + 8, in OpenSSL.
    (
        ".cfi_escape 0x0f,10,0x77,8,0x79,0,0x38,0x1e,0x22,0x06,0x23,8",
        Program(&[
            Op::register(SP, 8),
            Op::register(9, 0),
            constant(8),
            Op::plain(Opcode::Multiply),
            Op::plain(Opcode::Plus),
            DEREF,
            Op::with(Opcode::Add, 0, 8),
            SET_CFA,
            Op::cfa(-8),
            DEREF,
            SET_RA,
        ]),
    ),
    // A branch, and a division.
    (
        ".cfi_escape 0x0f,5,0x77,8,0x2f,0,0",
        Rule(UnwindRule::Unsupported(CfaExpression)),
    ),
    (
        ".cfi_escape 0x0f,4,0x77,8,0x32,0x1b",
        Rule(UnwindRule::Unsupported(CfaExpression)),
    ),
    // `vfork` in glibc.
    (
        ".cfi_register rip, rdi",
        Program(&[Op::register(SP, 8), SET_CFA, Op::register(5, 0), SET_RA]),
    ),
    (".cfi_same_value rip", Rule(UnwindRule::Unsupported(RaRegister))),
    (
        ".cfi_escape 0x10,16,2,0x70,0",
        Program(&[Op::register(SP, 8), SET_CFA, Op::register(0, 0), DEREF, SET_RA]),
    ),
    // The slot's address is itself in memory.
    (
        ".cfi_escape 0x10,16,3,0x77,40,0x06",
        Program(&[
            Op::register(SP, 8),
            SET_CFA,
            Op::cfa(0),
            Op::register(SP, 40),
            DEREF,
            DEREF,
            SET_RA,
        ]),
    ),
    (
        ".cfi_escape 0x10,6,3,0x77,40,0x06",
        and_fp!(Op::cfa(0), Op::register(SP, 40), DEREF, DEREF),
    ),
    (".cfi_register rbp, r11", and_fp!(Op::register(11, 0))),
    (".cfi_undefined rbp", Rule(UnwindRule::Unsupported(FpRegister))),
    (".cfi_escape 0x10,6,2,0x70,0", and_fp!(Op::register(0, 0), DEREF)),
    (".cfi_val_offset rbp, 16", and_fp!(Op::cfa(16))),
    (".cfi_escape 0x16,6,2,0x77,0", and_fp!(Op::register(SP, 0))),
    (
        ".cfi_escape 0x16,16,2,0x77,0",
        Program(&[Op::register(SP, 8), SET_CFA, Op::register(SP, 0), SET_RA]),
    ),
    // A caller's stack pointer that is not the CFA.
    (
        ".cfi_offset rsp, -16",
        Program(&[
            Op::register(SP, 8),
            SET_CFA,
            Op::cfa(-8),
            DEREF,
            SET_RA,
            Op::cfa(-16),
            DEREF,
            SET_SP,
        ]),
    ),
    (
        ".cfi_escape 0x10,7,2,0x77,0",
        Program(&[
            Op::register(SP, 8),
            SET_CFA,
            Op::cfa(-8),
            DEREF,
            SET_RA,
            Op::register(SP, 0),
            DEREF,
            SET_SP,
        ]),
    ),
    // 2^32
    (
        ".cfi_escape 0x0e,0x80,0x80,0x80,0x80,0x10",
        Rule(UnwindRule::Unsupported(OffsetRange)),
    ),
    // A register for a CFA that is an expression, which is malformed; libgcrypt's assembly has the like in
    // two places.
    (
        ".cfi_escape 0x0f,3,0x77,8,0x06\n.cfi_escape 0x0d,7",
        Rule(UnwindRule::Unsupported(Malformed)),
    ),
];

/// One function of two bytes per entry of [`DIRECTIVES`]; the directives apply from its second byte on.
fn directives_source(sections: &str) -> String {
    let mut source = format!(".cfi_sections {sections}\n.text\n");
    for (number, (directives, _)) in DIRECTIVES.iter().enumerate() {
        // This directive is a property of the whole function.
        let first = if directives.starts_with(".cfi_signal_frame") {
            directives
        } else {
            ""
        };
        let second = if first.is_empty() { directives } else { "" };
        source += &format!(
            ".globl f{number}\nf{number}: .cfi_startproc\n{first}\nnop\n{second}\nnop\n.cfi_endproc\n"
        );
    }
    source
}

fn check_directives(elf: &[u8], source: CfiSource) {
    let Compiled { image, coverage } = compile(elf).expect("an ELF file");
    let verified = verify(elf, image.as_ref()).expect("an ELF file");
    assert_eq!(verified.examples, [], "{verified:?}");
    assert_eq!(coverage.source, source);
    assert_eq!((coverage.malformed_fdes, coverage.outside_fdes), (1, 0));
    let image = image.expect("CFI");
    for (number, (directives, expected)) in DIRECTIVES.iter().enumerate() {
        let start = symbol(elf, &format!("f{number}"));
        let rule_at = |offset| described(&image, image.rule_at(start.wrapping_add(offset)));
        assert_eq!(rule_at(1), expected.described(), "{directives}");
        let signal = directives.starts_with(".cfi_signal_frame");
        let entry = if signal {
            expected.described()
        } else {
            rule_frame(sp(8), RA, Saved::Same).described()
        };
        assert_eq!(rule_at(0), entry, "before {directives}");
    }
}

/// A rule, or the ops of its program.
fn described(image: &Image, rule: UnwindRule) -> Result<UnwindRule, Vec<Op>> {
    if let UnwindRule::Program(program) = rule {
        return Err(image.program(program));
    }
    Ok(rule)
}

fn symbol(elf: &[u8], name: &str) -> Svma {
    let file = object::File::parse(elf).expect("an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    Svma::new(symbol.unwrap_or_else(|| panic!("no symbol {name}")).address())
}

/// Each directive means one rule, or one reason why there is none, whichever section it is in.
#[test]
fn directives_mean_rules() {
    let build = |sections| cc("f.s", &directives_source(sections), BARE);
    check_directives(&build(".eh_frame"), CfiSource::EhFrame);
    let debug_frame = build(".debug_frame");
    check_directives(&debug_frame, CfiSource::DebugFrame);
    for format in ["zlib", "zstd"] {
        let flag = format!("--compress-debug-sections={format}");
        let compressed = transform(&debug_frame, "objcopy", &[&flag, "{in}", "{out}"]);
        assert!(
            compressed.len() < debug_frame.len(),
            "{format} has not compressed anything"
        );
        check_directives(&compressed, CfiSource::DebugFrame);
    }
}

/// `.debug_frame` applies where `.eh_frame` covers nothing, and only there.
#[test]
fn debug_frame_fills_gaps_of_eh_frame() {
    let source = "
        .text
        .globl both, debug_only
        both: nop
        both_end: .skip 32
        debug_only: nop
        debug_only_end:
        .section .eh_frame,\"a\",@progbits
        1: .long 3f - 2f
        2: .long 0; .byte 1; .asciz \"zR\"; .uleb128 1; .sleb128 -8; .byte 16; .uleb128 1; .byte 0x1b
        .byte 0x0c,7,8, 0x90,1
        3: .long 5f - 4f
        4: .long 4b - 1b; .long both - .; .long both_end - both; .uleb128 0
        5:
        .section .debug_frame,\"\",@progbits
        1: .long 3f - 2f
        2: .long -1; .byte 1, 0; .uleb128 1; .sleb128 -8; .byte 16
        .byte 0x0c,7,80, 0x90,1
        3: .long 5f - 4f
        4: .long 1b; .quad both; .quad debug_only_end - both
        5:
        ";
    // Linked at fixed addresses, so that .debug_frame needs no relocation.
    let elf = cc(
        "both.s",
        source,
        &["-nostdlib", "-static", "-no-pie", "-Wl,-e,both"],
    );
    let compiled = compile(&elf).expect("an ELF file");
    let verified = verify(&elf, compiled.image.as_ref()).expect("an ELF file");
    assert_eq!(verified.examples, [], "{verified:?}");
    assert_eq!(compiled.coverage.source, CfiSource::Both);
    let image = compiled.image.expect("CFI");
    let both = symbol(&elf, "both");
    let rules: Vec<_> = [0, 1, 33, 34]
        .map(|offset| image.rule_at(both.wrapping_add(offset)))
        .into();
    let (from_eh, from_debug) = (frame(sp(8), RA, Saved::Same), frame(sp(80), RA, Saved::Same));
    assert_eq!(rules, [from_eh, from_debug, from_debug, UnwindRule::Gap]);
    assert_eq!(image.rule_at(symbol(&elf, "debug_only")), from_debug);
}

/// Padding between functions has no rule, however short it is: a return address can be made up.
#[test]
fn padding_is_a_gap() {
    let function = |directive: &str, padding: u32| {
        format!(".cfi_startproc\n{directive}\nnop\n.cfi_endproc\n.skip {padding}\n")
    };
    let source = [
        ".text\n.globl start\nstart:\n".to_owned(),
        function("", 15),
        function(".cfi_def_cfa_offset 16", 16),
        function(".cfi_undefined rip", 1),
        function(".cfi_same_value rip", 1),
        function("", 0),
    ]
    .concat();
    let elf = cc("padding.s", &source, BARE);
    let image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let start = symbol(&elf, "start");
    let rules: Vec<_> = (0..40)
        .map(|offset| image.rule_at(start.wrapping_add(offset)))
        .collect();
    let expected = [
        (1, frame(sp(8), RA, Saved::Same)),
        (15, UnwindRule::Gap),
        (1, frame(sp(16), RA, Saved::Same)),
        (16, UnwindRule::Gap),
        (1, UnwindRule::EndOfStack),
        (1, UnwindRule::Gap),
        (1, UnwindRule::Unsupported(RaRegister)),
        (1, UnwindRule::Gap),
        (1, frame(sp(8), RA, Saved::Same)),
        (2, UnwindRule::Gap),
    ];
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|&(count, rule)| std::iter::repeat_n(rule, count))
        .collect();
    assert_eq!(rules, expected);
}

/// An object without CFI compiles to no image, not to an empty one and not to an error.
#[test]
fn object_without_cfi_has_no_image() {
    let flags = [BARE, &["-O2", "-fno-asynchronous-unwind-tables"]].concat();
    let elf = cc("none.c", "int f(int x) { return x + 1; }", &flags);
    let compiled = compile(&elf).expect("an ELF file");
    assert!(compiled.image.is_none());
    assert_eq!(compiled.coverage.source, CfiSource::None);
    assert_eq!(compiled.coverage.gap_bytes, compiled.coverage.code_bytes);
    assert!(compiled.coverage.code_bytes > 0);
}

/// GCC finds the CFA of a function that realigns its stack through a slot below rbp.
#[test]
fn realigned_stack_is_drap() {
    let source = "
        #include <alloca.h>
        void use(void *, void *);
        void f(unsigned long n) {
            double local[8] __attribute__((aligned(64)));
            use(local, alloca(n));
        }";
    let flags = [BARE, &["-O2", "-mavx2", "-fPIC", "-fno-stack-protector"]].concat();
    let elf = cc("drap.c", source, &flags);
    let image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let start = symbol(&elf, "f");
    let rules: Vec<_> = (0..200)
        .map(|offset| image.rule_at(start.wrapping_add(offset)))
        .collect();
    assert_eq!(rules[0], frame(sp(8), RA, Saved::Same));
    let drap = |rule: &&UnwindRule| {
        let at_fp = Saved::At {
            register: Fp,
            offset: 0,
        };
        matches!(rule, UnwindRule::Frame(FrameRule { cfa: CfaRule::Deref { register: Fp, at, offset: 0 }, ra: RA, fp, .. })
            if *at < 0 && *fp == at_fp)
    };
    let count = rules.iter().filter(drap).count();
    assert!(count > 20, "{count} bytes by DRAP: {rules:?}");
}

/// A lazily bound PLT entry pushes half-way, and the first entry has rows of its own.
#[test]
fn plt_entries_push_half_way() {
    let source = "int other(int); int f(int x) { return other(x) + 1; }";
    let flags = [BARE, &["-O2", "-fPIC", "-fcf-protection=none", "-Wl,-z,lazy"]].concat();
    let elf = cc("plt.c", source, &flags);
    let file = object::File::parse(&*elf).expect("an ELF file");
    let plt = Svma::new(file.section_by_name(".plt").expect("a PLT").address());
    let image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let rule_at = |offset| image.rule_at(plt.wrapping_add(offset));
    assert_eq!(rule_at(0), frame(sp(16), RA, Saved::Same));
    assert_eq!(rule_at(6), frame(sp(24), RA, Saved::Same));
    // `jmp *got` (6 bytes), `push index` (5 bytes), `jmp plt`: the push is over at 11.
    assert_eq!(
        rule_at(16),
        frame(CfaRule::Plt { threshold: 11 }, RA, Saved::Same)
    );
    assert_eq!(
        rule_at(31),
        frame(CfaRule::Plt { threshold: 11 }, RA, Saved::Same)
    );
}

/// Files that cannot be unwound here are refused with the reason, not misread.
#[test]
fn other_files_are_refused() {
    use unwind_tables::TableError::{Malformed, NotElf, Unsupported};
    let elf = cc("f.c", "int f(void) { return 0; }", BARE);
    let patched = |at: usize, byte: u8| {
        let mut patched = elf.clone();
        patched[at] = byte;
        compile(&patched).map(drop)
    };
    assert_eq!(compile(b"#!/bin/sh\n").map(drop), Err(NotElf));
    assert_eq!(compile(b"").map(drop), Err(NotElf));
    assert_eq!(patched(4, 1), Err(Unsupported("not 64-bit")));
    assert_eq!(patched(5, 2), Err(Unsupported("not little-endian")));
    assert_eq!(patched(18, 243), Err(Unsupported("not for x86-64 or aarch64")));
    let mut foreign = elf.clone();
    foreign[18] = 183;
    assert!(unwind_tables::ElfView::parse_any(&foreign).is_ok());
    assert_eq!(
        unwind_tables::ElfView::parse(&foreign).map(drop),
        Err(Unsupported("not for x86-64"))
    );
    assert_eq!(
        patched(16, 1),
        Err(Unsupported("neither an executable nor a shared object"))
    );
    assert_eq!(
        patched(39, 1),
        Err(Malformed("program headers lie outside the file"))
    );
}

/// The headers are read as `readelf` does: build-id from the note, and both address conversions by segment.
#[test]
fn elf_view_reads_headers() {
    let flags = ["-shared", "-nostdlib", "-Wl,--build-id=0x0123456789abcdef"];
    let elf = cc(
        "f.c",
        "int data = 1; int zero[4096]; int f(void) { return 0; }",
        &flags,
    );
    let stripped = crate::common::without_section_headers(elf.clone());
    for (elf, with_sections) in [(&elf, true), (&stripped, false)] {
        let view = unwind_tables::ElfView::parse(elf).expect("an ELF file");
        assert_eq!(
            view.build_id(),
            Some(&[1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef][..])
        );
        assert_eq!(view.has_section_headers(), with_sections);
        for segment in view.segments() {
            assert_eq!(view.svma_of(segment.offset.start), Some(segment.svma.start));
            assert_eq!(view.offset_of(segment.svma.start), Some(segment.offset.start));
        }
        assert_eq!(
            view.segments()
                .iter()
                .filter(|segment| segment.executable)
                .count(),
            1
        );
    }
    let view = unwind_tables::ElfView::parse(&elf).expect("an ELF file");
    assert!(view.offset_of(symbol(&elf, "data")).is_some());
    let zero_end = symbol(&elf, "zero").wrapping_add(4096 * 4 - 1);
    assert_eq!(
        view.offset_of(zero_end),
        None,
        "zero-filled memory has no byte in the file"
    );
}
