//! Claims about settings: precedence, conflicts, and errors.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sinks::output::Destination;
use leak_report::model::Sampling;
use leak_report::model::leak::Order;
use leak_report::render::Format;

/// Parses a command line with this environment, user's file and system-wide file.
fn parsed(line: &str, environment: &[(&str, &str)], files: &[(&str, Source)]) -> Result<Parsed, ParseError> {
    let arguments: Vec<_> = line.split_whitespace().map(OsString::from).collect();
    let variables: Vec<_> = environment
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let files = files.iter().zip(["/user.toml", "/system.toml"]);
    let files = files.map(|(&(text, trust), path)| (path.into(), text.to_owned(), trust));
    parse_with(&arguments, &variables, |_| Ok(files.collect()))
}

#[track_caller]
fn config(line: &str, environment: &[(&str, &str)], files: &[&str]) -> Config {
    let files: Vec<_> = files.iter().map(|text| (*text, Source::Trusted)).collect();
    let parsed = parsed(line, environment, &files).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(parsed.notes, [""; 0]);
    Config::try_from(parsed.cli.trace).expect("it makes sense")
}

#[track_caller]
fn refused(line: &str, environment: &[(&str, &str)], file: &str) -> String {
    let parsed = parsed(line, environment, &[(file, Source::Trusted)]);
    parsed.expect_err("refused").to_string()
}

/// Precedence is command line, environment, user's file, system-wide file; a list is replaced whole.
#[test]
fn precedence() {
    let files = [
        "top = 3\nobj = ['u1', 'u2']\ninterval = 7\n",
        "top = 4\nobj = 's'\nsort = 'count'\n",
    ];
    let of = |line, environment: &[_]| {
        let config = config(line, environment, &files);
        (
            config.trace.shown.top,
            config.trace.count.allocators.objects,
            config.trace.schedule.interval.as_secs(),
        )
    };
    let objects = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(of("memleak -p 1", &[]), (3, objects(&["u1", "u2"]), 7));
    let environment = [("MEMLEAK_TOP", "2"), ("MEMLEAK_OBJ", "e1\ne2"), ("PATH", "/")];
    assert_eq!(of("memleak -p 1", &environment), (2, objects(&["e1", "e2"]), 7));
    assert_eq!(
        of("memleak -p 1 -T 1 -O c 9", &environment),
        (1, objects(&["c"]), 9)
    );
    assert_eq!(
        config("memleak -p 1", &[], &files).trace.shown.view.sort,
        Some(Order::Count)
    );
    // An empty variable counts as unset.
    assert_eq!(of("memleak -p 1", &[("MEMLEAK_TOP", "")]).0, 3);
    let none = config("memleak -p 1 2 3", &[], &[]);
    assert_eq!(
        (none.trace.shown.top, none.trace.schedule.count),
        (10, NonZeroU64::new(3))
    );
}

/// A switch can be unset by a source of higher precedence; the usual words for yes and no are accepted.
#[test]
fn switches() {
    let follows = |environment: &[_], file: &str| {
        config("memleak -p 1", environment, &[file])
            .trace
            .targets
            .follow_fork
    };
    assert!(follows(&[], "follow-fork = true"));
    assert!(follows(&[("MEMLEAK_FOLLOW_FORK", "yes")], "follow-fork = false"));
    for no in ["0", "false", "No", "off"] {
        assert!(
            !follows(&[("MEMLEAK_FOLLOW_FORK", no)], "follow-fork = true"),
            "{no}"
        );
    }
    let loud = |environment: &[_], file| {
        let parsed = parsed("memleak -p 1", environment, &[(file, Source::Trusted)]);
        parsed
            .expect("it makes sense")
            .cli
            .messages
            .verbosity(false)
            .to_string()
    };
    assert_eq!(loud(&[], "verbose = 2"), "trace");
    assert_eq!(loud(&[("MEMLEAK_VERBOSE", "1")], "verbose = 2"), "memleak=debug");
    assert_eq!(loud(&[], "quiet = true"), "memleak=warn");
}

