//! Tests of screens as they are drawn.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use unwind_tables::walk::{End, FoundBy, LeftOut};

use super::*;
use crate::sinks::live::keys::Key;
use crate::sinks::live::layout::MIN;
use crate::sinks::live::messages::Message;
use crate::sinks::live::sample::{Order, Sample};
use crate::sinks::live::terminal::Content;
use crate::sinks::live::tests::{outstanding_site, report, target};
use leak_report::model::{Amount, Judgement, Sampling, Verdict};
use leak_report::model::{Report, TimeOfDay};
use leak_report::samples::{self, frame, inlined};

const PLAIN: Theme = Theme { colours: false };

fn buffer(model: &mut Model, width: u16, height: u16, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    model.resize(Rect::new(0, 0, width, height));
    terminal
        .draw(|frame| draw(frame, model, theme))
        .expect("it draws");
    terminal.backend().buffer().clone()
}

fn screen(model: &mut Model, width: u16, height: u16) -> String {
    let buffer = buffer(model, width, height, PLAIN);
    let rows = buffer.content.chunks(usize::from(width).max(1));
    let rows = rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
    rows.map(|row| row.trim_end().to_owned() + "\n").collect()
}

fn press(model: &mut Model, keys: &str) {
    keys.chars().for_each(|key| {
        model.press(Key::Character(key));
    });
}

/// Three sites: a large one with inlined code, one whose stack is incomplete, a very small one.
fn leaking(scale: u64) -> Report {
    let large = outstanding_site("LeakLib::slowMemoryLeak()", 35_600 * scale);
    let frames = vec![
        frame("libstdc++.so.6.0.30", "operator new(unsigned long)"),
        inlined("leaker", "caller(int)", &["LeakLib::slowMemoryLeak()"]),
        frame("leaker", "main"),
        frame("libc.so.6", "__libc_start_main"),
        frame("leaker", "_start"),
    ];
    let large = samples::with_frames(large, frames);
    let mut cut = outstanding_site("plugin_call", 4000);
    cut.end = End::NoCfi;
    let mut frames = samples::frames(&cut);
    frames[1] = samples::changed(frames[1], |frame| {
        frame.found_by = FoundBy::Fp;
        cut.end_at = Some(frame.at);
    });
    let cut = samples::with_frames(cut, frames);
    let mut report = report(vec![large, cut, outstanding_site("startup", 20)]);
    (report.events.allocations, report.events.frees) = (12_345 * scale, 1_000 * scale);
    report
}

fn model() -> Model {
    let mut model = Model::new(Order::Outstanding);
    for scale in 1..=6 {
        model.take(Sample::of(&leaking(scale)));
    }
    model.shell_mut().set_messages(vec![Message {
        is_warning: false,
        text: "memleak: tracing process 4242: 12 probes".to_owned(),
    }]);
    model
}

