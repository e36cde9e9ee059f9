//! Amounts that only the last report has, its peak and the memory that blocks pin, are tiles, measures and
//! columns in a browser.

use leak_report::render::Page;

use super::{DESKTOP, check_quiet, state, tile, width, write};
use memleak_test::browser::Browser;
use memleak_test::program::directory;
use memleak_test::report::Report;

/// Pinned memory is a tile, a measure, and a column by which sites can be sorted; a page of a trace that
/// was not asked for it has none of them.
pub(super) fn pinned_memory(browser: &Browser) {
    let directory = directory("html-pinned");
    let (with, without) = (directory.join("with.html"), directory.join("without.html"));
    for (path, report) in [
        (&with, leak_report::samples::pinning()),
        (&without, leak_report::samples::full()),
    ] {
        let mut page = Page::default();
        page.add(&report);
        write(&page, path);
    }
    browser.appear(DESKTOP, false);
    browser.open(&with);
    assert_eq!(tile(browser, "pinned", "data-bytes"), 40 << 10);
    browser.click_on("input[value=pinned] + span");
    assert_eq!(state(browser, "measure"), "pinned");
    assert!(width(browser, "LeakLib::slowMemoryLeak()") > 1000.0);
    browser.click_on("input[value=outstanding] + span");
    browser.click_on("#tab-sites");
    browser.click_on("#site-table [data-column=pinned] button");
    let order =
        "return document.querySelector('#site-table th[data-column=pinned]').getAttribute('aria-sort')";
    assert_eq!(browser.run(order), "descending");
    let cells = "return [...document.querySelectorAll('#site-table td[data-column=pinned]')].map((cell) => cell.innerText)";
    assert_eq!(browser.run(cells)[0], "40.0 KiB");
    browser.screenshot("pinned");
    check_quiet(browser);
    browser.open(&without);
    let shown = "return document.querySelectorAll('[data-tile=pinned], [data-column=pinned]').length";
    assert_eq!(browser.run(shown), 0);
    let hidden = "return document.querySelector('input[value=pinned]').parentElement.hidden";
    assert_eq!(browser.run(hidden), true);
    check_quiet(browser);
}

/// The peak is a measure, and a tile with its total.
pub(super) fn the_peak(browser: &Browser, report: &Report) {
    let of = |attribute| u64::try_from(tile(browser, "peak", attribute)).expect("not below zero");
    let peak = report.peak.expect("it is followed");
    assert_eq!((of("data-bytes"), of("data-blocks")), (peak.bytes, peak.blocks));
    browser.click_on("input[value=peak] + span");
    assert_eq!(state(browser, "measure"), "peak");
    assert!(width(browser, "leak_block") > 100.0);
    assert!(browser.text("#site-table thead").contains("At the peak"));
    browser.click_on("input[value=growth] + span");
}
