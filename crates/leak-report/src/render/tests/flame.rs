//! Golden outputs of flame graphs, and their grammar under hostile names.

use std::process::{Command, Stdio};
use std::time::Duration;
use unwind_tables::walk::End;
use unwind_tables::walk::FoundBy;

use super::*;
use crate::model::leak::Change;
use crate::model::{
    Amount, KernelFacts, KindTotals, Measure, Quantity, RegionKind, Sampling, Stack, Symbolized, TargetFacts,
    TimeOfDay, Unit,
};
use crate::render::flame::{Caption, Folded, difference};

fn quantity(measure: Measure, unit: Unit) -> Quantity {
    Quantity { measure, unit }
}

fn folded(report: &Report) -> String {
    rendered(report, Format::Folded)
}

/// Splits a line into stack and number as FlameGraph's script does: `^(.*)\s+(\d+(?:\.\d*)?)$`, greedily.
fn split(line: &str) -> (Vec<&str>, &str) {
    let (stack, number) = line.rsplit_once(char::is_whitespace).unwrap();
    assert!(
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        "{line}"
    );
    (stack.trim_end().split(';').collect(), number)
}

/// All texts of a graph, including the tool tips of frames.
fn texts(svg: &str) -> Vec<&str> {
    let text_of = |element: &'static str| {
        svg.split(element).skip(1).filter_map(|rest| {
            let (_, text) = rest.split_once('>')?;
            text.split('<').next()
        })
    };
    text_of("<text")
        .chain(text_of("<title"))
        .filter(|text| !text.trim().is_empty())
        .collect()
}

