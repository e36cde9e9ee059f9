//! Golden outputs of profiles, and how Go's `pprof` reads them.

use crate::samples;
use std::fmt::Write as _;
use std::io::Read;
use std::process::Command;

use flate2::read::GzDecoder;

use super::super::tests::full;
use super::super::{Format, render as render_as};
use super::*;
use unwind_tables::walk::LeftOut;

use crate::model::{Fragmentation, NotMeasured, RegionKind, Symbol, Symbolized};

fn file(report: &Report) -> Vec<u8> {
    let mut file = Vec::new();
    render_as(report, Format::Pprof, &mut file).unwrap();
    file
}

fn decoded(file: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    Profile::decode(&bytes[..]).unwrap()
}

/// The whole profile as text, with strings in place of their indices.
fn text(profile: &Profile) -> String {
    let string = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    let mut text = String::new();
    for ValueType { kind, unit } in &profile.sample_type {
        writeln!(text, "type {}/{}", string(*kind), string(*unit)).unwrap();
    }
    for sample in &profile.sample {
        let labels = sample.label.iter().map(|label| match label.str {
            0 => format!(" {}={}", string(label.key), label.num),
            value => format!(" {}={}", string(label.key), string(value)),
        });
        let labels: String = labels.collect();
        writeln!(
            text,
            "sample {:?} at {:?}{labels}",
            sample.value, sample.location_id
        )
        .unwrap();
    }
    for location in &profile.location {
        let lines = location.line.iter().map(|line| {
            let function = profile
                .function
                .iter()
                .find(|function| function.id == line.function_id)
                .unwrap();
            assert_eq!(function.system_name, function.name);
            format!(
                " {:?} {:?}:{}",
                string(function.name),
                string(function.filename),
                line.line
            )
        });
        let lines: String = lines.collect();
        writeln!(
            text,
            "location {} {:#x} in {}{lines}",
            location.id, location.address, location.mapping_id
        )
        .unwrap();
    }
    for mapping in &profile.mapping {
        let has = [
            mapping.has_functions,
            mapping.has_filenames,
            mapping.has_line_numbers,
            mapping.has_inline_frames,
        ];
        writeln!(
            text,
            "mapping {} {:#x}-{:#x} at {:#x} {} {:?} {has:?}",
            mapping.id,
            mapping.memory_start,
            mapping.memory_limit,
            mapping.file_offset,
            string(mapping.filename),
            string(mapping.build_id),
        )
        .unwrap();
    }
    for comment in &profile.comment {
        writeln!(text, "comment {}", string(*comment)).unwrap();
    }
    let period = profile
        .period_type
        .map(|ValueType { kind, unit }| (string(kind), string(unit)));
    writeln!(text, "time {} for {}", profile.time_nanos, profile.duration_nanos).unwrap();
    writeln!(text, "period {:?} {}", period, profile.period).unwrap();
    writeln!(text, "default {}", string(profile.default_sample_type)).unwrap();
    writeln!(text, "drop {}", string(profile.drop_frames)).unwrap();
    text
}

/// A profile with a verdict has sample types for definitely lost amounts, and still shows outstanding bytes
/// first.
#[test]
fn pprof_of_a_verdict() {
    let text = text(&decoded(&file(&samples::judged())));
    let lines = |part: &str| {
        text.lines()
            .filter(|line| line.starts_with(part))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines("type ")[..3],
        [
            "type definitely_lost_objects/count",
            "type definitely_lost_space/bytes",
            "type alloc_objects/count"
        ]
    );
    assert!(
        lines("sample ")[0].starts_with("sample [8, 320, 24, 960, 12, 480] at"),
        "{text}"
    );
    assert_eq!(lines("default "), ["default inuse_space"]);
    assert!(
        text.contains("comment verdict: 8 blocks (320 B) definitely lost, "),
        "{text}"
    );
}

/// A profile has what blocks pin only if that is known, and still shows outstanding bytes first.
#[test]
fn pprof_of_pinned() {
    let mut report = samples::pinning();
    let pinned = text(&decoded(&file(&report)));
    let lines = |text: &str, part: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with(part));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(
        lines(&pinned, "type ")[..3],
        [
            "type pinned_objects/count",
            "type pinned_space/bytes",
            "type alloc_objects/count"
        ]
    );
    assert!(
        lines(&pinned, "sample ")[0].starts_with("sample [12, 40960, 24, 960, 12, 480] at"),
        "{pinned}"
    );
    assert_eq!(lines(&pinned, "default "), ["default inuse_space"]);
    report.targets[0].fragmentation = Some(Fragmentation::Unknown(NotMeasured::Unreadable));
    let unknown = text(&decoded(&file(&report)));
    assert_eq!(lines(&unknown, "type ").len(), 4);
}

