//! The page of `--format html` in a real browser shows the numbers of the report, whatever is pressed and
//! clicked.

mod holders;
mod last;
mod stacks;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::Duration;

use leak_report::render::{Limits, Page, People, Screen};
use memleak_test::browser::{Browser, key};
use memleak_test::hand_made;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, source};
use memleak_test::report::Report;
use serde_json::Value;

const DESKTOP: [u32; 2] = [1280, 800];
const PHONE: [u32; 2] = [390, 800];

/// A box of the flame graph as it is drawn.
#[derive(Debug, serde::Deserialize)]
struct Drawn {
    node: u32,
    name: String,
    row: u32,
    x: f64,
    width: f64,
}

fn boxes(browser: &Browser) -> Vec<Drawn> {
    serde_json::from_value(browser.run("return window.memleak.boxes()")).expect("boxes")
}

/// Returns the total width of all boxes of a name.
fn width(browser: &Browser, name: &str) -> f64 {
    let boxes = boxes(browser).into_iter();
    boxes
        .filter(|drawn| drawn.name == name)
        .map(|drawn| drawn.width)
        .sum()
}

/// A number of a tile, such as `data-bytes`.
fn tile(browser: &Browser, name: &str, attribute: &str) -> i64 {
    let value = browser.run(&format!(
        "return document.querySelector('[data-tile={name}]').getAttribute('{attribute}')"
    ));
    let value: f64 = value
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    #[allow(
        clippy::cast_possible_truncation,
        reason = "amounts of tests are small and whole"
    )]
    let whole = value as i64;
    whole
}

fn state(browser: &Browser, name: &str) -> Value {
    browser.run(&format!("return window.memleak.state().{name}"))
}

/// Checks that the page has not violated its own policy, and has loaded nothing.
#[track_caller]
fn check_quiet(browser: &Browser) {
    let console = browser.console();
    assert!(console.is_empty(), "{console:#?}");
    let requests = browser.requests();
    assert!(requests.is_empty(), "{requests:#?}");
}

/// All checks use one browser, as starting it takes longer than they do.
#[test]
fn in_a_browser() {
    let traced = thread::spawn(Traced::now);
    let browser = Browser::start("html");
    a_hostile_target(&browser);
    an_idle_target(&browser);
    ten_thousand_sites(&browser);
    stacks::abbreviated_names(&browser);
    stacks::frames_left_out(&browser);
    stacks::functions_of_python(&browser);
    holders::who_holds_it(&browser);
    last::pinned_memory(&browser);
    let traced = traced.join().expect("traced");
    a_trace(&browser, &traced);
    // The flame graph that is made without a browser.
    browser.open(&traced.picture);
    let names = browser.run("return document.documentElement.textContent");
    assert!(names.as_str().is_some_and(|names| names.contains("leak_block")));
    browser.screenshot("trace-svg");
}

/// Saves pictures for people: of each view, on a desktop in the light scheme, and on a phone in the dark one.
/// Checks that no page is wider than its window, and that every control has a name.
#[track_caller]
fn take_pictures(browser: &Browser, name: &str) {
    for (size, dark, place) in [(DESKTOP, false, "desktop"), (PHONE, true, "phone")] {
        browser.appear(size, dark);
        for view in ["flame", "sites", "memory", "health"] {
            browser.run(&format!("document.getElementById('tab-{view}').click()"));
            browser.screenshot(&format!("{name}-{view}-{place}"));
            let wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
            let is_wider = browser.run(&format!("return {wider}"));
            assert_eq!(is_wider, false, "{name} {view} {place}");
            let controls = browser.controls();
            assert!(controls.len() > 10, "{controls:#?}");
            assert!(controls.iter().all(|(_, name)| !name.is_empty()), "{controls:#?}");
        }
    }
    browser.run("document.getElementById('tab-flame').click()");
    browser.appear(DESKTOP, false);
}

