//! Golden outputs of heap profiles for google-pprof and jeprof.

use super::*;
use crate::samples;

/// The file has all four amounts, innermost frames first, each name at two addresses, and no double hyphens
/// in names.
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
0x2 operator new(unsigned long)
0x3 LeakLib::slowMemoryLeak()
0x4 LeakLib::slowMemoryLeak()
0x5 List::operator- -(int)
0x6 List::operator- -(int)
0x7 [libplugin.so]
0x8 [libplugin.so]
0x9 [unknown]
0xa [unknown]
0xb evil\\u{1b}[2J
0xc evil\\u{1b}[2J
0xd [no_cfi in libplugin.so]
0xe [no_cfi in libplugin.so]
---
heap profile: 13: 520 [26: 1040] @ heapprofile
12: 480 [24: 960] @ 0x2 0x4 0x6
1: 40 [2: 80] @ 0x8 0xa 0xc 0xe
";
    assert_eq!(rendered(&report, Format::Gperftools), expected);
}
