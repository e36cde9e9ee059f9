//! Leak tracing of running processes with complete, DWARF-unwound stacks, in the kernel.
//!
//! This page is the map of the program. `README.md` says how to use it, `bpf/README.md` how a stack is walked,
//! `CONTRIBUTING.md` how to change it; each module's page says what it does.
//!
//! # From start to end
//!
//! ```text
//!  cli ─► config ─► session ─ the only module that knows the order of things
//!                     │
//!   0  launch         COMMAND ─► a process held before its first constructor (not with -p)
//!   1  target         /proc/PID/maps ─► Mapping {Avma range, module, bias}; modules are opened files
//!   2  unwind_tables  ELF bytes ─► CFI rows ─► UnwindTable ─► Image, on all cores
//!   3  allocator      symbols ─► ProbeSite {module, FileOffset, function}, the cheapest instruction that will do
//!   4  bpf            load ─ store images ─ publish mappings ─ attach            ─────► kernel (bpf/)
//!   5  collect        events: "a walk met an unknown mapping" ─► back to 1       ◄─────   probes ─► walk ─►
//!                     instances that began or ended by fork, exec, exit          ◄─────   (bpf/lifecycle.bpf.h)
//!                     snapshots: stacks and totals, read in place                ◄─────   stacks, totals
//!                     ages: young blocks in place, the block table by buckets    ◄─────   blocks
//!   6  model::leak    snapshots ─► sites, what is young, what came and went, how suspicious (pure)
//!   7  symbolize      (module, Svma) ─► function, inlines, file:line
//!   8  report         Report ─► text | json | bcc | libbpf | folded | svg | pprof …                (one file per format)
//!      status         between reports, a line on the terminal that says how it goes
//!   9  output         to standard output, or into a file that is nobody's by accident
//!      export         to a store of profiles, and as metrics, besides
//!      recording      into a file of memleak's own, besides, and back: the very same Report
//!      compare        Report × Report ─► what grew; Report × … ─► how fast                  (pure)
//!      gate           Report × … ─► held | exceeded | not to be told ─► exit status, JUnit, annotations
//!      live           or on the terminal, to look around in
//! ```
//!
//! Modules import only those before them in this list: `model`, `units`, `pages`, `system`, `hosts`, `parallel`, `preflight`, `untrusted`,
//! `dynamic`, `launch`, `calls`, `target`, `memory`, `allocator`, `bpf`, `collect`, `overhead`, `regions`, `symbolize`,
//! `report`, `status`, `export`, `output`, `recording`, `compare`, `gate`, `config`, `session`, `live`, `doctor`, `inspect`,
//! `replay`, `cli`, `fuzzing`. `tests/tidy/main.rs` holds them to it. `doctor`, `inspect` and `replay` are the commands that do not
//! trace; `fuzzing` is for tests and fuzzers.
//!
//! # What happens at an allocation
//!
//! The probe at the allocator function's entry notes what was asked for in the thread's state; what the allocator
//! calls within is ignored, as long as the call is proved to go on (`bpf/nesting.bpf.h`). Whether the block is to be
//! recorded, and for how many it stands, is decided there (`bpf/sampling.bpf.h`): if it is not, its return is refused
//! where nothing else needs it. At the return, which is a return probe's or, of functions that can throw, one of the
//! function's `ret` instructions, the program in `bpf/calls.bpf.h` walks the stack, if the call succeeded, from the
//! caller's registers (`bpf/unwind.bpf.h`): for each frame it finds the mapping, the object's table, the row, and
//! computes the caller's registers. Nearly every rule is 31 bits; the rest are small programs
//! (`bpf/program.bpf.h`), and where one starts from a register other than rsp and rbp, the walk looks back through its
//! frames for the one that saved it (`bpf/registers.bpf.h`), by an image that is loaded when a walk first asks for it. A
//! return address that the kernel replaced for a return probe is put back (`bpf/return_probes.bpf.h`). The frames are
//! hashed; a new stack is stored once, with how each frame was found and why the walk ended (`bpf/stacks.bpf.h`). The
//! block is recorded, its bytes enter the stack's totals (`bpf/blocks.bpf.h`). A free takes both back. Most blocks are freed
//! soon: a new one is put in a place of its own among some thirty thousand (`bpf/young.bpf.h`), and moves to the block
//! table (`bpf/block_table.bpf.h`) when another needs that place; those of a thread whose blocks live long go there at once.
//!
//! Three short ways make a walk cheap and change nothing else. A cache leads from an address to its rule; as slot and
//! tag together name one address, a hit is exact. The stack is read in one piece, as long as it was when the thread was
//! last walked to its end (`bpf/window.bpf.h`), and frames whose rule is cached and plain are gone over several at a
//! time. And a walk leaves a trail, the slots of the stack that it depended on (`bpf/trail.bpf.h`): when the next one
//! begins with the same registers and finds the same in these slots, it is the same walk, and its record is known
//! (`bpf/memo.bpf.h`). A frame pointer that was restored but never used is in no trail: code without frame pointers keeps
//! anything in that register.
//!
//! With `--mmap` there are no probes: tracepoints tell user space of each mapping call, with its stack, in one queue
//! (`bpf/regions.bpf.h`), and [`regions`] keeps there what is mapped and by whom.
//!
//! # What it costs
//!
//! A thread of the session (`session/overhead.rs`) looks once a second, with a limit four times: it has the kernel keep its
//! statistics of programs for some milliseconds ([`bpf::Statistics`]), and reckons from that, from what traps take on this machine
//! ([`bpf::Calibration`]) and from the count of entries what was spent since ([`overhead::Account`]). With a limit, the
//! [`overhead::Governor`] answers with a distance between chosen bytes, which probes read at each allocation
//! ([`bpf::Distance`]): what was left of a thread's gap is drawn anew, and a block's weight is by the distance that it
//! was chosen by.
//!
//! # The kernel's own allocations
//!
//! Without a process there is nothing to prepare: `session/kernel_mode.rs` finds out by BTF what the allocators' tracepoints
//! look like ([`bpf::KernelEvents`]), loads the programs of `bpf/kernel_memory.bpf.h` instead of all others, and attaches
//! them. Tables of blocks, stacks and totals are the same; an address is of one of three spaces instead of an instance.
//! Stacks are the kernel's own word, cut where the allocator's caller begins ([`model::leak::kernel_frames`]) and named by
//! `/proc/kallsyms`.
//!
//! # Invariants
//!
//! * **No frame is invented.** Every stored frame lies in an executable mapping and was reached by CFI or by a
//!   frame pointer that leads to an address behind a call. What cannot be known ends the walk with one of
//!   [`End`](unwind_tables::walk::End)'s causes; only an undefined return address is "complete".
//! * **No stale table is used.** A walk uses one mapping list and one rule cache throughout; both are replaced
//!   whole, and reused only after every walk that could hold them has ended ([`bpf::Publisher`]). The list is as old
//!   as its last publication, so what can be unloaded is verified: before a walk uses anything of such a mapping, it
//!   compares the object's build-id with the process's memory, once per run of frames ([`unwind_tables::mapping`]).
//!   Exempt is what nothing unloads: the executable, its loader, and what they need. A mapping that fails, and
//!   anything that cannot be verified while the loader changes mappings, ends the walk with `table_not_loaded`.
//! * **What is one program's is never another's.** A process between two execs is an instance, with a number that is
//!   never used again; blocks, stacks, mapping lists and caches belong to instances. The kernel side ends one and
//!   begins the next while no code of either can run; a list is published for the instance of which it was read, or
//!   not at all ([`bpf::Processes`], `bpf/processes.bpf.h`). A child of fork uses its parent's list of that moment
//!   until it has its own.
//! * **One walk, two languages.** `bpf/unwind.bpf.h` does what [`unwind_tables::walk`] specifies;
//!   `tests/host/walk/mod.rs` and `tests/host/walk/recorded.rs` run both over the same tables and memory. That short ways
//!   change nothing is shown there too, and by `tests/stacks/short_ways.rs` on real programs, where each walk is done again
//!   in the same probe without them.
//!   `src/bpf/layout.rs` makes the compiler compare every constant that both know.
//! * **A report does not depend on how busy the target is.** Totals are read in place; blocks are read where they are put
//!   first and then where they move to, the block table, which is walked once, bucket by bucket, so that no block is seen
//!   twice, none that stays is skipped, and the walk has an end (`src/bpf/batch.rs`). What is shown as old was found to be;
//!   growth is reckoned by stack records, which never change their meaning, not by sites, which can merge ([`model::leak::growth`]).
//! * **Allocated − freed = outstanding**, per stack, in bytes and blocks; what could not be recorded is counted
//!   with its cause. Nothing is subtracted that was not added.
//! * **The target is only read.** Probes are the kernel's; nothing is loaded into the process, nothing of it is
//!   written, it is never stopped. (A program that memleak starts is held once, before its own code runs:
//!   [`launch`].) No return probe is placed on a function that can throw.
//! * **Nothing is sent anywhere**, but for who asks for it: build-ids to servers of debug files
//!   ([`symbolize::debuginfod`]), reports to a store of profiles, and metrics to who may read them ([`export`]).
//! * **Files and `/proc` are not trusted.** Parsing never panics and is bounded in time and memory. What a target names is
//!   opened in one place, `target::foreign`. All threats, each with what holds it off and its test: [`threats`].
//!
//! Deliberately absent: `perf_event` stack dumps (they truncate), the kernel's stack map (it loses colliding
//! stacks), polling for mapping changes, and any knowledge of BPF types outside [`bpf`] and [`collect`].
//!
//! # How changes of the mappings are known
//!
//! By the loader's own hook for debuggers, `_dl_debug_state`, which glibc and musl call before and after they map
//! or unmap objects. Its probe runs in the thread that calls `dlopen` or `dlclose`, so that a change is announced
//! before any code of it can run, and before any is gone; user space, woken at once, publishes the new list one to
//! three milliseconds later on an idle machine. The kernel's own records of `mmap` (perf events) come too late for
//! that, after the fact and through a buffer per CPU, and there is none for `munmap`. What the hook does not see is
//! code mapped by other means: a JIT's, a static program's, an object's mapped by hand. A walk that meets an address
//! in no known mapping asks for a reading too, and verification needs no event at all.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | AVMA, SVMA, file offset | address in the process, in the ELF file's own space, in the file's bytes |
//! | bias | AVMA − SVMA of a mapping |
//! | CFI, FDE, CFA | call frame information, one function's part of it, the caller's stack pointer |
//! | row, rule | an address and what holds from there on; how to get from a frame to its caller |
//! | gap | code that no CFI covers; not the end of a stack |
//! | block | what an allocation returned; outstanding until it is freed |
//! | instance | what runs in a process between two execs |
//! | epoch | time in which an address means at most one thing |
//! | site | one allocator function called by one stack of code |

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

#[doc = include_str!("THREATS.md")]
pub mod threats {}

pub mod allocator;
pub mod bpf;
pub mod calls;
pub mod cli;
pub mod collect;
pub mod compare;
pub mod config;
pub mod doctor;
mod dynamic;
pub mod export;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gate;
mod hosts;
pub mod inspect;
pub mod launch;
pub mod live;
pub mod memory;
pub mod model;
pub mod output;
pub mod overhead;
mod pages;
pub mod parallel;
pub mod preflight;
pub mod recording;
pub mod regions;
pub mod replay;
pub mod report;
pub mod session;
pub mod status;
pub mod symbolize;
mod system;
pub mod target;
pub mod units;
mod untrusted;
