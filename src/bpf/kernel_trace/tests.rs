//! Feeds made-up events to the programs one by one; the resulting table is exact. Needs root.

use leak_report::model::CallTrace;
use libbpf_rs::{ProgramInput, ProgramMut};

use super::*;
use crate::bpf::types::{stack_totals, sums};

const WORDS: usize = size_of::<stack_totals>() / size_of::<u64>();
/// Start of the page descriptors, each 64 bytes.
const PAGES: u64 = 0xffff_ea00_0000_0000;
const PAGE: u64 = 4096;

fn page(number: u64) -> u64 {
    PAGES + 64 * number
}

/// Layouts of Linux 6.1 and later, or of Linux 6.0.
fn events(is_new: bool) -> KernelEvents {
    let size = if is_new {
        SizeAt::Argument(2)
    } else {
        SizeAt::Argument(3)
    };
    KernelEvents {
        kmalloc: size,
        kmalloc_node: None,
        cache_alloc: if is_new { SizeAt::Cache } else { size },
        cache_alloc_node: None,
        percpu_has_caller: Some(is_new),
        bulk_alloc: None,
        bulk_free: None,
        sheaf_free: None,
        page_descriptor_bytes: 64,
    }
}

fn settings(is_new: bool, blocks: u32) -> KernelSettings {
    KernelSettings {
        events: events(is_new),
        percpu: true,
        stacks: 1 << 8,
        blocks,
        stack_limit: 127,
        sizes: None,
        sampling: Sampling::All,
        calls: CallTrace::Off,
        interrupt_entries: (0, 0),
    }
}

/// Runs `act` with programs that are loaded and not attached.
fn with_programs(settings: &KernelSettings, act: impl FnOnce(&KernelTrace<'_>)) {
    let mut storage = Storage::uninit();
    let loaded = KernelTrace::load_but(&mut storage, settings, &Exceptions::default());
    act(&loaded.expect("the kernel accepts it (as root)"));
}

fn run(program: &ProgramMut<'_>, arguments: &[u64]) {
    let mut context = [0; 10 * size_of::<u64>()];
    for (bytes, argument) in context.chunks_exact_mut(size_of::<u64>()).zip(arguments) {
        bytes.copy_from_slice(&argument.to_ne_bytes());
    }
    let input = ProgramInput {
        context_in: Some(&mut context),
        ..ProgramInput::default()
    };
    program.test_run(input).expect("the program runs");
}

/// Outstanding bytes and blocks of all stacks.
fn outstanding(trace: &KernelTrace<'_>) -> (u64, u64) {
    let words = trace.recorded.totals.words();
    let read = |word: &std::sync::atomic::AtomicU64| word.load(std::sync::atomic::Ordering::SeqCst);
    let freed_at = size_of::<sums>() / size_of::<u64>();
    words.chunks_exact(WORDS).fold((0, 0), |(bytes, blocks), record| {
        (
            bytes + read(&record[0]) - read(&record[freed_at]),
            blocks + read(&record[1]) - read(&record[freed_at + 1]),
        )
    })
}

fn counter(trace: &KernelTrace<'_>, counter: super::super::types::counter) -> u64 {
    use libbpf_rs::{MapCore, MapFlags};
    let values = trace
        .recorded
        .counters
        .lookup_percpu(&counter.0.to_ne_bytes(), MapFlags::ANY);
    let values = values.expect("readable").expect("there is one");
    let value = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |&bytes| u64::from_ne_bytes(bytes));
    values.iter().map(value).sum()
}

use super::super::types::counter as c;

/// With both layouts of the tracepoints, blocks have the requested size until they are freed; failed
/// allocations and the empty block leave nothing.
#[test]
fn slab_blocks_of_both_layouts_as_root() {
    for is_new in [true, false] {
        with_programs(&settings(is_new, 16), |trace| {
            let programs = &trace.skeleton.progs;
            let sized = |address, size| match is_new {
                true => vec![1, address, size, 64, 0, 0],
                false => vec![1, address, 7777, size, 64, 0],
            };
            run(&programs.kernel_kmalloc, &sized(0x1000, 40));
            run(&programs.kernel_kmalloc, &sized(0x2000, 50));
            run(&programs.kernel_kmalloc, &sized(0, 60));
            run(&programs.kernel_kmalloc, &sized(16, 0));
            assert_eq!(outstanding(trace), (90, 2), "{is_new}");
            assert_eq!(counter(trace, c::COUNTER_FAILED), 1);
            run(&programs.kernel_kfree, &[1, 0x1000]);
            run(&programs.kernel_kfree, &[1, 0]);
            assert_eq!(outstanding(trace), (50, 1), "{is_new}");
            assert_eq!(counter(trace, c::COUNTER_UNKNOWN_FREE), 0);
            run(&programs.kernel_cache_free, &[1, 0x2000, 0]);
            run(&programs.kernel_cache_free, &[1, 0x3000, 0]);
            assert_eq!(outstanding(trace), (0, 0), "{is_new}");
            assert_eq!(counter(trace, c::COUNTER_UNKNOWN_FREE), 1);
        });
    }
}

