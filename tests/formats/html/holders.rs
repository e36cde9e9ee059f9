//! Holders of what is still reachable, in a browser.

use std::time::Duration;

use leak_report::model::{LookedAt, Measured, Reached, Reason};
use leak_report::render::Page;

use super::{DESKTOP, check_quiet, contrasts, write};
use memleak_test::browser::Browser;
use memleak_test::program::directory;

/// Roots are listed with the sites that they lead to, with names as plain text; a site's details show its
/// holders and the classes of its blocks. Moments show why their reports were made.
pub(super) fn who_holds_it(browser: &Browser) {
    let path = directory("html-holders").join("holders.html");
    let mut page = Page::default();
    let mut first = leak_report::samples::held();
    first.reason = Some(Reason::Conditions(vec![Reached {
        condition: "rss>1MiB".to_owned(),
        value: Measured::Bytes(3 << 19),
        pid: Some(7),
    }]));
    let mut last = leak_report::samples::held();
    last.elapsed += Duration::from_secs(1);
    let held = last.stacks[0].held.as_mut().expect("it is held");
    held.looked = Some(LookedAt {
        blocks: 14,
        without: 2,
        of: 20,
    });
    page.add(&first);
    page.add(&last);
    write(&page, &path);
    browser.appear(DESKTOP, false);
    browser.open(&path);
    contrasts(browser);
    browser.click_on("#tab-holders");
    let text = browser.text("#holders-view");
    for part in [
        "cache()::entries (leaker.cpp:7) – leads to 40 B in 1 block",
        "LeakLib::slowMemoryLeak(): 40 B in 1 block; all of the site retain at least 200 B",
        "the stack of thread 4243 (wor\\u{1b}ker) – leads to 40 B in 1 block",
        ".bss of libplugin.so+0x10 – leads to 40 B in 1 block",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    browser.screenshot("holders");
    let titles = browser.run("return [...document.querySelectorAll('.bar')].map((bar) => bar.title)");
    let because = |at: usize| {
        let title = titles[at].as_str().expect("a text");
        title.split_once(", reported because ").map(|(_, reason)| reason)
    };
    assert_eq!(
        [because(1), because(2)],
        [Some("rss>1MiB: 1.5 MiB in process 7"), None]
    );
    browser.click_on("#tab-sites");
    browser
        .run("document.querySelectorAll('#site-table tbody .site button').forEach((site) => site.click())");
    let details = browser.text("#site-table");
    let classes = "class app::Entry (12 blocks), 2 blocks without; 14 of 20 blocks looked at";
    assert!(details.contains(classes), "{details}");
    check_quiet(browser);
}
