//! Free memory that blocks pin, in comparisons.

use super::*;
use crate::model::{Fragmentation, NotMeasured};

/// Pinned memory is compared if both reports have it. A report that does not say it is not one whose blocks
/// pin nothing.
#[test]
fn difference_of_pinned() {
    let (mut before, mut after) = before_and_after();
    let pin = |stack: &mut Stack, blocks: u64| {
        let bytes = 4096 * blocks;
        stack.pinned = Some(Amount { bytes, blocks }.into());
    };
    let known = || Some(Fragmentation::Known(Vec::new()));
    before.targets[0].fragmentation = known();
    after.targets[0].fragmentation = known();
    pin(&mut before.stacks[1], 3);
    pin(&mut after.stacks[1], 9);
    pin(&mut after.stacks[2], 5);
    let text = |before: &Report, after: &Report| {
        let mut out = Vec::new();
        let comparison = compare(before, after, &Builds::of_one_trace());
        render_difference_text(&comparison, 10, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let both = text(&before, &after);
    let expected = "  Pinned:    12.0 KiB (12288 B) in 3 blocks before, 56.0 KiB (57344 B) in 14 blocks after: \
                    +45056 B, +11 blocks\n";
    assert!(both.contains(expected), "{both}");
    assert_eq!(both.matches("   pinned: ").count(), 3, "{both}");
    let mut out = Vec::new();
    render_difference_json(&compare(&before, &after, &Builds::of_one_trace()), None, &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        json["after"]["held"]["pinned"],
        json!({"bytes": 57344, "blocks": 14})
    );
    before.targets[0].fragmentation = Some(Fragmentation::Unknown(NotMeasured::Unreadable));
    before.stacks.iter_mut().for_each(|stack| stack.pinned = None);
    let one = text(&before, &after);
    assert!(
        one.contains("  Pinned:    not known before, 56.0 KiB (57344 B) in 14 blocks after\n"),
        "{one}"
    );
}
