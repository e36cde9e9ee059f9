use super::*;

/// Addresses of the synthetic object's code and slots.
const CODE: u64 = 0x1000;
const SLOTS: u64 = 0x3010;

/// Functions that end in each possible way, assembled by `aarch64-linux-gnu-as`, and three PLT entries. The
/// slots are those of `other`, `abort` and `allocate`.
#[rustfmt::skip]
const FUNCTIONS: &[(&str, &[u32])] = &[
    ("two_rets", &[
        0xb400_0040, // cbz x0, +8
        0xd65f_03c0, // ret
        0xd65f_03c0, // ret
    ]),
    ("tail", &[
        0xb500_0060, // cbnz x0, elsewhere
        0x1400_0001, // b plain
    ]),
    ("plain", &[0xd65f_03c0]),
    ("elsewhere", &[
        0x9400_001e, // bl leaf
        0xd65f_03c0, // ret
    ]),
    ("computed", &[0xd61f_0020]), // br x1
    ("authenticated", &[0xd65f_0bff]), // retaa
    ("imported", &[0x1400_000d]), // b other@plt
    ("never", &[
        0x9400_0011, // bl abort@plt
        0xd420_7d00, // brk #1000
    ]),
    ("wrapped", &[
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0x9400_0011, // bl allocate@plt
        0xb400_0060, // cbz x0, +12
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd65f_03c0, // ret
        0x9400_0009, // bl abort@plt
    ]),
    ("through_slot", &[
        0xd000_0001, // adrp x1, slots
        0xf940_1021, // ldr x1, [x1, #32]
        0xd61f_0020, // br x1
    ]),
    ("other@plt", &[
        0xd503_245f, // bti c
        0xd000_0010, // adrp x16, slots
        0xf940_0a11, // ldr x17, [x16, #16]
        0x9100_4210, // add x16, x16, #16
        0xd61f_0220, // br x17
    ]),
    ("abort@plt", &[0xd000_0010, 0xf940_0e11, 0x9100_6210, 0xd61f_0220]),
    ("allocate@plt", &[0xd000_0010, 0xf940_1211, 0x9100_8210, 0xd61f_0220]),
    ("leaf", &[0xd65f_03c0]),
];

fn place(name: &str) -> Svma {
    let before = FUNCTIONS.iter().take_while(|(other, _)| *other != name);
    let words: usize = before.map(|(_, words)| words.len()).sum();
    Svma::new(CODE + 4 * u64::try_from(words).expect("few"))
}

/// Makes a shared object of one segment, with these functions, and relocations for their slots.
fn object() -> Vec<u8> {
    const NAMES: &[u8] = b"\0other\0abort\0allocate\0";
    const R_AARCH64_JUMP_SLOT: u64 = 1026;
    let mut file = vec![0; 0x4000];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).expect("small");
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let mut words = |at: u64, words: &[u64]| {
        for (number, word) in (0..).zip(words) {
            put(at + 8 * number, &word.to_le_bytes());
        }
    };
    // Program headers: the whole file, and the dynamic segment.
    words(64, &[5 << 32 | 1, 0, 0, 0, 0x4000, 0x4000, 0x1000]);
    words(120, &[6 << 32 | 2, 0x200, 0x200, 0x200, 0x60, 0x60, 8]);
    // DT_STRTAB, DT_SYMTAB, DT_JMPREL, DT_PLTRELSZ
    words(0x200, &[5, 0x400, 6, 0x500, 23, 0x600, 2, 72, 0, 0]);
    for (number, name) in (0..).zip([1, 7, 13]) {
        words(0x518 + 24 * number, &[0x12 << 32 | name, 0, 0]);
        let slot = SLOTS + 8 * number;
        words(
            0x600 + 24 * number,
            &[slot, (number + 1) << 32 | R_AARCH64_JUMP_SLOT, 0],
        );
    }
    put(0, b"\x7fELF\x02\x01\x01");
    // ET_DYN, EM_AARCH64, version, headers' sizes.
    put(16, &[3, 0, 183, 0, 1, 0, 0, 0]);
    put(32, &64u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0, 64, 0]);
    put(0x400, NAMES);
    for (name, code) in FUNCTIONS {
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        put(place(name).get(), &bytes);
    }
    file
}

fn with_code(test: impl FnOnce(&Code<'_>)) {
    let elf = object();
    let view = ElfView::parse_any(&elf).expect("an ELF file");
    let linkage = Linkage::of(&elf);
    test(&Code::new(&elf, &view, &linkage));
}

/// On AArch64, all returns are found, or the error gives the reason.
#[test]
fn exits_of_aarch64() {
    with_code(|code| {
        let nothing = listed(&[], &[]);
        let exits = |name: &str, known: &Listed| code.exits(place(name), known);
        let count = |name: &str| exits(name, &nothing).map(|rets| rets.len());
        assert_eq!(count("two_rets"), Ok(2));
        assert_eq!(count("tail"), Ok(2));
        let plain = listed(&[place("plain")], &[]);
        assert_eq!(exits("tail", &plain).map(|rets| rets.len()), Ok(1));
        assert_eq!(count("authenticated"), Ok(1));
        assert_eq!(count("computed"), Err(NoExits::IndirectJump(place("computed"))));
        assert_eq!(count("imported"), Err(NoExits::LeavesTo("other".into())));
        assert_eq!(exits("imported", &listed(&[], &["other"])), Ok(vec![]));
        assert_eq!(count("through_slot"), Err(NoExits::LeavesTo("allocate".into())));
        assert_eq!(count("never"), Err(NoExits::None));
    });
}

/// Calls through a PLT are resolved to names.
#[test]
fn forwarders_of_aarch64() {
    with_code(|code| {
        let known = listed(&[], &["allocate"]);
        let forwards = |name: &str| code.forwards(place(name), &known);
        assert!(forwards("wrapped"));
        assert!(forwards("through_slot"));
        assert!(!forwards("plain"));
        assert!(!forwards("imported"));
        assert!(!forwards("never"));
        assert!(!code.is_leaf(place("wrapped"), &known));
        assert!(code.is_leaf(place("elsewhere"), &known));
    });
}
