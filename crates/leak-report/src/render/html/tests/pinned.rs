//! Free memory that blocks pin, on the page.

use super::*;

/// Pinned memory is of the last report; a page without it has neither the amounts nor the words.
#[test]
fn pinned_is_of_the_last_report() {
    let mut page = Page::default();
    page.add(&samples::pinning());
    let data = data_of(&page);
    assert_eq!(data["pins"], serde_json::json!([[0, [40960, 12]]]));
    assert_eq!(data["pinned"]["all"], serde_json::json!([40960, 12]));
    let line = data["pinned"]["lines"][0].as_str().unwrap();
    assert!(line.starts_with("free in the allocator: 105.0 KiB"), "{line}");
    page.add(&full());
    let data = data_of(&page);
    assert!(data.get("pins").is_none() && data.get("pinned").is_none());
}
