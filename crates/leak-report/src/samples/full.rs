//! Report with an example of everything.

use std::collections::BTreeMap;
use std::time::Duration;

use unwind_tables::addr::{Avma, FileOffset, Svma};
use unwind_tables::walk::{End, FoundBy};

use super::report;
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::{
    AllocatorMemory, AllocatorName, Amount, Class, CodeSegment, Completeness, Fragmentation, Frame, FrameId,
    Held, HeldBytes, Hidden, Holder, InlinedFrame, Inside, Judgement, LifeSpans, Location, Losses, Makeup,
    Module, ModuleId, Peak, Place, Report, Root, RootKind, SizeClass, Stack, StackRecent, Step, Symbol,
    Symbolized, TableFacts, TextKind, ThreadBlocks, ThreadName, Unjudged, Verdict,
};

/// Bias of the modules of [`location`].
const KNOWN: u64 = 0x7f00_0000_0000;

/// Adds a module without code segments.
pub fn module(path: &str, build_id: Option<&str>) -> ModuleId {
    super::module_of(&super::plain_module(path, build_id))
}

/// Location in a module.
pub fn location(module: &ModuleId, svma: u64) -> Location<ModuleId> {
    Location {
        pc: Avma::new(KNOWN + svma),
        place: Some(Place {
            module: *module,
            svma: Svma::new(svma),
        }),
    }
}

/// Symbol without source or inlined calls.
pub fn named(name: &str, offset: u64) -> Symbolized {
    Symbolized {
        symbol: Some(Symbol {
            name: name.into(),
            offset: Some(offset),
        }),
        ..Symbolized::default()
    }
}

/// Adds a frame.
pub fn frame(at: Location<ModuleId>, found_by: FoundBy, names: Symbolized) -> FrameId {
    super::frame_of(Frame {
        at,
        exact: false,
        found_by,
        names: super::names_of(&names),
    })
}

/// Stack that allocated twice its outstanding amount.
pub fn stack(
    outstanding: Amount,
    end: End,
    end_at: Option<Location<ModuleId>>,
    frames: Vec<FrameId>,
) -> Stack {
    let stack = Stack {
        pid: 4242,
        instance: 1,
        ended: None,
        allocator: super::allocator("malloc"),
        kind: None,
        outstanding: outstanding.into(),
        allocated: Amount {
            bytes: outstanding.bytes * 2,
            blocks: outstanding.blocks * 2,
        }
        .into(),
        peak: Amount::default(),
        recent: StackRecent::default(),
        verdict: None,
        pinned: None,
        held: None,
        lost: Amount::default(),
        finished_walks: 0,
        makeup: None,
        end,
        end_at,
        path: None,
        left_out: None,
        blocks: None,
        suppressed_by: None,
    };
    super::with_frames(stack, frames)
}

/// Makeup of 12 blocks with 480 bytes, of two sizes and two threads; as many were freed, one at once.
fn makeup() -> Makeup {
    let (one, others) = (
        Amount { bytes: 8, blocks: 1 },
        Amount {
            bytes: 472,
            blocks: 11,
        },
    );
    let class = |smallest, largest, amount| SizeClass {
        smallest,
        largest,
        amount,
    };
    let thread = |name: &str, amount| ThreadBlocks {
        name: Some(super::text_of(TextKind::Thread, name)),
        amount,
    };
    Makeup {
        sizes: vec![class(8, 8, one), class(40, 48, others)],
        threads: vec![thread("worker", others), thread("leaker", one)],
        freed: LifeSpans {
            temporary: 1,
            by_age: [0, 11, 0, 0, 0, 0, 0],
        },
    }
}

