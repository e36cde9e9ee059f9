use std::path::Path;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};

use super::*;
use crate::allocator::FUNCTIONS;
use crate::allocator::probing::Unprobeable;
use crate::allocator::sites::Obstacle;
use memleak_process::Modules;

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// File names of mimalloc in Debian 12 and in Debian 13.
const MIMALLOC: [&str; 2] = ["libmimalloc.so.2", "libmimalloc.so.3"];

/// The mimalloc that is installed.
fn mimalloc() -> &'static str {
    let is_installed = |name: &&str| Path::new(LIBRARIES).join(name).exists();
    MIMALLOC.into_iter().find(is_installed).unwrap_or(MIMALLOC[0])
}

/// Runs discovery over one installed library.
fn installed(name: &str) -> (Modules, Discovery) {
    let path = Path::new(LIBRARIES).join(name);
    let mut modules = Modules::new();
    let added = modules.add_file(&path);
    added.unwrap_or_else(|why| panic!("{name}: {why}; tests/setup.sh test"));
    let discovery = discover(modules.iter(), &mut Catalog::default());
    (modules, discovery)
}

fn site_of<'a>(discovery: &'a Discovery, name: &str) -> &'a ProbeSite {
    let named =
        |site: &&ProbeSite| site.function.name == name || site.aliases.iter().any(|alias| alias == name);
    discovery
        .sites
        .iter()
        .find(named)
        .unwrap_or_else(|| panic!("no site for {name}"))
}

/// Each function of C is found in the C library and in each allocator, with the allocator's own, without
/// problems. `operator new` is probed where it does not lead to `malloc`.
#[test]
fn every_function_is_found() {
    let libc = || {
        let of_libc = FUNCTIONS
            .iter()
            .filter(|function| function.family == Family::Libc);
        of_libc.map(|function| &*function.name)
    };
    let version_dependent = ["cfree", "free_sized", "free_aligned_sized", "reallocf"];
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("libc.so.6", &["cfree"], &[]),
        (
            "libtcmalloc.so.4",
            &["reallocarray", "cfree"],
            &["_Znwm", "_ZdlPvm", "_ZnamSt11align_val_t", "tc_new"],
        ),
        (
            "libtcmalloc_minimal.so.4",
            &["reallocarray", "cfree"],
            &["_Znwm", "_ZdlPvm", "tc_deletearray_sized"],
        ),
        (
            "libjemalloc.so.2",
            &["reallocarray", "pvalloc", "cfree"],
            &[
                "_Znwm",
                "_ZdlPvm",
                "_ZdlPvmSt11align_val_t",
                "mallocx",
                "rallocx",
                "xallocx",
                "dallocx",
                "sdallocx",
            ],
        ),
        (
            mimalloc(),
            &[],
            &["mi_malloc", "mi_new", "mi_heap_malloc", "mi_new_aligned"],
        ),
    ];
    for (library, missing, more) in cases {
        let (_, discovery) = installed(library);
        assert_eq!(discovery.problems, [], "{library}");
        let expected = libc().filter(|name| !missing.contains(name) && !version_dependent.contains(name));
        for name in expected.chain(more.iter().copied()) {
            site_of(&discovery, name);
        }
        let throwing = discovery
            .sites
            .iter()
            .filter(|site| site.function.returns == Returns::OrThrows);
        assert!(throwing.clone().all(|site| site.rets.is_some()), "{library}");
    }
    let (_, libstdcxx) = installed("libstdc++.so.6");
    assert_eq!(libstdcxx.sites, [], "its operators call malloc and free");
}

/// Functions that allocate through another traced function of their library are distinguished from leaves.
#[test]
fn leaves() {
    let cases = [
        ("libc.so.6", "malloc", true),
        ("libc.so.6", "calloc", true),
        ("libc.so.6", "aligned_alloc", false),
        ("libc.so.6", "posix_memalign", false),
        ("libc.so.6", "realloc", false),
        ("libtcmalloc.so.4", "malloc", true),
        ("libjemalloc.so.2", "malloc", true),
        ("libjemalloc.so.2", "calloc", true),
        (mimalloc(), "malloc", true),
    ];
    for (library, name, leaf) in cases {
        let (_, discovery) = installed(library);
        assert_eq!(site_of(&discovery, name).leaf, leaf, "{library}: {name}");
    }
}

