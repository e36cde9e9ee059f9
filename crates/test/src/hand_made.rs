//! Reports made by hand, with contents that no trace produces on demand: hostile names, and more sites than
//! fit anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leak_report::model::leak::{Completeness, EndGroup, ModuleSteps};
use leak_report::model::{
    Amount, Events, FrameId, InlinedFrame, Location, ModuleId, Parts, Report, Stack, Suppression, Symbolized,
    TargetFacts,
};
use leak_report::samples::{self, full};
use unwind_tables::walk::{End, FoundBy};

/// A name that would act in a page or on a terminal if it were not escaped.
pub const HOSTILE: &str =
    "</script></style><img src=x onerror=\"window.pwned=1\"><b>&amp;\u{202e}cod.exe\u{1b}[2J";
/// [`HOSTILE`] as a page shows it.
pub const SHOWN: &str =
    "</script></style><img src=x onerror=\"window.pwned=1\"><b>&amp;\\u{202e}cod.exe\\u{1b}[2J";

pub fn module(path: &str) -> ModuleId {
    full::module(path, Some("0a1b2c"))
}

pub fn location(module: ModuleId, svma: u64) -> Location<ModuleId> {
    full::location(&module, svma)
}

pub fn frame(at: Location<ModuleId>, found_by: FoundBy, name: &str) -> FrameId {
    full::frame(at, found_by, full::named(name, 16))
}

pub fn stack(pid: u32, bytes: u64, blocks: u64, frames: Vec<FrameId>) -> Stack {
    Stack {
        pid,
        instance: pid,
        ..full::stack(Amount { bytes, blocks }, End::Complete, None, frames)
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
        lack: None,
        fragmentation: None,
        memory: None,
    }
}

pub fn report(targets: Vec<TargetFacts>, stacks: Vec<Stack>) -> Report {
    Report {
        elapsed: Duration::from_secs(12),
        targets,
        events: Events::default(),
        ..samples::report(stacks)
    }
}

/// Returns two reports of two processes, one of which has [`HOSTILE`] in all its names; one stack is not
/// complete, and blocks were lost.
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
        ..full::named(HOSTILE, 16)
    };
    let inlined = full::frame(location(evil, 0x1131), FoundBy::Cfi, names);
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
    let named = Stack {
        allocator: samples::allocator(HOSTILE),
        ..stack(18, 480, 12, vec![inlined, main])
    };
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
        ..Completeness::default()
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

/// Returns a report of `sites` sites with stacks of `depth` frames; the further out a frame, the more sites
/// share it.
pub fn many(sites: u64, depth: u64) -> Report {
    let modules: Vec<_> = (0..9).map(|at| module(&format!("/opt/lib{at}.so"))).collect();
    let stacks = (0..sites).map(|site| {
        let frames = (0..depth).map(|level| {
            // The innermost frame is the site's own; each level outwards has a third fewer functions.
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
