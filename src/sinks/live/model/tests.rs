//! Effects of keys and reports on the model.

use std::thread;
use std::time::{Duration, Instant};

use ratatui::layout::Rect;

use super::*;
use crate::sinks::live::keys::{Action, Key, Move};
use crate::sinks::live::messages::Message;
use crate::sinks::live::shell::Overlay;
use crate::sinks::live::terminal::Content;
use crate::sinks::live::tests::{outstanding_site, report, sample, target};
use leak_report::model::TimeOfDay;
use leak_report::samples;

fn model(sample: Sample) -> Model {
    let mut model = Model::new(Order::Outstanding);
    model.resize(Rect::new(0, 0, 80, 24));
    model.take(sample);
    model
}

fn names(model: &Model) -> Vec<&str> {
    model.sites().iter().map(|site| site.name.as_str()).collect()
}

fn selected(model: &Model) -> &str {
    model.selected().map_or("", |site| &site.name)
}

/// Presses each character; `>` and `<` are down and up, `!` Escape, `~` Enter, `^` Backspace.
fn press(model: &mut Model, keys: &str) -> Vec<Action> {
    let key = |character| match character {
        '>' => Key::Move(Move::Down),
        '<' => Key::Move(Move::Up),
        '!' => Key::Escape,
        '~' => Key::Enter,
        '^' => Key::Backspace,
        other => Key::Character(other),
    };
    keys.chars()
        .filter_map(|character| model.press(key(character)))
        .collect()
}

/// Four sites, each the first in a different order.
fn four() -> Sample {
    let mut stacks = [
        outstanding_site("large", 9000),
        outstanding_site("growing", 700),
        outstanding_site("busy", 500),
        outstanding_site("many", 600),
    ];
    stacks[1].recent.since_last.allocated.amount.bytes = 650;
    stacks[0].recent.since_last.allocated.amount.bytes = 0;
    stacks[2].allocated.amount.bytes = 1_000_000;
    stacks[3].outstanding.amount.blocks = 5000;
    Sample::of(&report(stacks.into()))
}

/// Each order has its key, and one key cycles through all of them.
#[test]
fn orders() {
    let mut model = model(four());
    assert_eq!(names(&model), ["large", "growing", "many", "busy"]);
    for (key, order, first) in [
        ("g", Order::Growth, "growing"),
        ("a", Order::Allocated, "busy"),
        ("b", Order::Blocks, "many"),
        ("o", Order::Outstanding, "large"),
        ("x", Order::Suspicion, "large"),
        ("s", Order::Outstanding, "large"),
        ("s", Order::Growth, "growing"),
        ("s", Order::Allocated, "busy"),
        ("s", Order::Blocks, "many"),
        ("s", Order::Suspicion, "large"),
    ] {
        press(&mut model, key);
        assert_eq!((model.order(), names(&model)[0]), (order, first), "{key}");
    }
    press(&mut model, "au");
    assert_eq!((model.unit(), names(&model)[0]), (Unit::Blocks, "large"));
}

/// A site that the user moved to stays selected wherever it goes; the first row always has the first site; a
/// site that is gone is replaced by its successor.
#[test]
fn selection() {
    let mut model = model(sample(&[("a", 300), ("b", 200), ("c", 100)]));
    assert_eq!(selected(&model), "a");
    model.take(sample(&[("a", 300), ("b", 400), ("c", 100)]));
    assert_eq!(selected(&model), "b");
    press(&mut model, ">");
    assert_eq!(selected(&model), "a");
    model.take(sample(&[("a", 30), ("b", 400), ("c", 100)]));
    assert_eq!((selected(&model), model.row()), ("a", 2));
    model.take(sample(&[("b", 400), ("c", 100)]));
    assert_eq!((selected(&model), model.row()), ("c", 1));
    press(&mut model, "<<<");
    assert_eq!((selected(&model), model.row()), ("b", 0));
    for (movement, row) in [
        (Move::Last, 1),
        (Move::First, 0),
        (Move::PageDown, 1),
        (Move::PageUp, 0),
    ] {
        model.press(Key::Move(movement));
        assert_eq!(model.row(), row, "{movement:?}");
    }
    model.take(sample(&[]));
    assert!(model.selected().is_none());
    press(&mut model, "><>~>>!");
    assert!(model.sites().is_empty());
}