/// Text contrasts with its background in both schemes: by 4.5 to 1, as
/// <https://www.w3.org/TR/WCAG21/#contrast-minimum> asks.
fn contrasts(browser: &Browser) {
    let painted = "match neutral marker outside m0 m1 m2 m3 m4 m5 m6 found-probe found-cfi found-fp found-kernel found-python";
    let names = format!(
        "ink dim accent accent-ink match-ink good bad back surface note-back good-back bad-back {painted}"
    );
    let script = format!(
        "const style = getComputedStyle(document.documentElement); \
         return Object.fromEntries('{names}'.split(' ').map((name) => [name, style.getPropertyValue(`--${{name}}`).trim()]))"
    );
    for dark in [false, true] {
        browser.appear(DESKTOP, dark);
        let colours = browser.run(&script);
        let colours: HashMap<String, String> = serde_json::from_value(colours).expect("colours");
        let of_painted = painted.split(' ').map(|behind| match behind {
            "match" => ("match-ink", behind),
            _ => ("ink", behind),
        });
        let pairs = [
            ("ink", "back"),
            ("dim", "back"),
            ("accent", "back"),
            ("ink", "surface"),
            ("dim", "surface"),
            ("bad", "surface"),
            ("ink", "note-back"),
            ("dim", "note-back"),
            ("good", "good-back"),
            ("ink", "bad-back"),
            ("bad", "bad-back"),
            ("accent-ink", "accent"),
        ];
        for (ink, behind) in pairs.into_iter().chain(of_painted) {
            let [one, other] = [ink, behind].map(|name| luminance(&colours[name]));
            let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
            assert!(contrast >= 4.5, "{ink} on {behind}, dark: {dark}: {contrast}");
        }
    }
    browser.appear(DESKTOP, false);
}

