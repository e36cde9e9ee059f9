mod aarch64;

use super::*;

/// Start of the synthetic segments; any address will do.
const ENTRY: u64 = 0x1000;

fn chosen(code: &[u8], reads: &[u8]) -> Result<Choice, Unprobeable> {
    let entry = Svma::new(ENTRY);
    let code =
        FunctionCode::new(Architecture::X86_64, code, entry, entry, 0).expect("the entry is in the segment");
    choose(&code, reads.iter().copied())
}

/// Checks a choice: bytes behind the entry, cost, and why.
fn check(code: &[u8], reads: &[u8], at: u64, why: SiteReason) {
    let cost = match why {
        SiteReason::CheapEntry | SiteReason::Moved(_) => SiteCost::Emulated,
        SiteReason::ExpensiveEntry(_) => SiteCost::SingleStepped,
    };
    let expected = Choice {
        svma: Svma::new(ENTRY + at),
        cost,
        why,
    };
    assert_eq!(chosen(code, reads), Ok(expected), "{code:02x?}");
}

fn moved(code: &[u8], reads: &[u8], at: u64) {
    check(code, reads, at, SiteReason::Moved(at));
}

fn stays(code: &[u8], reads: &[u8], obstacle: Obstacle) {
    check(code, reads, 0, SiteReason::ExpensiveEntry(obstacle));
}

/// Real prologues: glibc 2.36-9+deb12u, gperftools 2.10, jemalloc 5.3.0, mimalloc 2.0.9 of Debian 12.
#[test]
fn real_prologues() {
    // libc malloc: push %r12; push %rbp; push %rbx; mov %rdi,%rbx
    check(
        &[0x41, 0x54, 0x55, 0x53, 0x48, 0x89, 0xfb],
        &[0],
        0,
        SiteReason::CheapEntry,
    );
    // libc free: test %rdi,%rdi; je +0xbf; push %rbp
    moved(
        &[0x48, 0x85, 0xff, 0x0f, 0x84, 0xbf, 0x00, 0x00, 0x00, 0x55],
        &[0],
        3,
    );
    // libc posix_memalign: cmpb $0x0,0x140201(%rip); push %r12; mov %rdx,%r12
    moved(
        &[
            0x80, 0x3d, 0x01, 0x02, 0x14, 0x00, 0x00, 0x41, 0x54, 0x49, 0x89, 0xd4,
        ],
        &[0, 2],
        7,
    );
    // libc aligned_alloc: cmpb $0x0,0x140e71(%rip); je +7; jmp _mid_memalign; xchg %ax,%ax; sub $0x18,%rsp
    moved(
        &[
            0x80, 0x3d, 0x71, 0x0e, 0x14, 0x00, 0x00, 0x74, 0x07, 0xe9, 0x32, 0xf6, 0xff, 0xff, 0x66, 0x90,
            0x48, 0x83, 0xec, 0x18,
        ],
        &[1],
        7,
    );
    // libc reallocarray: mov %rsi,%rax; mul %rdx; mov %rax,%rsi; jo +5; jmp realloc@plt
    stays(
        &[
            0x48, 0x89, 0xf0, 0x48, 0xf7, 0xe2, 0x48, 0x89, 0xc6, 0x70, 0x05, 0xe9, 0x40, 0xb8, 0xf8, 0xff,
        ],
        &[0, 1, 2],
        Obstacle::ArgumentOverwritten(2),
    );
    // tcmalloc malloc: mov 0x132f9(%rip),%rax; mov %rdi,%r8; test %rax,%rax; jne +0x8e
    moved(
        &[
            0x48, 0x8b, 0x05, 0xf9, 0x32, 0x01, 0x00, 0x49, 0x89, 0xf8, 0x48, 0x85, 0xc0, 0x0f, 0x85, 0x8e,
            0x00, 0x00, 0x00,
        ],
        &[0],
        13,
    );
    // jemalloc malloc: cmp $0x1000,%rdi; ja +0x93
    moved(
        &[
            0x48, 0x81, 0xff, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x87, 0x93, 0x00, 0x00, 0x00,
        ],
        &[0],
        7,
    );
    // mimalloc malloc: mov 0xb449(%rip),%rax; mov %rdi,%rsi; mov %fs:(%rax),%rdi; cmp $0x400,%rsi; ja +0x29
    stays(
        &[
            0x48, 0x8b, 0x05, 0x49, 0xb4, 0x00, 0x00, 0x48, 0x89, 0xfe, 0x64, 0x48, 0x8b, 0x38, 0x48, 0x81,
            0xfe, 0x00, 0x04, 0x00, 0x00, 0x77, 0x29,
        ],
        &[0],
        Obstacle::ArgumentOverwritten(0),
    );
    // mimalloc posix_memalign: jmp mi_posix_memalign@plt
    check(
        &[0xe9, 0x6b, 0x5c, 0xff, 0xff],
        &[0, 2],
        0,
        SiteReason::CheapEntry,
    );
}

