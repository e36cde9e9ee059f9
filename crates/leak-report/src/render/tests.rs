//! Golden outputs of hand-made reports, in each format.

mod bounded;
mod diagnosis;
mod dialects;
mod flame;
mod gperftools;
mod holders;
mod hostile;
mod left_out;
mod missing;
mod names;
mod peak;
mod people;
mod pinned;
mod python;
mod recent;
mod schema;
mod speedscope;
mod summary;
mod suppressed;
mod verdict;

use std::io::Read;

use flate2::read::GzDecoder;
use unwind_tables::walk::End;
use unwind_tables::walk::Unwind;

use serde_json::{Value, json};

use super::*;
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::{Estimate, Events, InlinedFrame, ModuleId, Place, Sampling, Symbolized};
pub(super) use crate::samples::full::{frame, full, location, module, named, stack};
pub(super) use crate::samples::report;

/// The verbose text report.
fn verbose(report: &Report) -> String {
    let mut out = Vec::new();
    let screen = Screen {
        is_verbose: true,
        ..Screen::default()
    };
    People::new(screen).write(report, true, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The report as text; the one compressed text format is decompressed.
fn rendered(report: &Report, format: Format) -> String {
    let mut out = Vec::new();
    render(report, format, &mut out).unwrap();
    if format == Format::Heaptrack {
        let mut text = String::new();
        GzDecoder::new(&out[..]).read_to_string(&mut text).unwrap();
        return text;
    }
    String::from_utf8(out).unwrap()
}

/// The table, the stacks and the closing block are as expected, largest site first.
#[test]
fn text_of_a_full_report() {
    insta::assert_snapshot!(rendered(&full(), Format::Text), @r"
[09:05:07] leaker (4242), 12.3 s: 520 B outstanding in 13 blocks at 2 sites
    ID SUSP       HELD BLOCKS        GROWTH FREED    AGE   SITE
 1e698    -      480 B     12             0 50.0%      ?   LeakLib::slowMemoryLeak leaklib.h:12
 b60ee    -       40 B      1             0 50.0%      ? ! libplugin.so+0x1234

1e698 LeakLib::slowMemoryLeak(): 480 B in 12 blocks, 92.3% of all, via malloc
   sizes: 8 B (8.3%), 40 B to 48 B (91.6%), by threads worker (98.3%), leaker (1.6%)
   12 blocks freed: 8.3% before the thread's next allocation, 91.6% within 1 s
      operator new(unsigned long)+0x1c [libstdc++.so.6.0.30]
    > LeakLib::slowMemoryLeak() (inlined) [leaker] …/leaklib.h:12
      main (or 1 other) [leaker] …/leaker.cpp:30
      end: complete

b60ee libplugin.so+0x1234: 40 B in 1 block, 7.6% of all, via malloc
    > libplugin.so+0x1234 [libplugin.so]
      [unknown] (by frame pointer)
      evil\u{1b}[2J\n+0x10 [leaker] (by frame pointer of generated code)
      end: no_cfi at libplugin.so+0x2000 (code without CFI, frame pointer not plausible)

  2 of 3 stacks complete (93.3% of allocations)
  1 no_cfi (6.6% of allocations): code without CFI, frame pointer not plausible
    Build that code with -fasynchronous-unwind-tables, or assembly with .cfi directives.
  lost: 9 blocks, 1.5 MiB (1600000 B): not in the amounts shown
  lost: 9 block_table_full
  …/ is /src/
  (-v: calls, resident memory, ages, and memleak's own cost)
");
}

/// A report without allocations has a line that states this.
#[test]
fn text_of_an_empty_report() {
    insta::assert_snapshot!(rendered(&report(Vec::new()), Format::Text), @r"
[09:05:07] leaker (4242), 12.3 s: 0 B outstanding in 0 blocks at 0 sites

  no allocation was recorded, nothing lost
  (-v: calls, resident memory, ages, and memleak's own cost)
");
}

/// However many modules there are, the block stays short, and counts the lines omitted.
#[test]
fn text_of_many_ends_is_bounded() {
    let mut report = full();
    let end = report.ends[0].clone();
    report.ends = vec![end; 13];
    let text = verbose(&report);
    assert_eq!(text.matches("ended here").count(), 10, "{text}");
    assert!(text.contains("             … and 3 more\n"), "{text}");
}

/// Losses are shown even if there are no stacks.
#[test]
fn losses_show_without_stacks() {
    let losses = full().losses;
    let report = Report {
        losses,
        ..report(Vec::new())
    };
    let text = rendered(&report, Format::Text);
    assert!(text.contains("  lost: 9 blocks, "), "{text}");
    assert!(!text.contains("nothing lost"), "{text}");
    assert!(verbose(&report).contains("  Lost:      9 blocks, "));
}

/// A trace without any probe hit reports that, rather than that nothing leaks.
#[test]
fn no_probe_hit_is_a_finding() {
    let mut silent = report(Vec::new());
    silent.events = Events::default();
    let text = rendered(&silent, Format::Text);
    assert!(
        text.contains("  none in 12.3 s: the process is idle, or"),
        "{text}"
    );
    assert!(verbose(&silent).contains("  Calls:     none in 12.3 s: the process is idle, or"));
}

/// No control character of a symbol reaches the terminal.
#[test]
fn text_escapes_control_characters() {
    let text = rendered(&full(), Format::Text);
    assert!(
        text.chars()
            .all(|character| !character.is_control() || matches!(character, '\n' | '\t'))
    );
}

/// Text shows the requested number of sites, the first of the order, and the total of the others.
#[test]
fn text_shows_the_top() {
    let report = Report { top: 1, ..full() };
    let text = rendered(&report, Format::Text);
    assert!(text.contains("LeakLib::slowMemoryLeak(): 480 B"), "{text}");
    assert!(
        text.contains("     and 1 more site with 40 B in 1 block (-T 2 shows all)\n"),
        "{text}"
    );
    assert_eq!(text.matches("end: ").count(), 1, "{text}");
}

/// Frames found by frame pointer are marked only if that is an exception.
#[test]
fn text_of_frame_pointer_walks_is_not_marked() {
    let report = Report {
        unwind: Unwind::Fp,
        ..full()
    };
    assert!(!rendered(&report, Format::Text).contains("(by frame pointer)"));
}

/// With several processes each site names its own.
#[test]
fn text_names_the_process_among_several() {
    let mut report = full();
    report.targets.push(report.targets[0].clone());
    assert!(rendered(&report, Format::Text).contains(", via malloc in process 4242\n"));
}

/// The whole document is as expected, field by field, on one line.
#[test]
fn json_of_a_full_report() {
    let line = rendered(&full(), Format::Json);
    assert_eq!(line.matches('\n').count(), 1);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["stacks"].as_array().unwrap().len(), 3);
    assert_eq!(value["stacks"][0]["frames"][1], inlined_frame_json());
    assert_eq!(value["stacks"][1], cut_stack_json());
    assert_eq!(
        value["lost"],
        json!({"blocks": 9, "bytes": 1_600_000,
        "frees": 0, "processes": 0, "events": 0, "causes": {"block_table_full": 9, "stack_table_full": 0}})
    );
    assert_eq!(
        value["unwinding"],
        json!({
            "stacks": {"complete": 2, "no_cfi": 1},
            "allocations": {"complete": 28, "no_cfi": 2},
            "frames": {"cfi": 28, "fp": 2, "fp_generated": 2, "fp_uncertain": 0},
            "finished_in_user_space": 0,
            "not_finished": 0,
            "ends": [{"module": "/opt/libplugin.so", "build_id": "77", "cause": "no_cfi", "stacks": 1,
                      "allocations": 2, "addresses": ["0x2000", "0x2040", "0x2080"]}],
            "modules": [
                module_json(Some("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"), Some("0a1b2c3d4e5f6071"), [28, 0], [None; 5]),
                module_json(None, None, [0, 1], [None; 5]),
                module_json(
                    Some("/opt/libplugin.so"), Some("77"), [0, 3],
                    [Some(1000), Some(120), Some(9), Some(1), Some(128)],
                ),
            ],
        })
    );
}

fn module_json(
    module: Option<&str>,
    build_id: Option<&str>,
    [cfi, fp]: [u64; 2],
    [code, covered, rows, unsupported, table]: [Option<u64>; 5],
) -> Value {
    json!({
        "module": module, "build_id": build_id, "frames": {"cfi": cfi, "fp": fp}, "code_bytes": code,
        "covered_bytes": covered, "rows": rows, "unsupported_rows": unsupported, "table_bytes": table,
    })
}

fn inlined_frame_json() -> Value {
    json!({
        "pc": "0x7f0000001131", "module": "/opt/leaker", "build_id": null, "address": "0x1131",
        "found_by": "cfi", "symbol": "main", "folded_with": ["main_of_tests"], "offset": 0x31, "file": "/src/leaker.cpp", "line": 30,
        "inlined": [{"symbol": "LeakLib::slowMemoryLeak()", "file": "/src/leaklib.h", "line": 12}],
    })
}

fn cut_stack_json() -> Value {
    let unnamed = |pc: &str, module: Option<&str>, address: Option<&str>, found_by: &str| {
        json!({
            "pc": pc, "module": module, "build_id": module.filter(|path| path.contains("plugin")).map(|_| "77"), "address": address, "found_by": found_by,
            "symbol": null, "offset": null, "file": null, "line": null, "inlined": [],
        })
    };
    let mut evil = unnamed(
        "0x7f0000001200",
        Some("/opt/leaker"),
        Some("0x1200"),
        "fp_generated",
    );
    evil["symbol"] = json!("evil\u{1b}[2J\n");
    evil["offset"] = json!(0x10);
    json!({
        "pid": 4242, "instance": 1, "ended": null, "allocator": "malloc", "kind": null,
        "site": "b60eefd1c9f167ae", "responsible": {"frame": 0, "inlined": null, "symbol": "libplugin.so+0x1234"}, "suspicion": null,
        "outstanding": {"bytes": 40, "blocks": 1}, "allocated": {"bytes": 80, "blocks": 2},
        "young": null, "ages": null, "since_last": recent::change_json([0; 4]), "since_baseline": recent::change_json([0; 4]),
        "lost": {"bytes": 0, "blocks": 0},
        "end": "no_cfi", "end_at": {"module": "/opt/libplugin.so", "address": "0x2000"},
        "frames": [
            unnamed("0x7f0000001234", Some("/opt/libplugin.so"), Some("0x1234"), "probe"),
            unnamed("0x7e0000001000", None, None, "fp"),
            evil,
        ],
    })
}

/// Field names of an empty report and their order are as expected.
#[test]
fn json_of_an_empty_report() {
    let expected = concat!(
        r#"{"schema_version":1,"memleak":""#,
        env!("CARGO_PKG_VERSION"),
        r#"","unwind":"dwarf","duration_ns":12345000000,"source":"uprobe","sampling":null,"#,
        r#""targets":[{"pid":4242,"comm":"leaker","exe":"/opt/leaker","instance":1,"parent":null,"ended":null,"memory":null}],"#,
        r#""events":{"allocations":30,"frees":8,"unknown_frees":0,"own_unknown_frees":0,"failed":0,"abandoned":0,"missed_frees":0,"#,
        r#""filtered":0,"filtered_bytes":0},"#,
        r#""outstanding":{"bytes":0,"blocks":0},"allocated":{"bytes":0,"blocks":0},"#,
        r#""lost":{"blocks":0,"bytes":0,"frees":0,"processes":0,"events":0,"causes":{}},"#,
        r#""unwinding":{"stacks":{"complete":0},"allocations":{"complete":0},"frames":{"cfi":0,"fp":0,"fp_generated":0,"fp_uncertain":0},"finished_in_user_space":0,"not_finished":0,"ends":[],"modules":[]},"#,
        r#""older_than_ns":null,"since_last":{"duration_ns":0},"since_baseline":{"duration_ns":0,"marked":null},"ages":null,"#,
        r#""overhead":null,"#,
        r#""self":{"resident_bytes":47185920,"peak_bytes":67108864,"kernel_bytes":104857600},"#,
        r#""stacks":[]}"#,
        "\n",
    );
    assert_eq!(rendered(&report(Vec::new()), Format::Json), expected);
}

/// Estimates are marked as such, with their standard error, in both formats.
#[test]
fn estimates_carry_their_error() {
    let mut report = full();
    report.sampling = Sampling::Bytes(4096);
    report.stacks[0].outstanding.spread = crate::model::Spread {
        recorded: 3,
        bytes: 90_000,
        blocks: 25 << 32,
    };
    report.stacks[0].recent.since_last.allocated = Estimate {
        amount: report.stacks[0].allocated.amount,
        spread: report.stacks[0].outstanding.spread,
    };
    let value: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(value["sampling"], json!({"method": "bytes", "interval": 4096}));
    for amount in [&value["stacks"][0]["outstanding"], &value["outstanding"]] {
        assert_eq!(amount["standard_error"], json!({"bytes": 300.0, "blocks": 5.0}));
        assert_eq!(amount["recorded_blocks"], 3);
    }
    let change = &value["stacks"][0]["since_last"];
    assert_eq!(
        change["allocated"]["standard_error"],
        json!({"bytes": 300.0, "blocks": 5.0})
    );
    assert_eq!(
        change["net_standard_error_at_most"],
        json!({"bytes": 300.0, "blocks": 5.0})
    );
    let text = rendered(&report, Format::Text);
    assert!(
        text.contains("\n   ± 300 B and 5 blocks (standard error; from 3 blocks recorded)\n"),
        "{text}"
    );
    assert!(
        text.contains("\n  one allocation for each 4.0 KiB (4096 B) was recorded"),
        "{text}"
    );
}

/// Integers that a double cannot represent are written exactly.
#[test]
fn json_numbers_are_exact() {
    let mut report = full();
    report.stacks[0].outstanding.amount.bytes = u64::MAX;
    let value: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(
        value["stacks"][0]["outstanding"]["bytes"].as_u64(),
        Some(u64::MAX)
    );
}

/// Every end has an explanation of one line, without the word that scripts search for.
#[test]
fn every_end_is_explained() {
    for end in End::ALL {
        let explained = ends::explain(end);
        assert!(!explained.meaning.is_empty(), "{end:?}");
        for text in [explained.meaning, explained.advice] {
            assert!(!text.contains('\n') && !text.contains("byte"), "{end:?}: {text}");
        }
    }
}

/// A share is 100% or 0% only if exact.
#[test]
fn percentages_do_not_round_to_the_ends() {
    let cases = [
        (0, 0, "0%"),
        (0, 5, "0%"),
        (5, 5, "100%"),
        (1, 1_000_000, "<0.1%"),
        (999_999, 1_000_000, "99.9%"),
        (1, 3, "33.3%"),
        (u64::MAX, u64::MAX, "100%"),
    ];
    for (part, whole, expected) in cases {
        assert_eq!(words::percent(part, whole), expected, "{part} of {whole}");
    }
}

/// Sizes are readable and include the exact number.
#[test]
fn sizes_are_exact_and_readable() {
    let cases = [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB (1024 B)"),
        (1_600_000, "1.5 MiB (1600000 B)"),
        (u64::MAX, "15.9 EiB (18446744073709551615 B)"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(words::size(bytes), expected);
    }
}
