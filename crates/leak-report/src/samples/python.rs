//! Report of a Python program, with an extension in C.

use std::collections::BTreeMap;

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, FoundBy};

use super::full::{frame, location, module, named, stack};
use crate::model::leak::PythonStacks;
use crate::model::{Amount, Completeness, FrameId, Location, Report, Symbol, Symbolized};

/// Address of each code object, which no format may show as one of machine code.
pub const CODE: u64 = 0x7dea_dbee_f000;

/// Adds a frame of a Python function in `(file, line)`; `code` is the address of its code object.
pub fn function(code: u64, name: Option<&str>, place: Option<(&str, u32)>) -> FrameId {
    let names = Symbolized {
        symbol: name.map(|name| Symbol {
            name: name.into(),
            offset: None,
        }),
        file: place.map(|(file, _)| file.into()),
        line: place.map(|(_, line)| line),
        ..Symbolized::default()
    };
    let at = Location {
        pc: Avma::new(code),
        place: None,
    };
    let walked = frame(at, FoundBy::Python, names);
    super::changed(walked, |frame| frame.exact = true)
}

/// Report with three stacks: one that the interpreter allocates, one through an extension, and one whose walk
/// ended before it reached the interpreter, with a caller without a name.
pub fn python() -> Report {
    let interpreter = module("/usr/bin/python3.11", Some("3311"));
    let native = |svma, found_by, name| frame(location(&interpreter, svma), found_by, named(name, 8));
    let eval = |svma| native(svma, FoundBy::Cfi, "_PyEval_EvalFrameDefault");
    let nameless = frame(
        location(&interpreter, 0x5000),
        FoundBy::Cfi,
        Symbolized::default(),
    );
    let extension = module("/opt/app/_fast.so", None);
    let in_extension = |found_by| {
        frame(
            location(&extension, 0x1234),
            found_by,
            named("fast_index(char const*)", 4),
        )
    };
    let fetch_rows = || function(CODE, Some("fetch_rows"), Some(("/opt/app/db.py", 118)));
    let decode = function(
        CODE + 0x100,
        Some("decode"),
        Some(("/usr/lib/python3.11/json/decoder.py", 337)),
    );
    let main = function(CODE + 0x200, Some("<module>"), Some(("/opt/app/main.py", 3)));
    let outermost = [eval(0x9100), native(0x4000, FoundBy::Cfi, "Py_BytesMain")];
    let interpreted = [
        &[
            native(0x1000, FoundBy::Probe, "_PyBytes_Resize"),
            nameless,
            decode,
            eval(0x9000),
        ][..],
        &[fetch_rows(), main],
        &outermost,
    ]
    .concat();
    let extended = [&[in_extension(FoundBy::Probe), main][..], &outermost].concat();
    let cut = vec![
        in_extension(FoundBy::Probe),
        fetch_rows(),
        function(CODE + 0x300, None, None),
    ];
    let amount = |blocks| Amount {
        bytes: 64 * blocks,
        blocks,
    };
    let cut_at = Some(location(&extension, 0x1234));
    let mut report = super::report(vec![
        stack(amount(10), End::Complete, None, interpreted),
        stack(amount(6), End::Complete, None, extended),
        stack(amount(4), End::NoCfi, cut_at, cut),
    ]);
    report.completeness = Completeness {
        stacks: BTreeMap::from([(End::Complete, 2), (End::NoCfi, 1)]),
        allocations: BTreeMap::from([(End::Complete, 32), (End::NoCfi, 8)]),
        frames: BTreeMap::from([(FoundBy::Probe, 40), (FoundBy::Cfi, 104), (FoundBy::Python, 88)]),
        python: PythonStacks {
            whole: 32,
            in_part: 8,
            not_placed: 2,
            not_read: 1,
        },
        ..Completeness::default()
    };
    report
}
