//! Conditions, suppressions and baselines decide about traces of started programs, by the exit status.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use super::RELEASE;
use memleak_test::program::{compile, compile_as, directory, require_root};
use memleak_test::report::Report;
use memleak_test::started::Started;

/// Runs `memleak` with these arguments to the end of what it starts.
#[track_caller]
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    require_root();
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command.env_remove("GITHUB_WORKSPACE");
    let output: Output = command.args(arguments).output().expect("memleak was built");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

/// An exceeded condition is status 1 and named with its worst sites; an inconclusive one is 3; else the
/// program's own status is memleak's.
#[test]
fn conditions() {
    let program = compile(
        &directory("start-gates"),
        "processes/gated.c",
        &[&RELEASE[..], &["-g"]].concat(),
    );
    let program = program.display().to_string();
    for (conditions, arguments, status, parts) in [
        (
            &["outstanding>479", "blocks>9"][..],
            &["leak", "7"][..],
            1,
            &[
                "memleak: error: outstanding>479: exceeded: 480 B in 10 blocks at 1 site\n",
                "memleak:   480 B in 10 blocks: leak < main (tests/programs/processes/gated.c:",
                "error: blocks>9: exceeded: ",
                "status 1; the program's own was 7",
            ][..],
        ),
        (
            &[
                "outstanding>480",
                "site.blocks>10",
                "lost>0%",
                "incomplete>0%",
                "growth>1KiB/s",
            ],
            &["leak", "7"],
            7,
            &[
                "outstanding>480: not exceeded: 480 B",
                "lost>0%: not exceeded: 0%",
                "warning: growth>1KiB/s: not exceeded: too short to tell, as 0 reports were made",
            ],
        ),
        (
            &["outstanding>0", "growth>1KiB/s"],
            &["7"],
            3,
            &[
                "error: outstanding>0: inconclusive: 0 B in 0 blocks at 0 sites, but no allocation was seen",
                "status 3; the program's own was 7",
            ],
        ),
    ] {
        let conditions = conditions.iter().flat_map(|condition| ["--fail-on", *condition]);
        let all: Vec<_> = conditions
            .chain(["0.1", "--", &program])
            .chain(arguments.iter().copied())
            .collect();
        let (found, errors) = run(&all);
        assert_eq!(found, Some(status), "{all:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "no {part:?} in {errors}");
        }
    }
}

/// A program that grows while it runs fails for that, though it frees all in the end. Its recording gives the
/// same result for the same conditions; unless a part of it is missing, whose contents are not known.
#[test]
fn growth() {
    let directory = directory("start-growth");
    let program = compile(&directory, "processes/gated.c", &RELEASE);
    let recording = directory.join("leaks.memleak");
    let file = recording.to_str().expect("UTF-8");
    let conditions = [
        "--fail-on",
        "growth>1MiB/min",
        "--fail-on",
        "site.growth>1GiB/s",
        "--fail-on",
        "outstanding>0",
    ];
    let program = program.to_str().expect("UTF-8");
    let trace = ["--record", file, "0.1", "--", program, "grow", "shrink"];
    let mut started = Started::start(&[&conditions[..], &trace].concat());
    for _ in 0..9 {
        Report::parse(&started.line());
    }
    started.send_line("");
    let outcome = started.finish();
    let errors = outcome.messages.join("\n");
    assert_eq!(outcome.status, Some(1), "{errors}");
    for part in [
        "error: growth>1MiB/min: exceeded: +",
        "MiB/min: grow < main\n",
        "site.growth>1GiB/s: not exceeded: +",
        "outstanding>0: not exceeded: 0 B in 0 blocks at 0 sites",
    ] {
        assert!(errors.contains(part), "no {part:?} in {errors}");
    }

    let report = ["report", file, "--format", "summary"];
    let (status, said_later) = run(&[&report[..], &conditions].concat());
    assert_eq!(status, Some(1), "{said_later}");
    let is_finding = |line: &&String| line.contains("exceeded") || line.contains("grow < main");
    for line in outcome.messages.iter().filter(is_finding) {
        assert!(said_later.contains(line), "no {line:?} in {said_later}");
    }
    let bytes = fs::read(&recording).expect("it was recorded");
    fs::write(&recording, &bytes[..bytes.len() - 1]).expect("our own file");
    let condition = ["--fail-on", "outstanding>1GiB"];
    for (at, expected, part) in [
        (&[][..], 3, "but the recording is incomplete"),
        (&["--at", "-1"], 0, "not exceeded"),
    ] {
        let (status, errors) = run(&[&report[..], &condition, at].concat());
        assert_eq!(status, Some(expected), "{errors}");
        assert!(errors.contains(part), "no {part:?} in {errors}");
    }
}