/// Sites with nothing outstanding are listed only in orders by something else.
#[test]
fn sites_with_nothing_outstanding() {
    let mut gone = outstanding_site("gone", 100);
    gone.outstanding = Default::default();
    gone.recent = Default::default();
    let mut model = model(Sample::of(&report(vec![outstanding_site("here", 10), gone])));
    for (key, expected) in [
        ("o", &["here"][..]),
        ("b", &["here"]),
        ("g", &["here"]),
        ("a", &["gone", "here"]),
    ] {
        press(&mut model, key);
        assert_eq!(names(&model), expected, "{key}");
    }
}

/// A filter takes effect while it is typed; it searches names, modules and files of all frames, ignoring
/// case.
#[test]
fn filter() {
    let mut model = model(sample(&[
        ("Cache::insert", 300),
        ("parse", 200),
        ("cache_fill", 100),
    ]));
    press(&mut model, "/CACHE");
    assert_eq!(names(&model), ["Cache::insert", "cache_fill"]);
    assert!(model.shell.is_filtering());
    // Letters are typed, but movement works.
    press(&mut model, ">");
    assert_eq!(selected(&model), "cache_fill");
    press(&mut model, "~");
    assert!(!model.shell.is_filtering());
    assert_eq!(model.left_out().filtered, 1);
    press(&mut model, "/^^^^^main.cpp~");
    assert_eq!(names(&model).len(), 3);
    for (wanted, count) in [
        ("/usr/lib/app", 3),
        ("malloc", 3),
        ("4242", 3),
        ("complete", 3),
        ("471", 0),
    ] {
        model.press(Key::Character('/'));
        model.press(Key::Clear);
        press(&mut model, wanted);
        press(&mut model, "~");
        assert_eq!(names(&model).len(), count, "{wanted}");
    }
    assert_eq!(press(&mut model, "!"), []);
    assert_eq!((model.shell.filter(), names(&model).len()), ("", 3));
    press(&mut model, "/");
    press(&mut model, &"x".repeat(1000));
    assert_eq!(model.shell.filter().len(), 100);
    press(&mut model, "!");
    assert!(!model.shell.is_filtering() && model.shell.filter().is_empty());
}

/// Escape closes one thing at a time and leaves when nothing is open; Control-C leaves from anywhere.
#[test]
fn ways_out() {
    let mut model = model(four());
    assert_eq!(press(&mut model, "/large~~?!!"), []);
    assert_eq!((model.focus(), model.shell.filter()), (Focus::Sites, "large"));
    assert_eq!(press(&mut model, "!!"), [Action::Quit]);
    assert_eq!(press(&mut model, "q"), [Action::Quit]);
    for before in ["", "?", "l", "/", "~"] {
        press(&mut model, before);
        assert_eq!(model.press(Key::Interrupt), Some(Action::Quit), "{before}");
        assert_eq!(model.press(Key::Redraw), Some(Action::Redraw), "{before}");
        press(&mut model, "!");
    }
    assert_eq!(press(&mut model, "mv"), [Action::Mark, Action::Verdict]);
    // The key that closes the help does nothing else.
    assert_eq!(press(&mut model, "?q"), []);
    assert_eq!(model.shell.overlay().0, Overlay::None);
}

