//! The proof that an allocator call goes on while another function begins, compiled for the host, for both
//! architectures.

#![allow(unsafe_code, reason = "calls the C side through a shared object")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

use libloading::{Library, Symbol};
use memleak_test::compile::compile_for_host;
use memleak_test::host::HostMapping;
use unwind_tables::Architecture;

/// Code of the allocator and of a program that calls it, and the trampoline of return probes; each is a page.
const ALLOCATOR: u64 = 0x7000_0000_1000;
const PROGRAM: u64 = 0x7000_0000_5000;
const TRAMPOLINE: u64 = 0x7000_0000_9000;

/// Slot of the outer call's return address, and that address.
const SLOT: u64 = 0x7fff_0000_8000;
const RETURN: u64 = PROGRAM + 0x20;
/// Bits of a pointer authentication code.
const CODE: u64 = 0x2a << 48;

/// Values of `enum call_end`.
const BY_RETURN_PROBE: u32 = 0;
const BY_RET: u32 = 1;
const UNSEEN: u32 = 2;

/// `struct host_call` of tests/host_bpf/nesting.c.
#[repr(C)]
#[derive(Clone, Copy)]
struct Call {
    return_slot: u64,
    return_address: u64,
    probed_at: u64,
    module: u32,
    end: u32,
}

#[repr(C)]
struct Entry {
    sp: u64,
    link: u64,
    pc: u64,
    module: u32,
}

type Memory = BTreeMap<u64, u64>;
type Read = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64) -> i64;
type GoesOn =
    unsafe extern "C" fn(*const HostMapping, u32, u64, Read, *const Memory, *const Call, *const Entry) -> u32;

unsafe extern "C" fn read(context: *mut c_void, to: *mut c_void, bytes: u64, from: u64) -> i64 {
    // SAFETY: the context is the memory that `Host::goes_on` passes and keeps borrowed.
    let memory = unsafe { &*context.cast::<Memory>() };
    let words: Option<Vec<u64>> = (0..bytes / 8)
        .map(|word| memory.get(&(from + 8 * word)).copied())
        .collect();
    let Some(words) = words else {
        return -14;
    };
    // SAFETY: the C side passes a buffer of at least `bytes` bytes.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), to.cast(), words.len()) };
    0
}

/// An outer call of the allocator, whose end is seen only by its `ret`.
const OUTER: Call = Call {
    return_slot: SLOT,
    return_address: RETURN,
    probed_at: ALLOCATOR + 0x100,
    module: 1,
    end: BY_RET,
};

struct Host {
    architecture: Architecture,
    /// Shared object, which has the input of a call in global variables: one test at a time.
    library: Mutex<Library>,
}

/// A stack on which the outer call has gone on, and the function that begins.
#[derive(Clone)]
struct Case {
    call: Call,
    /// Place of the outer function's return address on AArch64, in bytes below the slot.
    saved_below: u64,
    /// Word at the place of the outer call's return address; `None` if other things are there.
    kept: Option<u64>,
    /// Word right below the slot, left by an earlier call.
    left_over: u64,
    /// Stack pointer of the function that begins, in bytes below the slot; the rest says where it was called
    /// from, its probed instruction and its module.
    below: u64,
    called_from: u64,
    probed_at: u64,
    module: u32,
}

/// `realloc` calls `malloc`.
const NESTED: Case = Case {
    call: OUTER,
    saved_below: 40,
    kept: Some(RETURN),
    left_over: 0,
    below: 96,
    called_from: ALLOCATOR + 0x180,
    probed_at: ALLOCATOR + 0x400,
    module: 1,
};

/// `realloc` jumps to `malloc`.
const JUMPED: Case = Case {
    below: 0,
    called_from: RETURN,
    ..NESTED
};

impl Host {
    /// Shared objects of both architectures, built once for all tests.
    fn all() -> &'static [Self; 2] {
        static HOSTS: LazyLock<[Host; 2]> = LazyLock::new(Host::build);
        &HOSTS
    }

    fn build() -> [Self; 2] {
        let targets = [
            (Architecture::X86_64, "-D__TARGET_ARCH_x86"),
            (Architecture::Aarch64, "-D__TARGET_ARCH_arm64"),
        ];
        targets.map(|(architecture, target)| {
            let flags = ["-Wno-unused-function", "-Wno-unused-parameter", target];
            let name = format!("host-nesting-{}", architecture.name());
            let object = compile_for_host("nesting.c", &name, &flags);
            // SAFETY: the object is the one just built; it has no initialisers.
            let library = unsafe { Library::new(&object) }.expect("the shared object loads");
            Self {
                architecture,
                library: Mutex::new(library),
            }
        })
    }

    fn goes_on(&self, case: &Case) -> bool {
        let mapping = |start: u64, kind| HostMapping {
            start,
            end: start.saturating_add(0x1000),
            bias: 0,
            image_at: 0,
            kind,
            trust: 0,
            unused: 0,
            checks: [[0; 2]; 2],
        };
        // Mappings with a table (0), and that of the trampoline (4), as in `enum mapping_kind`; the last one
        // is unused.
        let mappings = [
            mapping(ALLOCATOR, 0),
            mapping(PROGRAM, 0),
            mapping(TRAMPOLINE, 4),
            mapping(1 << 62, 0),
        ];
        // Stack memory on both sides of the slot; every word is its own address, and leads nowhere.
        let mut memory: Memory = (SLOT - 0x2000..SLOT + 0x100)
            .step_by(8)
            .map(|at| (at, at))
            .collect();
        memory.insert(SLOT - 8, case.left_over);
        let sp = SLOT.wrapping_sub(case.below);
        let mut link = 0;
        match self.architecture {
            Architecture::X86_64 => {
                memory.insert(sp, case.called_from);
                memory.insert(SLOT, case.kept.unwrap_or(case.called_from));
            }
            Architecture::Aarch64 => {
                memory.extend(case.kept.map(|kept| (SLOT - case.saved_below, kept | CODE)));
                link = if case.below == 0 {
                    case.kept.unwrap_or(case.called_from)
                } else {
                    case.called_from
                };
            }
        }
        let entry = Entry {
            sp,
            link,
            pc: case.probed_at,
            module: case.module,
        };
        let library = self.library.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the symbol has this type (tests/host_bpf/nesting.c), all that it is given outlives the
        // call, and no other call is made meanwhile.
        unsafe {
            let goes_on: Symbol<'_, GoesOn> = library.get(b"host_goes_on\0").expect("it is exported");
            goes_on(
                mappings.as_ptr(),
                4,
                TRAMPOLINE,
                read,
                &raw const memory,
                &raw const case.call,
                &raw const entry,
            ) != 0
        }
    }
}

