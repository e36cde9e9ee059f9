//! Claims: tables of AArch64 code agree with its CFI; the link register is used as a return address only for
//! a frame that was running; and an unknown stack pointer is not used.

use std::collections::HashMap;

use crate::common::build::aarch64;
use object::{Object, ObjectSection, ObjectSymbol};
use unwind_tables::addr::{Avma, Svma};
use unwind_tables::image::{Image, header};
use unwind_tables::mapping::Mapping;
use unwind_tables::packed::KIND_BITS;
use unwind_tables::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};
use unwind_tables::verify::verify;
use unwind_tables::walk::{self, End, FoundBy, Registers, ReturnProbes, Stack, Tables, Unwind};
use unwind_tables::{Architecture, compile};

/// One function for each form of rule, with symbols at the places within it that tests use.
const SOURCE: &str = "
    .text
    .macro function name
    .globl \\name
    .type \\name, %function
    \\name: .cfi_startproc
    .endm
    .macro end
    .cfi_endproc
    .endm

    function record
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    mov x29, sp
    bl leaf
    .globl after_leaf
    after_leaf: ldp x29, x30, [sp], #32
    .cfi_restore x30
    .cfi_restore x29
    .cfi_def_cfa_offset 0
    ret
    end

    function leaf
    sub sp, sp, #16
    .cfi_def_cfa_offset 16
    nop
    add sp, sp, #16
    .cfi_def_cfa_offset 0
    ret
    end

    function by_fp
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov x29, sp
    .cfi_def_cfa x29, 16
    .globl in_by_fp
    in_by_fp: sub sp, sp, x0
    bl hidden
    .globl after_hidden
    after_hidden: mov sp, x29
    ldp x29, x30, [sp], #16
    ret
    end

    function lone
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -16
    bl hidden
    .globl after_hidden_in_lone
    after_hidden_in_lone: ldr x30, [sp], #16
    ret
    end

    function signed
    paciasp
    .cfi_negate_ra_state
    .globl in_signed_leaf
    in_signed_leaf: stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
    .cfi_offset d8, -16
    mov x29, sp
    bl leaf
    .globl after_leaf_in_signed
    after_leaf_in_signed: ldp x29, x30, [sp], #48
    retaa
    end

    function apart
    .cfi_def_cfa_offset 64
    .cfi_offset x29, -64
    .cfi_offset x30, -16
    .cfi_negate_ra_state
    nop
    end

    function elsewhere
    .cfi_def_cfa x19, 16
    nop
    end

    function last
    .cfi_undefined x30
    bl record
    .globl after_record
    after_record: nop
    end

    .globl hidden
    hidden: bl leaf
    .globl after_leaf_in_hidden
    after_leaf_in_hidden: ret
    nop
    nop
    .globl sigreturn
    sigreturn: mov x8, #139
    svc #0
    ";

struct Assembled {
    elf: Vec<u8>,
    image: Image,
}

impl Assembled {
    fn new(source: &str) -> Self {
        let elf = aarch64(source);
        let compiled = compile(&elf).expect("an object for AArch64");
        let image = compiled.image.expect("CFI");
        Self { elf, image }
    }

    fn symbol(&self, name: &str) -> u64 {
        let file = object::File::parse(&*self.elf).expect("an ELF file");
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        symbol.unwrap_or_else(|| panic!("no symbol {name}")).address()
    }

    fn rule(&self, name: &str, offset: u64) -> UnwindRule {
        self.image.rule_at(Svma::new(self.symbol(name) + offset))
    }