/// Programs built for CET start each function with an endbr64, which is expensive; the next instruction
/// rarely is.
#[test]
fn endbr64() {
    // endbr64; push %rbp
    moved(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55], &[0], 4);
    // endbr64; test %rdi,%rdi; je +0x10; ret
    moved(
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 0x10, 0xc3],
        &[0],
        7,
    );
}

/// An argument that is read must not be written before, not even in part; others may be.
#[test]
fn overwritten_argument() {
    // mov %rsi,%rdi; push %rbx
    stays(&[0x48, 0x89, 0xf7, 0x53], &[0], Obstacle::ArgumentOverwritten(0));
    moved(&[0x48, 0x89, 0xf7, 0x53], &[1], 3);
    // mov $1,%dil; push %rbx
    stays(&[0x40, 0xb7, 0x01, 0x53], &[0], Obstacle::ArgumentOverwritten(0));
    // mov $1,%dh; push %rbx
    stays(&[0xb6, 0x01, 0x53], &[2], Obstacle::ArgumentOverwritten(2));
    // cmove %rax,%rsi; push %rbx: a conditional write
    stays(
        &[0x48, 0x0f, 0x44, 0xf0, 0x53],
        &[1],
        Obstacle::ArgumentOverwritten(1),
    );
    // cqto; push %rbx: rdx is written without being named
    stays(&[0x48, 0x99, 0x53], &[2], Obstacle::ArgumentOverwritten(2));
    moved(&[0x48, 0x99, 0x53], &[0, 1], 2);
    // rep movsb; push %rbx: rdi, rsi and rcx move along
    stays(&[0xf3, 0xa4, 0x53], &[1], Obstacle::ArgumentOverwritten(1));
}

/// The stack pointer and the return address must be the same as at the entry.
#[test]
fn stack_pointer() {
    // sub $0x18,%rsp; push %rbx
    stays(
        &[0x48, 0x83, 0xec, 0x18, 0x53],
        &[0],
        Obstacle::StackPointerChanged,
    );
    // pushq $0; push %rbx
    stays(&[0x6a, 0x00, 0x53], &[0], Obstacle::StackPointerChanged);
    // pop %rax; push %rax
    stays(&[0x58, 0x50], &[0], Obstacle::StackPointerChanged);
    // mov %rdi,(%rsp); push %rbx
    stays(
        &[0x48, 0x89, 0x3c, 0x24, 0x53],
        &[0],
        Obstacle::ReturnAddressWritten,
    );
    // mov %rdi,-0x4(%rsp); push %rbx: its upper half lies in the return address
    stays(
        &[0x48, 0x89, 0x7c, 0x24, 0xfc, 0x53],
        &[0],
        Obstacle::ReturnAddressWritten,
    );
    // mov %rdi,-0x8(%rsp,%rax,1); push %rbx
    stays(
        &[0x48, 0x89, 0x7c, 0x04, 0xf8, 0x53],
        &[0],
        Obstacle::ReturnAddressWritten,
    );
    // mov %rdi,-0x8(%rsp); push %rbx: the red zone is the function's own
    moved(&[0x48, 0x89, 0x7c, 0x24, 0xf8, 0x53], &[0], 5);
    // mov 0x8(%rsp),%rax; push %rbx: reading is no harm
    moved(&[0x48, 0x8b, 0x44, 0x24, 0x08, 0x53], &[0], 5);
}

