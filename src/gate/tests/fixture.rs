//! Parts of hand-made reports.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Unwind};

use crate::bpf::Sampling;
use crate::collect::{Amount, Events, Losses, OwnMemory, Spread};
use crate::leak::Completeness;
use crate::report::{
    Compared, Frame, Location, ModuleFacts, Quantity, Report, Stack, StackRecent, TargetFacts, TimeOfDay,
};
use crate::symbolize::{InlinedFrame, Symbol, Symbolized};

/// A report of 10 seconds of a process that runs.
pub(super) fn report(stacks: Vec<Stack>) -> Report {
    Report {
        time: TimeOfDay::default(),
        read_at: UNIX_EPOCH,
        elapsed: Duration::from_secs(10),
        unwind: Unwind::Dwarf,
        sampling: Sampling::All,
        top: 10,
        quantity: Quantity::default(),
        depth: None,
        compared: Compared::default(),
        targets: vec![target()],
        stacks,
        events: Events {
            allocations: 100,
            ..Events::default()
        },
        losses: Losses::default(),
        completeness: Completeness::default(),
        ends: Vec::new(),
        steps: Vec::new(),
        overhead: None,
        kernel: None,
        own: OwnMemory::default(),
    }
}

pub(super) fn target() -> TargetFacts {
    TargetFacts {
        pid: 4242,
        instance: 1,
        parent: None,
        comm: "leaker".to_owned(),
        exe: None,
        ended: None,
        memory: None,
    }
}

/// A stack of functions of one program, innermost first, that holds this much.
pub(super) fn stack(functions: &[&str], bytes: u64, blocks: u64) -> Stack {
    let outstanding = Amount { bytes, blocks };
    let frames = functions
        .iter()
        .map(|function| frame(function, None, "/bin/program", None));
    Stack {
        pid: 4242,
        instance: 1,
        ended: None,
        allocator: "malloc".into(),
        kind: None,
        outstanding,
        allocated: outstanding,
        recent: StackRecent::default(),
        lost: Amount::default(),
        outstanding_spread: Spread::default(),
        allocated_spread: Spread::default(),
        end: End::Complete,
        end_at: None,
        frames: frames.collect(),
        blocks: None,
        suppressed_by: None,
    }
}

/// A frame of a function, with one inlined into it; no name is an empty one.
pub(super) fn frame(function: &str, inlined: Option<&str>, module: &str, file: Option<&str>) -> Frame {
    let module = ModuleFacts {
        path: module.into(),
        build_id: None,
        code: Vec::new(),
        table: None,
    };
    let symbol = (!function.is_empty()).then(|| Symbol {
        name: function.to_owned(),
        offset: None,
    });
    let inlined = inlined.map(|inlined| InlinedFrame {
        symbol: Some(inlined.to_owned()),
        file: None,
        line: None,
    });
    Frame {
        at: Location {
            pc: Avma::new(0x1000),
            place: Some((Arc::new(module), Svma::new(0x1000))),
        },
        exact: false,
        found_by: FoundBy::Cfi,
        names: Arc::new(Symbolized {
            symbol,
            file: file.map(str::to_owned),
            inlined: inlined.into_iter().collect(),
            ..Symbolized::default()
        }),
    }
}
