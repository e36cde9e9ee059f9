use super::*;

fn code_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn choose_in(words: &[u32], reads: &[u8]) -> Result<Choice, Unprobeable> {
    let entry = Svma::new(ENTRY);
    let text = code_of(words);
    let code = FunctionCode::new(Architecture::Aarch64, &text, entry, entry, 0);
    choose(&code.expect("the entry is in the segment"), reads.iter().copied())
}

fn check(words: &[u32], reads: &[u8], at: u64, why: SiteReason) {
    let choice = choose_in(words, reads).expect("probeable");
    assert_eq!(
        (choice.svma, choice.why),
        (Svma::new(ENTRY + at), why),
        "{words:08x?}"
    );
    let cheap = choice.cost == SiteCost::Emulated;
    assert_eq!(
        cheap,
        !matches!(why, SiteReason::ExpensiveEntry(_)),
        "{words:08x?}"
    );
}

fn stays(words: &[u32], reads: &[u8], obstacle: Obstacle) {
    check(words, reads, 0, SiteReason::ExpensiveEntry(obstacle));
}

/// Real prologues: glibc 2.36-9+deb12u13 and libstdc++ 12.2.0-14 of Debian 12, glibc 2.41-12 of Debian 13,
/// which signs return addresses.
#[test]
fn real_prologues() {
    let changed = Obstacle::StackPointerChanged;
    // malloc: stp x29, x30, [sp, #-64]!; mov x29, sp
    stays(&[0xa9bc_7bfd, 0x9100_03fd], &[0], changed);
    // free: cbz x0, +0x110; stp x29, x30, [sp, #-64]!
    check(&[0xb400_0880, 0xa9bc_7bfd], &[0], 0, SiteReason::CheapEntry);
    // reallocarray: umulh x3, x1, x2; mul x1, x1, x2; cbnz x3, +8; b realloc@plt
    let reallocarray = [0x9bc2_7c23, 0x9b02_7c21, 0xb500_0043, 0x17fe_4b11];
    stays(&reallocarray, &[0, 1, 2], Obstacle::ArgumentOverwritten(1));
    // operator delete(void*, nothrow): b operator delete@plt; nop
    check(&[0x17ff_e70c, 0xd503_201f], &[0], 0, SiteReason::CheapEntry);
    // Debian 13's malloc: paciasp; stp x29, x30, [sp, #-64]!
    stays(&[0xd503_233f, 0xa9bc_7bfd], &[0], Obstacle::ReturnAddressWritten);
    // Debian 13's free: bti c; cbz x0, +0x1d4; paciasp
    check(
        &[0xd503_245f, 0xb400_0ea0, 0xd503_233f],
        &[0],
        4,
        SiteReason::Moved(4),
    );
}

/// A probe moves past instructions that do not change what it reads.
#[test]
fn obstacles() {
    const BRANCH: u32 = 0xb400_0060; // cbz x0, +12
    let moved = |word: u32, reads: &[u8]| check(&[word, BRANCH, 0], reads, 4, SiteReason::Moved(4));
    let stopped = |word: u32, obstacle| stays(&[word, BRANCH, 0], &[0, 1], obstacle);
    moved(0xf940_0029, &[0, 1]); // ldr x9, [x1]
    moved(0xf100_041f, &[0]); // cmp x0, #1
    moved(0xaa00_03e1, &[0]); // mov x1, x0
    moved(0xf900_03e0, &[0]); // str x0, [sp]: the return address is not on the stack
    stopped(0xaa00_03e1, Obstacle::ArgumentOverwritten(1));
    stopped(0xaa00_03f3, Obstacle::CalleeSavedOverwritten); // mov x19, x0
    stopped(0x9100_03fd, Obstacle::CalleeSavedOverwritten); // mov x29, sp
    stopped(0xaa00_03fe, Obstacle::ReturnAddressWritten); // mov x30, x0
    stopped(0xd100_43ff, Obstacle::StackPointerChanged); // sub sp, sp, #16
    // cmp x0, #1; svc #0
    stays(&[0xf100_041f, 0xd400_0001, BRANCH], &[0], Obstacle::ControlLeaves);
    stopped(0xf820_0009, Obstacle::Undecodable); // ldadd x0, x9, [x0]: not decoded
    let far = [[0xf100_041f; 16].as_slice(), &[BRANCH]].concat();
    stays(&far, &[0], Obstacle::TooFar);
}

/// No branch of the segment may land between the entry and the site; one to the entry may.
#[test]
fn branches() {
    // cmp x0, #1; cmp x0, #1; cbz x0, +8; udf; then a branch
    let words = |branch| [0xf100_041f, 0xf100_041f, 0xb400_0040, 0, branch];
    let lands = |branch| {
        let from = Svma::new(ENTRY + 16);
        stays(&words(branch), &[0], Obstacle::BranchLandsBefore(from));
    };
    let passes = |branch| check(&words(branch), &[0], 8, SiteReason::Moved(8));
    passes(0x17ff_fffc); // b entry
    lands(0x17ff_fffd); // b entry + 4
    lands(0x54ff_ffc0); // b.eq entry + 8, the site
    lands(0xb5ff_ffa0); // cbnz x0, entry + 4
    lands(0x3707_ffa0); // tbnz w0, #0, entry + 4
    passes(0x17ff_ffff); // b entry + 12
}

/// Branches are found wherever the segment begins.
#[test]
fn segments_that_are_not_aligned() {
    // b entry + 4; cmp x0, #1; cbz x0, +8: behind two bytes that are not an instruction
    let mut text = vec![0, 0];
    text.extend(code_of(&[0x1400_0002, 0xf100_041f, 0xb400_0040]));
    let start = Svma::new(ENTRY - 2);
    let entry = Svma::new(ENTRY + 4);
    let code = FunctionCode::new(Architecture::Aarch64, &text, start, entry, 0);
    let choice = choose(&code.expect("the entry is in the segment"), [0]).expect("probeable");
    let found = Obstacle::BranchLandsBefore(Svma::new(ENTRY));
    assert_eq!(choice.why, SiteReason::ExpensiveEntry(found));
}

/// An entry that the kernel refuses is not probed.
#[test]
fn refused_entries() {
    assert_eq!(choose_in(&[0xd65f_0bff], &[]), Err(Unprobeable::Kind)); // retaa
    assert_eq!(choose_in(&[0], &[]), Err(Unprobeable::Invalid)); // udf
    // ldr x9, literal; cbz x0, +8: later instead
    check(&[0x5800_0049, 0xb400_0040], &[0], 4, SiteReason::Moved(4));
}

/// No words make the search panic or leave the function.
#[test]
fn any_words() {
    let mut state = 1u64;
    for _ in 0..20_000 {
        let words: Vec<u32> = (0..10)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 32) as u32
            })
            .collect();
        if let Ok(choice) = choose_in(&words, &[0, 1, 2]) {
            assert!(choice.svma.offset_from(Svma::new(ENTRY)) < 40);
        }
    }
}
