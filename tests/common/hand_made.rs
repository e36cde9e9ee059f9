//! Reports that no trace makes on demand: hostile names, and more sites than fit anywhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leak_report::model::leak::{Completeness, EndGroup, ModuleSteps};
use leak_report::model::{
    Amount, Compared, Dictionary, Events, Frame, FrameId, InlinedFrame, Location, Losses, Module, ModuleId,
    NameStyle, OwnMemory, Parts, Place, Quantity, Report, Sampling, Stack, StackRecent, Suppression, Symbol,
    Symbolized, TargetFacts, TextKind, TimeOfDay,
};
use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Unwind};

/// A name that tries everything.
pub const HOSTILE: &str =
    "</script></style><img src=x onerror=\"window.pwned=1\"><b>&amp;\u{202e}cod.exe\u{1b}[2J";
/// What is to be seen of it.
pub const SHOWN: &str =
    "</script></style><img src=x onerror=\"window.pwned=1\"><b>&amp;\\u{202e}cod.exe\\u{1b}[2J";

thread_local! {
    /// Everything that stacks of this thread refer to; each report gets a copy.
    static ENTRIES: RefCell<Dictionary> = RefCell::default();
}

pub fn module(path: &str) -> ModuleId {
    let module = Module {
        path: path.into(),
        build_id: Some("0a1b2c".into()),
        code: Vec::new(),
        table: None,
    };
    ENTRIES.with_borrow_mut(|entries| entries.add_module(&module))
}

pub fn location(module: ModuleId, svma: u64) -> Location<ModuleId> {
    Location {
        pc: Avma::new(0x7f00_0000_0000 + svma),
        place: Some(Place {
            module,
            svma: Svma::new(svma),
        }),
    }
}

fn named(name: &str) -> Symbolized {
    Symbolized {
        symbol: Some(Symbol {
            name: name.into(),
            offset: Some(16),
        }),
        ..Symbolized::default()
    }
}

pub fn frame(at: Location<ModuleId>, found_by: FoundBy, name: &str) -> FrameId {
    frame_with(at, found_by, &named(name))
}

fn frame_with(at: Location<ModuleId>, found_by: FoundBy, names: &Symbolized) -> FrameId {
    ENTRIES.with_borrow_mut(|entries| {
        let names = entries.add_names(names);
        entries.add_frame(Frame {
            at,
            exact: false,
            found_by,
            names,
        })
    })
}

pub fn stack(pid: u32, bytes: u64, blocks: u64, frames: Vec<FrameId>) -> Stack {
    stack_of("malloc", pid, Amount { bytes, blocks }, frames)
}

fn stack_of(allocator: &str, pid: u32, outstanding: Amount, frames: Vec<FrameId>) -> Stack {
    let add = |entries: &mut Dictionary| {
        let allocator = entries.add_text(TextKind::Allocator, allocator);
        (allocator, entries.add_stack(frames.into_iter()))
    };
    let (allocator, path) = ENTRIES.with_borrow_mut(add);
    Stack {
        pid,
        instance: pid,
        ended: None,
        allocator,
        kind: None,
        outstanding: outstanding.into(),
        allocated: (outstanding + outstanding).into(),
        recent: StackRecent::default(),
        lost: Amount::default(),
        end: End::Complete,
        end_at: None,
        path,
        blocks: None,
        suppressed_by: None,
    }
}

pub fn target(pid: u32, comm: &str) -> TargetFacts {
    TargetFacts {
        pid,
        instance: pid,
        parent: None,
        comm: comm.to_owned(),
        exe: Some(format!("/opt/{comm}")),
        ended: None,
        memory: None,
    }
}

pub fn report(targets: Vec<TargetFacts>, stacks: Vec<Stack>) -> Report {
    Report {
        time: TimeOfDay {
            hour: 9,
            minute: 5,
            second: 7,
        },
        read_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        elapsed: Duration::from_secs(12),
        unwind: Unwind::Dwarf,
        top: 10,
        names: NameStyle::default(),
        quantity: Quantity::default(),
        depth: None,
        order: None,
        targets,
        compared: Compared::default(),
        dictionary: ENTRIES.with_borrow(|entries| Arc::new(entries.clone())),
        stacks,
        sampling: Sampling::All,
        events: Events::default(),
        losses: Losses::default(),
        completeness: Completeness::default(),
        ends: Vec::new(),
        steps: Vec::new(),
        overhead: None,
        kernel: None,
        own: OwnMemory {
            resident_bytes: 45 << 20,
            peak_bytes: 64 << 20,
            kernel_bytes: 100 << 20,
        },
    }
}