/// A setting that conflicts with the command line, by flags, values or target, is left out; one that needs
/// another is applied with it.
#[test]
fn settings_yield() {
    let sampling = |line: &str, file: &str| config(line, &[], &[file]).trace.count.sampling;
    let by_bytes = "memleak -p 1 --sample-bytes 4K";
    assert_eq!(sampling(by_bytes, "sample-rate = 100"), Sampling::Bytes(4096));
    assert_eq!(
        sampling("memleak -p 1 -s 5", "max-overhead = 10"),
        Sampling::Calls(5)
    );
    assert_eq!(
        sampling("memleak -p 1", "sample-rate = 100"),
        Sampling::Calls(100)
    );
    // Kernel mode has no unwind tables.
    assert_eq!(
        config("memleak 5", &[], &["table-memory = '64M'"])
            .trace
            .limits
            .table_memory,
        None
    );
    let quiet = parsed("memleak -v -p 1", &[], &[("quiet = 1", Source::Trusted)]);
    let quiet = quiet.expect("it yields");
    assert_eq!(quiet.cli.messages.verbosity(false).to_string(), "memleak=debug");
    assert_eq!(quiet.yielded, [Origin::File("/user.toml".into(), 1)]);
    let files = ["force = true\noutput = '/tmp/a.json'\nrecord-limit = '1M'\n"];
    let written = config("memleak -p 1", &[], &files);
    let file = Destination {
        file: Some("/tmp/a.json".into()),
        overwrite: true,
        ..Destination::default()
    };
    assert_eq!(
        (
            written.sinks.destination,
            written.sinks.format,
            written.sinks.recording
        ),
        (file, Format::Json, None)
    );
    let recorded = config("memleak -p 1 --record /tmp/r", &[], &files);
    assert_eq!(recorded.sinks.recording.expect("asked for").limit, 1 << 20);
    assert_eq!(
        config("memleak -p 1 --format svg", &[], &["measure = 'growth'"])
            .sinks
            .format,
        Format::Svg
    );
    // A target named only by the environment is traced, unless the command line names one.
    assert_eq!(
        config("memleak", &[("MEMLEAK_PID", "3,4")], &[])
            .trace
            .targets
            .pids,
        [3, 4]
    );
    assert!(
        config("memleak -c ls", &[("MEMLEAK_PID", "3")], &[])
            .trace
            .targets
            .pids
            .is_empty()
    );
    // Target settings of the environment are ignored, whichever flag of the command line names a target: both
    // must not be combined.
    for line in [
        "memleak --container web",
        "memleak --systemd-unit web",
        "memleak -p web",
    ] {
        let config = config(line, &[("MEMLEAK_PID", "3"), ("MEMLEAK_WAIT", "true")], &[]);
        let select = config.select.expect("a target");
        assert!(config.trace.targets.pids.is_empty() && !select.waits, "{line}");
    }
    let waits = config(
        "memleak",
        &[("MEMLEAK_PID", "web"), ("MEMLEAK_WAIT", "true")],
        &[],
    );
    assert!(waits.select.is_some_and(|select| select.waits));
    assert!(
        config("memleak --follow-fork", &[("MEMLEAK_PID", "3")], &[])
            .trace
            .targets
            .follow_fork
    );
}

/// Subcommands have their own tables; settings about messages apply to all.
#[test]
fn subcommands() {
    let file = "format = 'json'\ncolor = 'never'\n[report]\nformat = 'folded'\ntop = 7\n[diff]\ntop = 5\n";
    let of = |line: &str, environment: &[_]| {
        let parsed = parsed(line, environment, &[(file, Source::Trusted)]);
        parsed.expect("it makes sense").cli
    };
    let report = |environment: &[_]| match of("memleak report a", environment).command {
        Some(Command::Report(args)) => ReportOptions::try_from(*args).expect("it makes sense"),
        other => panic!("{other:?}"),
    };
    assert_eq!((report(&[]).format, report(&[]).top), (Format::Folded, Some(7)));
    let environment = [("MEMLEAK_REPORT_FORMAT", "text"), ("MEMLEAK_FORMAT", "svg")];
    assert_eq!(report(&environment).format, Format::Text);
    let diff = of("memleak diff a b", &[]);
    assert_eq!(diff.messages.color, super::super::ColorArg::Never);
    match diff.command {
        Some(Command::Diff(args)) => assert_eq!((args.top, args.format), (Some(5), None)),
        other => panic!("{other:?}"),
    }
}