/// Addresses of different allocators are independent: the same number can be a block of each.
#[test]
fn addresses_of_different_allocators_are_different_as_root() {
    with_programs(&settings(true, 16), |trace| {
        let programs = &trace.skeleton.progs;
        let at = page(1024);
        run(&programs.kernel_kmalloc, &[1, at, 100, 128, 0, 0]);
        run(&programs.kernel_page_alloc, &[at, 0, 0, 0]);
        let percpu = [1, 0, 0, 8, 8, 0, 0, at, 16, 0];
        run(&programs.kernel_percpu_alloc, &percpu);
        assert_eq!(outstanding(trace), (100 + PAGE + 8, 3));
        run(&programs.kernel_percpu_free, &[0, 0, at]);
        assert_eq!(outstanding(trace), (100 + PAGE, 2));
        run(&programs.kernel_page_free, &[at, 0]);
        assert_eq!(outstanding(trace), (100, 1));
        run(&programs.kernel_kfree, &[1, at]);
        assert_eq!(outstanding(trace), (0, 0));
        assert_eq!(counter(trace, c::COUNTER_MISSED_FREE), 0);
    });
}

/// An address that is allocated again was freed unseen: the old block is closed and counted.
#[test]
fn missed_frees_are_corrected_as_root() {
    with_programs(&settings(true, 16), |trace| {
        let programs = &trace.skeleton.progs;
        run(&programs.kernel_kmalloc, &[1, 0x1000, 40, 64, 0, 0]);
        run(&programs.kernel_kmalloc, &[1, 0x1000, 50, 64, 0, 0]);
        assert_eq!(outstanding(trace), (50, 1));
        assert_eq!(counter(trace, c::COUNTER_MISSED_FREE), 1);
    });
}

/// Allocations that do not fit into the table are lost, and counted in blocks and bytes.
#[test]
fn full_tables_lose_new_blocks_as_root() {
    with_programs(&settings(true, 2), |trace| {
        let programs = &trace.skeleton.progs;
        for number in 1..=100 {
            run(&programs.kernel_kmalloc, &[1, number << 12, 10, 16, 0, 0]);
        }
        let (bytes, blocks) = outstanding(trace);
        let lost = counter(trace, c::COUNTER_LOST_BLOCK_TABLE);
        // The kernel gives a table some elements for each CPU beyond its capacity.
        assert!(blocks >= 2 && lost > 0, "{blocks} kept, {lost} lost");
        assert_eq!((bytes, blocks + lost), (10 * blocks, 100));
        assert_eq!(counter(trace, c::COUNTER_LOST_BLOCK_TABLE_BYTES), 10 * lost);
    });
}

/// A block of pages that was split is freed in pieces, in any order.
#[test]
fn pages_are_freed_in_pieces_as_root() {
    let first = 1 << 12;
    let pieces: [&[(u64, u64)]; 5] = [
        &[(0, 3)],
        &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)],
        &[(7, 0), (4, 1), (0, 2), (6, 0)],
        &[(5, 0), (0, 1), (4, 0), (6, 1), (2, 1)],
        &[(4, 2), (3, 0), (2, 0), (0, 1)],
    ];
    with_programs(&settings(true, 64), |trace| {
        let programs = &trace.skeleton.progs;
        for pieces in pieces {
            run(&programs.kernel_page_alloc, &[page(first), 3, 0, 0]);
            let mut left = 8 * PAGE;
            for &(number, order) in pieces {
                assert_eq!(outstanding(trace).0, left, "{pieces:?}");
                run(&programs.kernel_page_free, &[page(first + number), order]);
                left -= PAGE << order;
            }
            assert_eq!((outstanding(trace), left), ((0, 0), 0), "{pieces:?}");
        }
        assert_eq!(counter(trace, c::COUNTER_UNKNOWN_FREE), 0);
        run(&programs.kernel_page_free, &[page(first + 3), 0]);
        assert_eq!(counter(trace, c::COUNTER_UNKNOWN_FREE), 1);
        assert_eq!(counter(trace, c::COUNTER_MISSED_FREE), 0);
    });
}

/// Only allocations of the selected sizes are recorded.
#[test]
fn sizes_are_filtered_as_root() {
    let sizes = Some(SizeFilter { min: 20, max: 30 });
    let settings = KernelSettings {
        sizes,
        ..settings(true, 16)
    };
    with_programs(&settings, |trace| {
        let programs = &trace.skeleton.progs;
        for size in [19, 20, 30, 31] {
            run(&programs.kernel_kmalloc, &[1, size << 12, size, 64, 0, 0]);
        }
        assert_eq!(outstanding(trace), (50, 2));
        assert_eq!(counter(trace, c::COUNTER_FILTERED_BYTES), 50);
    });
}

/// The second program for an event does nothing while the first is not running.
#[test]
fn second_programs_wait_for_their_first_as_root() {
    with_programs(&settings(true, 16), |trace| {
        let programs = &trace.skeleton.progs;
        run(&programs.kernel_kmalloc_nested, &[1, 0x1000, 40, 64, 0, 0]);
        assert_eq!(outstanding(trace), (0, 0));
        assert_eq!(counter(trace, c::COUNTER_NESTED_ALLOCATION), 0);
    });
}