/// Stacks are root first, functions without offsets, inlined ones as frames; incomplete stacks have a root
/// with the cause; stacks without outstanding blocks have no line.
#[test]
fn folded_of_a_full_report() {
    insta::assert_snapshot!(folded(&full()), @r"
[no_cfi in libplugin.so];evil\u{1b}[2J;[unknown];[libplugin.so] 40
main;LeakLib::slowMemoryLeak();operator new(unsigned long) 480
");
}

/// Allocated amounts are in bytes or blocks; two stacks with equal names are one line.
#[test]
fn folded_quantities() {
    let mut report = full();
    report.quantity = quantity(Measure::Allocated, Unit::Bytes);
    report.stacks[2].allocated = Amount { bytes: 7, blocks: 1 }.into();
    insta::assert_snapshot!(folded(&report), @r"
[no_cfi in libplugin.so];evil\u{1b}[2J;[unknown];[libplugin.so] 80
main;LeakLib::slowMemoryLeak();operator new(unsigned long) 967
");
    report.quantity.unit = Unit::Blocks;
    insta::assert_snapshot!(folded(&report), @r"
[no_cfi in libplugin.so];evil\u{1b}[2J;[unknown];[libplugin.so] 2
main;LeakLib::slowMemoryLeak();operator new(unsigned long) 25
");
}

/// Growth covers stacks that grew, since the last report, or since the mark if there is one.
#[test]
fn folded_growth() {
    let mut report = full();
    let change = |allocated, freed| Change {
        allocated: Amount {
            bytes: allocated,
            blocks: 1,
        }
        .into(),
        freed: Amount {
            bytes: freed,
            blocks: 0,
        }
        .into(),
    };
    report.stacks[0].recent.since_last = change(100, 90);
    report.stacks[0].recent.since_baseline = change(300, 100);
    report.stacks[1].recent.since_last = change(1, 2);
    report.quantity = quantity(Measure::Growth, Unit::Bytes);
    insta::assert_snapshot!(folded(&report), @r"
main;LeakLib::slowMemoryLeak();operator new(unsigned long) 10
");
    report.compared.marked = Some(TimeOfDay::default());
    insta::assert_snapshot!(folded(&report), @r"
main;LeakLib::slowMemoryLeak();operator new(unsigned long) 200
");
}

/// Each process has a root of its own, if there are several.
#[test]
fn folded_of_several_processes() {
    let mut report = full();
    let child = TargetFacts {
        pid: 4243,
        instance: 2,
        comm: "sh;\n".to_owned(),
        ..report.targets[0].clone()
    };
    report.targets.push(child);
    report.stacks[1].instance = 2;
    report.stacks.push(Stack {
        pid: 0,
        instance: 0,
        ..stack(
            Amount { bytes: 5, blocks: 1 },
            End::StackTableFull,
            None,
            Vec::new(),
        )
    });
    insta::assert_snapshot!(folded(&report), @r"
[several processes];[stack_table_full] 5
leaker-4242;main;LeakLib::slowMemoryLeak();operator new(unsigned long) 480
sh:\n-4243;[no_cfi in libplugin.so];evil\u{1b}[2J;[unknown];[libplugin.so] 40
");
}

/// Young blocks, mappings that cannot be leaks, and pages whose blocks are counted separately are in no
/// graph.
#[test]
fn folded_omits_young_blocks_and_non_leaks() {
    let mut report = full();
    report.stacks[0].recent.young = Some(Amount { bytes: 80, blocks: 2 }.into());
    report.stacks[1].kind = Some(RegionKind::Reservation);
    let lines = folded(&report);
    assert_eq!(
        lines.lines().map(|line| split(line).1).collect::<Vec<_>>(),
        ["400"]
    );
    report.kernel = Some(KernelFacts {
        release: "6.1".to_owned(),
        kinds: vec![KindTotals {
            allocator: "malloc".into(),
            outstanding: Amount::default(),
            allocated: Amount::default(),
            holds_others: true,
        }],
    });
    assert_eq!(folded(&report), "");
}

/// Names with separators, numbers, markup and control characters.
const HOSTILE: [&str; 12] = [
    "a;b;c",
    "\n480 9\n",
    "",
    "  ",
    "f 12",
    "f 12 13",
    "f\u{2028}99",
    "<script>alert(1)</script>",
    "]]>&amp;\"'<!--",
    "\u{0}\u{1b}[2J\u{ffff}\u{202e}",
    "x\t7",
    "# comment",
];

/// A report whose stacks have two functions each, with a name of [`HOSTILE`] at both ends.
fn hostile() -> Report {
    let stacks = HOSTILE.iter().zip(1..).map(|(name, bytes)| {
        let at = |svma| location(&module(&format!("/lib/{name}"), None), svma);
        let frames = vec![
            frame(at(0x10), FoundBy::Probe, named(name, 0)),
            frame(at(0x20), FoundBy::Cfi, Symbolized::default()),
            frame(at(0x30), FoundBy::Cfi, named(name, 0)),
        ];
        stack(Amount { bytes, blocks: 1 }, End::NoCfi, Some(at(0x40)), frames)
    });
    let mut report = report(stacks.collect());
    let target = TargetFacts {
        comm: HOSTILE[8].to_owned(),
        instance: 7,
        ..report.targets[0].clone()
    };
    report.targets.insert(0, target);
    report
}

/// Whatever the functions are named, a line stays one line, with the same number of frames and one number.
#[test]
fn folded_lines_cannot_be_broken() {
    let lines = folded(&hostile());
    let total: u64 = lines
        .lines()
        .map(|line| {
            let (frames, number) = split(line);
            // Process, end, two functions and the nameless code between them.
            assert_eq!(frames.len(), 5, "{line}");
            assert!(frames.iter().all(|frame| !frame.trim().is_empty()), "{line}");
            let before = line.trim_end_matches(number).trim_end();
            let last_word = before.rsplit(char::is_whitespace).next().unwrap();
            assert!(last_word.parse::<f64>().is_err(), "{line} has two numbers");
            number.parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(total, (1..=12).sum::<u64>());
    assert!(
        lines
            .chars()
            .all(|character| character == '\n' || !character.is_control())
    );
}

/// The graph has a title and the share of each frame; it is one self-contained file, the same every time.
#[test]
fn svg_of_a_full_report() {
    let svg = rendered(&full(), Format::Svg);
    assert_eq!(svg, rendered(&full(), Format::Svg));
    insta::assert_snapshot!(texts(&svg).join("\n"), @r"
Outstanding bytes: leaker (4242), 12.3 s, complete stacks: 93.3% of allocations
lost: 9 blocks, 1.5 MiB
Reset Zoom
Search
[no_cfi in..
evil\u{1b}..
[unknown]
[libplugin..
main
LeakLib::slowMemoryLeak()
operator new(unsigned long)
[no_cfi in libplugin.so] (40 bytes, 7.69%)
evil\u{1b}[2J (40 bytes, 7.69%)
[unknown] (40 bytes, 7.69%)
[libplugin.so] (40 bytes, 7.69%)
all (520 bytes, 100%)
main (480 bytes, 92.31%)
LeakLib::slowMemoryLeak() (480 bytes, 92.31%)
operator new(unsigned long) (480 bytes, 92.31%)
");
    for outside in ["src=", "<link", "<image", "@import", "fetch("] {
        assert!(!svg.contains(outside), "{outside}");
    }
}

/// The caption has the notes on the graph.
#[test]
fn svg_captions() {
    let mut report = full();
    report.sampling = Sampling::Bytes(4096);
    report.stacks[0].outstanding.spread = crate::model::Spread {
        recorded: 3,
        bytes: 90_000,
        blocks: 25 << 32,
    };
    report.compared.older = Some(Duration::from_millis(500));
    report.stacks[0].recent.young = Some(Amount { bytes: 80, blocks: 2 }.into());
    report.losses.frees = 1;
    report.losses.processes = 2;
    let caption = |measure, unit| {
        let Caption { title, subtitle, .. } = Caption::of(&report, quantity(measure, unit));
        format!("{title}\n{}", subtitle.unwrap_or_default())
    };
    insta::assert_snapshot!(caption(Measure::Outstanding, Unit::Bytes), @r"
Outstanding bytes: leaker (4242), 12.3 s, complete stacks: 93.3% of allocations
estimated from samples, in all ± 300 B; without 2 blocks, 80 B, younger than 500 ms; lost: 9 blocks, 1.5 MiB, 1 free, 2 processes
");
    insta::assert_snapshot!(caption(Measure::Growth, Unit::Blocks), @r"
Growth in blocks: leaker (4242), 12.3 s, complete stacks: 93.3% of allocations
of stacks that grew since the last report; estimated from samples, in all ± 0 blocks; lost: 9 blocks, 1.5 MiB, 1 free, 2 processes
");
}

/// An empty report gives a graph that states this.
#[test]
fn svg_of_an_empty_report() {
    let svg = rendered(&report(Vec::new()), Format::Svg);
    insta::assert_snapshot!(texts(&svg).join("\n"), @r"
Outstanding bytes: leaker (4242), 12.3 s
There is nothing to show.
");
}

/// Amounts whose sum overflows are drawn as the maximum of a graph.
#[test]
fn svg_of_endless_amounts() {
    let mut report = full();
    report.stacks[0].outstanding.amount.bytes = u64::MAX;
    report.stacks[1].outstanding.amount.bytes = u64::MAX;
    assert!(rendered(&report, Format::Svg).contains("all (9,007,199,254,740,992 bytes, 100%)"));
    assert_eq!(Folded::of(&report, report.quantity).total(), u64::MAX);
}

/// No name from the target becomes markup: Python's parser finds the document well-formed, with no elements
/// that a graph of harmless names does not have.
#[test]
fn svg_of_hostile_names_is_well_formed() {
    let elements = |report: &Report| {
        let script = "import sys, collections, xml.etree.ElementTree as tree\n\
            print(sorted({e.tag.split('}')[1] for e in tree.parse(sys.stdin.buffer).iter()}))";
        let mut python = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("apt-get install python3");
        let mut input = python.stdin.take().unwrap();
        render(report, Format::Svg, &mut input).unwrap();
        drop(input);
        let output = python.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(elements(&hostile()), elements(&full()));
    let nothing = Report {
        stacks: Vec::new(),
        ..hostile()
    };
    assert_eq!(elements(&nothing), "['g', 'rect', 'svg', 'text']\n");
}

/// In a difference the innermost frame is red where a stack grew and blue where it shrank; vanished stacks
/// have no width.
#[test]
fn differences_have_colours() {
    let of = |amounts: [u64; 4]| {
        let names = ["grown", "shrunk", "same", "gone"];
        let stacks = names.iter().zip(amounts).map(|(name, bytes)| {
            let code = module("/opt/leaker", None);
            let frames = vec![
                frame(location(&code, 0x10), FoundBy::Probe, named(name, 4)),
                frame(location(&code, 0x20), FoundBy::Cfi, named("main", 4)),
            ];
            stack(Amount { bytes, blocks: 1 }, End::Complete, None, frames)
        });
        Folded::of(&report(stacks.collect()), Quantity::default())
    };
    let (before, after) = (of([10, 90, 50, 7]), of([60, 40, 50, 0]));
    let caption = Caption {
        title: "Difference".to_owned(),
        subtitle: None,
        unit: Unit::Bytes,
    };
    let mut svg = Vec::new();
    difference(&before, &after, &caption, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let colour = |name: &str| {
        let frame = svg
            .split("<g>")
            .find(|frame| frame.contains(&format!("<title>{name} (")))?;
        let fill = frame.split_once("fill=\"rgb(")?.1.split(')').next()?;
        let parts: Vec<u8> = fill.split(',').map(|part| part.parse().unwrap()).collect();
        Some([parts[0], parts[1], parts[2]])
    };
    let [red, _, blue] = colour("grown").unwrap();
    assert!(red > blue);
    let [red, _, blue] = colour("shrunk").unwrap();
    assert!(blue > red);
    for even in ["same", "main"] {
        let [red, green, blue] = colour(even).unwrap();
        assert!(red == green && green == blue, "{even}");
    }
    assert_eq!(colour("gone"), None);
    let mut nothing = Vec::new();
    difference(&before, &of([0; 4]), &caption, &mut nothing).unwrap();
    assert!(
        String::from_utf8(nothing)
            .unwrap()
            .contains("There is nothing to show.")
    );
}
