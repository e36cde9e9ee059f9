//! Reports with a value in every field.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Unwind};

use leak_report::model::leak::{Change, Order, Suspicion};
use leak_report::model::{
    AGE_BOUNDS, Ages, AllocatorMemory, AllocatorName, Amount, Beside, BlockList, CgroupRest, Compared,
    Elsewhere, Estimate, Fragmentation, Frame, FrameId, Gap, Governed, HeldBytes, Hidden, InlinedFrame,
    Inside, InstanceEnd, Judgement, KernelFacts, KindBytes, KindTotals, ListedBlock, Location, Losses,
    Measure, Measured, MemoryKind, MemoryLack, ModuleId, NamedBytes, NotMeasured, Overhead, Parts, Place,
    ProbeProgram, ProgramTime, Quantity, Reached, ReachedLimit, Reason, RegionKind, Report, Sampling, Spent,
    Spread, StackRecent, Symbol, Symbolized, TargetFacts, TextKind, TimeOfDay, Traps, Unheld, Unit, Unjudged,
    Weight,
};
use leak_report::samples;

const GAPS: [Gap; 8] = [
    Gap::NoModule,
    Gap::Unreadable,
    Gap::NoSymbols,
    Gap::NotInSymbol,
    Gap::TooLarge,
    Gap::Malformed,
    Gap::NoSplitFile,
    Gap::NoSupplementaryFile,
];

/// Names in these reports that an anonymized recording must not contain.
pub(super) const NAMES: [&str; 11] = [
    "secret::Order",
    "secret_pod",
    "LeakLib",
    "leaker",
    "libplugin",
    "libstdc++",
    "secret_worker",
    "very_own_alloc",
    "0a1b2c3d4e5f6071",
    "6.18.5-secret",
    "main",
];

fn estimate(seed: u64) -> Estimate {
    Estimate {
        amount: Amount {
            bytes: seed * 1000,
            blocks: seed,
        },
        spread: Spread {
            recorded: seed / 2,
            bytes: u128::from(seed) << 80,
            blocks: u128::MAX - u128::from(seed),
        },
    }
}

/// A report whose fields all differ from their defaults.
pub(super) fn rich() -> Report {
    let mut report = samples::judged();
    report.time = TimeOfDay {
        hour: 23,
        minute: 59,
        second: 60,
    };
    report.unwind = Unwind::Fp;
    report.top = usize::MAX;
    report.depth = Some(3);
    report.order = Some(Order::Count);
    report.peak = samples::peaked().peak;
    report.quantity = Quantity {
        measure: Measure::Growth,
        unit: Unit::Blocks,
    };
    report.read_at = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
    report.sampling = Sampling::Governed(4096);
    report.compared = Compared {
        older: Some(Duration::from_millis(u64::MAX)),
        first: true,
        since_last: Duration::from_nanos(1),
        since_baseline: Duration::from_secs(1 << 40),
        marked: Some(TimeOfDay::default()),
    };
    report.judgement = Some(Judgement {
        passes: u32::MAX,
        took: Duration::MAX,
        read: u64::MAX,
        stopped: Some(Duration::from_nanos(1)),
        unjudged: Unjudged::ALL.map(|reason| (reason, estimate(8).amount)).into(),
        freed_later: estimate(9).amount,
        unreadable: 1,
        hidden: [(Hidden::Pipes, 1)].into(),
        hidden_words: 3,
        inside: Inside::ALL.map(|form| (form, estimate(3).amount)).into(),
        unheld: [(Unheld::Time, 2)].into(),
    });
    report.reason = Some(Reason::Conditions(vec![Reached {
        condition: "growth>1MiB/min".to_owned(),
        value: Measured::BytesPerSecond(17_476.3),
        pid: None,
    }]));
    targets(&mut report);
    stacks(&mut report);
    report.losses = Losses {
        blocks: 1,
        bytes: 2,
        frees: 3,
        processes: 4,
        beginnings: 7,
        calls: 6,
        events: 5,
        causes: BTreeMap::from([
            ("block_table_full".into(), 1),
            ("of_a_later_version".into(), u64::MAX),
        ]),
    };
    report.overhead = Some(overhead());
    report.events.filtered = estimate(3).amount;
    report
}

