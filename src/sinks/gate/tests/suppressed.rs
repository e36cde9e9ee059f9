//! Matching, effect and proposals of suppressions.

use super::fixture::{frame, framed, report, stack};
use super::*;
use crate::sinks::gate::input::Lines;
use leak_report::samples;

fn suppressions(text: &str) -> Result<Suppressions, InputError> {
    let mut suppressions = Suppressions::default();
    suppressions.add(&Lines::of(Path::new("known.txt"), text.to_owned()))?;
    Ok(suppressions)
}

/// Rules match functions, including inlined ones, source files and modules of any frame, and the allocator
/// function; the innermost frame's rule is applied.
#[test]
fn suppressed_stacks() {
    let rules = "# known\n\nleak:^outer$\n  leak:inl*d \r\nleak:src/a.c\nleak:libfoo.so\nleak:^memalign$\nleak:unused\n";
    let rules = suppressions(rules).expect("all are rules");
    let marked = |stack| {
        let mut report = report(vec![stack]);
        rules.mark(&mut report);
        let by = report.stacks[0].suppressed_by.take();
        by.map(|by| (by.rule.clone(), by.place.clone()))
    };
    let mut aligned = stack(&["f"], 1, 1);
    aligned.allocator = samples::allocator("memalign");
    for (stack, expected) in [
        (stack(&["f", "main"], 1, 1), None),
        (stack(&["f", "outer", "main"], 1, 1), Some(("leak:^outer$", 3))),
        (stack(&["f", "outermost"], 1, 1), None),
        (
            framed(vec![frame("f", Some("inlined"), "/bin/p", None)]),
            Some(("leak:inl*d", 4)),
        ),
        (
            framed(vec![frame("f", None, "/bin/p", Some("/src/a.cpp"))]),
            Some(("leak:src/a.c", 5)),
        ),
        (
            framed(vec![frame("", None, "/usr/lib/libfoo.so.1", None)]),
            Some(("leak:libfoo.so", 6)),
        ),
        (
            framed(vec![
                frame("f", None, "/opt/libfoo.so", None),
                frame("outer", None, "/bin/p", None),
            ]),
            Some(("leak:libfoo.so", 6)),
        ),
        (aligned, Some(("leak:^memalign$", 7))),
        // `operator new` is in all C++ stacks.
        (
            framed(vec![frame(
                "operator new(unsigned long)",
                None,
                "/opt/libfoo.so",
                None,
            )]),
            None,
        ),
    ] {
        let expected = expected.map(|(rule, line)| (rule.to_owned(), format!("known.txt:{line}")));
        assert_eq!(marked(stack), expected);
    }
}

/// A function is matched by its exact or its abbreviated name; anchors apply to each separately.
#[test]
fn either_name() {
    let exact = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::reserve(unsigned long)";
    for (pattern, expected) in [
        (exact, true),
        ("^std::string::reserve(unsigned long)$", true),
        ("^std::__cxx11::basic_string<char", true),
        ("std::allocator<char> >::reserve", true),
        ("^string::reserve", false),
        ("basic_string$", false),
        ("^std::string::*basic_string", false),
    ] {
        let rules = suppressions(&format!("leak:{pattern}\n")).expect("a rule");
        for frame in [
            frame(exact, None, "/bin/p", None),
            frame("f", Some(exact), "/bin/p", None),
        ] {
            let mut report = report(vec![framed(vec![frame])]);
            rules.mark(&mut report);
            assert_eq!(report.stacks[0].suppressed_by.is_some(), expected, "{pattern}");
        }
    }
}

/// An invalid rule is refused, with file, line and remedy.
#[test]
fn invalid_suppressions_are_refused() {
    for (text, line, part) in [
        (
            "leak:a\nrace:b\n",
            2,
            "`race:b` is not a suppression: write leak:PATTERN",
        ),
        ("malloc", 1, "`malloc` is not a suppression"),
        ("#\n\nLeak:a", 3, "`Leak:a` is not a suppression"),
        ("leak:", 1, "would suppress everything: give a pattern, or leak:*"),
        ("leak:^$", 1, "would suppress everything"),
        ("\u{1b}[2J", 1, "`\\u{1b}[2J`"),
        (
            "leak:$\u{1b}[2J",
            1,
            "`leak:$\\u{1b}[2J` would suppress everything",
        ),
    ] {
        let error = suppressions(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("known.txt:{line}: ")), "{error}");
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    assert!(suppressions("leak:*").is_ok());
}

