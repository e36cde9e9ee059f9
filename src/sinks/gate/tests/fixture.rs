//! Parts of hand-made reports.

use std::time::Duration;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::FoundBy;

use leak_report::model::{
    Amount, Events, Frame, FrameId, InlinedFrame, Judgement, Location, Place, Report, Stack, Symbol,
    Symbolized, TargetFacts, Verdict,
};
use leak_report::samples;

/// A report after 10 seconds, of a running process.
pub(super) fn report(stacks: Vec<Stack>) -> Report {
    Report {
        elapsed: Duration::from_secs(10),
        events: Events {
            allocations: 100,
            ..Events::default()
        },
        ..samples::report(stacks)
    }
}

/// A report with a verdict. One site has 10 blocks, all young and definitely lost; another has 5 blocks, of
/// which 2 are definitely and 2 indirectly lost.
pub(super) fn judged() -> Report {
    let amount = |blocks| Amount {
        bytes: 40 * blocks,
        blocks,
    };
    let verdict = |definitely, indirectly, reachable| Verdict {
        definitely_lost: amount(definitely),
        indirectly_lost: amount(indirectly),
        reachable: amount(reachable),
        unknown: Amount::default(),
    };
    let mut grow = stack(&["grow", "main"], 400, 10);
    grow.recent.young = Some(grow.outstanding);
    grow.verdict = Some(verdict(10, 0, 0));
    let mut init = stack(&["init", "main"], 200, 5);
    init.verdict = Some(verdict(2, 2, 1));
    let mut report = report(vec![grow, init]);
    report.judgement = Some(Judgement::default());
    report
}

/// The process of [`report`].
pub(super) fn target() -> TargetFacts {
    report(Vec::new()).targets.remove(0)
}

/// A stack of functions of one program, innermost first, with these outstanding amounts.
pub(super) fn stack(functions: &[&str], bytes: u64, blocks: u64) -> Stack {
    let outstanding = Amount { bytes, blocks };
    let frames = functions
        .iter()
        .map(|function| frame(function, None, "/bin/program", None));
    Stack {
        outstanding: outstanding.into(),
        allocated: outstanding.into(),
        ..samples::stack(frames.collect())
    }
}

/// A frame of a function and one inlined into it; an empty `function` is one without a symbol.
pub(super) fn frame(function: &str, inlined: Option<&str>, module: &str, file: Option<&str>) -> FrameId {
    let names = Symbolized {
        symbol: (!function.is_empty()).then(|| Symbol {
            name: function.into(),
            offset: None,
        }),
        file: file.map(Into::into),
        inlined: inlined
            .into_iter()
            .map(|inlined| InlinedFrame {
                symbol: Some(inlined.into()),
                file: None,
                line: None,
            })
            .collect(),
        ..Symbolized::default()
    };
    samples::frame_of(Frame {
        at: Location {
            pc: Avma::new(0x1000),
            place: Some(Place {
                module: samples::module_of(&samples::plain_module(module, None)),
                svma: Svma::new(0x1000),
            }),
        },
        exact: false,
        found_by: FoundBy::Cfi,
        names: samples::names_of(&names),
    })
}

/// A stack of these frames with one outstanding block.
pub(super) fn framed(frames: Vec<FrameId>) -> Stack {
    samples::with_frames(stack(&[], 1, 1), frames)
}