/// A profile with a peak begins with the sample types of the peak, with or without a verdict.
#[test]
fn pprof_of_a_peak() {
    let mut report = samples::judged();
    let peaked = samples::peaked();
    report.peak = peaked.peak;
    for (stack, peaked) in report.stacks.iter_mut().zip(&peaked.stacks) {
        stack.peak = peaked.peak;
    }
    for (report, other, sample) in [
        (
            &report,
            "type definitely_lost_objects/count",
            "sample [13, 1000, 8, 320, 24, 960, 12, 480] at",
        ),
        (
            &peaked,
            "type alloc_objects/count",
            "sample [13, 1000, 24, 960, 12, 480] at",
        ),
    ] {
        let text = text(&decoded(&file(report)));
        let types: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("type "))
            .take(3)
            .collect();
        assert_eq!(types, ["type peak_objects/count", "type peak_space/bytes", other]);
        assert!(text.contains(sample), "{text}");
        assert!(text.contains("default inuse_space"), "{text}");
    }
}

/// The profile is complete and in order; the program's mapping is first.
#[test]
fn pprof_of_a_full_report() {
    let version = env!("CARGO_PKG_VERSION");
    let text = text(&decoded(&file(&full()))).replace(version, "VERSION");
    insta::assert_snapshot!(text, @r#"
type alloc_objects/count
type alloc_space/bytes
type inuse_objects/count
type inuse_space/bytes
sample [24, 960, 12, 480] at [1, 2] allocator=malloc end=complete comm=leaker pid=4242
sample [2, 80, 1, 40] at [3, 4, 5] allocator=malloc end=no_cfi comm=leaker pid=4242
location 1 0x7f00000ae98b in 2 "operator new(unsigned long)" "":0
location 2 0x7f0000001130 in 1 "LeakLib::slowMemoryLeak()" "/src/leaklib.h":12 "main" "/src/leaker.cpp":30
location 3 0x7f0000001233 in 3
location 4 0x7e0000000fff in 0
location 5 0x7f00000011ff in 1 "evil\\u{1b}[2J\\n" "":0
mapping 1 0x7f0000001000-0x7f0000002000 at 0x0 /opt/leaker "" [true, true, true, true]
mapping 2 0x7f00000ae000-0x7f00000af000 at 0x0 /usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30 "0a1b2c3d4e5f6071" [true, false, false, false]
mapping 3 0x7f0000001000-0x7f0000002000 at 0x0 /opt/libplugin.so "77" [false, false, false, false]
comment memleak VERSION
comment complete stacks: 93.3% of allocations
comment lost: 9 blocks, 1.5 MiB
time 1700000000000000000 for 12345000000
period None 0
default inuse_space
drop operator new(\[\])?(\(.*\))?
"#);
}

/// Frames that were left out have a location in their place, one for each number of such frames.
#[test]
fn pprof_of_frames_left_out() {
    let mut report = full();
    let mut deeper = report.stacks[1].clone();
    report.stacks[1].left_out = Some(LeftOut {
        after: 1,
        frames: 3488,
    });
    deeper.left_out = Some(LeftOut { after: 3, frames: 1 });
    report.stacks.push(deeper);
    let text = text(&decoded(&file(&report)));
    let number = |name: &str| {
        let line = text.lines().find(|line| line.contains(name)).expect(&text);
        line.split(' ').nth(1).expect(line).to_owned()
    };
    let [many, one] = ["[3488 frames left out]", "[1 frame left out]"].map(number);
    for locations in [format!("[3, {many}, 5, 6]"), format!("[3, 5, 6, {one}]")] {
        assert!(text.contains(&format!(" at {locations} ")), "{locations}: {text}");
    }
}

/// Functions of Python have name, file and line, and neither address nor mapping.
#[test]
fn pprof_of_python() {
    let text = text(&decoded(&file(&samples::python::python())));
    for lines in [
        r#""fetch_rows" "/opt/app/db.py":118"#,
        r#""<module>" "/opt/app/main.py":3"#,
        r#""<python function>" "":0"#,
    ] {
        assert!(text.contains(&format!(" 0x0 in 0 {lines}\n")), "{lines}\n{text}");
    }
}

/// Equal reports give equal files, without the time of compression.
#[test]
fn pprof_is_deterministic() {
    let file = file(&full());
    assert_eq!(file, self::file(&full()));
    // The magic number, "deflate", no flags, no time (RFC 1952, 2.3.1).
    assert_eq!(file[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
}

/// Estimates have a period and their error; amounts beyond the format's integers saturate.
#[test]
fn pprof_of_estimates() {
    let mut report = full();
    report.stacks[0].outstanding.amount.bytes = u64::MAX;
    for (sampling, kind, period) in [
        (Sampling::All, None, 0),
        (Sampling::Calls(100), Some("objects"), 100),
        (Sampling::Bytes(4096), Some("space"), 4096),
        (Sampling::Governed(8192), Some("space"), 8192),
    ] {
        report.sampling = sampling;
        let profile = decoded(&file(&report));
        let string = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!(profile.period_type.map(|period| string(period.kind)), kind);
        assert_eq!(profile.period, period);
        assert_eq!(profile.sample[0].value[3], i64::MAX);
        let has_label = profile
            .comment
            .iter()
            .any(|&line| string(line).starts_with("estimated from samples"));
        assert_eq!(has_label, kind.is_some());
    }
}

/// Stacks with equal locations and labels are one sample; those without frames have a frame with the cause.
#[test]
fn pprof_merges_and_shows_everything() {
    let mut report = full();
    report.stacks[2].allocated = report.stacks[0].allocated;
    report.stacks[1].path = None;
    let profile = decoded(&file(&report));
    assert_eq!(profile.sample.len(), 2);
    assert_eq!(profile.sample[0].value, [48, 1920, 12, 480]);
    assert!(text(&profile).contains(" 0x0 in 0 \"[no_cfi]\" \"\":0\n"));
    report.stacks[0].kind = Some(RegionKind::Reservation);
    report.stacks[2].kind = Some(RegionKind::File);
    let profile = text(&decoded(&file(&report)));
    assert!(
        profile.contains("kind=file") && !profile.contains("kind=reservation"),
        "{profile}"
    );
}

/// Go's pprof reads the profile, whatever the functions are named, and gives the same totals.
#[test]
fn pprof_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leaks.pb.gz");
    std::fs::write(&path, file(&full())).unwrap();
    // From Go 1.25 on, pprof is compiled when it is first used: once for all tests.
    let program = std::env::current_exe().unwrap();
    let cache = program.ancestors().nth(3).unwrap().join("tmp/go-cache");
    let pprof = |arguments: &[&str]| {
        let output = Command::new("go")
            .args(["tool", "pprof", "-symbolize=none"])
            .args(arguments)
            .arg(&path)
            .env("HOME", directory.path())
            .env("GOCACHE", &cache)
            .output()
            .expect("apt-get install golang-go");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let top = pprof(&["-top", "-unit=B"]);
    assert!(top.contains("520B, 100% of 520B total"), "{top}");
    // Bytes requested by operator new count as its caller's own.
    let flat = top.lines().find(|line| line.contains("480B")).unwrap();
    assert!(
        flat.trim_start().starts_with("480B") && flat.contains("LeakLib::slowMemoryLeak"),
        "{top}"
    );
    assert!(!top.contains("operator new"), "{top}");
    let comments = pprof(&["-comments"]);
    assert!(comments.contains("lost: 9 blocks"), "{comments}");
}

/// A part for a store stays within the limits on stacks and bytes, with the same totals; stacks with all
/// values 0 are omitted.
#[test]
fn part_of_many_stacks() {
    let mut report = full();
    let stack = report.stacks[1].clone();
    report.stacks = (0..8100_u64)
        .map(|number| {
            let mut stack = stack.clone();
            stack.outstanding = Amount {
                bytes: number,
                blocks: 1,
            }
            .into();
            stack.recent.since_last.allocated = Amount::default().into();
            let pc = unwind_tables::addr::Avma::new(number);
            let mut frames = samples::frames(&stack);
            frames[0] = samples::changed(frames[0], |frame| frame.at.pc = pc);
            samples::with_frames(stack, frames)
        })
        .collect();
    samples::renew(&mut report);
    let render = |report: &Report, amounts| {
        let stacks: Vec<_> = report.stacks().collect();
        let part = Part {
            target: None,
            amounts,
            names_all: false,
        };
        part.render(report, &stacks).unwrap()
    };
    let profile = decoded(&render(&report, Amounts::Outstanding).unwrap());
    assert_eq!(profile.sample.len(), 8001);
    let totals = |profile: &Profile| {
        let total = |index: usize| {
            profile
                .sample
                .iter()
                .map(|sample| sample.value[index])
                .sum::<i64>()
        };
        (total(0), total(1))
    };
    assert_eq!(totals(&profile), (8100, 8099 * 8100 / 2));
    let others = profile.sample.iter().find(|sample| sample.label.is_empty());
    // The hundred smallest stacks.
    assert_eq!(others.unwrap().value, [100, 99 * 100 / 2]);
    assert!(text(&profile).contains("\"[other stacks]\""));
    // A pulled profile, which is of all processes, has the same limit.
    let pulled = decoded(&pulled(&report, Shown::Outstanding).unwrap());
    assert_eq!(pulled.sample.len(), 8001);
    let held = pulled.sample.iter().map(|sample| sample.value[3]).sum::<i64>();
    assert_eq!(held, 8099 * 8100 / 2);
    assert!(render(&report, Amounts::Allocated).is_none());
    for (number, stack) in report.stacks.iter_mut().enumerate() {
        let symbol = Symbol {
            name: format!("{number}{}", "x".repeat(3000)).into(),
            offset: None,
        };
        let names = Symbolized {
            symbol: Some(symbol),
            ..Symbolized::default()
        };
        let mut frames = samples::frames(stack);
        frames[0] = samples::renamed(frames[0], &names);
        *stack = samples::with_frames(stack.clone(), frames);
    }
    samples::renew(&mut report);
    let small = decoded(&render(&report, Amounts::Outstanding).unwrap());
    assert_eq!(totals(&small), (8100, 8099 * 8100 / 2));
    let bytes = small.encoded_len();
    assert!(((1 << 20)..=(4 << 20)).contains(&bytes), "{bytes}");
}
