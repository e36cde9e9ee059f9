//! Claims about command lines as a whole.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Parser;

use super::*;
use crate::bpf::SizeFilter;
use crate::session::{Counted, KernelConfig, MaxOverhead};
use leak_report::model::Sampling;
use leak_report::units::UnitError;

fn config(arguments: &str) -> Result<Config, ConfigError> {
    let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
    Cli::try_parse_from(arguments)
        .expect("the command line parses")
        .trace
        .try_into()
}

/// The two positional arguments are seconds between reports and their number.
#[test]
fn interval_and_count_are_read() {
    let config = config("-p 17 0.25 3").expect("it makes sense");
    assert_eq!(config.trace.schedule.interval, Duration::from_millis(250));
    assert_eq!(config.trace.schedule.count, NonZeroU64::new(3));
    assert_eq!(
        (config.trace.stacks.walk, config.trace.shown.top),
        (Walk::Dwarf, 10)
    );
    assert_eq!(config.trace.targets.pids, [17]);
}

/// Times between reports and of the whole trace are in seconds or have units.
#[test]
fn times_have_units() {
    let times = |text: &str| {
        config(text).map(|config| (config.trace.schedule.interval, config.trace.schedule.duration))
    };
    let seconds = Duration::from_secs;
    assert_eq!(times("-p 1 1m"), Ok((seconds(60), None)));
    assert_eq!(times("-p 1 1m30s 2"), Ok((seconds(90), None)));
    assert_eq!(
        times("-p 1 500ms --duration 2h"),
        Ok((Duration::from_millis(500), Some(seconds(7200))))
    );
    assert_eq!(times("--duration 30"), Ok((seconds(5), Some(seconds(30)))));
}

/// Flags for sizes, times and percentages accept every spelling of these, and nothing else.
#[test]
fn amounts_are_accepted_in_all_units() {
    let ways = |kind: &str| match kind {
        "SIZE" => (
            &["32MiB", "32M", "32m", "32768KiB", "0.03125G", "33554432"][..],
            "32MB",
        ),
        "TIME" | "INTERVAL" => (
            &["90s", "1m30s", "1.5m", "90000ms", "1min 30sec", "0.025h"][..],
            "90 secs",
        ),
        "PCT" => (&["5", "5%", "5.0 %"][..], "5e0"),
        _ => (&[][..], ""),
    };
    let mut checked = Vec::new();
    for arg in Cli::command().get_arguments() {
        let kind = arg.get_value_names().map_or("", |names| names[0].as_str());
        let (same, other) = ways(kind);
        let first: Vec<_> = same.iter().take(1).collect();
        let flag = arg.get_long().map(|name| format!("--{name}"));
        let parse = |value: &str| {
            // Flags that other flags require.
            let line = [
                "memleak",
                "-p",
                "1",
                "--verdict",
                "--record",
                "a",
                "--fail-on",
                "blocks>9",
            ]
            .map(str::to_owned);
            let given = flag.clone().into_iter().chain([value.to_owned()]);
            let cli = Cli::try_parse_from(line.into_iter().chain(given)).expect("the command line parses");
            Config::try_from(cli.trace)
        };
        for value in same {
            let expected = parse(first[0]);
            assert!(expected.is_ok(), "{flag:?} {}: {expected:?}", first[0]);
            assert_eq!(parse(value), expected, "{flag:?} {value}");
        }
        if !same.is_empty() {
            assert!(parse(other).is_err(), "{flag:?} {other}");
            checked.push(arg.get_id().as_str().to_owned());
        }
    }
    let known = [
        "duration",
        "interval",
        "max_lost",
        "max_overhead",
        "max_size",
        "min_size",
        "older",
        "record_limit",
        "sample_bytes",
        "table_memory",
        "verdict_limit",
    ];
    checked.sort();
    assert_eq!(checked, known);
}

/// The peak can be requested only where it is followed: for blocks of processes.
#[test]
fn peaks_are_of_blocks() {
    for flags in [
        "-p 1 --mmap --sort peak",
        "-p 1 --faults --format svg --measure peak",
        "--sort peak",
    ] {
        let refused = config(flags).expect_err("no peak");
        assert!(matches!(refused, ConfigError::NoPeak), "{flags}: {refused}");
    }
    assert!(config("-p 1 --sort peak").is_ok());
}

