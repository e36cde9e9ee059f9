use super::*;

fn x86(text: &str) -> Option<Argument> {
    argument(text, Architecture::X86_64)
}

fn argument_of(place: Place, bytes: u8, is_signed: bool) -> Option<Argument> {
    Some(Argument {
        place,
        bytes,
        is_signed,
    })
}

/// Offsets are those of `struct pt_regs` in the kernel's `arch/x86/include/uapi/asm/ptrace.h`.
#[test]
fn places_of_x86_64() {
    let (rdi, rbp, rsp, rax, rbx, r8) = (112, 32, 152, 80, 40, 72);
    let register = |at| Place::Register(Register(at));
    let memory = |at, displacement, index: Option<(u16, u8)>| Place::Memory {
        base: Register(at),
        displacement,
        index: index.map(|(at, scale)| (Register(at), scale)),
    };
    for (text, place, bytes, is_signed) in [
        ("8@%rdi", register(rdi), 8, false),
        ("-4@%edi", register(rdi), 4, true),
        ("1@%dil", register(rdi), 1, false),
        ("2@%di", register(rdi), 2, false),
        ("1@%bl", register(rbx), 1, false),
        ("8@%r8", register(r8), 8, false),
        ("4@%r8d", register(r8), 4, false),
        ("-1@%r8b", register(r8), 1, true),
        ("%rax", register(rax), 8, false),
        ("8@$-12", Place::Constant(-12), 8, false),
        ("4@$0x10", Place::Constant(16), 4, false),
        ("8@(%rsp)", memory(rsp, 0, None), 8, false),
        ("-8@-16(%rbp)", memory(rbp, -16, None), 8, true),
        ("4@8(%rax,%rbx,4)", memory(rax, 8, Some((rbx, 2))), 4, false),
        ("4@(%rax,%rbx)", memory(rax, 0, Some((rbx, 0))), 4, false),
    ] {
        assert_eq!(x86(text), argument_of(place, bytes, is_signed), "{text}");
    }
    for text in [
        "8@%ah",
        "8@%xmm0",
        "8@counter(%rip)",
        "3@%rdi",
        "8f@%xmm0",
        "8@",
        "",
        "8@%r16",
    ] {
        assert_eq!(x86(text), None, "{text}");
    }
}

#[test]
fn places_of_aarch64() {
    let (x0, x19, sp) = (Register(0), Register(152), Register(248));
    let memory = |base, displacement| Place::Memory {
        base,
        displacement,
        index: None,
    };
    for (text, place) in [
        ("8@x0", Place::Register(x0)),
        ("8@w19", Place::Register(x19)),
        ("8@sp", Place::Register(sp)),
        ("8@[sp, 16]", memory(sp, 16)),
        ("8@[x19]", memory(x19, 0)),
        ("8@[x0, #-8]", memory(x0, -8)),
        ("8@12", Place::Constant(12)),
    ] {
        let read = argument(text, Architecture::Aarch64);
        assert_eq!(read, argument_of(place, 8, false), "{text}");
    }
    for text in ["8@x31", "8@[x0, x1]", "8@[x0, 8]!", "8@d0"] {
        assert_eq!(argument(text, Architecture::Aarch64), None, "{text}");
    }
}

#[test]
fn lists_of_arguments() {
    let places = |text, wanted| arguments(text, Architecture::Aarch64, wanted);
    assert_eq!(places("8@x0 8@[sp, 16]  8@x2", 3).expect("three").len(), 3);
    assert_eq!(places("8@x0 8@d0", 1).expect("one is enough").len(), 1);
    let missing = ArgumentError::Missing { found: 1, wanted: 3 };
    assert_eq!(places("8@x0", 3), Err(missing));
    let unsupported = ArgumentError::Unsupported("8@d0".into());
    assert_eq!(places("8@x0 8@d0", 2), Err(unsupported));
}

fn named(name: &str) -> UsdtProbe {
    UsdtProbe {
        name: name.to_owned(),
        svma: Svma::new(0),
        semaphore: None,
        arguments: String::new(),
        distance: None,
    }
}

/// If there is a choice, each probe for allocations has its distance, and all have one name; otherwise the
/// distance is unknown.
#[test]
fn probes_of_several_distances() {
    let names = |names: &[&str]| -> Vec<_> {
        let probes = with_distances(names.iter().map(|name| named(name)).collect());
        probes
            .into_iter()
            .map(|probe| (probe.name, probe.distance))
            .collect()
    };
    let (allocation, free) = (ALLOCATION.to_owned(), FREE.to_owned());
    assert_eq!(
        names(&[ALLOCATION, FREE]),
        [(allocation.clone(), None), (free.clone(), None)]
    );
    assert_eq!(
        names(&[ALLOCATION, "otel_memory:alloc_64k", FREE, "otel_memory:alloc_4m"]),
        [
            (allocation.clone(), Some(512 << 10)),
            (allocation.clone(), Some(64 << 10)),
            (free, None),
            (allocation, Some(4 << 20)),
        ]
    );
}

/// The nearest distance is chosen by ratio; there is none for a wish far below all of them.
#[test]
fn nearest_distance() {
    let (small, middle, large) = (64 << 10, 512 << 10, 4 << 20);
    for (wanted, distance) in [
        (1, None),
        (4096, None),
        (32 << 10, Some(small)),
        (small, Some(small)),
        (181 << 10, Some(small)),
        (182 << 10, Some(middle)),
        (1 << 20, Some(middle)),
        (2 << 20, Some(large)),
        (1 << 40, Some(large)),
    ] {
        assert_eq!(distance_near(wanted), distance, "{wanted}");
    }
}
