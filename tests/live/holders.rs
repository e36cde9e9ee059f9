//! Holders of blocks that are still reachable: the variable, the chain of sites, what would be lost with
//! them, and their classes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memleak_test::holders::{Held, Holder};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory};
use memleak_test::report::{Report, Stack};

const SOURCE: &str = include_str!("../programs/verdicts/holders.cpp");

/// Line of the program that begins with `text`, from 1.
fn line_of(text: &str) -> u64 {
    let line = SOURCE
        .lines()
        .position(|line| line.trim_start().starts_with(text));
    line.expect("a line of the program") as u64 + 1
}

/// The only stack whose blocks `function` allocates itself, with what holds them.
fn held<'a>(report: &'a Report, function: &str) -> (&'a Stack, &'a Held) {
    let is_its = |stack: &&Stack| {
        let responsible = stack
            .responsible
            .as_ref()
            .map(|responsible| responsible.symbol.as_str());
        responsible.is_some_and(|symbol| symbol.starts_with(function)) && stack.held.is_some()
    };
    let mut stacks: Vec<_> = report.stacks.iter().filter(is_its).collect();
    stacks.sort_by_key(|stack| stack.outstanding.blocks);
    let stack = stacks.pop().unwrap_or_else(|| panic!("no stack of {function}"));
    (stack, stack.held.as_ref().expect("asked above"))
}

/// Functions along a chain.
fn via(holder: &Holder) -> Vec<&str> {
    let symbols = holder
        .via
        .iter()
        .map(|step| step.symbol.as_deref().expect("a name"));
    symbols
        .map(|symbol| symbol.split('(').next().unwrap_or(symbol))
        .collect()
}

/// Compiles the program that knows what holds what, and its library, to a directory.
pub(crate) fn programs(directory: &Path) -> (PathBuf, PathBuf) {
    let library = directory.join("libwidgets.so");
    compile_as(
        &library,
        "verdicts/widgets.cpp",
        &["-shared", "-fPIC", "-O1", "-s", "-fvisibility=hidden"],
    );
    let path = compile(
        directory,
        "verdicts/holders.cpp",
        &["-std=c++17", "-O1", "-g", "-pthread", "-ldl"],
    );
    (path, library)
}

/// Blocks of a function, and what holds them.
struct Row {
    function: &'static str,
    symbol: Option<&'static str>,
    declaration: &'static str,
    kind: &'static str,
    chain: &'static [&'static str],
    class: Option<&'static str>,
}

const ROWS: &[Row] = &[
    Row {
        function: "open_sessions",
        symbol: Some("g_sessions"),
        declaration: "std::map<int, Session *> g_sessions",
        kind: "data",
        chain: &[],
        class: None,
    },
    Row {
        function: "make_session",
        symbol: Some("g_sessions"),
        declaration: "std::map<int, Session *> g_sessions",
        kind: "data",
        chain: &["open_sessions"],
        class: Some("Session"),
    },
    Row {
        function: "make_buffer",
        symbol: Some("g_sessions"),
        declaration: "std::map<int, Session *> g_sessions",
        kind: "data",
        chain: &["open_sessions", "make_session"],
        class: None,
    },
    Row {
        function: "make_entry",
        symbol: Some("cache()::entries"),
        declaration: "static std::unordered_map",
        kind: "data",
        chain: &["fill_cache", "fill_cache"],
        class: None,
    },
    Row {
        function: "make_node",
        symbol: Some("g_graph"),
        declaration: "std::shared_ptr<Node> g_graph",
        kind: "data",
        chain: &[],
        class: Some("std::_Sp_counted_ptr_inplace<Node"),
    },
    Row {
        function: "make_thread_buffer",
        symbol: Some("t_buffers"),
        declaration: "thread_local",
        kind: "thread_local",
        chain: &["run_worker"],
        class: None,
    },
    Row {
        function: "make_local",
        symbol: None,
        declaration: "",
        kind: "stack",
        chain: &["main"],
        class: None,
    },
];