/// Leaks that are suppressed or in the baseline do not fail; new ones do. Files that one run writes the next
/// one reads.
#[test]
fn accepted_leaks() {
    let directory = directory("start-accepted");
    let program = compile(&directory, "processes/gated.c", &RELEASE);
    let program = program.to_str().expect("UTF-8");
    let file = |name: &str| directory.join(name).display().to_string();
    let (rules, proposed, baseline) = (file("known.txt"), file("proposed.txt"), file("baseline.txt"));
    let recording = file("leaks.memleak");
    fs::write(&rules, "# known for long\nleak:^known$\nleak:nothing\n").expect("our own directory");
    let flags = [
        "--fail-on",
        "outstanding>0",
        "--suppressions",
        &rules,
        "--write-suppressions",
        &proposed,
        "--write-baseline",
        &baseline,
        "--record",
        &recording,
        "--",
        program,
        "known",
        "leak",
    ];
    let (status, errors) = run(&flags);
    assert_eq!(status, Some(1), "{errors}");
    for part in [
        "480 B in 10 blocks at 1 site",
        "suppressed: 500 B in 5 blocks by leak:^known$ (",
        "1 rule suppressed nothing: leak:nothing (",
    ] {
        assert!(errors.contains(part), "no {part:?} in {errors}");
    }
    let text = fs::read_to_string(&baseline).expect("it was written");
    assert!(
        text.contains("\n480 bytes in 10 blocks\n    malloc\n    leak\n    main\n"),
        "{text}"
    );
    let report_again = |flags: &[&str]| {
        let begin = ["report", &recording, "--fail-on", "outstanding>0"];
        run(&[&begin[..], flags].concat())
    };
    let suppressions = ["--suppressions", &rules];
    for (flags, expected) in [
        (&["--suppressions", &proposed], 0),
        (&["--baseline", &baseline], 0),
        (&["--suppressions", "/dev/null"], 1),
    ] {
        let (status, errors) = report_again(&[&suppressions[..], flags].concat());
        assert_eq!(status, Some(expected), "{errors}");
    }
    // Another process: the same, and more.
    let flags = [
        "--fail-on",
        "outstanding>0",
        "--baseline",
        &baseline,
        "--",
        program,
    ];
    let (status, errors) = run(&[&flags[..], &["leak", "leak", "known"]].concat());
    assert_eq!(status, Some(1), "{errors}");
    let found = "980 B in 15 blocks at 2 sites beyond the baseline\n";
    assert!(errors.contains(found), "no {found:?} in {errors}");

    fs::write(&rules, "leak:a\nrace:b\n").expect("our own file");
    let (status, errors) = report_again(&suppressions);
    assert_eq!(status, Some(2), "{errors}");
    assert!(
        errors.contains("known.txt:2: `race:b` is not a suppression"),
        "{errors}"
    );
}