/// Two reports of two processes, one of which calls everything that it has by [`HOSTILE`]; one stack is not complete, and
/// blocks were lost.
pub fn hostile() -> [Report; 2] {
    let evil = module(&format!("/tmp/{HOSTILE}.so"));
    let (worker, plugin) = (module("/opt/worker"), module("/opt/plugin.so"));
    let names = Symbolized {
        file: Some(HOSTILE.into()),
        line: Some(30),
        inlined: vec![InlinedFrame {
            symbol: Some(format!("inlined {HOSTILE}").into()),
            file: Some(HOSTILE.into()),
            line: Some(12),
        }],
        ..named(HOSTILE)
    };
    let inlined = frame_with(location(evil, 0x1131), FoundBy::Cfi, &names);
    let main = frame(location(worker, 0x1200), FoundBy::Cfi, "main");
    let mut cut = stack(
        17,
        40,
        1,
        vec![
            frame(location(plugin, 0x1234), FoundBy::Probe, "plugin_load"),
            frame(location(worker, 0x1300), FoundBy::Fp, "by_frame_pointer"),
        ],
    );
    (cut.end, cut.end_at) = (End::NoCfi, Some(location(plugin, 0x2000)));
    let held = Amount {
        bytes: 480,
        blocks: 12,
    };
    let named = stack_of(HOSTILE, 18, held, vec![inlined, main]);
    let mut known = stack(18, 100, 1, vec![main]);
    known.suppressed_by = Some(Arc::new(Suppression {
        rule: "leak:main".to_owned(),
        place: "known.supp:3".to_owned(),
    }));
    let stacks = vec![named, cut, known];
    let mut report = report(vec![target(17, HOSTILE), target(18, "worker")], stacks);
    report.targets[1].memory = Some(Parts {
        rss: 3 << 20,
        tracked: 2 << 20,
        files: 1 << 20,
        not_resident: 1 << 30,
        ..Parts::default()
    });
    report.events = Events {
        allocations: 30,
        frees: 8,
        probe_hits: 39,
        unknown_frees: 3,
        ..Events::default()
    };
    report.losses.blocks = 9;
    report.losses.bytes = 1_600_000;
    report.losses.causes = BTreeMap::from([("block_table_full".into(), 9)]);
    report.completeness = Completeness {
        stacks: BTreeMap::from([(End::Complete, 2), (End::NoCfi, 1)]),
        allocations: BTreeMap::from([(End::Complete, 28), (End::NoCfi, 2)]),
        frames: BTreeMap::from([(FoundBy::Probe, 30), (FoundBy::Cfi, 28), (FoundBy::Fp, 4)]),
    };
    report.ends = vec![EndGroup {
        module: Some(plugin),
        end: End::NoCfi,
        stacks: 1,
        allocations: 2,
        addresses: vec![0x2000, 0x2040],
    }];
    let steps = |module, cfi, fp| ModuleSteps { module, cfi, fp };
    report.steps = vec![steps(Some(evil), 28, 0), steps(Some(plugin), 0, 4)];
    let mut earlier = report.clone();
    earlier.elapsed = Duration::from_secs(6);
    earlier.stacks.truncate(1);
    [earlier, report]
}

/// A report of so many sites, each as deep; callers are shared by more and more of them.
pub fn many(sites: u64, depth: u64) -> Report {
    let modules: Vec<_> = (0..9).map(|at| module(&format!("/opt/lib{at}.so"))).collect();
    let stacks = (0..sites).map(|site| {
        let frames = (0..depth).map(|level| {
            // The innermost is the site's own; each level outwards has a third fewer.
            let place = site * 2_u64.pow(u32::try_from(level).unwrap_or(0))
                / 3_u64.pow(u32::try_from(level).unwrap_or(0));
            let at = (level << 20) + place * 16;
            let name = format!("ns{level}::Class<int, {place}>::method(char const*, unsigned long)");
            let module = &modules[usize::try_from((level + place) % 9).unwrap_or(0)];
            frame(location(*module, at), FoundBy::Cfi, &name)
        });
        stack(17, 1_000_000 / (site + 1) + 64, 1 + site % 7, frames.collect())
    });
    report(vec![target(17, "server")], stacks.collect())
}
