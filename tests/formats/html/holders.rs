//! Holders of what is still reachable, in a browser.

use leak_report::render::Page;

use super::{DESKTOP, check_quiet, contrasts, write};
use crate::common::browser::Browser;
use crate::common::program::directory;

/// Roots are listed with the sites that they lead to, the names of which are text; a site's details say who holds it.
pub(super) fn who_holds_it(browser: &Browser) {
    let path = directory("html-holders").join("holders.html");
    let mut page = Page::default();
    page.add(&leak_report::samples::held());
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
    browser.click_on("#tab-sites");
    browser.run("document.querySelector('#sites button').click()");
    check_quiet(browser);
}