/// Settings in the environment, the text of a file, and parts of the error.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

#[track_caller]
fn check_refused(cases: &[Case<'_>]) {
    for &(environment, file, parts) in cases {
        let error = refused("memleak -p 1", environment, file);
        for part in parts {
            assert!(error.contains(part), "{file}: no {part:?} in {error}");
        }
    }
}

/// An unknown setting is refused, with its origin and a suggestion, and so is one of the command line only.
#[test]
fn unknown_settings_are_refused() {
    check_refused(&[
        (
            &[],
            "\n\ntpo = 3",
            &["/user.toml:3: unknown setting `tpo` (did you mean `top`?)"],
        ),
        (
            &[],
            "sample_rate = 3",
            &["unknown setting `sample_rate`", "did you mean `sample-rate`?"],
        ),
        (
            &[],
            "frobnicate = 3",
            &["unknown setting `frobnicate`: names", "--help"],
        ),
        (
            &[],
            "[reprot]\ntop = 3",
            &["/user.toml:2: unknown setting `reprot`", "did you mean `report`?"],
        ),
        (&[], "[report]\ntpo = 3", &[":2: unknown setting `tpo`", "`top`?"]),
        (&[], "[diff]\nat = 3", &[":2: unknown setting `at`"]),
        (
            &[],
            "pid = 3",
            &["/user.toml:1: `pid` cannot be set here", "command line"],
        ),
        (&[], "config = 'x'", &["`config` cannot be set here"]),
        (&[], "help = true", &["`help` cannot be set here"]),
        (&[], "walk-memo = 'off'", &["`walk-memo` cannot be set here"]),
    ]);
}

/// An invalid setting is refused, with its origin; an unrelated variable is ignored.
#[test]
fn invalid_settings_are_refused() {
    check_refused(&[
        (
            &[],
            "\nformat = 'xml'",
            &["/user.toml:2: ", "'xml'", "text, json"],
        ),
        (&[], "top = 'many'", &["/user.toml:1: ", "'many'", "--top"]),
        (&[], "top = true", &["`top` must be one text or number"]),
        (&[], "top = [1]", &["`top` must be one text or number"]),
        (&[], "top = 2020-01-01", &["`top` must be one"]),
        (&[], "obj = [[1]]", &["`obj` must be a text or a list"]),
        (
            &[],
            "follow-fork = 'yes'",
            &["`follow-fork` must be true or false"],
        ),
        (&[], "verbose = 9", &["`verbose` must be true, false, or 0 to 3"]),
        (
            &[],
            "max-overhead = -5",
            &["/user.toml:1: ", "`-5` for --max-overhead"],
        ),
        (&[], "interval = 0", &["/user.toml:1: ", "`0` for INTERVAL"]),
        (&[], "interval = '1mx'", &["/user.toml:1: ", "`mx`"]),
        (
            &[],
            "record = 'a'\nrecord-limit = '1MB'",
            &["/user.toml:2: ", "ambiguous"],
        ),
        (&[], "format = {a = 1}", &["unknown setting `format`"]),
        (&[], "format: json", &["/user.toml:1: not TOML"]),
        (&[], "top = 1\ntop = 2", &["/user.toml:2: not TOML"]),
        (&[("MEMLEAK_FORMAT", "xml")], "", &["MEMLEAK_FORMAT: ", "'xml'"]),
        (
            &[("MEMLEAK_MMAP", "maybe")],
            "",
            &["MEMLEAK_MMAP: `mmap` must be true or false"],
        ),
    ]);
    // A secret that is not TOML is not quoted.
    assert!(!refused("memleak -p 1", &[], "root:$6$hash:19000::").contains("hash"));
    let parsed = parsed(
        "memleak -p 1",
        &[
            ("MEMLEAK_FROMAT", "json"),
            ("MEMLEAK_FULL_LOAD", "1"),
            ("MEMLEAK_VERSION", "3"),
        ],
        &[],
    );
    assert_eq!(
        parsed.expect("nothing is wrong").notes,
        ["ignoring MEMLEAK_FROMAT: no such setting (did you mean MEMLEAK_FORMAT?)"]
    );
}

/// Errors of the command line come before those of settings, and help works regardless of the files.
#[test]
fn the_command_line_comes_first() {
    assert!(refused("memleak --nonsense", &[], "nonsense = 1").contains("--nonsense"));
    for line in ["memleak --help", "memleak report -h", "memleak -V"] {
        match parsed(line, &[], &[("nonsense = 1", Source::Trusted)]) {
            Err(ParseError::CommandLine(_)) => {}
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// The file of the user who called sudo is trusted in what is shown and measured, and in nothing else.
#[test]
fn sudo_users_file_sets_only_the_view() {
    let file = "top = 3\nmax-overhead = 5\noutput = '/etc/passwd'\nforce = true\ndebuginfod = true\n[report]\nrecord = 'x'\n";
    let parsed = parsed("memleak -p 1", &[], &[(file, Source::Anyone)]).expect("the rest makes sense");
    let mut notes = parsed.notes;
    notes.sort();
    assert_eq!(notes.len(), 4);
    for (note, name) in notes.iter().zip(["output", "force", "debuginfod", "record"]) {
        assert!(
            note.contains(&format!("ignoring `{name}`")) && note.contains("--config"),
            "{note}"
        );
    }
    let config = Config::try_from(parsed.cli.trace).expect("it makes sense");
    let shown = Destination {
        most_stacks: Some(3),
        ..Destination::default()
    };
    assert_eq!(config.sinks.destination, shown);
    assert!(
        (config.trace.shown.top, config.trace.count.max_overhead.is_some()) == (3, true)
            && config.trace.stacks.debuginfod.is_none()
    );
    assert_eq!(config.trace.schedule.interval, Duration::from_secs(5));
}

/// The command line or the environment names the file; otherwise the default ones are read.
#[test]
fn which_files() {
    let wanted = |line: &str, environment: &[(&str, &str)]| {
        let arguments: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        let variables: Vec<_> = environment
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let mut seen = None;
        let parsed = parse_with(&arguments, &variables, |wanted| {
            seen = Some(format!("{wanted:?}"));
            Ok(Vec::new())
        });
        parsed.expect("it makes sense");
        seen.expect("it was asked")
    };
    let named = [("MEMLEAK_CONFIG", "/e")];
    assert_eq!(wanted("memleak -p 1", &[]), "Default");
    assert_eq!(wanted("memleak -p 1", &named), "One(\"/e\")");
    assert_eq!(wanted("memleak -p 1 --config /c", &named), "One(\"/c\")");
    assert_eq!(wanted("memleak report a --config /c", &named), "One(\"/c\")");
    assert_eq!(wanted("memleak -p 1 --no-config", &named), "None");
    assert_eq!(wanted("memleak -p 1", &[("MEMLEAK_NO_CONFIG", "1")]), "None");
}

/// The colour choice is found without parsing the rest.
#[test]
fn colors() {
    use super::super::ColorArg;
    let of = |line: &str| {
        let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        wanted_color(&words)
    };
    assert_eq!(of("memleak --color=always --help"), Some(ColorArg::Always));
    assert_eq!(of("memleak --nonsense --color never"), Some(ColorArg::Never));
    assert_eq!(of("memleak -- ls --color=always"), None);
    assert_eq!(of("memleak --color"), None);
}

proptest! {
    /// Any text is handled without a panic.
    #[test]
    fn any_file(text in "([a-z\\[\\]={}\"'.#, \n-]|top|format|\\[report\\]|true|\\PC){0,60}") {
        let _ = parsed("memleak -p 1", &[], &[(&text, Source::Anyone)]);
    }
}
