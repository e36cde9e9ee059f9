//! Holders of blocks in formats for people and in JSON.

use super::*;
use crate::model::{Amount, LookedAt, Root, RootKind, StepStacks, ThreadName, Unheld};
use crate::render::{chain_in_words, root_in_words};
use crate::samples::{held, renew, text_of};

/// Below its heading, a stack names the root that most of it is reachable from. Blocks that are reached
/// directly need no chain, and `-v` has all chains.
#[test]
fn text_of_holders() {
    let text = rendered(&held(), Format::Text);
    assert!(
        text.contains(concat!(
            "   8 blocks (320 B) definitely lost, 1 (40 B) indirectly lost, 2 still reachable from cache()::entries (leaker.cpp:7) ",
            "and others, 1 unknown\n   class app::Entry (12 blocks)\n"
        )),
        "{text}"
    );
    assert!(
        text.contains("\n   1 block (40 B) still reachable from .bss of libplugin.so+0x10\n    > "),
        "{text}"
    );
    let verbose = verbose(&held());
    let lines = [
        "   held by cache()::entries (leaker.cpp:7) (1 block)\n",
        "   held by the stack of thread 4243 (wor\\u{1b}ker) → ",
        " (several) (1 block)\n   retains at least 200 B in 5 blocks\n   class app::Entry (12 blocks)\n",
        "   held by .bss of libplugin.so+0x10 → …\n",
    ];
    for line in lines {
        assert!(verbose.contains(line), "no {line:?} in {verbose}");
    }
    assert!(rendered(&held(), Format::Summary).contains("still reachable from .bss of libplugin.so+0x10\n"));
}

/// Classes that were looked for without a verdict come with the number of blocks that were looked at.
#[test]
fn text_of_classes() {
    for (blocks, without, of, expected) in [
        (12, 0, 12, "   class app::Entry (12 blocks)\n"),
        (15, 3, 15, "   class app::Entry (12 blocks), 3 blocks without\n"),
        (
            15,
            3,
            5000,
            "   class app::Entry (12 blocks), 3 blocks without; 15 of 5000 blocks looked at\n",
        ),
        (0, 0, 7, "   classes unknown: too many blocks to examine\n"),
    ] {
        let mut report = held();
        let found = report.stacks[0].held.as_mut().unwrap();
        found.looked = Some(LookedAt { blocks, without, of });
        let text = rendered(&report, Format::Text);
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
}

/// The report says why holders are unknown.
#[test]
fn text_of_missing_holders() {
    let mut report = held();
    if let Some(judgement) = &mut report.judgement {
        judgement.unheld = [(Unheld::TooManyBlocks, 2)].into();
    }
    let text = rendered(&report, Format::Text);
    assert!(
        text.contains("  verdict: holders unknown in 2 processes: too many blocks\n"),
        "{text}"
    );
}

/// Each kind of root has words of its own, and names that the process chose are printable.
#[test]
fn roots_in_words() {
    let thread = |name: &str| -> Option<ThreadName> {
        Some(ThreadName {
            tid: 7,
            name: name.into(),
        })
    };
    let roots: [(Root, &str); 7] = [
        (Root::of(RootKind::Kernel), "the kernel (epoll, timers)"),
        (Root::of(RootKind::Untraced), "memory allocated before the trace"),
        (Root::of(RootKind::Mapped), "mapped memory"),
        (
            Root {
                object: Some("/dev/shm/\u{1b}x".into()),
                ..Root::of(RootKind::Mapped)
            },
            "mapped memory of \\u{1b}x",
        ),
        (
            Root {
                thread: thread(""),
                ..Root::of(RootKind::Registers)
            },
            "registers of thread 7",
        ),
        (
            Root {
                thread: thread("worker"),
                symbol: Some("t_buffers".into()),
                object: Some("/opt/app".into()),
                ..Root::of(RootKind::ThreadLocal)
            },
            "t_buffers [app] of thread 7 (worker)",
        ),
        (Root::of(RootKind::Data), "data"),
    ];
    for (root, expected) in roots {
        let mut report = held();
        let root = root.map(|kind, text| text_of(kind, text));
        renew(&mut report);
        assert_eq!(root_in_words(&root, &report), expected);
    }
}

/// A step whose stack the report does not have is named by its allocator.
#[test]
fn steps_without_a_stack() {
    let mut report = held();
    let holder = report.stacks[0].held.as_ref().map(|held| held.by[1].clone());
    report.stacks.remove(1);
    let words = chain_in_words(&holder.expect("made"), &report, &StepStacks::of(&report));
    assert_eq!(
        words,
        "the stack of thread 4243 (wor\\u{1b}ker) → malloc (several)"
    );
}

/// JSON has everything; steps have the numbers of their sites.
#[test]
fn json_of_holders() {
    let found: Value = serde_json::from_str(&rendered(&held(), Format::Json)).unwrap();
    let first = &found["stacks"][0]["held"];
    assert_eq!(
        first["by"][0],
        json!({
            "bytes": 40, "blocks": 1, "via": [], "cut": false,
            "root": {
                "kind": "data", "object": "/opt/leaker", "section": null, "symbol": "cache()::entries", "offset": 0,
                "file": "/src/leaker.cpp", "line": 7, "thread": null,
            },
        })
    );
    assert_eq!(
        first["by"][1]["root"]["thread"],
        json!({"tid": 4243, "name": "wor\u{1b}ker"})
    );
    assert_eq!(first["by"][1]["via"][0]["site"], found["stacks"][1]["site"]);
    assert_eq!(first["by"][1]["via"][0]["repeats"], true);
    assert_eq!(first["retained"], json!({"bytes": 200, "blocks": 5}));
    assert_eq!(
        first["classes"],
        json!([{"name": "app::Entry", "bytes": 480, "blocks": 12}])
    );
    let second = &found["stacks"][1]["held"];
    assert_eq!(
        (&second["retained"], &second["by"][0]["cut"]),
        (&Value::Null, &json!(true))
    );
    assert_eq!(
        second["others"],
        json!({"bytes": 0, "blocks": Amount::default().blocks})
    );
    assert!(found["stacks"][2].get("held").is_none());
}
