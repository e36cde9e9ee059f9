mod recorded;

use super::owner;
use crate::model::site_name::{SiteNamer, SiteNames};
use crate::model::{FrameId, InlinedFrame, Symbolized};
use crate::samples::{frame, inlined, names_of, report, stack};

/// A frame without names: `module+0x…`.
fn nameless(module: &str, address: &str) -> FrameId {
    crate::samples::renamed(frame(module, address), &Symbolized::default())
}

/// A frame with one function inlined from a header.
fn with_header(function: &str, inlined: &str, file: &str) -> FrameId {
    let inlined = InlinedFrame {
        symbol: Some(inlined.into()),
        file: Some(file.into()),
        line: Some(120),
    };
    let names = Symbolized {
        inlined: vec![inlined],
        ..crate::samples::full::named(function, 8)
    };
    crate::samples::changed(frame("app", function), |frame| frame.names = names_of(&names))
}

/// Asserts the responsible function of frames, innermost first. The site's first caller that counts as the
/// program's own must be the same function.
#[track_caller]
fn check(frames: Vec<FrameId>, expected: &str) {
    let report = report(vec![stack(frames)]);
    let stack = report.stack(&report.stacks[0]);
    let found = owner(stack).expect("a stack with frames");
    assert_eq!(found.function, expected);
    let mut names = SiteNames::default();
    let site = SiteNamer::new(&mut names).site(stack);
    let first = names.callers(&site).find(|&(_, is_own)| is_own);
    assert_eq!(first.map(|(name, _)| name), Some(expected));
}

/// Asserts that the responsible function is the nameless one of the frame at this index.
#[track_caller]
fn check_nameless(frames: Vec<FrameId>, at: usize) {
    let report = report(vec![stack(frames)]);
    let found = owner(report.stack(&report.stacks[0])).expect("a stack with frames");
    assert_eq!(found.at.0, at, "{}", found.function);
    assert!(found.function.contains("+0x"), "{}", found.function);
}

/// A global allocator of Rust, of a crate or of the program, is not the site; nor are the compiler's
/// functions around it.
#[test]
fn global_allocators_of_rust() {
    for allocator in [
        "<mimalloc::MiMalloc as core::alloc::global::GlobalAlloc>::alloc",
        "<app::Tracking<std::alloc::System> as core::alloc::global::GlobalAlloc>::alloc",
    ] {
        check(
            vec![
                inlined(
                    "app",
                    "<alloc::raw_vec::RawVecInner>::finish_grow",
                    &[allocator, "__rustc::__rust_alloc", "alloc::alloc::alloc"],
                ),
                frame("app", "app::leaky"),
                frame("app", "main"),
            ],
            "app::leaky",
        );
        check(
            vec![frame("app", allocator), frame("app", "app::Pool::alloc")],
            "app::Pool::alloc",
        );
    }
}

/// A class's `allocate` is not the site below the container that it serves, in another frame or inlined;
/// elsewhere it is.
#[test]
fn allocators_of_containers() {
    let allocate = "app::Arena<int>::allocate(unsigned long)";
    let traits = "std::allocator_traits<app::Arena<int> >::allocate(app::Arena<int>&, unsigned long)";
    let resize = "std::vector<int, app::Arena<int> >::resize(unsigned long)";
    check(
        vec![
            frame("app", allocate),
            inlined("app", "fill()", &[traits, resize]),
        ],
        "fill()",
    );
    check(
        vec![
            frame("app", allocate),
            frame("app", resize),
            frame("app", "fill()"),
        ],
        "fill()",
    );
    check(
        vec![inlined("app", "fill()", &[allocate, traits, resize])],
        "fill()",
    );
    check(
        vec![inlined("app", resize, &[allocate]), frame("app", "fill()")],
        "fill()",
    );
    check(vec![frame("app", allocate), frame("app", "fill()")], allocate);
    check(vec![inlined("app", "fill()", &[allocate])], allocate);
}

/// Functions of a C library's headers are not sites; those of a program's headers are.
#[test]
fn functions_of_headers() {
    let of_system = "/usr/include/x86_64-linux-gnu/bits/stdio.h";
    check(
        vec![with_header("read_config", "getline", of_system)],
        "read_config",
    );
    check(
        vec![with_header(
            "read_config",
            "getline",
            "/src/app/include/bits/stdio.h",
        )],
        "getline",
    );
}

/// Nameless frames below an allocation function of their module are not sites, however many there are.
#[test]
fn nameless_helpers() {
    let [one, two, other] = ["one", "two", "other"].map(|address| nameless("libsqlite3.so.0", address));
    let malloc = frame("libsqlite3.so.0", "sqlite3Malloc");
    let query = frame("app", "query");
    check(vec![one, malloc, query], "query");
    check(vec![one, two, malloc, query], "query");
    for stack in [
        vec![other, query],
        vec![other, nameless("libother.so.1", "two"), malloc, query],
        vec![other, frame("libother.so.1", "xmalloc"), query],
        vec![nameless("app", "one"), nameless("app", "two"), query],
    ] {
        check_nameless(stack, 0);
    }
}