/// rbp and the other callee-saved registers must be the caller's, as the unwinder assumes.
#[test]
fn callee_saved() {
    // xor %ebp,%ebp; push %rbx
    stays(&[0x31, 0xed, 0x53], &[0], Obstacle::CalleeSavedOverwritten);
    // mov %rsp,%rbp; push %rbx
    stays(&[0x48, 0x89, 0xe5, 0x53], &[0], Obstacle::CalleeSavedOverwritten);
    // mov %rdi,%r12; push %rbx
    stays(&[0x49, 0x89, 0xfc, 0x53], &[0], Obstacle::CalleeSavedOverwritten);
    // cpuid; push %rbx: writes rbx without naming it
    stays(&[0x0f, 0xa2, 0x53], &[0], Obstacle::CalleeSavedOverwritten);
    // mov %rdi,%r11; push %rbx: any function may overwrite r11
    moved(&[0x49, 0x89, 0xfb, 0x53], &[0], 3);
}

/// An instruction that may not return, or may skip the site, ends the search.
#[test]
fn control_flow() {
    // ret; push %rbx
    stays(&[0xc3, 0x53], &[0], Obstacle::ControlLeaves);
    // jmp *%rax; push %rbx
    stays(&[0xff, 0xe0, 0x53], &[0], Obstacle::ControlLeaves);
    // call *%rax; push %rbx
    stays(&[0xff, 0xd0, 0x53], &[0], Obstacle::ControlLeaves);
    // test %edi,%edi; syscall; push %rbx
    stays(&[0x85, 0xff, 0x0f, 0x05, 0x53], &[0], Obstacle::ControlLeaves);
    // jrcxz +1; push %rbx; push %rbp: a conditional branch that is not emulated
    stays(&[0xe3, 0x01, 0x53, 0x55], &[0], Obstacle::ControlLeaves);
    // test %rdi,%rdi; call +0: the call itself runs after the probe
    moved(&[0x48, 0x85, 0xff, 0xe8, 0, 0, 0, 0], &[0], 3);
}

/// A branch into (entry, site] would skip the probe or hit it twice; one to the entry or behind the
/// site would not.
#[test]
fn branches() {
    // mov %rdi,%rax; test %rax,%rax; je +2; jmp <target>
    let code = |back: u8| [0x48, 0x89, 0xf8, 0x48, 0x85, 0xc0, 0x74, 0x02, 0xeb, back];
    let from = Svma::new(ENTRY + 8);
    stays(&code(0xf9), &[0], Obstacle::BranchLandsBefore(from)); // to +3, ahead of the site
    stays(&code(0xfc), &[0], Obstacle::BranchLandsBefore(from)); // to +6, the site
    moved(&code(0xf6), &[0], 6); // to +0, the entry: runs through both again
    moved(&code(0xfe), &[0], 6); // to +8, behind the site
    // A loop instruction is a branch too: … je +2; loop +3
    stays(
        &[0x48, 0x89, 0xf8, 0x48, 0x85, 0xc0, 0x74, 0x02, 0xe2, 0xf9],
        &[0],
        Obstacle::BranchLandsBefore(from),
    );
}

/// A long branch into the window counts wherever it is, before or behind, at any alignment, and outside the
/// function: cold parts lie far away.
#[test]
fn branches_from_anywhere_into_the_window_count() {
    // test %rdi,%rdi; je +0x10; ret
    let function: &[u8] = &[0x48, 0x85, 0xff, 0x74, 0x10, 0xc3];
    let entry_at: usize = 5001;
    let text = |branch_at: usize, opcode: &[u8], target: usize| {
        let mut text = vec![0xccu8; 10_000];
        text[entry_at..entry_at + function.len()].copy_from_slice(function);
        let end = branch_at + opcode.len() + 4;
        let displacement = i32::try_from(target).expect("fits") - i32::try_from(end).expect("fits");
        text[branch_at..branch_at + opcode.len()].copy_from_slice(opcode);
        text[end - 4..end].copy_from_slice(&displacement.to_le_bytes());
        text
    };
    let why = |text: &[u8]| {
        let start = Svma::new(0x40_0000);
        let entry = start.wrapping_add(5001);
        let code = FunctionCode::new(Architecture::X86_64, text, start, entry, 6)
            .expect("the entry is in the segment");
        choose(&code, [0]).expect("probeable").why
    };
    for opcode in [&[0xe9][..], &[0x0f, 0x84]] {
        for branch_at in [0, 13, 4000, 9000] {
            let from = Svma::new(0x40_0000).wrapping_add(u64::try_from(branch_at).expect("fits"));
            let found = SiteReason::ExpensiveEntry(Obstacle::BranchLandsBefore(from));
            assert_eq!(
                why(&text(branch_at, opcode, entry_at + 3)),
                found,
                "{opcode:02x?} at {branch_at}"
            );
            assert_eq!(
                why(&text(branch_at, opcode, entry_at)),
                SiteReason::Moved(3),
                "{opcode:02x?} at {branch_at}"
            );
            assert_eq!(
                why(&text(branch_at, opcode, entry_at + 4)),
                SiteReason::Moved(3),
                "{opcode:02x?} at {branch_at}"
            );
        }
    }
}

