//! Flame graphs of a real program in both directions, as Python's readers see them: each function that
//! allocates has the same amount, whichever end a graph is built from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::program::{directory, require_root, stock};
use serde_json::Value;

/// Script that sums up the amounts of each innermost and of each outermost function, from folded lines, boxes
/// of SVG at its base, or samples of speedscope's first profile. Prints `[leaves, roots]` in JSON.
const SUMS: &str = r#"
import collections, json, re, sys
import xml.etree.ElementTree as tree

def sums(stacks):
    ends = [collections.Counter(), collections.Counter()]
    for frames, amount in stacks:
        ends[0][frames[-1]] += amount
        ends[1][frames[0]] += amount
    return [dict(sorted(end.items())) for end in ends]

def folded(path):
    for line in open(path):
        stack, amount = line.rstrip("\n").rsplit(" ", 1)
        yield stack.split(";"), int(amount)

def speedscope(path):
    file = json.load(open(path))
    names = [frame["name"] for frame in file["shared"]["frames"]]
    profile = file["profiles"][file["activeProfileIndex"]]
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        yield [names[frame] for frame in sample], weight

def boxes_above_all(path):
    boxes = []
    for group in tree.parse(path).iter():
        parts = {part.tag.split("}")[1]: part for part in group}
        if "title" in parts and "rect" in parts:
            match = re.fullmatch(r"(.*) \(([0-9,]+) bytes, [0-9.]+%\)", parts["title"].text)
            boxes.append((float(parts["rect"].get("y")), match[1], int(match[2].replace(",", ""))))
    lowest, second = sorted({y for y, _, _ in boxes})[-1:-3:-1]
    assert [name for y, name, _ in boxes if y == lowest] == ["all"]
    return dict(sorted((name, amount) for y, name, amount in boxes if y == second))

path = sys.argv[1]
if path.endswith(".svg"):
    print(json.dumps(boxes_above_all(path)))
else:
    print(json.dumps(sums(folded(path) if path.endswith(".folded") else speedscope(path))))
"#;

#[track_caller]
fn memleak(arguments: &[&OsStr]) {
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(arguments)
        .output();
    let output = output.expect("memleak was built");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Records what a program of many functions allocates: Python's interpreter, which begins and imports.
#[track_caller]
fn record(directory: &Path) -> PathBuf {
    require_root();
    let (python, file) = (stock("/usr/bin/python3", "python3"), directory.join("a.memleak"));
    let flags = ["-q", "-f", "--python", "off", "--record"].map(OsStr::new);
    let program = ["-c", "import json, http.client, decimal"].map(OsStr::new);
    let arguments = [
        &flags[..],
        &[file.as_os_str(), "--".as_ref(), python.as_os_str()],
        &program,
    ];
    memleak(&arguments.concat());
    file
}

/// Writes the last report of a recording to a file beside it, whose name says the format.
#[track_caller]
fn rendered(recording: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let file = recording.with_file_name(name);
    let before = [
        "report".as_ref(),
        recording.as_os_str(),
        "-f".as_ref(),
        "--output".as_ref(),
        file.as_os_str(),
    ];
    memleak(
        &before
            .into_iter()
            .chain(flags.iter().map(OsStr::new))
            .collect::<Vec<_>>(),
    );
    file
}

#[track_caller]
fn sums(file: &Path) -> Value {
    let python = stock("/usr/bin/python3", "python3");
    let output = Command::new(python)
        .args(["-c", SUMS])
        .arg(file)
        .output()
        .expect("python3 starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Checks that boxes have the known amounts; those of less than a ten-thousandth are too small to see, and
/// are not drawn.
#[track_caller]
fn check_boxes(boxes: &Value, known: &Value) {
    let amounts =
        |of: &Value| -> BTreeMap<String, u64> { serde_json::from_value(of.clone()).expect("amounts") };
    let (boxes, mut known) = (amounts(boxes), amounts(known));
    let total: u64 = known.values().sum();
    known.retain(|name, amount| boxes.contains_key(name) || *amount * 10_000 >= total);
    assert_eq!(boxes, known);
}

/// Leaves of one direction are the roots of the other, with equal sums, in all formats.
#[test]
fn both_directions_have_equal_sums() {
    let recording = record(&directory("flame-directions"));
    for measure in ["outstanding", "allocated"] {
        let flags = ["--measure", measure];
        let reversed = ["--measure", measure, "--reverse"];
        let known = sums(&rendered(&recording, "a.folded", &flags));
        let leaves = known[0].as_object().expect("sums");
        assert!(
            leaves.len() > 10 && leaves != known[1].as_object().expect("sums"),
            "{known}"
        );
        for name in ["b.folded", "b.speedscope.json"] {
            let found = sums(&rendered(&recording, name, &reversed));
            assert_eq!((&found[1], &found[0]), (&known[0], &known[1]), "{name}");
        }
        check_boxes(&sums(&rendered(&recording, "a.svg", &flags)), &known[1]);
        check_boxes(&sums(&rendered(&recording, "b.svg", &reversed)), &known[0]);
    }
    let caption = fs::read_to_string(recording.with_file_name("b.svg")).expect("written");
    assert!(caption.contains("allocating functions first, their callers above them"));
    let page = rendered(&recording, "b.html", &["--reverse"]);
    assert!(
        fs::read_to_string(page)
            .expect("written")
            .contains(r#""inverted":true"#)
    );
}