/// Pinned memory is looked for if anything shows it, and only where single blocks are known.
#[test]
fn pinned_memory_is_of_blocks() {
    let is_read = |flags: &str| config(flags).map(|config| config.trace.shown.view.pinned);
    for flags in [
        "-p 1 --pinned",
        "-p 1 --sort pinned",
        "-p 1 --format svg --measure pinned",
    ] {
        assert_eq!(is_read(flags).ok(), Some(true), "{flags}");
    }
    assert_eq!(is_read("-p 1 --sort peak").ok(), Some(false));
    for flags in [
        "-p 1 --pinned --faults",
        "-p 1 --sort pinned --mmap",
        "-p 1 -C --format svg --measure pinned",
    ] {
        let refused = is_read(flags).expect_err("no blocks");
        assert!(matches!(refused, ConfigError::NoPinned(_)), "{flags}: {refused}");
    }
    let refused = is_read("--sort pinned").expect_err("the kernel");
    assert!(refused.to_string().contains("--sort pinned"), "{refused}");
}

/// Conditions and measures of lost blocks require --verdict, which requires single blocks.
#[test]
fn conditions_about_what_is_lost() {
    let refused = config("-p 1 --fail-on definitely_lost>0").expect_err("no verdict");
    assert!(refused.to_string().contains("add --verdict"), "{refused}");
    let accepted = config("-p 1 --verdict --fail-on definitely_lost>0").expect("a verdict");
    let verdict = accepted.trace.shown.view.verdict;
    assert_eq!(verdict.map(|verdict| verdict.each), Some(false));
    let each = config("-p 1 --verdict=each --verdict-limit 5s").expect("valid");
    let verdict = each
        .trace
        .shown
        .view
        .verdict
        .map(|verdict| (verdict.each, verdict.limit));
    assert_eq!(verdict, Some((true, Duration::from_secs(5))));
    let refused = config("-p 1 --format svg --measure definitely-lost").expect_err("no verdict");
    assert!(refused.to_string().contains("add --verdict"), "{refused}");
    assert!(
        config("-p 1 --format svg --measure definitely-lost --verdict --pointer-tags top16,low16").is_ok()
    );
    let stopping = config("-p 1 --verdict=each,stop").expect("valid");
    let verdict = stopping
        .trace
        .shown
        .view
        .verdict
        .map(|verdict| (verdict.each, verdict.stops));
    assert_eq!(verdict, Some((true, true)));
    assert!(config("-p 1 --verdict=each,last").is_err());
    for flags in ["--mmap", "--faults", "--combined-only"] {
        let refused = config(&format!("-p 1 --verdict {flags}")).expect_err(flags);
        assert!(refused.to_string().contains(flags), "{refused}");
    }
}

/// Process ids are separated by commas, given one by one, or both, and keep their order.
#[test]
fn several_processes() {
    for arguments in ["-p 3,1,2", "-p 3 -p 1 -p 2", "-p 3,1 --pid 2"] {
        assert_eq!(
            config(arguments).map(|config| config.trace.targets.pids),
            Ok(vec![3, 1, 2]),
            "{arguments}"
        );
    }
    let many = |count: u32| (1..=count).map(|pid| format!("-p {pid} ")).collect::<String>();
    assert!(config(&many(2047)).is_ok());
    let too_many = ConfigError::TooManyPids {
        count: 2048,
        max: 2047,
    };
    assert_eq!(config(&many(2048)), Err(too_many));
}

/// Without a process, the kernel's own allocations are traced; with one, they are not.
#[test]
fn kernel_is_traced_without_a_process() {
    let kernel =
        |text: &str| config(text).map(|config| (config.trace.count.counted, config.trace.targets.pids));
    let traced = |percpu| Counted::Kernel(KernelConfig { percpu });
    assert_eq!(kernel(""), Ok((traced(false), Vec::new())));
    assert_eq!(kernel("-P -F 3 2"), Ok((traced(true), Vec::new())));
    assert_eq!(kernel("--wa-missing-free -p 5"), Ok((Counted::Blocks, vec![5])));
}