/// Checks what a report says of the blocks of a function, of which `retained` blocks and bytes would be lost.
#[track_caller]
fn check_row(report: &Report, row: &Row, retained: (u64, u64)) {
    let Row {
        function,
        symbol,
        declaration,
        kind,
        chain,
        class,
    } = *row;
    let (stack, held) = held(report, function);
    let by = held.by.first().unwrap_or_else(|| panic!("{function}: {held:?}"));
    assert_eq!(
        (by.root.kind.as_str(), by.root.symbol.as_deref()),
        (kind, symbol),
        "{function}: {held:?}"
    );
    if symbol.is_some() {
        let file = by.root.file.as_deref().expect("debug information");
        assert!(file.ends_with("holders.cpp"), "{file}");
        assert_eq!(by.root.line, Some(line_of(declaration)), "{function}");
    }
    assert_eq!(via(by), chain, "{function}: {held:?}");
    // Of a hash table, the first node is held by the table itself, all others by its array.
    let by_another = u64::from(function == "make_entry");
    assert!(
        !by.cut && by.blocks + by_another == stack.outstanding.blocks,
        "{function}: {held:?}"
    );
    let (blocks, bytes) = retained;
    let found = held.retained.expect("asked for");
    assert_eq!((found.blocks, found.bytes), (blocks, bytes), "{function}");
    let classes: Vec<_> = held
        .classes
        .iter()
        .map(|class| (class.name.as_str(), class.blocks))
        .collect();
    match (class, &classes[..]) {
        (None, []) => {}
        (Some(class), [(name, blocks)]) => assert!(
            name.starts_with(class) && *blocks == stack.outstanding.blocks,
            "{classes:?}"
        ),
        (_, _) => panic!("{function}: {classes:?}"),
    }
}

/// The program's own account of what holds what is found from outside: variables with the lines that declare
/// them, in a function, in a thread and on a stack; sites along chains; classes with symbols and without; and
/// what would be lost with a site's blocks.
#[test]
fn variables_chains_and_classes() {
    let directory = directory("verdict-holders");
    let (path, library) = programs(&directory);
    let mut program = Program::start(&path, &[library.to_str().expect("a plain name")]);
    let memleak = Memleak::attach(program.pid(), &["--verdict"]);
    // While memleak is stopped, walks through the library wait: they are finished in user space after it was
    // asked to end.
    memleak.signal("STOP");
    program.send_line("");
    let mut retained = BTreeMap::new();
    for line in program.lines_before("ready") {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        retained.insert(words[0].to_owned(), (number(1), number(2)));
    }
    memleak.interrupt();
    memleak.signal("CONT");
    let report = memleak.last_report();
    assert!(report.unwinding.finished_in_user_space > 0);
    for row in ROWS {
        check_row(&report, row, retained[row.function]);
    }
    let (_, local) = held(&report, "make_local");
    assert_eq!(
        local.by[0].root.thread.as_ref().map(|thread| thread.tid),
        Some(program.pid())
    );
    let (_, worker) = held(&report, "make_thread_buffer");
    assert_eq!(
        worker.by[0]
            .root
            .thread
            .as_ref()
            .map(|thread| thread.name.as_str()),
        Some("worker")
    );
    stripped(&report);
    assert!(program.end().success());
}

/// Checks that classes of a stripped library are known all the same, and its data by its section. A list's
/// nodes are held by the holder of the list.
fn stripped(report: &Report) {
    let widgets = report.stacks.iter().filter_map(|stack| stack.held.as_ref());
    let is_widget = |held: &&Held| held.classes.iter().any(|class| class.name == "plugin::Widget");
    let held = { widgets }.find(is_widget);
    let held = held.unwrap_or_else(|| panic!("no blocks of a known class in {report}"));
    assert_eq!(held.classes[0].blocks, 100);
    let by = &held.by[0];
    assert_eq!((by.blocks, by.via.len()), (100, 0), "{held:?}");
    assert_eq!(by.root.section.as_deref(), Some(".bss"));
    let object = by.root.object.as_deref().expect("an object");
    assert!(object.ends_with("libwidgets.so"), "{object}");
}
