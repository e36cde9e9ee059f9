//! Frames, stacks and reports for tests that care about some of what is in them only.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Unwind};

use crate::model::leak::Completeness;
use crate::model::{
    Amount, Events, InlinedFrame, Losses, NameStyle, OwnMemory, Sampling, Symbol, Symbolized,
};
use crate::model::{Compared, Frame, Location, ModuleFacts, Quantity, Report, Stack, TargetFacts, TimeOfDay};

/// A frame of a function in a module.
pub(crate) fn frame(module: &str, function: &str) -> Frame {
    inlined(module, function, &[])
}

/// The same, with functions inlined in it, innermost first.
pub(crate) fn inlined(module: &str, function: &str, inlined: &[&str]) -> Frame {
    let model = crate::report::sample().stacks[0].frames[0].clone();
    let (known, _) = model.at.place.clone().expect("it is in a module");
    let module = ModuleFacts {
        path: format!("/usr/lib/{module}").into(),
        ..known.as_ref().clone()
    };
    // Each name has its own.
    let svma = function
        .bytes()
        .fold(0x1000, |sum: u64, byte| (sum * 31 + u64::from(byte)) % (1 << 40));
    let inlined = inlined.iter().map(|name| InlinedFrame {
        symbol: Some((*name).to_owned()),
        file: Some("/src/inlined.h".to_owned()),
        line: Some(7),
    });
    let names = Symbolized {
        symbol: Some(Symbol {
            name: function.to_owned(),
            offset: Some(0x1c),
        }),
        file: Some("/src/main.cpp".to_owned()),
        line: Some(42),
        inlined: inlined.collect(),
        ..Symbolized::default()
    };
    Frame {
        at: Location {
            pc: Avma::new(0x7f00_0000_0000 + svma),
            place: Some((Arc::new(module), Svma::new(svma))),
        },
        found_by: FoundBy::Cfi,
        names: Arc::new(names),
        ..model
    }
}

/// A complete stack that holds nothing.
pub(crate) fn stack(frames: Vec<Frame>) -> Stack {
    super::stack(Amount::default(), End::Complete, None, frames)
}

/// A report of twelve seconds of one process, from which nothing was lost.
pub(crate) fn report(stacks: Vec<Stack>) -> Report {
    Report {
        time: TimeOfDay {
            hour: 9,
            minute: 5,
            second: 7,
        },
        read_at: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        elapsed: Duration::from_millis(12_345),
        unwind: Unwind::Dwarf,
        sampling: Sampling::All,
        top: 10,
        names: NameStyle::default(),
        quantity: Quantity::default(),
        depth: None,
        order: None,
        compared: Compared::default(),
        targets: vec![TargetFacts {
            pid: 4242,
            instance: 1,
            parent: None,
            ended: None,
            memory: None,
            comm: "leaker".to_owned(),
            exe: Some("/opt/leaker".into()),
        }],
        stacks,
        events: Events {
            allocations: 30,
            frees: 8,
            probe_hits: 39,
            ..Events::default()
        },
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