/// While paused, nothing that is shown changes; afterwards nothing is missing.
#[test]
fn pause() {
    let line = |model: &Model| {
        let shown = model.shown().expect("there was a report");
        shown
            .trends
            .line(model.selected().expect("a site").key, Unit::Bytes, 4)
    };
    let mut model = model(sample(&[("a", 8)]));
    press(&mut model, "p");
    let before = line(&model);
    for bytes in [100, 200, 400] {
        model.take(sample(&[("a", bytes)]));
    }
    assert!(model.is_paused());
    assert_eq!(
        (line(&model), model.selected().map(|site| site.shown.bytes)),
        (before, Some(8))
    );
    // Orders and filters still work.
    press(&mut model, "s/a~");
    press(&mut model, " ");
    assert!(!model.is_paused());
    assert_eq!(model.selected().map(|site| site.shown.bytes), Some(400));
    assert_eq!(line(&model).trim().chars().count(), 4);
}

/// A stack scrolls only as far as it is longer than its pane; another site starts at the top again.
#[test]
fn scrolling() {
    let deep = outstanding_site("deep", 100);
    let mut frames = samples::frames(&deep);
    frames.extend(std::iter::repeat_n(frames[0], 40));
    let deep = samples::with_frames(deep, frames);
    let mut model = model(Sample::of(&report(vec![
        deep,
        outstanding_site("flat and rather long", 10),
    ])));
    press(&mut model, "~>>>");
    assert_eq!(model.scrolled(), (3, 0));
    model.press(Key::Move(Move::Last));
    // A line of facts, 42 frames, the end; ten are visible.
    assert_eq!(model.scrolled(), (34, 0));
    model.press(Key::Move(Move::PageUp));
    assert_eq!(model.scrolled(), (25, 0));
    model.press(Key::Right);
    assert_eq!(model.scrolled().1, 0, "its lines are short");
    press(&mut model, "~>");
    assert_eq!(
        (selected(&model), model.scrolled()),
        ("flat and rather long", (0, 0))
    );
    model.resize(Rect::new(0, 0, 40, 24));
    model.press(Key::Right);
    assert!(model.scrolled().1 > 0, "now they are not");
    model.resize(Rect::new(0, 0, 5, 2));
    press(&mut model, "~>><<s");
}

/// Rates use the reports' own time; a counter that went back gives a rate of 0, not a negative one.
#[test]
fn rates() {
    let mut first = report(Vec::new());
    first.compared.since_last = std::time::Duration::from_millis(500);
    let mut second = first.clone();
    (second.events.allocations, second.events.frees) = (12_445, 900);
    let mut model = model(Sample::of(&first));
    let rates = |model: &Model| model.shown().map(|shown| (shown.allocations, shown.frees));
    assert_eq!(rates(&model), Some((24_690.0, 2000.0)));
    model.take(Sample::of(&second));
    assert_eq!(rates(&model), Some((200.0, 0.0)));
    second.compared.since_last = std::time::Duration::ZERO;
    model.take(Sample::of(&second));
    assert_eq!(rates(&model), Some((0.0, 0.0)));
}

/// With a mark, growth is counted from it.
#[test]
fn growth_since_the_mark() {
    let mut marked = report(vec![outstanding_site("a", 100), outstanding_site("b", 100)]);
    marked.stacks[1].recent.since_baseline.allocated.amount.bytes = 77;
    marked.compared.marked = Some(TimeOfDay::default());
    let mut model = model(Sample::of(&marked));
    press(&mut model, "g");
    let growth: Vec<_> = model.sites().iter().map(|site| site.growth.bytes).collect();
    assert_eq!(growth, [77, 10]);
}

/// Sites of ended processes come last, as in reports.
#[test]
fn ended_processes_come_last() {
    let mut report = report(vec![
        outstanding_site("held", 1000),
        outstanding_site("holds", 10),
    ]);
    report.stacks[0].ended = Some(leak_report::model::InstanceEnd::Exited);
    report.targets.push(target(5, "other"));
    let model = model(Sample::of(&report));
    assert_eq!(names(&model), ["holds", "held"]);
}