/// A program is given as one argument that is split into words, or as separate words that are not.
#[test]
fn programs() {
    let program = |arguments: &[&str]| {
        let arguments = std::iter::once("memleak").chain(arguments.iter().copied());
        let parsed = Cli::try_parse_from(arguments).expect("the command line parses");
        Config::try_from(parsed.trace).map(|config| {
            (
                config.trace.targets.program,
                config.trace.schedule.interval,
                config.trace.targets.pids,
            )
        })
    };
    let words = |words: &[&str]| words.iter().map(Into::into).collect::<Vec<_>>();
    let (second, five) = (Duration::from_secs(1), Duration::from_secs(5));
    for (arguments, expected, interval) in [
        (
            &["-c", "ls -l", "-T", "1", "1", "2"][..],
            &["ls", "-l"][..],
            second,
        ),
        (&["1", "2", "--", "ls", "-l", "a b"], &["ls", "-l", "a b"], second),
        (&["--", "-p", "--", "1"], &["-p", "--", "1"], five),
        (
            &["--command", r#" a  'b c' "d\"e" f\ g '' "#],
            &["a", "b c", "d\"e", "f g", ""],
            five,
        ),
        (&["-c", "echo $HOME *"], &["echo", "$HOME", "*"], five),
    ] {
        assert_eq!(
            program(arguments),
            Ok((words(expected), interval, vec![])),
            "{arguments:?}"
        );
    }
    for (command, error) in [
        ("", ConfigError::EmptyCommand),
        (" ", ConfigError::EmptyCommand),
        ("a \"b", ConfigError::CommandWords("a \"b".to_owned())),
        ("a\\", ConfigError::CommandWords("a\\".to_owned())),
    ] {
        assert_eq!(program(&["-c", command]), Err(error), "{command}");
    }
}

/// A limit on the overhead is a percentage; sampling then starts with all allocations, or with the requested
/// interval.
#[test]
fn max_overhead() {
    let of = |text: &str| {
        let config = config(&format!("-p 1 {text}")).expect("it makes sense");
        (
            config.trace.count.sampling,
            config.trace.count.max_overhead.map(MaxOverhead::share),
        )
    };
    assert_eq!(of("--max-overhead 10"), (Sampling::Governed(1), Some(0.1)));
    assert_eq!(of("--max-overhead 0.5"), (Sampling::Governed(1), Some(0.005)));
    assert_eq!(
        of("--max-overhead 250 --sample-bytes 4K"),
        (Sampling::Governed(4096), Some(2.5))
    );
    assert_eq!(of("--sample-bytes 4K"), (Sampling::Bytes(4096), None));
}

/// Table memory is given in bytes or larger units.
#[test]
fn table_memory() {
    let of = |text: &str| config(&format!("-p 1 {text}")).map(|config| config.trace.limits.table_memory);
    for (text, bytes) in [
        ("65536", 65536),
        ("64K", 65536),
        ("64KiB", 65536),
        ("1.5MiB", 3 << 19),
        ("3m", 3 << 20),
        ("256M", 256 << 20),
    ] {
        assert_eq!(of(&format!("--table-memory {text}")), Ok(Some(bytes)), "{text}");
    }
    assert_eq!(of(""), Ok(None));
}

/// Samples are by calls or by bytes; size limits are given singly or both.
#[test]
fn selection() {
    let of = |text: &str| {
        config(&format!("-p 1 {text}")).map(|config| (config.trace.count.sampling, config.trace.count.sizes))
    };
    let max = u64::MAX;
    for (text, sampling, sizes) in [
        ("", Sampling::All, None),
        ("-s 1", Sampling::All, None),
        ("-s 100", Sampling::Calls(100), None),
        ("--sample-bytes 512K", Sampling::Bytes(512 << 10), None),
        ("-z 64", Sampling::All, Some(SizeFilter { min: 64, max })),
        ("-Z 4K", Sampling::All, Some(SizeFilter { min: 0, max: 4096 })),
        (
            "-s 2 -z 8 -Z 8",
            Sampling::Calls(2),
            Some(SizeFilter { min: 8, max: 8 }),
        ),
    ] {
        assert_eq!(of(text), Ok((sampling, sizes)), "{text}");
    }
}

/// Every invalid command line is refused with its own reason.
#[test]
fn invalid_command_lines_are_refused() {
    let bad = |text: &str| text.to_owned();
    let unit = |flag, text: &str, error, example| ConfigError::Unit {
        flag,
        text: text.to_owned(),
        error,
        example,
    };
    let time = |flag, text: &str, error| unit(flag, text, error, "5, 500ms or 1m30s");
    let size = |flag, text: &str, error| unit(flag, text, error, "64 or 4K");
    for (arguments, error) in [
        ("-p 1 --percpu", ConfigError::KernelFlag("--percpu")),
        ("--follow-fork 1", ConfigError::ProcessFlag("--follow-fork")),
        ("-O libx.so", ConfigError::ProcessFlag("-O")),
        ("--debuginfod", ConfigError::ProcessFlag("--debuginfod")),
        ("-p 1 -- ls -l", ConfigError::TwoTargets),
        ("-p 1 -c ls", ConfigError::TwoTargets),
        ("-c ls -- ls", ConfigError::TwoPrograms),
        ("-c 'ls", ConfigError::CommandWords(bad("'ls"))),
        ("-p 0", ConfigError::PidRange(0)),
        ("-p 1,", ConfigError::EmptyTarget("-p")),
        ("-p 5,7 -p 5", ConfigError::SamePid(5)),
        ("-p 4294967296", ConfigError::PidRange(1 << 32)),
        ("-p 2147483648", ConfigError::PidRange(1 << 31)),
        ("-p 1 0", ConfigError::NoTime("INTERVAL", bad("0"))),
        ("-p 1 0m", ConfigError::NoTime("INTERVAL", bad("0m"))),
        ("-p 1 nan", time("INTERVAL", "nan", UnitError::Number)),
        ("-p 1 1e99", time("INTERVAL", "1e99", UnitError::Time(bad("e")))),
        (
            "-p 1 --duration 5x",
            time("--duration", "5x", UnitError::Time(bad("x"))),
        ),
        ("-p 1 --duration 0", ConfigError::NoTime("--duration", bad("0"))),
        ("-p 1 5 0", ConfigError::Count(bad("0"))),
        ("-p 1 5 x", ConfigError::Count(bad("x"))),
        ("-p 1 --max-blocks 0", ConfigError::Zero("--max-blocks")),
        ("-p 1 -s 0", ConfigError::SampleRate(bad("0"))),
        ("-p 1 -s 10%", ConfigError::SampleRate(bad("10%"))),
        ("-p 1 -s 16777217", ConfigError::SampleRate(bad("16777217"))),
        ("-p 1 --sample-bytes 0", ConfigError::SampleBytes(bad("0"))),
        (
            "-p 1 --sample-bytes 2048G",
            ConfigError::SampleBytes(bad("2048G")),
        ),
        ("-p 1 --max-overhead 0", ConfigError::MaxOverhead(bad("0"))),
        ("-p 1 --max-overhead -5", ConfigError::MaxOverhead(bad("-5"))),
        ("-p 1 --max-overhead nan", ConfigError::MaxOverhead(bad("nan"))),
        (
            "-p 1 --max-overhead little",
            ConfigError::MaxOverhead(bad("little")),
        ),
        ("-p 1 --max-overhead 5 -s 2", ConfigError::OverheadByCalls),
        ("--max-overhead 5", ConfigError::ProcessFlag("--max-overhead")),
        ("--source usdt", ConfigError::ProcessFlag("--source")),
        ("-p 1 --source usdt -s 2", ConfigError::ChosenByProcess("-s")),
        (
            "-p 1 --source usdt -O libc.so.6",
            ConfigError::ChosenByProcess("-O"),
        ),
        (
            "-p 1 --source usdt --mmap",
            ConfigError::ChosenByProcess("--mmap"),
        ),
        ("-p 1 -z many", size("-z", "many", UnitError::Number)),
        ("-p 1 -Z -1", size("-Z", "-1", UnitError::Number)),
        ("-p 1 -Z 1P", size("-Z", "1P", UnitError::Bytes(bad("P")))),
        (
            "-p 1 -z 1MB",
            size("-z", "1MB", UnitError::Decimal(bad("MB"), 'M')),
        ),
        ("-p 1 -z 9 -Z 8", ConfigError::NoSize { min: 9, max: 8 }),
        ("-p 1 --table-memory 63K", ConfigError::TableMemory(bad("63K"))),
        ("-p 1 --table-memory 1G", ConfigError::TableMemory(bad("1G"))),
        ("-p 1 --table-memory 1T", ConfigError::TableMemory(bad("1T"))),
    ] {
        assert_eq!(config(arguments), Err(error), "{arguments}");
    }
}