/// Relative luminance of a colour, from 0 to 1: <https://www.w3.org/TR/WCAG21/#dfn-relative-luminance>.
fn luminance(colour: &str) -> f64 {
    let digits = colour.strip_prefix('#').expect("a colour");
    let rgb = u32::from_str_radix(digits, 16).expect("six digits");
    let part = |shift: u32| {
        let value = f64::from(rgb >> shift & 0xff) / 255.0;
        if value <= 0.03928 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
}

/// Output of a trace of a program that grew.
struct Traced {
    page: PathBuf,
    /// The flame graph of the last report.
    picture: PathBuf,
    /// Reports of the same trace, from JSON.
    reports: Vec<Report>,
}

impl Traced {
    fn now() -> Self {
        let directory = directory("html-live");
        let path = compile(
            &directory,
            "amounts/snapshots.c",
            &["-O2", "-g", "-fno-optimize-sibling-calls", "-pthread"],
        );
        let mut program = Program::start(&path, &["3000", "1"]);
        program.expect("ready");
        let [page, recording, picture] =
            ["leaks.html", "leaks.memleak", "leaks.svg"].map(|name| directory.join(name));
        let [name, record] = [&page, &recording].map(|path| path.to_str().expect("a name"));
        // The first report is made while the program grows, the last when it is at rest.
        let flags = ["-o", "0", "--source-lines", "--output", name, "--record", record];
        let memleak = Memleak::attach_reporting(program.pid(), &flags, &["1", "4"]);
        program.step("kept");
        program.step("churning");
        sleep(Duration::from_millis(2500));
        program.step("quiet");
        assert!(!page.exists(), "a page is there once it is whole");
        let output_text = memleak.wait_for_text();
        assert_eq!(output_text, "", "the page went to standard output");
        // The recording of the same trace makes the same page, without `--all`.
        let rendered = report_of(&recording, &["--format", "html", "--source-lines"]);
        assert!(rendered == fs::read(&page).expect("a page"), "another page");
        report_of(&recording, &["--output", picture.to_str().expect("a name")]);
        let json = report_of(&recording, &["--all", "--format", "json"]);
        let json = String::from_utf8(json).expect("text");
        Self {
            page,
            picture,
            reports: json.lines().map(Report::parse).collect(),
        }
    }
}

/// Runs `memleak report` on a recording and returns its output.
fn report_of(recording: &Path, flags: &[&str]) -> Vec<u8> {
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"));
    memleak.arg("report").arg(recording).args(flags);
    let output = memleak.output().expect("memleak was built");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Totals of a real trace are those of its JSON, and choices change what is shown.
fn a_trace(browser: &Browser, traced: &Traced) {
    browser.open(&traced.page);
    let report = traced.reports.last().expect("reports");
    for (name, amount) in [
        ("outstanding", report.outstanding()),
        ("allocated", report.allocated()),
    ] {
        let of = |attribute| u64::try_from(tile(browser, name, attribute)).expect("not below zero");
        assert_eq!(
            (of("data-bytes"), of("data-blocks")),
            (amount.bytes, amount.blocks),
            "{name}"
        );
        let shown = browser
            .text(&format!("[data-tile={name}]"))
            .replace([',', '\u{a0}'], "");
        let expected = format!("{} blocks {}B", amount.blocks, amount.bytes);
        assert!(shown.contains(&expected), "no {expected:?} in {shown}");
    }
    measures_and_units(browser);
    last::the_peak(browser, report);
    sliders(browser, &traced.reports);
    search(browser);
    sites(browser, report);
    take_pictures(browser, "trace");
    check_quiet(browser);
}

/// Few large blocks and many small ones: the former are wide in bytes, the latter in blocks. Growth is drawn
/// only for what grew.
fn measures_and_units(browser: &Browser) {
    let widths = |names: [&str; 2]| names.map(|name| width(browser, name));
    let [kept, leaked] = widths(["keep_block", "leak_block"]);
    assert!(leaked > 100.0 && kept > 100.0, "{kept} {leaked}");
    browser.click_on("input[value=blocks] + span");
    let [kept_blocks, leaked_blocks] = widths(["keep_block", "leak_block"]);
    assert!(
        kept_blocks > 2.0 * kept && leaked_blocks < leaked / 2.0,
        "{kept_blocks} {leaked_blocks}"
    );
    browser.click_on("input[value=allocated] + span");
    assert!(width(browser, "churn_block") > 1000.0);
    browser.click_on("input[value=growth] + span");
    assert_eq!(
        widths(["keep_block", "churn_block"]),
        [0.0, 0.0],
        "these do not grow"
    );
    assert!(width(browser, "leak_block") > 1000.0);
    assert_eq!(state(browser, "unit"), "blocks");
    browser.click_on("input[value=bytes] + span");
}

/// Growth is the difference of two moments, which the keyboard can move; the attach is a moment, too.
fn sliders(browser: &Browser, reports: &[Report]) {
    let outstanding = |report: &Report| i64::try_from(report.outstanding().bytes).expect("not that much");
    let all: Vec<_> = reports.iter().map(outstanding).collect();
    assert_eq!(all.len(), 4);
    let last = all[all.len() - 1];
    let growth = || tile(browser, "growth", "data-bytes");
    assert_eq!(growth(), last - all[0]);
    browser.run("document.getElementById('before').focus()");
    browser.press(&[key::RIGHT]);
    assert_eq!(growth(), last - all[1]);
    browser.press(&[key::LEFT, key::LEFT]);
    assert_eq!(growth(), last, "since the attach, which is before everything");
    let text = browser.run("return document.getElementById('before').getAttribute('aria-valuetext')");
    assert!(
        text.as_str().is_some_and(|text| text.starts_with("attach")),
        "{text}"
    );
    browser.run("document.getElementById('after').focus()");
    browser.press(&[key::HOME]);
    assert_eq!(growth(), all[0], "neither slider gets past the other");
    assert_eq!(tile(browser, "outstanding", "data-bytes"), all[0]);
    browser.press(&["\u{e010}"]);
    browser.click_on("input[value=outstanding] + span");
}

/// A search says how much it found, marks boxes and leaves rows out; keys lead to the finds, and zoom.
fn search(browser: &Browser) {
    let rows = || browser.run("return document.querySelectorAll('#site-table tbody tr').length");
    let all = rows();
    browser.press(&["/"]);
    browser.press(&["l", "e", "a", "k", "_", "b"]);
    assert_eq!(state(browser, "query"), "leak_b");
    let found = browser.text("#found");
    assert!(
        found.starts_with("1 match in 1 site: ") && found.ends_with('%'),
        "{found}"
    );
    assert!(rows().as_u64() < all.as_u64());
    browser.press(&[key::ENTER]);
    let focus = || browser.run("return window.memleak.focus().name");
    assert_eq!(focus(), "leak_block");
    assert!(browser.text("#details").contains("snapshots.c:"));
    browser.press(&[key::UP]);
    assert_eq!(focus(), "leak");
    browser.press(&[key::DOWN, key::ENTER]);
    let zoom = || browser.run("return window.memleak.zoom()");
    assert_eq!(zoom()["name"], "leak_block");
    let full = zoom()["width"].as_f64().expect("a width");
    assert!(full > 1000.0);
    browser.press(&[key::ESCAPE]);
    assert_eq!(zoom()["name"], "all");
    assert!(width(browser, "leak_block") < full);
    // By the mouse, too.
    let keep = boxes(browser)
        .into_iter()
        .find(|drawn| drawn.name == "keep_block")
        .expect("a box");
    let place = browser.run(&format!("return window.memleak.placeOf({})", keep.node));
    let at = |name: &str| place[name].as_f64().expect("a place");
    browser.click(at("x"), at("y"));
    assert_eq!(zoom()["name"], "keep_block");
    browser.press(&[key::ESCAPE]);
    browser.click_on("#search");
    browser.press(&[key::ESCAPE]);
    assert_eq!((state(browser, "query"), rows()), ("".into(), all));
}

/// The table has every site that has anything; a row opens to the whole stack, and leads back to the graph.
fn sites(browser: &Browser, report: &Report) {
    browser.run("document.getElementById('tab-flame').focus()");
    browser.press(&[key::RIGHT]);
    assert_eq!(state(browser, "view"), "sites");
    let outstanding = report.stacks.iter().filter(|stack| stack.outstanding.blocks > 0);
    let rows = "return document.querySelectorAll('#site-table tbody tr').length";
    assert_eq!(browser.run(rows), outstanding.count());
    browser.click_on("#site-table [data-column=site] button");
    browser.click_on("#site-table [data-column=blocks] button");
    let first = browser.text("#site-table tbody tr:first-child");
    assert!(
        first.contains("keep_block") && first.contains("complete"),
        "{first}"
    );
    assert_eq!(
        browser.text("#site-table tbody tr:first-child [data-column=freed]"),
        "0%"
    );
    browser.run("document.querySelector('#site-table tbody tr:first-child .site button').focus()");
    browser.press(&[key::ENTER]);
    let details = browser.text("#site-table .details");
    for part in [
        "keep_block+0x",
        "main+0x",
        "_start+0x",
        "snapshots.c:",
        "end: complete",
        "3,000 blocks",
    ] {
        assert!(details.contains(part), "no {part:?} in {details}");
    }
    // The line that allocates, as it is in the file.
    let line = browser.text("#site-table .details pre.source strong");
    let (number, text) = line.trim().split_once("  ").expect("a number and a text");
    let file = fs::read_to_string(source("amounts/snapshots.c")).expect("a source");
    let number: usize = number.parse().expect("a number");
    assert_eq!(file.lines().nth(number - 1).map(str::trim), Some(text.trim()));
    // Below the graph are the largest, each of which leads to its box.
    browser.click_on("#tab-flame");
    let largest = browser.text("#largest-sites tbody tr:first-child .name");
    assert_eq!(largest, "leak_block");
    browser.click_on("#largest-sites tbody tr:first-child .site button");
    assert_eq!(browser.run("return window.memleak.focus().name"), "leak_block");
    browser.click_on("#tab-sites");
    browser.click_on("#site-table .details button");
    assert_eq!(browser.run("return window.memleak.focus().name"), "keep_block");
    let is_open = || browser.run("return document.getElementById('help').open");
    browser.press(&["?"]);
    assert_eq!(is_open(), true);
    browser.press(&[key::ESCAPE]);
    assert_eq!(is_open(), false);
}

/// Names that would be markup, scripts or tricks of direction are plain text wherever they appear; incomplete
/// stacks, lost blocks and a second process are shown.
fn a_hostile_target(browser: &Browser) {
    let path = directory("html-hostile").join("hostile.html");
    let mut page = Page::default();
    let [first, second] = hand_made::hostile();
    page.add(&first);
    page.add(&second);
    write(&page, &path);
    browser.appear(DESKTOP, false);
    browser.open(&path);
    contrasts(browser);
    take_pictures(browser, "hostile");
    check_quiet(browser);
    let ours = "[document.images.length, document.scripts.length, window.pwned ?? null, document.querySelectorAll('b').length]";
    assert_eq!(
        browser.run(&format!("return {ours}")),
        serde_json::json!([0, 2, null, 0])
    );
    let names: Vec<_> = boxes(browser).into_iter().map(|drawn| drawn.name).collect();
    for name in [hand_made::SHOWN, "[no_cfi in plugin.so]"] {
        assert!(names.iter().any(|drawn| drawn == name), "{names:#?}");
    }
    browser.click_on("#tab-health");
    health_says_what_text_says(browser, &second);
    filters(browser);
    hostile_page_cannot_reach_out(browser);
}

fn write(page: &Page, path: &Path) {
    let mut file = fs::File::create(path).expect("a file");
    page.write(&mut file).expect("written");
}

/// Sentences of the closing block of the full text report are on the page in the same words.
fn health_says_what_text_says(browser: &Browser, report: &leak_report::model::Report) {
    let mut text = Vec::new();
    let screen = Screen {
        is_verbose: true,
        ..Screen::default()
    };
    People::new(screen)
        .write(report, true, &mut text)
        .expect("rendered");
    let text = String::from_utf8(text).expect("text");
    let shown = browser.text("#health");
    for sentence in [
        "30 allocations, 8 frees in 12.0 s",
        "3 frees of unknown blocks: allocated before the attach",
        "9 blocks, 1.5 MiB (1600000 B): not in the amounts shown",
        "9 block_table_full",
        "100 B in 1 block from 1 stack by leak:main (known.supp:3)",
        "code without CFI, frame pointer not plausible",
        "Build that code with -fasynchronous-unwind-tables",
        "2 of 3 complete (93.3% of allocations)",
        "28 by CFI, 4 by frame pointer (6.4%)",
        "45.0 MiB",
    ] {
        assert!(text.contains(sentence), "no {sentence:?} in {text}");
        assert!(shown.contains(sentence), "no {sentence:?} in {shown}");
    }
    assert!(
        browser.text("#notices").contains("Lost: 9 blocks, 1.5 MiB"),
        "losses are said above all"
    );
    browser.click_on("#tab-memory");
    let shown = browser.text("#memory");
    for part in [
        "3.0 MiB resident",
        "allocated during this trace",
        "66.6%",
        "1.0 GiB allocated but not resident",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
}

/// Filters by module and by process narrow everything that is shown; what is left out can be shown.
fn filters(browser: &Browser) {
    browser.click_on("#tab-flame");
    let choose = |id: &str, label: &str| {
        browser.run(&format!(
            "const list = document.getElementById('{id}'); \
             list.value = [...list.options].find((option) => option.text.includes({label:?})).value; \
             list.dispatchEvent(new Event('change'))"
        ));
    };
    let outstanding = || tile(browser, "outstanding", "data-bytes");
    let all = outstanding();
    choose("module", "plugin.so");
    assert_eq!(outstanding(), 40);
    choose("module", "all modules");
    choose("process", "worker");
    assert_eq!(outstanding(), 480);
    choose("process", "all processes");
    assert_eq!(outstanding(), all);
    browser.click_on("#show-all");
    assert_eq!(outstanding(), all + 100, "what is suppressed is there, too");
    browser.click_on("#show-all");
}

/// Even a script of the page itself could neither run text nor send anything.
fn hostile_page_cannot_reach_out(browser: &Browser) {
    // In a function that the page itself calls: scripts that the driver runs may do more.
    browser.run(
        "const tried = (what) => { try { what(); return 'done' } catch (error) { return error.name } }; \
         const made = document.createElement('div'); \
         setTimeout(() => { window.tries = [tried(() => window.eval('1')), tried(() => { made.innerHTML = '<b>x</b>' })] })",
    );
    let tries = browser.run("return new Promise((done) => setTimeout(() => done(window.tries)))");
    assert_eq!(tries, serde_json::json!(["EvalError", "TypeError"]));
    let sent = browser.run("return fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)");
    assert_eq!(sent, "TypeError");
    let console = browser.console().join("\n");
    assert!(
        console.contains("connect-src") || console.contains("default-src"),
        "{console}"
    );
}

/// A page without any site says so, above and in each view.
fn an_idle_target(browser: &Browser) {
    let path = directory("html-idle").join("idle.html");
    let mut page = Page::default();
    page.add(&hand_made::report(
        vec![hand_made::target(17, "idle")],
        Vec::new(),
    ));
    write(&page, &path);
    browser.open(&path);
    let notices = browser.text("#notices");
    assert!(notices.contains("No allocation was recorded"), "{notices}");
    assert_eq!(tile(browser, "outstanding", "data-bytes"), 0);
    assert!(browser.text("#flame").contains("Nothing to draw"));
    browser.click_on("#tab-sites");
    assert!(browser.text("#sites").contains("No site"));
    browser.screenshot("idle");
    check_quiet(browser);
}

/// Ten thousand sites with deep stacks: the file has the largest, says what it left out, and draws what can
/// be seen.
fn ten_thousand_sites(browser: &Browser) {
    let path = directory("html-many").join("many.html");
    let mut page = Page::new(Limits::default());
    let report = hand_made::many(10_000, 30);
    page.add(&report);
    write(&page, &path);
    let length = fs::metadata(&path).expect("a file").len();
    assert!(length < 3 << 20, "{length}");
    browser.appear(DESKTOP, false);
    browser.open(&path);
    let all: u64 = report
        .stacks
        .iter()
        .map(|stack| stack.outstanding.amount.bytes)
        .sum();
    assert_eq!(u64::try_from(tile(browser, "outstanding", "data-bytes")), Ok(all));
    let notices = browser.text("#notices");
    assert!(
        notices.starts_with("6,000 sites with") && notices.contains("not among the 4,000 largest"),
        "{notices}"
    );
    let drawn = boxes(browser);
    assert!(drawn.iter().any(|drawn| drawn.name == "other"));
    assert!(
        drawn.iter().all(|drawn| drawn.width >= 1.0),
        "narrower ones are not drawn"
    );
    let rows = drawn.iter().map(|drawn| drawn.row).max().expect("rows");
    assert!(
        rows >= 30 && drawn.len() < 31 * 1400,
        "{rows} rows, {} boxes",
        drawn.len()
    );
    assert!(drawn.iter().all(|drawn| drawn.x >= 0.0));
    browser.screenshot("many-flame");
    browser.click_on("#tab-sites");
    browser.screenshot("many-sites");
    check_quiet(browser);
}
