//! Metrics of the free memory that blocks pin.

use leak_report::model::{Fragmentation, NotMeasured};
use leak_report::samples;

use super::super::page;
use super::read;

/// Pinned memory is there by process and by site, if it is known.
#[test]
fn page_of_pinned() {
    let mut report = samples::pinning();
    let page = page::of_report(&report, 1);
    for line in [
        "memleak_pinned_bytes{pid=\"4242\",comm=\"leaker\"} 61440",
        "memleak_site_pinned_bytes{site=\"other\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
    let of_site = |name: &str| {
        page.lines()
            .any(|line| line.starts_with(name) && line.ends_with("} 12"))
    };
    assert!(of_site("memleak_site_pinning_blocks{site="), "{page}");
    read(&page);
    report.targets[0].fragmentation = Some(Fragmentation::Unknown(NotMeasured::Unreadable));
    let unknown = page::of_report(&report, 1);
    assert!(!unknown.contains("pinn"), "{unknown}");
}