fn targets(report: &mut Report) {
    let memory = Parts {
        rss: 1,
        tracked: 2,
        before_attach_at_most: 3,
        slack_at_least: 4,
        thread_stacks: 5,
        files: 6,
        shared: 7,
        unexplained: 8,
        not_resident: u64::MAX,
        growth_elsewhere: Some(Elsewhere {
            thread_stacks: 9,
            files: 10,
            shared: 11,
            unexplained: 12,
        }),
        kinds: MemoryKind::ALL.map(|kind| KindBytes { kind, bytes: 13 }).to_vec(),
        named_shared: vec![NamedBytes {
            name: "/memfd:frames".into(),
            bytes: 14,
        }],
        beside: Beside {
            swapped: 15,
            page_tables: 16,
            hugetlb: 17,
            sockets: 18,
            held_files: 19,
            allocator_zeros: 20,
            cgroup: Some(CgroupRest {
                page_cache: 21,
                slab: 22,
                sockets: 23,
            }),
        },
    };
    report.targets[0].memory = Some(memory);
    report.targets.push(TargetFacts {
        pid: u32::MAX,
        instance: 2,
        parent: Some(1),
        comm: "secret_worker\n".to_owned(),
        exe: Some("/opt/\u{fffd}".to_owned()),
        ended: Some(InstanceEnd::Execed),
        lack: Some(MemoryLack::Cgroup(ReachedLimit {
            cgroup: "/pods/secret_pod".to_owned(),
            limit: Some(1 << 30),
            peak: Some(u64::MAX),
            kills: None,
        })),
        memory: None,
        fragmentation: Some(Fragmentation::Unknown(NotMeasured::Ended)),
    });
    report.targets[0].fragmentation = Some(Fragmentation::Known(vec![AllocatorMemory {
        allocator: AllocatorName::Jemalloc,
        held: HeldBytes {
            held: u64::MAX,
            pinned: 1 << 40,
            ..HeldBytes::default()
        },
    }]));
}

fn stacks(report: &mut Report) {
    let mut ages = [Estimate::default(); AGE_BOUNDS.len() + 1];
    ages[2] = estimate(9);
    let first = &mut report.stacks[0];
    first.outstanding.spread = estimate(5).spread;
    first.allocated.spread = estimate(6).spread;
    first.lost = estimate(7).amount;
    first.peak = estimate(8).amount;
    first.pinned = Some(estimate(10));
    first.recent = StackRecent {
        young: Some(estimate(1)),
        ages: Some(Ages::of_classes(ages)),
        since_last: Change {
            allocated: estimate(2),
            freed: estimate(3),
        },
        since_baseline: Change {
            allocated: estimate(4),
            freed: Estimate::default(),
        },
        suspicion: Some(Suspicion {
            reports: 7,
            growth: -1.5,
            certainty: 0.25,
            steadiness: 1.0,
            kept: Some(0.0),
            age_spread: None,
        }),
    };
    first.blocks = Some(BlockList {
        listed: vec![
            ListedBlock {
                address: Avma::new(u64::MAX),
                size: 7,
                age: Duration::MAX,
                weight: Weight::of_blocks(1.5),
                class: Some(samples::text_of(TextKind::Class, "secret::Order")),
            };
            3
        ],
        left_out: u64::MAX,
    });
    let second = &mut report.stacks[1];
    second.blocks = Some(BlockList::default());
    second.instance = 2;
    second.ended = Some(InstanceEnd::Exited);
    second.kind = Some(RegionKind::Shared);
    second.allocator = samples::allocator("very_own_alloc");
    let code = Location {
        pc: Avma::new(u64::MAX),
        place: Some(Place {
            module: module("/opt/leaker"),
            svma: Svma::new(u64::MAX - 1),
        }),
    };
    samples::change_frames(report, 1, |frames| {
        frames.extend(GAPS.map(|gap| frame(code, None, Some(gap))));
        frames.push(frame(code, Some("no_offset"), None));
    });
}

