//! Claim: in Go's programs, code that runs after Go's runtime has left the stack is recognized by Go's table
//! of functions; without such a table, calls are recognized by their code. Code without a caller is
//! recognized by the table. No other code is marked. Programs that Go's own linker makes are in `go.rs`.

use crate::common::build::cc;
use object::{Object, ObjectSymbol};
use unwind_tables::addr::Svma;
use unwind_tables::compile;
use unwind_tables::image::Image;
use unwind_tables::rule::{Reason, UnwindRule};

const SWITCH: UnwindRule = UnwindRule::Unsupported(Reason::StackSwitch);

/// Both calls of Go's `asmcgocall`, and one with other code behind it. Their CFI says that nothing is on the
/// stack.
const SOURCE: &str = "
    .text
    .globl switches, same, neither
    switches: .cfi_startproc
    call *%rax
    mov 0x30(%rsp), %rdi
    mov 0x8(%rdi), %rsi
    sub 0x28(%rsp), %rsi
    mov %rsi, %rsp
    ret
    same: call *%rax
    mov 0x28(%rsp), %rsi
    mov %rsi, %rsp
    ret
    neither: call *%rax
    mov 0x30(%rsp), %rsi
    mov %rsi, %rsp
    ret
    .cfi_endproc
    ";
const GO: &str = ".section .go.buildinfo, \"aw\", @progbits\n.quad 0\n";

/// Offsets in each function where the rule is not that of the CFI.
fn changed(source: &str) -> [Vec<u64>; 3] {
    let elf = cc("switches.s", source, &["-shared", "-nostdlib"]);
    let image: Image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let file = object::File::parse(&*elf).expect("an ELF file");
    ["switches", "same", "neither"].map(|name| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let start = Svma::new(symbol.expect("a function").address());
        let rule_at = |offset| image.rule_at(start.wrapping_add(offset));
        let offsets = (0..10).filter(|&offset| !matches!(rule_at(offset), UnwindRule::Frame(_)));
        let offsets: Vec<_> = offsets.collect();
        for &offset in &offsets {
            assert_eq!(rule_at(offset), SWITCH, "{name}");
        }
        offsets
    })
}

/// The last byte of each call is marked: its return address is looked up there.
#[test]
fn switches_are_found_by_their_code() {
    assert_eq!(changed(&[SOURCE, GO].concat()), [vec![1], vec![1], vec![]]);
}

/// In programs that are not Go's, the code means something else.
#[test]
fn only_programs_of_go_are_marked() {
    assert_eq!(changed(SOURCE), [vec![], vec![], vec![]]);
}

/// Calls in position-independent code are recognized, with a load of either kind between the call and the
/// code that restores the stack.
#[test]
fn switches_are_found_behind_loads() {
    for load in ["mov $-8, %rcx", "mov -8(%rip), %rcx"] {
        let source = SOURCE.replacen("call *%rax", &format!("call *%rax\n{load}"), 1);
        assert_eq!(
            changed(&[&source, GO].concat()),
            [vec![1], vec![1], vec![]],
            "{load}"
        );
    }
}

/// Three functions. According to the table, the second and the last move the stack pointer; the last has no
/// caller.
const FUNCTIONS: &str = "
    .text
    .skip 64
    text:
    .globl ordinary, switching, entry
    ordinary: .cfi_startproc
    mov 0x38(%rsi), %rsp
    ret
    .cfi_endproc
    switching: .cfi_startproc
    sub $0x18, %rsp
    mov 0x38(%rsi), %rsp
    call *%rax
    mov %rbx, %rsp
    ret
    .cfi_endproc
    entry: .cfi_startproc
    .cfi_undefined rip
    and $-16, %rsp
    call *%rax
    .cfi_endproc
    end: ret
    .section .go.buildinfo, \"aw\", @progbits
    .quad 0
    ";

/// Go's table of [`FUNCTIONS`] in a section, with the magic number of its format, its field for the text's
/// start, and the offset of the flags in its records.
fn table(section: &str, magic: u32, text: &str, flags_at: u32) -> String {
    let record = |flags: u8, name: &str| {
        let between = flags_at - 8;
        format!(".long 0, {name} - names\n.skip {between}\n.byte {flags}, 0, 0\n.balign 4\n")
    };
    format!(
        ".section {section}, \"aw\", @progbits
        .quad 0x1234
        .balign 32
        header: .long {magic}
        .byte 0, 0, 1, 8
        .quad 3, 1, {text}, names - header, 0, 0, 0, table - header
        names: .byte 0
        name1: .asciz \"main.ordinary\"
        name2: .asciz \"main.switching\"
        name3: .asciz \"main.entry\"
        .balign 4
        table:
        .long ordinary - text, first - table, switching - text, second - table
        .long entry - text, third - table, end - text
        first: {}second: {}third: {}",
        record(4, "name1"),
        record(6, "name2"),
        record(7, "name3")
    )
}