/// Suppressions have the meaning that they have for LeakSanitizer, except for one thing: the same file
/// suppresses leaks of the same functions of a program.
#[test]
fn suppressions_are_leak_sanitizers() {
    let directory = directory("start-lsan");
    let built = |name: &str, flags: &[&str]| {
        let directory = directory.join(name);
        fs::create_dir(&directory).expect("our own directory");
        compile_as(&directory.join("tested"), "processes/gated.c", flags)
    };
    let sanitized = built("sanitized", &["-O2", "-g", "-fsanitize=leak"]);
    let plain = built("plain", &[&RELEASE[..], &["-g"]].concat());
    let file = |name: &str| directory.join(name).display().to_string();
    let (recording, rules) = (file("leaks.memleak"), file("rules.txt"));
    let plain = plain.to_str().expect("UTF-8");
    let (status, errors) = run(&["--record", &recording, "--", plain, "leak", "known"]);
    assert_eq!(status, Some(0), "{errors}");

    let functions = ["leak", "known"];
    let gate = [
        "report",
        &recording,
        "--suppressions",
        &rules,
        "--fail-on",
        "outstanding>0",
    ];
    let of_memleak = || {
        let (_, errors) = run(&gate);
        functions.map(|function| errors.contains(&format!(" blocks: {function} < main (")))
    };
    let options = format!("suppressions={rules}:fast_unwind_on_malloc=0");
    let of_leak_sanitizer = || {
        let mut command = Command::new(&sanitized);
        let output = command.args(functions).env("LSAN_OPTIONS", &options).output();
        let errors = output.expect("it was built").stderr;
        let errors = String::from_utf8_lossy(&errors);
        functions.map(|function| errors.contains(&format!(" in {function} /")))
    };
    let mut seen = BTreeSet::new();
    for text in [
        "",
        "leak:leak",
        "leak:^leak$",
        "leak:^known",
        "leak:^now",
        "leak:k$",
        "leak:Known",
        "leak:kn*n",
        "leak:kn**wn",
        "leak:^k*wn$",
        "leak:^*wn",
        "leak:n*k",
        "leak:eak$what follows",
        "leak:^mai$",
        "leak:^main$",
        "leak:malloc",
        "leak:gated.c",
        "leak:programs/*.c$",
        "leak:^gated",
        "leak:/tested$",
        "leak:libc.so",
        "leak:*",
        "# leak:leak\n\n \tleak:known \r\nleak:nothing",
    ] {
        fs::write(&rules, text).expect("our own directory");
        let left = of_memleak();
        assert_eq!(left, of_leak_sanitizer(), "what {text:?} leaves of {functions:?}");
        seen.insert(left);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");

    // The only difference: where a part of a pattern matches and the rest does not, memleak looks for a later
    // match.
    fs::write(&rules, "leak:^k*n$").expect("our own directory");
    assert_eq!((of_memleak(), of_leak_sanitizer()), ([true, false], [true, true]));
}

/// Failures are reported to GitHub by its workflow commands, with the place in the source, and in files of
/// JUnit's format.
#[test]
fn findings_for_github_and_junit() {
    let directory = directory("start-others");
    let program = compile(&directory, "processes/gated.c", &[&RELEASE[..], &["-g"]].concat());
    let junit = directory.join("junit.xml").display().to_string();
    let reports = directory.join("leaks.txt").display().to_string();
    let flags = [
        "--annotations",
        "github",
        "--junit",
        &junit,
        "--output",
        &reports,
        "--fail-on",
        "blocks>0",
        "--fail-on",
        "blocks>10",
        "--fail-on",
        "growth>1/d",
        "--suppressions",
        "/dev/null",
        "--",
        program.to_str().expect("UTF-8"),
        "leak",
    ];
    let (status, errors) = run(&flags);
    assert_eq!(status, Some(1), "{errors}");
    let annotations: Vec<_> = errors.lines().filter(|line| line.starts_with("::")).collect();
    let source = fs::read_to_string("tests/programs/processes/gated.c").expect("our own source");
    let line = (1..)
        .zip(source.lines())
        .find(|(_, text)| text.contains("malloc(48)"));
    let (line, _) = line.expect("it leaks");
    let place = format!(
        "::error file=tests/programs/processes/gated.c,line={line},title=memleak%3A blocks>0::480 B in 10 blocks"
    );
    assert!(annotations[0].starts_with(&place), "{annotations:#?}");
    assert_eq!(annotations.len(), 1, "{annotations:#?}");

    let read = "import sys, xml.etree.ElementTree as tree\n\
        suite = tree.parse(sys.argv[1]).getroot().find('testsuite')\n\
        print(*(suite.get(name) for name in ('name', 'tests', 'failures', 'errors', 'skipped')))\n\
        for case in suite.findall('testcase'):\n\
        \x20   found = case.find('*')\n\
        \x20   print(case.get('name'), float(case.get('time')) > 0, *([] if found is None else [found.tag, found.get('message')]))\n";
    let output = Command::new("python3")
        .args(["-c", read, &junit])
        .output()
        .expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = text.lines().collect();
    let expected = [
        "memleak 3 1 0 0",
        "blocks>0 True failure 480 B in 10 blocks at 1 site",
        "blocks>10 True",
        "growth>1/d True",
    ];
    assert_eq!(lines, expected);
    assert!(
        fs::read_to_string(reports)
            .expect("a report")
            .contains("leak: 480 B in 10 blocks, 100% of all, via malloc")
    );
}
