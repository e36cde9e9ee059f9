//! Pictures and profiles, as read by programs that are not ours.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::FILES;

#[track_caller]
fn output(command: &mut Command, package: &str) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (apt-get install {package})"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Go's `pprof`, which keeps settings and what it has fetched in `home`. From Go 1.25 on, it is compiled when
/// it is first used.
pub fn pprof_command(home: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .args(["tool", "pprof"])
        .env("HOME", home)
        .env("GOCACHE", Path::new(FILES).join("go-cache"));
    command
}

/// Runs Go's `pprof` on a file with these arguments, and returns its output.
#[track_caller]
pub fn pprof(file: &Path, arguments: &str) -> String {
    let mut command = pprof_command(file.parent().expect("a directory"));
    command.args(arguments.split_whitespace()).arg(file);
    output(&mut command, "golang-go")
}

/// The sums of all samples' values, by `pprof -raw`.
#[track_caller]
pub fn pprof_totals(file: &Path) -> Vec<u64> {
    totals_of(&pprof(file, "-symbolize=none -raw"))
}

/// The sums of all samples' values of a profile that `pprof` fetches; what it keeps goes into `directory`.
#[track_caller]
pub fn pprof_totals_at(url: &str, directory: &Path) -> Vec<u64> {
    let mut command = pprof_command(directory);
    command.args(["-raw", url]);
    totals_of(&output(&mut command, "golang-go"))
}

fn totals_of(raw: &str) -> Vec<u64> {
    let mut samples = raw.lines().skip_while(|line| *line != "Samples:").skip(1);
    let types = samples.next().expect("sample types");
    let mut totals = vec![0; types.split_whitespace().count()];
    for line in samples.take_while(|line| *line != "Locations") {
        // Lines of labels have no list of locations.
        let Some((values, locations)) = line.split_once(": ") else {
            continue;
        };
        if !locations.split_whitespace().all(|id| id.parse::<u64>().is_ok()) {
            continue;
        }
        for (total, value) in totals.iter_mut().zip(values.split_whitespace()) {
            *total += value.parse::<u64>().expect("a value");
        }
    }
    totals
}

/// The sum of the numbers of folded lines, each of which is as FlameGraph's script wants it:
/// `^(.*)\s+(\d+(?:\.\d*)?)$`, and frames are not empty.
#[track_caller]
pub fn folded_total(text: &str) -> u64 {
    let amount = |line: &str| {
        let (stack, amount) = line.rsplit_once(' ').expect("a stack and a number");
        assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
        amount.parse::<u64>().expect("a number")
    };
    text.lines().map(amount).sum()
}

/// Bytes at the root of a flame graph, as Python's parser reads it: `all (1,234 bytes, 100%)`.
#[track_caller]
pub fn svg_total(file: &Path) -> u64 {
    let script = "
import re, sys, xml.etree.ElementTree as tree
titles = (e.text for e in tree.parse(sys.argv[1]).iter() if e.tag.endswith('}title'))
[total] = [m[1] for m in (re.match(r'all \\(([0-9,]+) bytes, 100%\\)', t or '') for t in titles) if m]
print(total.replace(',', ''))
";
    python(script, file).trim().parse().expect("a number")
}

/// Heap profile in gperftools' text, as a program reads it.
pub struct HeapProfile {
    /// Outstanding blocks and bytes, allocated blocks and bytes.
    pub totals: [u64; 4],
    /// Text about functions: bytes in each, and in what it calls.
    pub top: String,
}

/// Reads a heap profile by jemalloc's jeprof, and by google-pprof, which gperftools has up to Debian 13.
#[track_caller]
pub fn heap_profiles(file: &Path) -> Vec<HeapProfile> {
    let google = Command::new("google-pprof").arg("--version").output().is_ok();
    let readers = ["jeprof", "google-pprof"]
        .into_iter()
        .take(if google { 2 } else { 1 });
    readers.map(|reader| heap_profile(reader, file)).collect()
}

#[track_caller]
fn heap_profile(reader: &str, file: &Path) -> HeapProfile {
    let shown = |quantity: &str| {
        let mut command = Command::new(reader);
        command.args(["--text", quantity, "--show_bytes"]).arg(file);
        output(&mut command, "libjemalloc-dev")
    };
    let tops = [
        "--inuse_objects",
        "--inuse_space",
        "--alloc_objects",
        "--alloc_space",
    ]
    .map(shown);
    let total = |top: &String| {
        let total = top.lines().find_map(|line| line.strip_prefix("Total: "));
        let number = total.and_then(|total| total.split_whitespace().next());
        number.expect("a total").parse().expect("a number")
    };
    HeapProfile {
        totals: tops.each_ref().map(total),
        top: tops[1].clone(),
    }
}

/// Returns amounts that heaptrack_print finds in a file of events, by stack, outermost function first, for
/// the cost `leaked`, `allocations`, `temporary` or `peak`.
#[track_caller]
pub fn heaptrack(file: &Path, cost: &str) -> Vec<(String, u64)> {
    let folded = file.with_extension(cost);
    let mut command = Command::new("heaptrack_print");
    command
        .args(["--flamegraph-cost-type", cost, "--print-flamegraph"])
        .arg(&folded)
        .arg(file);
    output(&mut command, "heaptrack");
    let text = fs::read_to_string(&folded).expect("heaptrack_print wrote it");
    let stacks = text.lines().map(|line| {
        let (stack, amount) = line.rsplit_once(' ').expect("an amount");
        (stack.to_owned(), amount.parse().expect("a number"))
    });
    stacks.collect()
}

/// Text of heaptrack_print about leaks.
#[track_caller]
pub fn heaptrack_leaks(file: &Path) -> String {
    let mut command = Command::new("heaptrack_print");
    output(
        command
            .args(["--print-leaks=1", "--peak-limit", "1000"])
            .arg(file),
        "heaptrack",
    )
}

/// The sums of the weights of each profile of a speedscope file, whose samples, indices and ends fit
/// together.
#[track_caller]
pub fn speedscope_totals(file: &Path) -> Vec<u64> {
    let script = "
import json, sys
file = json.load(open(sys.argv[1]))
frames = file['shared']['frames']
assert file['$schema'] == 'https://www.speedscope.app/file-format-schema.json'
assert file['activeProfileIndex'] in range(len(file['profiles']))
assert all(frame['name'] for frame in frames)
for profile in file['profiles']:
    assert profile['type'] == 'sampled' and profile['unit'] in ('bytes', 'none') and profile['name']
    assert len(profile['samples']) == len(profile['weights'])
    assert all(index in range(len(frames)) for sample in profile['samples'] for index in sample)
    assert all(profile['samples']) and all(weight > 0 for weight in profile['weights'])
    assert (profile['startValue'], profile['endValue']) == (0, sum(profile['weights']))
    print(sum(profile['weights']))
";
    let totals = python(script, file);
    totals
        .lines()
        .map(|total| total.parse().expect("a number"))
        .collect()
}

#[track_caller]
fn python(script: &str, file: &Path) -> String {
    output(Command::new("python3").arg("-c").arg(script).arg(file), "python3")
}
