//! Golden outputs of heap profiles for google-pprof.

use super::*;
use crate::samples;

/// The file has all four amounts, innermost frames first, each name once, and no double hyphens in names.
#[test]
fn gperftools_of_a_full_report() {
    let mut report = full();
    let names = Symbolized {
        inlined: vec![InlinedFrame {
            symbol: Some("LeakLib::slowMemoryLeak()".into()),
            file: None,
            line: None,
        }],
        ..named("List::operator--(int)", 0x31)
    };
    samples::change_frames(&mut report, 0, |frames| {
        frames[1] = samples::renamed(frames[1], &names)
    });
    let expected = "\
--- symbol
binary=leaker
0x1 operator new(unsigned long)
0x2 LeakLib::slowMemoryLeak()
0x3 List::operator- -(int)
0x4 [libplugin.so]
0x5 [unknown]
0x6 evil\\u{1b}[2J
0x7 [no_cfi in libplugin.so]
---
heap profile: 13: 520 [26: 1040] @ heapprofile
12: 480 [24: 960] @ 0x1 0x2 0x3
1: 40 [2: 80] @ 0x4 0x5 0x6 0x7
";
    assert_eq!(rendered(&report, Format::Gperftools), expected);
}
