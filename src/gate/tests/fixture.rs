//! Parts of hand-made reports.

use std::sync::Arc;
use std::time::Duration;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::FoundBy;

use crate::model::{Amount, Events, InlinedFrame, Symbol, Symbolized};
use crate::model::{Frame, Location, ModuleFacts, Report, Stack, TargetFacts};
use crate::report::made;

/// A report of 10 seconds of a process that runs.
pub(super) fn report(stacks: Vec<Stack>) -> Report {
    Report {
        elapsed: Duration::from_secs(10),
        events: Events {
            allocations: 100,
            ..Events::default()
        },
        ..made::report(stacks)
    }
}

/// The process of such a report.
pub(super) fn target() -> TargetFacts {
    report(Vec::new()).targets.remove(0)
}

/// A stack of functions of one program, innermost first, that holds this much.
pub(super) fn stack(functions: &[&str], bytes: u64, blocks: u64) -> Stack {
    let outstanding = Amount { bytes, blocks };
    let frames = functions
        .iter()
        .map(|function| frame(function, None, "/bin/program", None));
    Stack {
        outstanding: outstanding.into(),
        allocated: outstanding.into(),
        ..made::stack(frames.collect())
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
