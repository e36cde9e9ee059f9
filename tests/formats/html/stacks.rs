//! Stacks of sites, in a browser.

use leak_report::model::{Report, Stack};
use leak_report::render::Page;
use leak_report::samples::python::python;
use serde_json::json;
use unwind_tables::walk::{FoundBy, LeftOut};

use super::{boxes, check_quiet, write};
use memleak_test::browser::Browser;
use memleak_test::hand_made;
use memleak_test::program::directory;

/// Functions are shown by short names; the whole name appears under the pointer.
pub(super) fn abbreviated_names(browser: &Browser) {
    let path = directory("html-names").join("names.html");
    let exact = "std::vector<int, std::allocator<int> >::reserve(unsigned long)";
    let place = hand_made::location(hand_made::module("/opt/worker"), 0x1100);
    let frame = hand_made::frame(place, FoundBy::Cfi, exact);
    let mut page = Page::default();
    page.add(&hand_made::report(
        vec![hand_made::target(17, "worker")],
        vec![hand_made::stack(17, 480, 12, vec![frame])],
    ));
    write(&page, &path);
    browser.open(&path);
    let short = "std::vector<int>::reserve(unsigned long)";
    assert!(boxes(browser).iter().any(|drawn| drawn.name == short));
    browser.run("document.getElementById('tab-sites').click()");
    browser.click_on("#site-table tbody tr:first-child .site button");
    let name = browser.run("return [...document.querySelectorAll('#site-table .details .frames .name')].map((name) => [name.textContent, name.title])");
    assert_eq!(name, json!([[format!("{short}+0x10"), exact]]));
    check_quiet(browser);
}

/// Frames that were left out are a box of the flame graph and an entry of the stack, in their place; if a
/// stack is not shown whole, its button says so.
pub(super) fn frames_left_out(browser: &Browser) {
    let path = directory("html-left-out").join("left-out.html");
    let items = "return [...document.querySelectorAll('#site-table .details .frames > li')].map((item) => item.textContent)";
    for (frames, after) in [(4, 2), (4, 0), (4, 4), (200, 100)] {
        let report = recursion(frames, after);
        let mut page = Page::default();
        page.add(&report);
        write(&page, &path);
        browser.open(&path);
        assert!(
            boxes(browser)
                .iter()
                .any(|drawn| drawn.name == "[3,488 frames left out]"),
            "{:?}",
            boxes(browser)
        );
        browser.run("document.getElementById('tab-sites').click()");
        browser.click_on("#site-table tbody tr:first-child .site button");
        if frames > 120 {
            let button = browser.text("#site-table .details .frames .cut");
            assert_eq!(button, "80 more frames: show all (besides, 3,488 were left out)");
            browser.run("document.querySelector('#site-table .details .frames .cut button').click()");
        }
        let items = browser.run(items);
        let items: Vec<_> = items.as_array().expect("entries").iter().collect();
        assert_eq!(items.len(), frames + 1, "{items:?}");
        assert_eq!(items[after], "[3,488 frames left out]", "{items:?}");
        let title = browser.run("return document.querySelector('#site-table .site small').title");
        let lines: Vec<_> = title.as_str().expect("a title").split("\n← ").collect();
        assert_eq!(lines[after], "[3,488 frames left out]", "{lines:?}");
        check_quiet(browser);
    }
}

/// Functions of Python have `python` for their module, also in the legend, and a colour of their own by how
/// frames were found.
pub(super) fn functions_of_python(browser: &Browser) {
    let path = directory("html-python").join("python.html");
    let mut page = Page::default();
    page.add(&python());
    write(&page, &path);
    browser.open(&path);
    let drawn = boxes(browser);
    for name in [
        "<module> main.py",
        "fetch_rows",
        "<python function>",
        "fast_index(char const*)",
    ] {
        assert!(drawn.iter().any(|drawn| drawn.name == name), "{name}: {drawn:?}");
    }
    let legend = browser.text("#legend");
    let of_python = legend.lines().any(|name| name == "python");
    assert!(of_python && !legend.contains("outside"), "{legend}");
    browser.run("const choice = document.getElementById('colour'); choice.value = 'found'; choice.dispatchEvent(new Event('change'))");
    let legend = browser.text("#legend");
    assert!(legend.contains("by Python's interpreter"), "{legend}");
    browser.run("document.getElementById('tab-sites').click()");
    browser.click_on("#site-table tbody tr:first-child .site button");
    let lines = browser.run("return [...document.querySelectorAll('#site-table .details .frames > li')].map((item) => item.textContent)");
    let line = lines[4].as_str().expect("a line");
    assert!(
        line.starts_with("fetch_rows python ") && line.ends_with("db.py:118"),
        "{lines}"
    );
    browser.run("document.getElementById('tab-health').click()");
    let health = browser.run("return document.body.textContent");
    let line = "88 functions; allocations: 32 have all their frames, 8 have only the innermost frames";
    assert!(health.as_str().expect("text").contains(line), "{health}");
    check_quiet(browser);
}

/// Returns a report of a stack of `frames` frames, with more left out after the first `after`.
fn recursion(frames: usize, after: usize) -> Report {
    let place =
        |number: usize| hand_made::location(hand_made::module("/opt/worker"), 0x1100 + 16 * number as u64);
    let frame = |number| hand_made::frame(place(number), FoundBy::Cfi, &format!("level_{number}"));
    let stack = hand_made::stack(17, 480, 12, (0..frames).map(frame).collect());
    let stack = Stack {
        left_out: Some(LeftOut {
            after: u32::try_from(after).expect("it is small"),
            frames: 3488,
        }),
        ..stack
    };
    hand_made::report(vec![hand_made::target(17, "worker")], vec![stack])
}