/// The search ends with the window and with the function.
#[test]
fn too_far() {
    let mov = [0x48, 0x89, 0xf8]; // mov %rdi,%rax
    let mut long = mov.repeat(22);
    long.push(0x53); // push %rbx at +66
    stays(&long, &[0], Obstacle::TooFar);
    let mut fits = mov.repeat(21);
    fits.push(0x53); // push %rbx at +63
    moved(&fits, &[0], 63);
    // A function of three bytes: the following bytes belong to another.
    let entry = Svma::new(ENTRY);
    let code = FunctionCode::new(Architecture::X86_64, &[0x48, 0x89, 0xf8, 0x53], entry, entry, 3)
        .expect("the entry is in the segment");
    assert_eq!(
        choose(&code, [0]).expect("probeable").why,
        SiteReason::ExpensiveEntry(Obstacle::TooFar)
    );
}

/// A function whose entry cannot be probed is probed later or not at all.
#[test]
fn unprobeable() {
    // ud2
    assert_eq!(chosen(&[0x0f, 0x0b], &[0]), Err(Unprobeable::Kind));
    // vzeroupper; sub $8,%rsp: under a probe the kernel would not execute it
    assert_eq!(
        chosen(&[0xc5, 0xf8, 0x77, 0x48, 0x83, 0xec, 0x08], &[0]),
        Err(Unprobeable::Mistaken)
    );
    // vzeroupper; push %rbx
    moved(&[0xc5, 0xf8, 0x77, 0x53], &[0], 3);
    // 06: not an instruction
    assert_eq!(chosen(&[0x06, 0x53], &[0]), Err(Unprobeable::Invalid));
    // test %rdi,%rdi; 06
    stays(&[0x48, 0x85, 0xff, 0x06], &[0], Obstacle::Undecodable);
    // test %rdi,%rdi; je +1; 06: undecodable bytes may hide a branch
    stays(
        &[0x48, 0x85, 0xff, 0x74, 0x01, 0x06, 0x53],
        &[0],
        Obstacle::Undecodable,
    );
}

/// No bytes, entries or sizes make the search panic or leave the function.
#[test]
fn any_bytes() {
    let entry = Svma::new(ENTRY);
    assert!(FunctionCode::new(Architecture::X86_64, &[], entry, entry, 0).is_none());
    assert!(FunctionCode::new(Architecture::X86_64, &[0x90], entry, Svma::new(ENTRY + 1), 0).is_none());
    assert!(FunctionCode::new(Architecture::X86_64, &[0x90], entry, Svma::new(ENTRY - 1), 0).is_none());
    assert!(
        FunctionCode::new(
            Architecture::X86_64,
            &[0x90],
            entry,
            Svma::new(u64::MAX),
            u64::MAX
        )
        .is_none()
    );
    let mut state = 1u64;
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..40)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                state.to_le_bytes()[7]
            })
            .collect();
        let code = FunctionCode::new(
            Architecture::X86_64,
            &bytes,
            Svma::new(u64::MAX - 20),
            Svma::new(u64::MAX - 20),
            0,
        )
        .expect("in it");
        if let Ok(choice) = choose(&code, [0, 1, 2]) {
            assert!(choice.svma.offset_from(Svma::new(u64::MAX - 20)) < 40);
        }
    }
}
