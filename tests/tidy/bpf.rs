//! Rules for the kernel side: which of its files may include which, and where it may ask for the machine.

use super::{Source, assert_none, sources};

/// A file's name below `bpf/`.
fn name_of(file: &Source) -> String {
    let below = file.path.strip_prefix("bpf").expect("a file of bpf");
    below.display().to_string()
}

/// The folder of a name; none for the files at the top.
fn folder(name: &str) -> Option<&str> {
    name.split_once('/').map(|(folder, _)| folder)
}

/// Names of the files of `bpf/` that a file includes.
fn included(file: &Source) -> impl Iterator<Item = &str> {
    let lines = file.text.lines();
    lines.filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
}

/// The walk is readable alone: its files include none of those that make it faster, or that use it.
#[test]
fn the_walk_includes_no_other_folder() {
    let mut seen = 0;
    let mut offences = Vec::new();
    for file in sources("bpf/walk", &["h"]) {
        for name in included(&file) {
            seen += 1;
            if folder(name).is_some_and(|folder| folder != "walk") {
                offences.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(seen > 20, "the search finds what is included: {seen}");
    assert_none(&offences, "includes of bpf/walk/ that are not of the walk");
}

/// Includes have no circle: put in order, each file comes after those that it includes.
#[test]
fn includes_have_no_circle() {
    let mut files = sources("bpf", &["c", "h"]);
    let mut done = Vec::new();
    while !files.is_empty() {
        let is_ready = |file: &Source| included(file).all(|name| done.iter().any(|done| done == name));
        let (ready, waiting): (Vec<_>, Vec<_>) = files.into_iter().partition(is_ready);
        let names: Vec<String> = waiting.iter().map(name_of).collect();
        assert!(
            !ready.is_empty(),
            "in a circle, or including what is not there: {names:?}"
        );
        done.extend(ready.iter().map(name_of));
        files = waiting;
    }
    assert!(done.len() > 20, "the search finds the files");
}

/// The object for the kernel's own allocations has nothing that is for processes.
#[test]
fn kernel_memory_needs_no_processes() {
    let files = sources("bpf", &["c", "h"]);
    let mut reached = vec!["kernel_memory.bpf.c".to_owned()];
    let mut next = 0;
    while let Some(name) = reached.get(next) {
        let file = files.iter().find(|file| name_of(file) == *name);
        let names: Vec<String> = included(file.expect("it is there")).map(str::to_owned).collect();
        for name in names {
            if !reached.contains(&name) {
                reached.push(name);
            }
        }
        next += 1;
    }
    assert!(reached.iter().any(|name| name == "store/blocks.h"), "{reached:?}");
    reached.retain(|name| {
        folder(name) == Some("process") || ["config.h", "maps.h", "walk/unwind.h"].contains(&name.as_str())
    });
    assert_none(
        &reached,
        "includes of bpf/kernel_memory.bpf.c that are for processes",
    );
}

/// Verifiers follow a callback for each state of its caller, some a million times: it has a few statements,
/// and no loop.
#[test]
fn callbacks_are_short() {
    const MAX_LINES: usize = 8;
    let loops = ["bpf_loop(", "bpf_for_each_map_elem(", "bpf_find_vma("];
    let files = sources("bpf", &["c", "h"]);
    let body = |name: &str| {
        let start = format!("static long {name}(");
        let (_, rest) = files.iter().find_map(|file| file.text.split_once(&start))?;
        rest.split_once("{\n")?.1.split_once("\n}")
    };
    let lines = files.iter().flat_map(Source::code_lines);
    let calls = lines.filter_map(|(_, line)| loops.iter().find_map(|name| Some(line.split_once(name)?.1)));
    let calls = calls.filter(|arguments| arguments.ends_with(';'));
    let (mut seen, mut offences) = (0, Vec::new());
    for arguments in calls {
        let mut names = arguments.split([',', ')']).map(str::trim);
        let Some((name, (body, _))) = names.find_map(|name| Some((name, body(name)?))) else {
            panic!("no callback in {arguments}");
        };
        seen += 1;
        let lines = body.lines().filter(|line| !line.is_empty()).count();
        if lines > MAX_LINES || body.contains("for (") {
            offences.push(format!("{name}: {lines} lines"));
        }
    }
    assert!(seen >= 5, "the search finds callbacks: {seen}");
    assert_none(
        &offences,
        "callbacks that are to call a function which is not static",
    );
}

/// Programs for uprobes can be preempted, and then write to one another's stack, unless each keeps that of
/// its thread.
#[test]
fn programs_for_uprobes_use_the_stack_of_their_thread() {
    let files = sources("bpf", &["c", "h"]);
    let (mut seen, mut offences) = (0, Vec::new());
    for file in &files {
        for probe in ["SEC(\"uprobe", "SEC(\"uretprobe"] {
            for program in file.text.split(probe).skip(1) {
                let (name, body) = program.split_once("{\n").expect("a function");
                let (body, _) = body.split_once("\n}").expect("its end");
                let first = body.lines().map(str::trim);
                // Declarations come first.
                let mut first = first.filter(|line| !line.is_empty() && !line.contains(" = "));
                seen += 1;
                if first.next() != Some("use_thread_stack(ctx);") {
                    offences.push(name.to_owned());
                }
            }
        }
    }
    assert!(seen >= 12, "the search finds programs: {seen}");
    assert_none(&offences, "programs that are to begin with use_thread_stack(ctx)");
}

/// No kfunc is called: its form can change with any version of the kernel, and only the verifier would
/// notice.
#[test]
fn no_kfunc_is_called() {
    let files = sources("bpf", &["c", "h"]);
    let lines = files.iter().flat_map(|file| file.code_lines());
    let found: Vec<_> = lines.filter(|(_, line)| line.contains("__ksym")).collect();
    assert_eq!(found, []);
}

/// One line chooses the machine.
#[test]
fn one_line_asks_for_the_machine() {
    let words = ["__TARGET_ARCH", "__aarch64__", "__x86_64__"];
    let mut found = Vec::new();
    for file in sources("bpf", &["c", "h"])
        .iter()
        .chain(&sources("tests/host_bpf", &["c", "h"]))
    {
        let lines = file.text.lines();
        let asks = lines.filter(|line| words.iter().any(|word| line.contains(word)));
        found.extend(asks.map(|line| format!("{}: {line}", file.display())));
    }
    assert_eq!(found, ["bpf/walk/arch.h: #ifdef __TARGET_ARCH_arm64"]);
}