/// A suppressed stack does not count, is marked in the returned report, and its amount is summed.
#[test]
fn suppressions_take_effect() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("known.txt");
    std::fs::write(&path, "leak:known\n").expect("our own file");
    let settings = Settings {
        suppressions: vec![path],
        ..settings(&["outstanding>40"])
    };
    let mut gate = Gate::open(&settings).expect("rules");
    let stacks = vec![
        stack(&["known"], 400, 10),
        stack(&["new"], 40, 1),
        stack(&["known", "main"], 60, 2),
    ];
    let checked = gate.check(&Arc::new(report(stacks)));
    let last = gate.last.as_ref().expect("a report");
    assert_eq!(gate.findings(&last.facts)[0].outcome, Outcome::Passed);
    let [(by, sum)] = &last.suppressed[..] else {
        panic!("one rule")
    };
    let expected = Amount {
        bytes: 460,
        blocks: 12,
    };
    assert_eq!((&*by.rule, *sum), ("leak:known", expected));
    assert_eq!(gate.finish(0).expect("nothing to write"), None);
    let marks = checked.stacks.iter().map(|stack| stack.suppressed_by.is_some());
    assert_eq!(marks.collect::<Vec<_>>(), [true, false, true]);
}

/// A proposed rule suppresses its site and as few others as possible, and can be parsed.
#[test]
fn proposals() {
    let stacks = vec![
        stack(&["xmalloc", "parse", "main"], 400, 10),
        stack(&["xmalloc", "load", "main"], 40, 1),
        stack(&["xmalloc", "freed", "main"], 0, 0),
        stack(&["xmalloc", "parse", "again", "main"], 60, 2),
        stack(
            &["operator new(unsigned long)", "std::string::f()", "$odd*"],
            5,
            1,
        ),
        stack(&["xmalloc", "part.part.0", "main"], 4, 1),
        samples::with_frames(stack(&[], 3, 1), vec![frame("", None, "/opt/libx.so", None)]),
        stack(&[], 2, 1),
    ];
    let mut report = report(stacks);
    let mut names = SiteNames::default();
    let sites = site::sites(&report, &mut names);
    let mut out = Vec::new();
    let outstanding = sites.iter().map(|site| (site, site.outstanding.amount));
    proposals::write(&proposals::propose(&report, outstanding, &names), &mut out).expect("to memory");
    let text = String::from_utf8(out).expect("text");
    let rules: Vec<_> = text.lines().filter(|line| line.starts_with("leak:")).collect();
    let expected = [
        "leak:^parse$",
        "leak:^again$",
        "leak:^load$",
        "leak:^*odd*$",
        "leak:^part",
        "leak:^/opt/libx.so$",
    ];
    assert_eq!(rules, expected, "{text}");
    assert!(
        text.contains("# 400 B in 10 blocks: parse < main\nleak:^parse$\n"),
        "{text}"
    );
    suppressions(&text).expect("rules").mark(&mut report);
    let left: Vec<_> = report
        .suspects()
        .filter(|stack| stack.outstanding.amount.blocks > 0)
        .collect();
    // One stack has no frames.
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(
        left[0].path.is_none() && text.contains("# Every rule for it"),
        "{text}"
    );
}

/// Functions of Python are matched by their names and files; a rule that is proposed for the code of a
/// module, which is called `<module>` in every file, names the file.
#[test]
fn functions_of_python() {
    for (pattern, expected) in [
        ("^fetch_rows$", [true, false, true]),
        ("/main.py$", [true, true, false]),
        ("^<module>$", [true, true, false]),
        ("python3.11/json", [true, false, false]),
        ("^<python function>$", [false, false, true]),
        ("[python]", [false, false, false]),
    ] {
        let rules = suppressions(&format!("leak:{pattern}\n")).expect("a rule");
        let mut report = samples::python::python();
        rules.mark(&mut report);
        let marks = report.stacks.iter().map(|stack| stack.suppressed_by.is_some());
        assert_eq!(marks.collect::<Vec<_>>(), expected, "{pattern}");
    }
    let mut report = samples::python::python();
    for (stack, file) in ["/opt/app/a.py", "/opt/app/b.py"].into_iter().enumerate() {
        let of_module = samples::python::function(1, Some("<module>"), Some((file, 1)));
        samples::change_frames(&mut report, stack, |frames| *frames = vec![of_module]);
    }
    let mut names = SiteNames::default();
    let sites = site::sites(&report, &mut names);
    let outstanding = sites.iter().map(|site| (site, site.outstanding.amount));
    let mut out = Vec::new();
    proposals::write(&proposals::propose(&report, outstanding, &names), &mut out).expect("to memory");
    let text = String::from_utf8(out).expect("text");
    assert!(text.contains(": <module> a.py\nleak:^/opt/app/a.py$\n"), "{text}");
    assert!(text.contains(": <module> b.py\nleak:^/opt/app/b.py$\n"), "{text}");
}
