//! Frames and stacks for tests that care about names only.

use std::sync::Arc;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy};

use crate::collect::Amount;
use crate::report::{Frame, Location, ModuleFacts, Stack, StackRecent};
use crate::symbolize::frame::{InlinedFrame, Symbol, Symbolized};

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
    Stack {
        pid: 4711,
        instance: 1,
        outstanding: Amount::default(),
        allocated: Amount::default(),
        recent: StackRecent::default(),
        end: End::Complete,
        end_at: None,
        frames,
        ..crate::report::sample().stacks[0].clone()
    }
}