/// Every visible change causes a redraw, and nothing else does.
#[test]
fn versions() {
    let mut model = model(four());
    let before = model.shell.version();
    model.resize(Rect::new(0, 0, 80, 24));
    assert_eq!(model.shell.version(), before);
    press(&mut model, "p");
    let paused = model.shell.version();
    model.take(four());
    assert_eq!(model.shell.version(), paused, "nothing of it is shown");
    model.shell.set_messages(vec![Message {
        is_warning: true,
        text: "memleak: warning: x".to_owned(),
    }]);
    assert!(model.shell.version() > paused);
    let version = model.shell.version();
    model.end();
    assert!(model.shell.version() > version);
}

/// Messages scroll from the newest back, and help from its start, as far as they do not fit.
#[test]
fn overlays() {
    let mut model = model(four());
    press(&mut model, "?>>");
    assert_eq!(model.shell.overlay(), (Overlay::Help, 0), "all of it fits");
    model.resize(Rect::new(0, 0, 40, 10));
    press(&mut model, ">>");
    assert_eq!(model.shell.overlay().1, 2);
    model.press(Key::Move(Move::Last));
    assert_eq!(model.shell.overlay().1, HELP.len() - 8);
    press(&mut model, "!");
    assert_eq!(model.shell.overlay(), (Overlay::None, 0));
    let message = |number: u32| Message {
        is_warning: false,
        text: number.to_string(),
    };
    model.shell.set_messages((0..30).map(message).collect());
    press(&mut model, "l<<");
    assert_eq!(model.shell.overlay(), (Overlay::Messages, 2));
    for (movement, expected) in [
        (Move::PageUp, 12),
        (Move::Down, 11),
        (Move::First, 29),
        (Move::PageDown, 19),
        (Move::Last, 0),
    ] {
        model.press(Key::Move(movement));
        assert_eq!(model.shell.overlay().1, expected, "{movement:?}");
    }
    press(&mut model, "!");
    assert_eq!(model.shell.overlay().0, Overlay::None);
}

/// The diagnosis of the selected site's process is in a window that only Escape closes, and that ends it.
#[test]
fn diagnoses() {
    let mut model = model(four());
    model.diagnose = |pid| {
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            &format!("seq -f 'process {pid} grows %g' 40; exec sleep 60"),
        ]);
        command
    };
    press(&mut model, "w");
    let looking = model.shell.text()[0].clone();
    assert!(looking.starts_with("looking at process 4242 … "), "{looking}");
    // Neither the view's keys nor those that close other windows act.
    assert_eq!(press(&mut model, "mq~w?"), []);
    assert_eq!(model.shell.overlay(), (Overlay::Text, 0));
    press(&mut model, "!");
    assert_eq!(model.shell.overlay(), (Overlay::None, 0));
    assert!(model.diagnosis.is_none());
    model.diagnose = |pid| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("seq -f 'process {pid} grows %g' 40")]);
        command
    };
    press(&mut model, "w");
    let began = Instant::now();
    while model.shell.text()[0] != "process 4242 grows 1" {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            model.shell.text()
        );
        thread::sleep(Duration::from_millis(5));
        model.tick();
    }
    // 22 lines fit into the window.
    press(&mut model, &">".repeat(30));
    assert_eq!(model.shell.overlay(), (Overlay::Text, 18));
    press(&mut model, "!");
    assert_eq!(press(&mut model, "m"), [Action::Mark]);
}

/// Without a process there is nothing to diagnose.
#[test]
fn nothing_to_diagnose() {
    let mut model = Model::new(Order::Outstanding);
    model.resize(Rect::new(0, 0, 80, 24));
    press(&mut model, "w");
    assert_eq!(model.shell.text(), ["There is no process to look at."]);
    model.tick();
    press(&mut model, "!");
    assert_eq!(model.shell.overlay(), (Overlay::None, 0));
}