/// Offsets in `switching` that are marked; checks that the other functions have none.
fn marked(tables: &str, flags: &[&str]) -> Vec<u64> {
    let source = [FUNCTIONS, tables].concat();
    let elf = cc("table.s", &source, &[&["-shared", "-nostdlib"], flags].concat());
    let image: Image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let file = object::File::parse(&*elf).expect("an ELF file");
    let marked = |name, size| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let start = Svma::new(symbol.expect("a function").address());
        let is_marked = |offset: &u64| image.rule_at(start.wrapping_add(*offset)) == SWITCH;
        (0..size).filter(is_marked).collect::<Vec<_>>()
    };
    assert_eq!(
        [marked("ordinary", 5), marked("entry", 6)],
        [const { Vec::new() }; 2]
    );
    marked("switching", 14)
}

/// The function is found by the table, and the place in it by its code. It makes no difference whether the
/// linker leaves the text's start to the loader (as lld does), where the table is, or where the text's start
/// is since Go 1.26.
#[test]
fn switches_are_found_by_the_table() {
    let from_switch: Vec<u64> = (5..14).collect();
    let module = ".section .go.module, \"aw\", @progbits\n.skip 176\n.quad text\n";
    let formats = [
        (0xffff_fff0, "text", 37, ""),
        (0xffff_fff1, "text", 41, ""),
        (0xffff_fff1, "0", 41, module),
    ];
    for (magic, text, flags_at, module) in formats {
        for linker in ["-fuse-ld=bfd", "-fuse-ld=lld"] {
            let table = table(".data.rel.ro", magic, text, flags_at);
            assert_eq!(
                marked(&[&table, module].concat(), &[linker]),
                from_switch,
                "{magic:x} {linker}"
            );
        }
    }
    // As Go's linker has it: in a section of its own.
    let table = table(".data.rel.ro.gopclntab", 0xffff_fff1, "text", 41).replacen(".quad 0x1234", "", 1);
    assert_eq!(
        marked(&table, &["-Wl,--unique=.data.rel.ro.gopclntab"]),
        from_switch
    );
}

/// A function that Go marks as the outermost of a stack is that, whatever its CFI says, if it has no caller:
/// the function that goroutines return to, and the program's first function if there is no C in the program.
#[test]
fn first_functions_are_known_by_the_table() {
    for (magic, flags_at) in [(0xffff_fff0, 37), (0xffff_fff1, 41)] {
        let table = table(".data.rel.ro", magic, "text", flags_at);
        for (flags, name, other, is_first) in [
            (5, "runtime.goexit", "crosscall2", true),
            (4, "runtime.goexit", "main.main", false),
            (5, "runtime.goexit1", "main.main", false),
            (5, "runtime.goexi", "main.main", false),
            (5, "runtime.mstart", "main.main", false),
            (5, "runtime.sigtramp", "main.main", false),
            (5, "runtime.rt0_go", "main.main", true),
            (5, "runtime.rt0_go", "crosscall2", false),
        ] {
            let table = table.replacen(".byte 4, 0, 0", &format!(".byte {flags}, 0, 0"), 1);
            let table = table
                .replacen("main.ordinary", name, 1)
                .replacen("main.entry", other, 1);
            let source = [FUNCTIONS, &table].concat();
            let elf = cc("table.s", &source, &["-shared", "-nostdlib"]);
            let image: Image = compile(&elf).expect("an ELF file").image.expect("CFI");
            let file = object::File::parse(&*elf).expect("an ELF file");
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok("ordinary"));
            let start = Svma::new(symbol.expect("a function").address());
            for offset in 0..5 {
                let is_end = image.rule_at(start.wrapping_add(offset)) == UnwindRule::EndOfStack;
                assert_eq!(is_end, is_first, "{name} with {other}, byte {offset}");
            }
        }
    }
}

/// An implausible table is ignored: with a wrong start of the text, a wrong count, or starts that do not
/// ascend.
#[test]
fn false_tables_are_not_followed() {
    let good = table(".data.rel.ro", 0xffff_fff1, "text", 41);
    assert_ne!(marked(&good, &[]), Vec::<u64>::new());
    for (from, to) in [
        ("3, 1, text", "3, 1, 0"),
        ("3, 1, text", "3, 1, header"),
        ("3, 1, text", "3, 1, text + 0x10000000"),
        ("3, 1, text", "4, 1, text"),
        ("3, 1, text", "0, 1, text"),
        ("3, 1, text", "0x2000000000000001, 1, text"),
        ("table - header", "-8"),
        ("end - text", "entry - text - 1"),
        ("second - table", "-1"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        assert_eq!(marked(&bad, &[]), Vec::<u64>::new(), "{to}");
    }
}

/// Each byte of the table, and of the section headers, is changed: nothing is read or counted beyond the end
/// of the file.
#[test]
fn damaged_tables_are_survived() {
    let table = table(".data.rel.ro", 0xffff_fff1, "text", 41);
    let source = [FUNCTIONS, &table].concat();
    let elf = cc("table.s", &source, &["-shared", "-nostdlib"]);
    let header = 0xffff_fff1_u32.to_le_bytes();
    let at = elf.windows(4).position(|bytes| bytes == header).expect("a table");
    let headers = usize::try_from(u64::from_le_bytes(elf[40..48].try_into().expect("8 bytes")));
    let places = (at..at + 256).chain(headers.expect("an offset")..elf.len());
    for place in places {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = elf.clone();
            damaged[place] = value;
            // Either outcome will do.
            let _ = compile(&damaged);
        }
    }
}
