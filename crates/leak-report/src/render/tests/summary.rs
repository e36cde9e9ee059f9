//! Golden outputs of summaries.

use super::{Format, full, rendered, report};

/// The summary has totals, reasons for doubt, and each site with its innermost callers.
#[test]
fn of_a_full_report() {
    insta::assert_snapshot!(rendered(&full(), Format::Summary), @r"
[09:05:07] Summary of leaker (4242) after 12.3 s
  Outstanding:    520 B
  Sites:          2
  Blocks:         13
  Average block:  40 B
  Stacks:         93.3% of allocations have complete ones
  Lost:           9 blocks, 1.5 MiB (1600000 B)

Top 2 sites:
1. LeakLib::slowMemoryLeak()
   480 B in 12 blocks, average 40 B
   < main
2. libplugin.so+0x1234
   40 B in 1 block, average 40 B
   < 0x7e0000001000
   < evil\u{1b}[2J\n
");
}

/// A report without outstanding blocks has no sites.
#[test]
fn of_an_empty_report() {
    insta::assert_snapshot!(rendered(&report(Vec::new()), Format::Summary), @r"
[09:05:07] Summary of leaker (4242) after 12.3 s
  Outstanding:    0 B
  Sites:          0
  Blocks:         0
  Average block:  0 B
");
}