fn module(path: &str) -> ModuleId {
    samples::module_of(&samples::plain_module(path, None))
}

fn frame(at: Location<ModuleId>, name: Option<&str>, gap: Option<Gap>) -> FrameId {
    let names = Symbolized {
        symbol: name.map(|name| Symbol {
            name: name.into(),
            offset: None,
        }),
        file: Some("".into()),
        line: Some(u32::MAX),
        inlined: vec![InlinedFrame {
            symbol: None,
            file: None,
            line: None,
        }],
        folded: vec!["another".into()],
        gap,
    };
    samples::frame_of(Frame {
        at,
        exact: true,
        found_by: FoundBy::Kernel,
        names: samples::names_of(&names),
    })
}

fn overhead() -> Overhead {
    let mut programs = [ProgramTime::default(); ProbeProgram::ALL.len()];
    for (program, number) in programs.iter_mut().zip([1.0, 0.1, 1e300, 0.0, 7.25]) {
        *program = ProgramTime {
            runs: number,
            nanoseconds: number / 3.0,
        };
    }
    Overhead {
        spent: Spent {
            seconds: 0.1,
            entries: 1.0 / 3.0,
            programs,
            traps: 1e-9,
            trap_nanoseconds: 12_345.678,
            unmeasured: 1.0,
        },
        lately: 0.7,
        traps: Traps {
            emulated: 500.5,
            stepped: Some(16_000.0),
            returning: 700.0,
            empty_program: 40.0,
        },
        measured: true,
        governed: Some(Governed {
            limit: 0.02,
            now: 4096,
            least: 1,
            most: u64::MAX,
            changes: 7,
            floor: Some(0.03),
        }),
    }
}

/// A report of kernel allocations.
pub(super) fn of_the_kernel() -> Report {
    let mut report = samples::full();
    let total = |allocator: &str, holds_others| KindTotals {
        allocator: allocator.to_owned().into(),
        outstanding: estimate(1).amount,
        allocated: estimate(2).amount,
        holds_others,
    };
    report.kernel = Some(KernelFacts {
        release: "6.18.5-secret".to_owned(),
        kinds: vec![total("kmalloc", false), total("slab_pages", true)],
    });
    report.sampling = Sampling::Calls(100);
    report.stacks[0].end = End::KernelUnwinder;
    report.stacks[0].allocator = samples::allocator("slab_pages");
    let place = Place {
        module: module("[kernel]"),
        svma: Svma::new(16),
    };
    samples::change_frames(&mut report, 0, |frames| {
        frames[0] = samples::changed(frames[0], |frame| frame.at.place = Some(place));
    });
    report
}

/// A report without content.
pub(super) fn empty() -> Report {
    let mut report = samples::full();
    report.targets.clear();
    report.stacks.clear();
    report.ends.clear();
    report.steps.clear();
    report.sampling = Sampling::Bytes(1);
    report
}

/// A report with `stacks` stacks. The more stacks, the more blocks are outstanding at the first ones.
pub(super) fn grown(stacks: u64) -> Report {
    let mut report = samples::full();
    let pattern = report.stacks[0].clone();
    report.elapsed = Duration::from_secs(stacks);
    report.stacks = (0..stacks)
        .map(|number| {
            let mut stack = pattern.clone();
            stack.outstanding = Amount {
                bytes: 100 * (stacks - number),
                blocks: stacks - number,
            }
            .into();
            let mut frames = samples::frames(&stack);
            let names = Symbolized {
                symbol: Some(Symbol {
                    name: format!("grows_{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into(),
                    offset: Some(number),
                }),
                ..Symbolized::default()
            };
            let renamed = samples::renamed(frames[1], &names);
            frames[1] = samples::changed(renamed, |frame| {
                if let Some(place) = &mut frame.at.place {
                    place.svma = Svma::new(0x1000 + number);
                }
            });
            samples::with_frames(stack, frames)
        })
        .collect();
    samples::renew(&mut report);
    report
}
