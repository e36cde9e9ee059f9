//! Frames, stacks and reports for tests, which change only the fields they test.
//!
//! Each thread has one dictionary, and each report gets a copy of its state at that time: after changing the
//! frames of a report's stacks, renew its copy ([`renew`]).

mod diagnosis;
pub mod full;
pub mod python;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Unwind};

use crate::model::leak::Completeness;
use crate::model::{
    Amount, Compared, Dictionary, Direction, Events, Frame, FrameId, InlinedFrame, Location, Losses, Module,
    ModuleId, NameStyle, NamesId, OwnMemory, Place, Quantity, Report, Sampling, Source, Stack, Symbol,
    Symbolized, TargetFacts, TextId, TextKind, TimeOfDay,
};

pub use diagnosis::{diagnosed, diagnosis};
pub use full::{full, held, judged, peaked, pinning};

thread_local! {
    static ENTRIES: RefCell<Dictionary> = RefCell::default();
}

fn entries<T>(use_them: impl FnOnce(&mut Dictionary) -> T) -> T {
    ENTRIES.with_borrow_mut(use_them)
}

/// Copy of the current dictionary of this thread.
pub fn dictionary() -> Arc<Dictionary> {
    entries(|entries| Arc::new(entries.clone()))
}

/// Replaces a report's dictionary by the current one.
pub fn renew(report: &mut Report) {
    report.dictionary = dictionary();
}

/// Adds the name of an allocator function.
pub fn allocator(name: &str) -> TextId {
    entries(|entries| entries.add_text(TextKind::Allocator, name))
}

/// Adds a text.
pub fn text_of(kind: TextKind, text: &str) -> TextId {
    entries(|entries| entries.add_text(kind, text))
}

/// Adds a module.
pub fn module_of(module: &Module) -> ModuleId {
    entries(|entries| entries.add_module(module))
}

/// Module without code segments and table.
pub fn plain_module(path: &str, build_id: Option<&str>) -> Module {
    Module {
        path: path.into(),
        build_id: build_id.map(Into::into),
        code: Vec::new(),
        table: None,
    }
}

/// Adds the names of a code address.
pub fn names_of(names: &Symbolized) -> NamesId {
    entries(|entries| entries.add_names(names))
}

/// Adds a frame.
pub fn frame_of(frame: Frame) -> FrameId {
    entries(|entries| entries.add_frame(frame))
}

/// Adds a changed copy of a frame.
pub fn changed(frame: FrameId, change: impl FnOnce(&mut Frame)) -> FrameId {
    let mut frame = entries(|entries| *entries.frame(frame));
    change(&mut frame);
    frame_of(frame)
}

/// Adds a copy of a frame with other names.
pub fn renamed(frame: FrameId, names: &Symbolized) -> FrameId {
    let names = names_of(names);
    changed(frame, |frame| frame.names = names)
}

/// Frames of a stack, innermost first.
pub fn frames(stack: &Stack) -> Vec<FrameId> {
    entries(|entries| entries.frames(stack.path).map(|frame| frame.id()).collect())
}

/// Replaces the frames of a stack.
pub fn with_frames(stack: Stack, frames: Vec<FrameId>) -> Stack {
    let path = entries(|entries| entries.add_stack(frames.into_iter()));
    Stack { path, ..stack }
}

/// Changes the frames of one of a report's stacks, and renews the report's dictionary.
pub fn change_frames(report: &mut Report, stack: usize, change: impl FnOnce(&mut Vec<FrameId>)) {
    let mut frames = frames(&report.stacks[stack]);
    change(&mut frames);
    report.stacks[stack] = with_frames(report.stacks[stack].clone(), frames);
    renew(report);
}

/// Frame of a function in a module, without inlined functions.
pub fn frame(module: &str, function: &str) -> FrameId {
    inlined(module, function, &[])
}

/// Frame of a function in a module, with functions inlined in it, innermost first.
pub fn inlined(module: &str, function: &str, inlined: &[&str]) -> FrameId {
    let module = plain_module(&format!("/usr/lib/{module}"), Some("0a1b2c3d4e5f6071"));
    // The address is a hash of the name, so that each name has its own.
    let svma = function
        .bytes()
        .fold(0x1000, |sum: u64, byte| (sum * 31 + u64::from(byte)) % (1 << 40));
    let inlined = inlined.iter().map(|&name| InlinedFrame {
        symbol: Some(name.into()),
        file: Some("/src/inlined.h".into()),
        line: Some(7),
    });
    let names = Symbolized {
        symbol: Some(Symbol {
            name: function.into(),
            offset: Some(0x1c),
        }),
        file: Some("/src/main.cpp".into()),
        line: Some(42),
        inlined: inlined.collect(),
        ..Symbolized::default()
    };
    frame_of(Frame {
        at: Location {
            pc: Avma::new(0x7f00_0000_0000 + svma),
            place: Some(Place {
                module: module_of(&module),
                svma: Svma::new(svma),
            }),
        },
        exact: false,
        found_by: FoundBy::Cfi,
        names: names_of(&names),
    })
}

/// Complete stack without outstanding blocks.
pub fn stack(frames: Vec<FrameId>) -> Stack {
    full::stack(Amount::default(), End::Complete, None, frames)
}

/// Report after twelve seconds of one process, without losses.
pub fn report(stacks: Vec<Stack>) -> Report {
    Report {
        time: TimeOfDay {
            hour: 9,
            minute: 5,
            second: 7,
        },
        read_at: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        elapsed: Duration::from_millis(12_345),
        reason: None,
        unwind: Unwind::Dwarf,
        source: Source::default(),
        sampling: Sampling::All,
        top: 10,
        names: NameStyle::default(),
        quantity: Quantity::default(),
        direction: Direction::default(),
        excerpts: None,
        depth: None,
        order: None,
        compared: Compared::default(),
        targets: vec![TargetFacts {
            pid: 4242,
            instance: 1,
            parent: None,
            ended: None,
            lack: None,
            fragmentation: None,
            memory: None,
            comm: "leaker".to_owned(),
            exe: Some("/opt/leaker".into()),
        }],
        dictionary: dictionary(),
        stacks,
        events: Events {
            allocations: 30,
            frees: 8,
            probe_hits: 39,
            ..Events::default()
        },
        losses: Losses::default(),
        missing: Vec::new(),
        completeness: Completeness::default(),
        ends: Vec::new(),
        steps: Vec::new(),
        overhead: None,
        judgement: None,
        diagnosis: None,
        peak: None,
        kernel: None,
        own: OwnMemory {
            resident_bytes: 45 << 20,
            peak_bytes: 64 << 20,
            kernel_bytes: 100 << 20,
        },
    }
}