/// A usual terminal shows sites and stack.
#[test]
fn sites_and_stack() {
    insta::assert_snapshot!(screen(&mut model(), 80, 24), @r"
memleak  4242 leaker                                         0:01:05 every 1.0 s
alloc 12 k/s  free 1.0 k/s  live 212.5 KiB in 22 k blocks  overhead 2.1%
  SUSP OUTSTANDING▼  BLOCKS      GROWTH/s  TREND   SITE
>    -    208.5 KiB    21 k   +20.9 KiB/s ▁▂▃▅▆█ ✓ LeakLib::slowMemoryLeak()
     -      3.9 KiB     400    +400.0 B/s ██████ ✗ plugin_call
     -         20 B       2      +2.0 B/s ██████ ✓ startup




─ 1 of 3: 208.5 KiB in 21 k blocks via malloc ──────────────────────────────────
allocated 417.1 KiB in 43 k blocks
operator new(unsigned long) [libstdc++.so.6.0.30] /src/main.cpp:42
LeakLib::slowMemoryLeak() (inlined) [leaker] /src/inlined.h:7
caller(int) [leaker] /src/main.cpp:42
main [leaker] /src/main.cpp:42
__libc_start_main [libc.so.6] /src/main.cpp:42
_start [leaker] /src/main.cpp:42
end: complete


nothing lost  2 of 3 stacks complete (98.1% of allocations)
tracing process 4242: 12 probes
q quit  ? help  ↑↓ site  Tab stack  s order  / filter  m mark  v verdict  w why
");
}

/// Functions of Python have `[python]` for their module, and no address.
#[test]
fn stack_with_functions_of_python() {
    let mut model = Model::new(Order::Outstanding);
    model.take(Sample::of(&samples::python::python()));
    let first = screen(&mut model, 80, 30);
    for line in [
        "fetch_rows [python] /opt/app/db.py:118",
        "<module> [python] /opt/app/main.py:3",
        "_PyEval_EvalFrameDefault [python3.11]",
    ] {
        assert!(first.lines().any(|shown| shown == line), "{line}\n{first}");
    }
    press(&mut model, "jj");
    let third = screen(&mut model, 80, 30);
    assert!(
        third.lines().any(|shown| shown == "<python function> [python]"),
        "{third}"
    );
}

/// Frames that were left out of a stack have a line in their place.
#[test]
fn stack_with_frames_left_out() {
    for after in [0, 1, 3, 5] {
        let mut report = leaking(1);
        report.stacks[0].left_out = Some(LeftOut { after, frames: 3488 });
        let mut model = Model::new(Order::Outstanding);
        model.take(Sample::of(&report));
        let screen = screen(&mut model, 80, 24);
        let lines: Vec<&str> = screen.lines().collect();
        let [allocated, left_out] = ["allocated ", "… 3488 frames left out …"].map(|start| {
            lines
                .iter()
                .position(|line| line.starts_with(start))
                .expect(&screen)
        });
        // One frame has one line more, for its inlined function.
        let inlined = usize::from(after > 1);
        assert_eq!(left_out - allocated - 1, after as usize + inlined, "{screen}");
    }
}

/// With a verdict, sites show their definitely lost bytes, and those with most come first. The totals are
/// below, with the number of blocks that were called lost and freed since.
#[test]
fn verdict() {
    let amount = |blocks| Amount {
        bytes: 10 * blocks,
        blocks,
    };
    let mut report = leaking(6);
    report.stacks[1].verdict = Some(Verdict {
        definitely_lost: amount(300),
        reachable: amount(100),
        ..Verdict::default()
    });
    report.judgement = Some(Judgement {
        freed_later: amount(2),
        ..Judgement::default()
    });
    let mut model = Model::new(Order::Suspicion);
    model.take(Sample::of(&report));
    let shown = screen(&mut model, 80, 24);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(
        lines[2],
        " SUSP▼  DEF. LOST  OUTSTANDING  BLOCKS      GROWTH/s   SITE"
    );
    assert!(
        lines[3].starts_with(">    -    2.9 KiB      3.9 KiB     400"),
        "{shown}"
    );
    assert!(
        lines[3].ends_with("✗ plugin_call") && lines[4].contains(" 0 B "),
        "{shown}"
    );
    assert!(
        shown.contains("\n300 blocks (2.9 KiB) definitely lost, 100 still reachable, allocated "),
        "{shown}"
    );
    let report = leak_report::samples::held();
    let mut model = Model::new(Order::Suspicion);
    model.take(Sample::of(&report));
    let held = screen(&mut model, 150, 24);
    for line in [
        "2 still reachable from cache()::entries (leaker.cpp:7) and others, 1 unknown, allocated ",
        "\nheld by cache()::entries (leaker.cpp:7) (1 block)",
        "\nheld by the stack of thread 4243 (wor\\u{1b}ker) → ",
        "\nretains at least 200 B in 5 blocks",
        "\nclass app::Entry (12 blocks)",
    ] {
        assert!(held.contains(line), "no {line:?} in {held}");
    }
    assert!(
        shown.contains("\nall recorded  verdict: 2 blocks called lost were freed since; 300 blocks (2.9"),
        "{shown}"
    );
    assert!(!screen(&mut super::tests::model(), 80, 24).contains("DEF. LOST"));
}

/// A large terminal shows the second site selected, sampling, losses, a mark and several processes.
#[test]
fn large() {
    let mut model = model();
    let mut report = leaking(7);
    report.targets.push(target(5, "worker"));
    report.sampling = Sampling::Calls(100);
    report.stacks[1].outstanding.spread.bytes = 1 << 20;
    report.losses.blocks = 12;
    report.losses.bytes = 3456;
    report.losses.causes.insert("block_table_full".into(), 12);
    report.compared.marked = Some(TimeOfDay {
        hour: 9,
        minute: 5,
        second: 0,
    });
    report.peak = samples::peaked().peak;
    let peak = report.peak.as_mut().expect("it has one");
    peak.total.bytes = 1 << 20;
    model.take(Sample::of(&report));
    press(&mut model, "j");
    insta::assert_snapshot!(screen(&mut model, 120, 40), @r"
memleak  2 processes: 4242 leaker…                                                  marked 09:05:00  0:01:05 every 1.0 s
LOST  alloc ~12 k/s  free ~1.0 k/s  live 247.2 KiB in 25 k blocks  overhead 2.1%  peak 1.0 MiB
  SUSP OUTSTANDING▼  BLOCKS  ALLOCATED  SINCE MARK/s                          TREND     PID   SITE
     -    243.3 KiB    25 k  486.7 KiB    +1.2 KiB/s                        ▁▂▃▄▅▆█    4242 ✓ LeakLib::slowMemoryLeak()
>    -      3.9 KiB     400    7.8 KiB     +20.0 B/s                        ███████    4242 ✗ plugin_call
     -         20 B       2       40 B      +0.1 B/s                        ███████    4242 ✓ startup











─ 2 of 3: 3.9 KiB in 400 blocks via malloc in process 4242 ─────────────────────────────────────────────────────────────
allocated 7.8 KiB in 800 blocks, ± 1.0 KiB (standard error)
plugin_call [app] /src/main.cpp:42
main [app] /src/main.cpp:42 (by frame pointer)
end: no_cfi at app+0xe1ab15b9 (code without CFI, frame pointer not plausible)
     Build that code with -fasynchronous-unwind-tables, or assembly with .cfi directives.














lost: 12 blocks, 3.3 KiB (block_table_full 12)  2 of 3 stacks complete (98.4% of allocations)  estimates: 1 of 100
tracing process 4242: 12 probes
q quit  ? help  ↑↓ site  Tab stack  s order  / filter  m mark  v verdict  w why
");
}

/// The smallest terminal shows one pane at a time.
#[test]
fn small() {
    let mut model = model();
    insta::assert_snapshot!(screen(&mut model, 40, 10), @r"
    memleak  4242 leak…  0:01:05 every 1.0 s
    alloc 12 k/s  free 1.0 k/s  live 212.5 …
     OUTSTANDING▼      GROWTH/s   SITE
    >   208.5 KiB   +20.9 KiB/s ✓ LeakLib::…
          3.9 KiB    +400.0 B/s ✗ plugin_ca…
             20 B      +2.0 B/s ✓ startup


    nothing lost  2 of 3 stacks complete (9…
    q quit  ? help  ↑↓ site  Tab stack  s o…
    ");
    model.press(Key::Enter);
    insta::assert_snapshot!(screen(&mut model, 40, 10), @r"
    memleak  4242 leak…  0:01:05 every 1.0 s
    alloc 12 k/s  free 1.0 k/s  live 212.5 …
    ─ 1 of 3: 208.5 KiB in… lines 1-5 of 8 ─
    allocated 417.1 KiB in 43 k blocks
    operator new(unsigned long) [libstdc++.…
    LeakLib::slowMemoryLeak() (inlined) [le…
    caller(int) [leaker] /src/main.cpp:42
    main [leaker] /src/main.cpp:42
    nothing lost  2 of 3 stacks complete (9…
    q quit  ? help  ↑↓←→ scroll  Tab sites …
    ");
}

/// Screens are clear before the first report, with nothing outstanding, and with a filter that matches
/// nothing.
#[test]
fn empty() {
    let mut model = Model::new(Order::Growth);
    assert!(screen(&mut model, 80, 24).contains("Attaching."));
    model.take(Sample::of(&report(Vec::new())));
    assert!(screen(&mut model, 80, 24).contains("Nothing is outstanding."));
    model.take(Sample::of(&leaking(1)));
    press(&mut model, "/nothing\u{1b}[2Jlike this");
    let screen = screen(&mut model, 80, 24);
    assert!(
        screen.contains("No site has `nothing\\u{1b}[2Jlike this` in its stack."),
        "{screen}"
    );
}

/// Help, messages, the filter, a pause and the end are shown.
#[test]
fn states() {
    let mut model = model();
    press(&mut model, "?");
    insta::assert_snapshot!(screen(&mut model, 80, 24), @r"
memleak  4242 leaker                                         0:01:05 every 1.0 s
al┌ Keys (↑ ↓ scroll, others close this) ────────────────────────────────────┐
  │q  Esc  Ctrl-C      quit; Esc first closes what is open                   │
> │↑ ↓  j k            select a site, or scroll the stack                    │
  │PgUp PgDn Home End  the same, by pages, to the first, to the last         │
  │Enter  Tab          switch between sites and stack                        │
  │← →                 scroll a stack with long lines sideways               │
  │s                   order by the next of these five:                      │
  │x                   suspicion: how much a site behaves like a leak        │
  │o                   what is outstanding                                   │
─ │g                   growth                                                │──
al│a                   what was allocated in all                             │
op│b                   the number of blocks                                  │
Le│u                   growth and trend in blocks, or in bytes               │
ca│/                   only sites with this text in a frame; Esc ends it     │
ma│m                   mark: count growth from now on                        │
__│v                   verdict on lost blocks in each report; again: off     │
_s│w                   why the memory grows of the process that is shown     │
en│p  Space            pause the display; the trace goes on                  │
  │l                   messages                                              │
  │Ctrl-L              redraw the screen                                     │
no│?  h                this                                                  │
tr└──────────────────────────────────────────────────────────────────────────┘
q quit  ? help  ↑↓ site  Tab stack  s order  / filter  m mark  v verdict  w why
");
    model.press(Key::Escape);
    press(&mut model, "l");
    assert!(screen(&mut model, 80, 24).contains("│tracing process 4242: 12 probes  "));
    model.press(Key::Escape);
    press(&mut model, "/start");
    let filtering = screen(&mut model, 80, 24);
    assert!(
        filtering
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("/start ")),
        "{filtering}"
    );
    assert!(filtering.contains("SITE with `start`, 1 without"), "{filtering}");
    model.press(Key::Enter);
    press(&mut model, "p");
    model.end();
    let ended = screen(&mut model, 80, 24);
    assert!(
        ended.contains("PAUSED  ENDED") && ended.contains("this is the last report. q leaves."),
        "{ended}"
    );
}

/// No size causes a panic or a line longer than the screen; below the minimum, a message is drawn.
#[test]
fn all_sizes() {
    for keys in ["", "?", "l", "/x", "p"] {
        for (width, height) in [
            (0, 0),
            (1, 1),
            (3, 50),
            (39, 24),
            (80, 9),
            (40, 10),
            (41, 13),
            (200, 12),
            (300, 100),
        ] {
            let mut model = model();
            press(&mut model, keys);
            let screen = screen(&mut model, width, height);
            let is_small = width < MIN.0 || height < MIN.1;
            if width > 30 && height > 2 {
                assert_eq!(
                    screen.contains("The terminal is too small."),
                    is_small,
                    "{screen}"
                );
            }
        }
    }
}

/// Names with wide characters take their columns, and what follows stays in its place.
#[test]
fn wide_names() {
    let wide = "内存泄漏".repeat(20);
    let mut model = Model::new(Order::Outstanding);
    model.take(Sample::of(&report(vec![
        outstanding_site(&wide, 100),
        outstanding_site("דליפה\u{202e}", 50),
    ])));
    for width in [40, 41, 79, 80, 120] {
        let buffer = buffer(&mut model, width, 24, PLAIN);
        let sites: Vec<_> = (3..5).map(|row| buffer[(0, row)].symbol().to_owned()).collect();
        assert_eq!(sites, [">", " "], "{width}");
        let text = screen(&mut model, width, 24);
        assert!(!text.contains('\u{202e}') && text.contains("דליפה"), "{text}");
    }
}

/// Without colours nothing is coloured, and losses still stand out.
#[test]
fn no_colours() {
    let mut model = model();
    let mut report = leaking(7);
    report.losses.frees = 1;
    model.take(Sample::of(&report));
    let plain = buffer(&mut model, 80, 24, PLAIN);
    assert!(
        plain
            .content
            .iter()
            .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
    );
    let coloured = buffer(&mut model, 80, 24, Theme { colours: true });
    for (buffer, style) in [(&plain, Modifier::REVERSED), (&coloured, Modifier::BOLD)] {
        assert_eq!(buffer[(0, 1)].symbol(), "L");
        assert!(buffer[(0, 1)].modifier.contains(style));
    }
    assert_eq!(coloured[(0, 1)].fg, Color::Red);
}

/// The window of a diagnosis can be drawn at any size, with lines wrapped.
#[test]
fn diagnosis_at_all_sizes() {
    let mut model = model();
    let text = [
        "grows by 1.0 MiB/s",
        "",
        "1. lost blocks",
        "   by    remember app.cpp:54",
        "   next  free what `remember` app.cpp:54 allocates, or keep a pointer to it",
    ];
    model.shell.show_text(text.map(str::to_owned).into());
    for (width, height) in [(1, 1), (2, 2), (3, 40), (MIN.0, MIN.1), (200, 3)] {
        screen(&mut model, width, height);
    }
    let shown = screen(&mut model, 48, 16);
    assert!(
        shown.starts_with("┌ Why memory grows (↑ ↓ scroll, Esc closes this┐\n│grows by 1.0 MiB/s"),
        "{shown}"
    );
    assert!(shown.contains("│   next  free what `remember` app.cpp:54      │\n│     allocates, or keep a pointer to it       │"), "{shown}");
}
