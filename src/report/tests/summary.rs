//! Summaries.

use super::{Format, full, rendered, report};

/// Totals with commas and in megabytes, and each source with its innermost functions; what is wrong with the numbers is
/// said.
#[test]
fn of_a_full_report() {
    insta::assert_snapshot!(rendered(&full(), Format::Summary), @r"
[09:05:07] Summary of process 4242 leaker after 12.3 s
  Outstanding:    520 bytes (0.00 MB)
  Leak sites:     2
  Blocks:         13
  Average block:  40 bytes
  Stacks:         93.3% of allocations have complete ones
  Lost:           9 blocks, 1,600,000 bytes (1.60 MB)

Top 2 leak sources:
1. 480 bytes (0.00 MB) in 12 blocks, average 40 bytes
   operator new(unsigned long) [libstdc++.so.6.0.30]
   LeakLib::slowMemoryLeak() [leaker] /src/leaklib.h:12
   main [leaker] /src/leaker.cpp:30
2. 40 bytes (0.00 MB) in 1 block, average 40 bytes
   [unknown] [libplugin.so]
   [unknown]
   evil\u{1b}[2J\n [leaker]

");
}

/// Nothing outstanding is no source.
#[test]
fn of_an_empty_report() {
    insta::assert_snapshot!(rendered(&report(Vec::new()), Format::Summary), @r"
[09:05:07] Summary of process 4242 leaker after 12.3 s
  Outstanding:    0 bytes (0.00 MB)
  Leak sites:     0
  Blocks:         0
  Average block:  0 bytes

");
}