/// The sites of Debian 12's libraries are where the disassembly shows them. A later package may differ:
/// libraries with another build-id are skipped.
#[test]
fn known_sites() {
    let dear = |obstacle| (0, SiteCost::SingleStepped, SiteReason::ExpensiveEntry(obstacle));
    let cheap = |at| {
        (
            at,
            SiteCost::Emulated,
            if at == 0 {
                SiteReason::CheapEntry
            } else {
                SiteReason::Moved(at)
            },
        )
    };
    let cases = [
        ("libc.so.6", "malloc", cheap(0)),
        ("libc.so.6", "calloc", cheap(0)),
        ("libc.so.6", "realloc", cheap(0)),
        (
            "libc.so.6",
            "reallocarray",
            dear(Obstacle::ArgumentOverwritten(2)),
        ),
        ("libc.so.6", "posix_memalign", cheap(7)),
        ("libc.so.6", "aligned_alloc", cheap(7)),
        ("libc.so.6", "memalign", cheap(7)),
        ("libc.so.6", "valloc", cheap(7)),
        ("libc.so.6", "free", cheap(3)),
        ("libtcmalloc.so.4", "malloc", cheap(13)),
        ("libtcmalloc.so.4", "calloc", cheap(12)),
        ("libtcmalloc.so.4", "free", cheap(10)),
        ("libjemalloc.so.2", "malloc", cheap(7)),
        ("libjemalloc.so.2", "free", cheap(48)),
        (mimalloc(), "malloc", dear(Obstacle::ArgumentOverwritten(0))),
        (mimalloc(), "posix_memalign", cheap(0)),
        (mimalloc(), "free", cheap(6)),
    ];
    for (library, name, expected) in cases {
        let (modules, discovery) = installed(library);
        if !is_the_disassembled(&modules) {
            continue;
        }
        let site = site_of(&discovery, name);
        assert_eq!(
            (site.svma.offset_from(site.entry), site.cost, site.why),
            expected,
            "{library} {name}"
        );
    }
}

fn is_the_disassembled(modules: &Modules) -> bool {
    const BUILD_IDS: &[&str] = &[
        "93ac61ec5a8eb1396f9fbd350e3169a558528a40", // libc.so.6
        "560cd227169ae8f93cb59e3215f4ea11c299fa69", // libtcmalloc.so.4
        "1d5163c246dc9cd2b4d339f2ac42efd95c6e0ae1", // libjemalloc.so.2
        "d07f4e7dc9a039fcbe7747f416476bd65cb48e8b", // libmimalloc.so.2
    ];
    let module = modules.iter().next().expect("one module");
    module
        .build_id
        .as_ref()
        .is_some_and(|id| BUILD_IDS.contains(&id.to_string().as_str()))
}

/// Independently of the rules' code: at each chosen site of each installed allocator, a separate decoding of
/// the bytes before it finds straight code that writes neither what a probe reads nor what the unwinder
/// needs, and a probe there is cheap if it is classified so.
#[test]
fn chosen_sites_are_verified_by_another_decoder() {
    for library in ["libc.so.6", "libtcmalloc.so.4", "libjemalloc.so.2", mimalloc()] {
        let (modules, discovery) = installed(library);
        for site in &discovery.sites {
            let module = modules.get(site.module).expect("its module");
            check_site(module.bytes(), site);
        }
    }
}

fn check_site(elf: &[u8], site: &ProbeSite) {
    let length = usize::try_from(site.svma.offset_from(site.entry)).expect("fits");
    let site_at = usize::try_from(site.offset.get()).expect("fits");
    let prologue = &elf[site_at - length..site_at];
    let mut reads = vec![Register::RSP, Register::RBX, Register::RBP];
    reads.extend([Register::R12, Register::R13, Register::R14, Register::R15]);
    for argument in site.function.shape.arguments() {
        reads.push([Register::RDI, Register::RSI, Register::RDX, Register::RCX][usize::from(argument)]);
    }
    let mut facts = InstructionInfoFactory::new();
    for instruction in Decoder::new(64, prologue, DecoderOptions::NONE) {
        assert_eq!(instruction.flow_control(), FlowControl::Next, "{site:?}");
        for used in facts.info(&instruction).used_registers() {
            let kept = matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            assert!(
                kept || !reads.contains(&used.register().full_register()),
                "{instruction:?} in {site:?}"
            );
        }
    }
    let probed = Decoder::new(64, &elf[site_at..], DecoderOptions::NONE).decode();
    let cheap = is_push_of_register(&probed) || probed.is_jcc_short_or_near() || is_direct_transfer(&probed);
    assert_eq!(cheap, site.cost == SiteCost::Emulated, "{probed:?} in {site:?}");
    assert!(cheap || length == 0, "{site:?}");
}

fn is_push_of_register(instruction: &Instruction) -> bool {
    instruction.mnemonic() == iced_x86::Mnemonic::Push && instruction.op0_register() != Register::None
}

fn is_direct_transfer(instruction: &Instruction) -> bool {
    instruction.is_jmp_short_or_near() || instruction.is_call_near()
}

/// A process without an allocator gives exactly one problem.
#[test]
fn no_allocator() {
    let discovery = discover([], &mut Catalog::default());
    assert_eq!(discovery.sites, []);
    assert_eq!(
        discovery.problems,
        [Problem {
            module: None,
            reason: Reason::NoAllocator
        }]
    );
}

/// A problem names the file, the function and the reason in one line.
#[test]
fn problems_read_well() {
    let problem = |reason| {
        Problem {
            module: Some("/lib/x.so".into()),
            reason,
        }
        .to_string()
    };
    assert_eq!(
        problem(Reason::Indirect("malloc".into())),
        "/lib/x.so: `malloc` is an indirect function (STT_GNU_IFUNC), its resolver must not be probed: \
         give the function that it chooses with --alloc"
    );
    assert_eq!(
        problem(Reason::Unprobeable("free".into(), Unprobeable::Prefix(0xf0))),
        "/lib/x.so: `free` cannot be probed: the kernel rejects its prefix byte 0xf0; its allocations are \
         not seen"
    );
    assert_eq!(
        Problem {
            module: None,
            reason: Reason::NotFound("calloc".into())
        }
        .to_string(),
        "`calloc` not found"
    );
}