    /// Walks from `pc`, with the words of the stack as given and the object's code in memory.
    fn walk(&self, pc: u64, sp: u64, fp: u64, stack: &[(u64, u64)]) -> Stack {
        let stack: HashMap<u64, u64> = stack.iter().copied().collect();
        let file = object::File::parse(&*self.elf).expect("an ELF file");
        let text = file.section_by_name(".text").expect("code");
        let code = |address: u64| {
            let bytes = text.data_range(address, 8).ok()??;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let tables = Tables {
            architecture: Architecture::Aarch64,
            words: self.image.words(),
            mappings: &[Mapping::everywhere()],
            unwind: Unwind::Dwarf,
            changing: false,
            return_probes: ReturnProbes::default(),
        };
        let start = Registers::new(Avma::new(pc), Avma::new(sp), Avma::new(fp));
        walk::walk(tables, start, |slot| {
            stack.get(&slot.get()).copied().or_else(|| code(slot.get()))
        })
    }
}

fn frame(register: Register, offset: i32, ra: Saved, fp: Saved) -> FrameRule {
    FrameRule {
        cfa: CfaRule::Offset { register, offset },
        ra,
        ra_signed: false,
        fp,
        signal_frame: false,
    }
}

fn addresses(stack: &Stack) -> Vec<u64> {
    stack.frames.iter().map(|frame| frame.pc.get()).collect()
}

/// Each form has the rule of its CFI, and is signed where the CFI says so.
#[test]
fn forms_have_their_rules() {
    use Register::{Fp, Sp};
    use Saved::{AtCfa, Same};
    let object = Assembled::new(SOURCE);
    let signed = |frame| FrameRule {
        ra_signed: true,
        ..frame
    };
    for (name, offset, expected) in [
        ("record", 0, frame(Sp, 0, Same, Same)),
        ("record", 4, frame(Sp, 32, AtCfa(-24), AtCfa(-32))),
        ("after_leaf", 4, frame(Sp, 0, Same, Same)),
        ("leaf", 4, frame(Sp, 16, Same, Same)),
        ("in_by_fp", 0, frame(Fp, 16, AtCfa(-8), AtCfa(-16))),
        ("lone", 4, frame(Sp, 16, AtCfa(-16), Same)),
        ("signed", 0, frame(Sp, 0, Same, Same)),
        ("in_signed_leaf", 0, signed(frame(Sp, 0, Same, Same))),
        ("in_signed_leaf", 4, signed(frame(Sp, 48, AtCfa(-40), AtCfa(-48)))),
    ] {
        let rule = object.rule(name, offset);
        assert_eq!(rule, UnwindRule::Frame(expected), "{name}+{offset}");
    }
    assert!(matches!(object.rule("apart", 0), UnwindRule::Program(_)));
    let unsupported = UnwindRule::Unsupported(Reason::CfaRegister);
    assert_eq!(object.rule("elsewhere", 0), unsupported);
    assert_eq!(object.rule("last", 0), UnwindRule::EndOfStack);
    assert_eq!(object.rule("hidden", 0), UnwindRule::Gap);
}

/// gimli's evaluation agrees at every row, and a change of any part of a rule is noticed.
#[test]
fn rules_agree_with_gimli() {
    let object = Assembled::new(SOURCE);
    let verified = verify(&object.elf, Some(&object.image)).expect("an object for AArch64");
    assert_eq!((verified.wrong, &verified.examples[..]), (0, &[][..]));
    assert!(verified.rows > 15 && verified.trampolines > 0, "{verified:?}");
    let words = object.image.words();
    let rules = words[header::RULES_AT] as usize..;
    let rules = rules.take(words[header::RULE_COUNT] as usize);
    let frames: Vec<_> = rules.filter(|&at| matches!(words[at] & 7, 1..=3)).collect();
    assert!(frames.len() > 6, "{frames:?}");
    for at in frames {
        // The offset of the CFA, that of the slot, and whether the return address is signed.
        for bit in [KIND_BITS, KIND_BITS + 17 + 1, 30] {
            let mut words = words.to_vec();
            words[at] ^= 1 << bit;
            let Ok(changed) = Image::from_words(words) else {
                continue;
            };
            let verified = verify(&object.elf, Some(&changed)).expect("an object for AArch64");
            assert!(
                verified.wrong > 0,
                "bit {bit} of rule {:#x}",
                object.image.words()[at]
            );
        }
    }
}

/// A walk follows signed and plain records from a called function to the end. Return addresses are looked up
/// one byte lower, in the call.
#[test]
fn records_are_followed_to_the_end() {
    let object = Assembled::new(SOURCE);
    let [in_signed, in_record, in_last] =
        ["after_leaf_in_signed", "after_leaf", "after_record"].map(|name| object.symbol(name));
    let code = 0x5a << 56 | 0x35 << 48;
    let stack = [
        (0x7000, 0x7030),
        (0x7008, in_record | code),
        (0x7030, 0x9999),
        (0x7038, in_last),
    ];
    let walked = object.walk(in_signed, 0x7000, 0x7000, &stack);
    assert_eq!(addresses(&walked), [in_signed, in_record, in_last]);
    assert_eq!(walked.end, End::Complete);
    // The plain record's return address is not signed: its upper bits would make it another address.
    let stack = [(0x7000, 0x7030), (0x7008, in_last | code)];
    let walked = object.walk(in_record, 0x7000, 0x7000, &stack);
    assert_eq!(
        (addresses(&walked), walked.end),
        (vec![in_record], End::NoMapping)
    );
}

/// A function called another and did not save the link register: its value is lost, and the walk does not
/// guess.
#[test]
fn the_link_register_of_a_caller_is_not_known() {
    let object = Assembled::new(SOURCE);
    let in_leaf = object.symbol("leaf") + 8;
    let walked = object.walk(in_leaf, 0x7000, 0x7000, &[]);
    assert_eq!(
        (addresses(&walked), walked.end),
        (vec![in_leaf], End::UnsupportedRule)
    );
}

/// A signal interrupted a leaf function: its caller is where the link register says, as the kernel saved it.
#[test]
fn an_interrupted_leaf_returns_by_its_link_register() {
    let object = Assembled::new(SOURCE);
    let [trampoline, leaf, in_record, in_last] =
        ["sigreturn", "leaf", "after_leaf", "after_record"].map(|name| object.symbol(name));
    // arch/arm64: siginfo, ucontext up to its sigcontext, and there the fault's address, then the registers.
    let register = |number: u64| 0x6000 + 128 + 176 + 8 + 8 * number;
    let stack = [
        (register(29), 0x7010),
        (register(30), in_record),
        (register(31), 0x7000),
        (register(32), leaf + 4),
        (0x7010, 0x9999),
        (0x7018, in_last),
    ];
    let walked = object.walk(trampoline, 0x6000, 0x7010, &stack);
    assert_eq!(addresses(&walked), [trampoline, leaf + 4, in_record, in_last]);
    assert_eq!(walked.end, End::Complete);
    let exact: Vec<_> = walked.frames.iter().map(|frame| frame.exact).collect();
    assert_eq!(exact, [true, true, false, false]);
}

/// Behind code without CFI, only the frame pointer is known. The walk leaves a function with a frame record
/// by this record. A function whose CFA starts from the frame pointer makes the stack pointer known again,
/// and one with neither ends the walk.
#[test]
fn an_unknown_stack_pointer_is_not_used() {
    let object = Assembled::new(SOURCE);
    let symbol = |name| object.symbol(name);
    let (hidden, in_record, in_last) = (
        symbol("after_leaf_in_hidden"),
        symbol("after_leaf"),
        symbol("after_record"),
    );
    let stack = [
        (0x7100, 0x7200),
        (0x7108, in_record),
        (0x7200, 0x7300),
        (0x7208, symbol("after_hidden")),
        (0x7300, 0x7310),
        (0x7308, in_record),
        (0x7310, 0),
        (0x7318, in_last),
    ];
    let walked = object.walk(hidden, 0x7100, 0x7100, &stack);
    let in_by_fp = symbol("after_hidden");
    assert_eq!(
        addresses(&walked),
        [hidden, in_record, in_by_fp, in_record, in_last]
    );
    assert_eq!(walked.end, End::Complete);
    let found: Vec<_> = walked.frames.iter().map(|frame| frame.found_by).collect();
    use FoundBy::{Cfi, Fp, Probe};
    assert_eq!(found, [Probe, Fp, Fp, Cfi, Cfi]);

    let in_lone = symbol("after_hidden_in_lone");
    let walked = object.walk(hidden, 0x7100, 0x7100, &[(0x7100, 0x7200), (0x7108, in_lone)]);
    assert_eq!(
        (addresses(&walked), walked.end),
        (vec![hidden, in_lone], End::UnsupportedRule)
    );
    // The frame pointer leads to no return address.
    let walked = object.walk(hidden, 0x7100, 0x7100, &[(0x7100, 0x7200), (0x7108, hidden + 4)]);
    assert_eq!((addresses(&walked), walked.end), (vec![hidden], End::NoCfi));
}

/// A call before which Go's runtime leaves the stack is recognized by its code.
#[test]
fn switches_of_the_stack_are_found() {
    let source = "
        .text
        .globl switches, same, neither
        switches: .cfi_startproc
        blr x1
        mov x9, x0
        ldr x28, [sp]
        same: blr x1
        ldr x2, [sp, #8]
        mov sp, x2
        neither: blr x1
        mov x9, x1
        .cfi_endproc
        .section .go.buildinfo, \"aw\", @progbits
        .quad 0
        ";
    let object = Assembled::new(source);
    let switches = UnwindRule::Unsupported(Reason::StackSwitch);
    for (name, expected) in [("switches", true), ("same", true), ("neither", false)] {
        assert_eq!(object.rule(name, 3) == switches, expected, "{name}");
        assert!(matches!(object.rule(name, 4), UnwindRule::Frame(_)), "{name}");
    }
}

/// A function that moves the stack pointer according to Go's table is marked from the instruction that does
/// so on. The loader sets the text's start.
#[test]
fn switches_of_the_stack_are_found_by_the_table() {
    let source = "
        .text
        text:
        .globl switches, behind
        switches: .cfi_startproc
        sub sp, sp, #32
        mov sp, x0
        behind: blr x1
        ret
        .cfi_endproc
        end: ret
        .section .go.buildinfo, \"aw\", @progbits
        .quad 0
        .section .data.rel.ro, \"aw\", @progbits
        header: .long 0xfffffff1
        .byte 0, 0, 4, 8
        .quad 1, 1, text, 0, 0, 0, 0, table - header
        table: .long 0, 12, end - text
        .skip 41
        .byte 2, 0, 0
        ";
    let object = Assembled::new(source);
    let switch = UnwindRule::Unsupported(Reason::StackSwitch);
    let rules = [0, 4, 8, 11, 12, 15].map(|offset| object.rule("switches", offset) == switch);
    assert_eq!(rules, [false, false, true, true, true, true]);
}