/// A complete stack through inlined code, one cut short in generated code, and one that freed everything.
fn stacks(libstdcxx: &ModuleId, leaker: &ModuleId, plugin: &ModuleId) -> Vec<Stack> {
    let inlined = Symbolized {
        file: Some("/src/leaker.cpp".into()),
        line: Some(30),
        inlined: vec![InlinedFrame {
            symbol: Some("LeakLib::slowMemoryLeak()".into()),
            file: Some("/src/leaklib.h".into()),
            line: Some(12),
        }],
        folded: vec!["main_of_tests".into()],
        ..named("main", 0x31)
    };
    let operator_new = frame(
        location(libstdcxx, 0xa_e98c),
        FoundBy::Probe,
        named("operator new(unsigned long)", 0x1c),
    );
    let complete = vec![
        operator_new,
        frame(location(leaker, 0x1131), FoundBy::Cfi, inlined),
    ];
    let jitted = Location {
        pc: Avma::new(0x7e00_0000_1000),
        place: None,
    };
    let cut = vec![
        frame(location(plugin, 0x1234), FoundBy::Probe, Symbolized::default()),
        frame(jitted, FoundBy::Fp, Symbolized::default()),
        frame(
            location(leaker, 0x1200),
            FoundBy::FpGenerated,
            named("evil\u{1b}[2J\n", 0x10),
        ),
    ];
    let cut_at = Some(location(plugin, 0x2000));
    let outstanding = Amount {
        bytes: 480,
        blocks: 12,
    };
    let first = Stack {
        makeup: Some(Box::new(makeup())),
        ..stack(outstanding, End::Complete, None, complete.clone())
    };
    vec![
        first,
        stack(Amount { bytes: 40, blocks: 1 }, End::NoCfi, cut_at, cut),
        stack(Amount::default(), End::Complete, None, complete),
    ]
}

/// Report with a complete stack through inlined code, a truncated one with a frame without names, one that
/// freed everything, and losses.
pub fn full() -> Report {
    let libstdcxx = module(
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
        Some("0a1b2c3d4e5f6071"),
    );
    let leaker = module("/opt/leaker", None);
    let plugin = super::module_of(&Module {
        path: "/opt/libplugin.so".into(),
        build_id: Some("77".into()),
        code: vec![CodeSegment {
            svma: Svma::new(0x1010)..Svma::new(0x1800),
            offset: FileOffset::new(0x10),
        }],
        table: Some(TableFacts {
            code_bytes: 1000,
            covered_bytes: 120,
            rows: 9,
            unsupported_rows: 1,
            table_bytes: 128,
        }),
    });
    let mut report = report(stacks(&libstdcxx, &leaker, &plugin));
    report.events.unknown_frees = 3;
    report.events.failed = 1;
    report.losses = Losses {
        frees: 0,
        processes: 0,
        beginnings: 0,
        events: 0,
        calls: 0,
        blocks: 9,
        bytes: 1_600_000,
        causes: BTreeMap::from([("block_table_full".into(), 9), ("stack_table_full".into(), 0)]),
    };
    report.completeness = Completeness {
        stacks: BTreeMap::from([(End::Complete, 2), (End::NoCfi, 1)]),
        allocations: BTreeMap::from([(End::Complete, 28), (End::NoCfi, 2)]),
        frames: BTreeMap::from([
            (FoundBy::Probe, 30),
            (FoundBy::Cfi, 28),
            (FoundBy::Fp, 2),
            (FoundBy::FpGenerated, 2),
        ]),
        ..Completeness::default()
    };
    report.ends = vec![EndGroup {
        module: Some(plugin),
        end: End::NoCfi,
        stacks: 1,
        allocations: 2,
        addresses: vec![0x2000, 0x2040, 0x2080],
    }];
    let steps = |module, cfi, fp| ModuleSteps { module, cfi, fp };
    report.steps = vec![
        steps(Some(libstdcxx), 28, 0),
        steps(None, 0, 1),
        steps(Some(plugin), 0, 3),
    ];
    report
}