/// Checks claims for both architectures.
fn check(cases: &[(&str, Case, bool)]) {
    for host in Host::all() {
        for (claim, case, expected) in cases {
            assert_eq!(
                host.goes_on(case),
                *expected,
                "{}: {claim}",
                host.architecture.name()
            );
        }
    }
}

fn ended_by(end: u32, case: Case) -> Case {
    Case {
        call: Call { end, ..case.call },
        ..case
    }
}

/// A call goes on if its return address is kept, and the new function is called by its own module or jumped
/// to.
#[test]
fn calls_go_on() {
    let replaced = Some(TRAMPOLINE);
    check(&[
        ("called by the same module", NESTED, true),
        (
            "called by the program",
            Case {
                called_from: PROGRAM + 0x80,
                ..NESTED
            },
            false,
        ),
        (
            "another one's frame is there",
            Case { kept: None, ..NESTED },
            false,
        ),
        (
            "a probe at entry and return that did not want it",
            Case {
                kept: replaced,
                ..NESTED
            },
            true,
        ),
        ("jumped to", JUMPED, true),
        (
            "jumped to from a function with a return probe",
            Case {
                kept: replaced,
                ..JUMPED
            },
            true,
        ),
        (
            "called once more from the same frame",
            Case {
                probed_at: OUTER.probed_at,
                ..JUMPED
            },
            false,
        ),
        (
            "another call from the same frame",
            Case {
                kept: Some(RETURN + 0x40),
                ..JUMPED
            },
            false,
        ),
        (
            "the frame of the outer call is left",
            Case {
                below: 16_u64.wrapping_neg(),
                ..NESTED
            },
            false,
        ),
    ]);
}

/// With a return probe, the return address is the trampoline until the return.
#[test]
fn calls_with_return_probes_go_on() {
    let replaced = |case: Case| {
        let mut case = ended_by(
            BY_RETURN_PROBE,
            Case {
                kept: Some(TRAMPOLINE),
                ..case
            },
        );
        // The return address of an earlier call.
        case.call.return_address = RETURN;
        case
    };
    check(&[
        ("nested", replaced(NESTED), true),
        (
            "nested by way of another module",
            replaced(Case {
                called_from: PROGRAM + 0x80,
                ..NESTED
            }),
            true,
        ),
        (
            "nested, an earlier call's return address being there",
            Case {
                left_over: RETURN,
                ..replaced(NESTED)
            },
            true,
        ),
        ("jumped to", replaced(JUMPED), true),
        (
            "no longer there",
            Case {
                kept: None,
                ..replaced(NESTED)
            },
            false,
        ),
        (
            "a return address that was not replaced",
            Case {
                kept: Some(RETURN),
                ..replaced(NESTED)
            },
            false,
        ),
    ]);
}

/// A function of the same module is never taken for called within a call whose end is not seen.
#[test]
fn unseen_calls() {
    check(&[
        (
            "another module's",
            Case {
                module: 2,
                ..ended_by(UNSEEN, NESTED)
            },
            true,
        ),
        ("its own", ended_by(UNSEEN, NESTED), false),
        (
            "another module's, called by a third",
            Case {
                module: 2,
                called_from: PROGRAM,
                ..ended_by(UNSEEN, NESTED)
            },
            false,
        ),
    ]);
}

/// On AArch64 the return address can be anywhere in the outer frame, up to a size; memory below the new frame
/// does not matter.
#[test]
fn frames_of_aarch64() {
    let [_, host] = Host::all();
    let at = |saved_below, below| {
        host.goes_on(&Case {
            saved_below,
            below,
            ..NESTED
        })
    };
    for below in [16, 32, 64, 128, 144, 240, 1024, 1040, 4096] {
        assert!(at(8, below), "{below}");
        assert!(at(below.min(1024), below), "{below}: the lowest word of it");
        assert!(!at(below + 8, below), "{below}: below it");
    }
    assert!(!at(1032, 2048), "farther than is looked");
}