/// [`judged`] with holders: the two reachable blocks of the first stack are held by a variable and, through
/// the second stack, by a thread's stack; the second stack's is held by data without a symbol.
pub fn held() -> Report {
    let mut report = judged();
    let amount = |blocks| Amount {
        bytes: 40 * blocks,
        blocks,
    };
    let text = |kind, text: &str| super::text_of(kind, text);
    let variable = Root {
        kind: RootKind::Data,
        object: Some("/opt/leaker".into()),
        symbol: Some("cache()::entries".into()),
        file: Some("/src/leaker.cpp".into()),
        line: Some(7),
        ..Root::of(RootKind::Data)
    };
    let on_stack = Root {
        thread: Some(ThreadName {
            tid: 4243,
            name: "wor\u{1b}ker".into(),
        }),
        ..Root::of(RootKind::Stack)
    };
    let section = Root {
        object: Some("/opt/libplugin.so".into()),
        section: Some(".bss".into()),
        offset: 16,
        ..Root::of(RootKind::Data)
    };
    let holder = |root: &Root, via| Holder {
        amount: amount(1),
        root: root.map(|kind, name| text(kind, name)),
        via,
        is_cut: false,
    };
    let second = &report.stacks[1];
    let step = Step {
        allocator: second.allocator,
        path: second.path,
        repeats: true,
    };
    report.stacks[0].held = Some(Box::new(Held {
        by: vec![holder(&variable, Vec::new()), holder(&on_stack, vec![step])],
        others: Amount::default(),
        retained: Some(amount(5)),
        classes: vec![Class {
            name: text(TextKind::Class, "app::Entry"),
            amount: amount(12),
        }],
        looked: None,
    }));
    report.stacks[1].held = Some(Box::new(Held {
        by: vec![Holder {
            is_cut: true,
            ..holder(&section, Vec::new())
        }],
        others: Amount::default(),
        retained: None,
        classes: Vec::new(),
        looked: None,
    }));
    super::renew(&mut report);
    report
}

/// [`full`] with a peak, of 12 blocks that are still there and one that was freed.
pub fn peaked() -> Report {
    let mut report = full();
    report.stacks[0].peak = report.stacks[0].outstanding.amount;
    report.stacks[2].peak = Amount {
        bytes: 520,
        blocks: 1,
    };
    report.peak = Some(Peak {
        elapsed: Duration::from_millis(7_500),
        total: Amount {
            bytes: 1000,
            blocks: 13,
        },
        never_above: 1011,
        looks: 1234,
    });
    report
}

/// [`full`] with a verdict: of the first stack's 12 blocks, 8 are definitely lost, 1 is indirectly lost, 2
/// are reachable and 1 is unknown; the second stack's only block is reachable.
pub fn judged() -> Report {
    let amount = |blocks| Amount {
        bytes: 40 * blocks,
        blocks,
    };
    let mut report = full();
    report.stacks[0].verdict = Some(Verdict {
        definitely_lost: amount(8),
        indirectly_lost: amount(1),
        reachable: amount(2),
        unknown: amount(1),
    });
    report.stacks[1].verdict = Some(Verdict {
        reachable: amount(1),
        ..Verdict::default()
    });
    report.stacks[2].verdict = Some(Verdict::default());
    report.judgement = Some(Judgement {
        passes: 5,
        took: Duration::from_millis(3_200),
        read: 3 << 30,
        stopped: None,
        unjudged: BTreeMap::from([(Unjudged::NotSettled, amount(1))]),
        freed_later: Amount::default(),
        unreadable: 0,
        hidden: BTreeMap::from([(Hidden::Pipes, 2)]),
        hidden_words: 9,
        inside: BTreeMap::from([(Inside::LengthPrefix, amount(1))]),
        unheld: BTreeMap::new(),
    });
    report
}

/// [`full`] with what blocks pin: all 12 blocks of the first stack pin 40 KiB; of 60 KiB that blocks pin, the
/// others are pinned by blocks of no stack.
pub fn pinning() -> Report {
    let mut report = full();
    for (stack, bytes) in report.stacks.iter_mut().zip([40 << 10, 0, 0]) {
        let blocks = if bytes > 0 {
            stack.outstanding.amount.blocks
        } else {
            0
        };
        stack.pinned = Some(Amount { bytes, blocks }.into());
    }
    let memory = AllocatorMemory {
        allocator: AllocatorName::Glibc,
        held: HeldBytes {
            held: 200 << 10,
            blocks: 90 << 10,
            cached: 10 << 10,
            own: 5 << 10,
            unknown: 0,
            between: 35 << 10,
            whole: 60 << 10,
            trimmable: 24 << 10,
            pinned: 61 << 10,
            pinned_by_own: 1 << 10,
        },
    };
    report.targets[0].fragmentation = Some(Fragmentation::Known(vec![memory]));
    report
}
