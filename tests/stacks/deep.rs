//! Deep recursion: the innermost and the outermost frames are those that the witness finds, and the number of
//! those that were left out is the witness's.

use std::path::{Path, PathBuf};
use std::process::Command;

use unwind_tables::walk::{INNERMOST_FRAMES, MAX_DEPTH, MAX_FRAMES, OUTERMOST_FRAMES};

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory};
use memleak_test::recent::LeftOut;
use memleak_test::report::{Amount, Stack};
use memleak_test::witness::{Accounts, Call, Calls, Place, READY_TO_DONE, Witness};

/// Number of the witness's own frames, which are memleak's innermost.
const OWN: usize = 1;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn build(test: &str, flags: &[&str]) -> (PathBuf, PathBuf) {
    let directory = directory(&format!("deep-{test}"));
    let path = compile(&directory, "stacks/deep.c", flags);
    (directory, path)
}

#[track_caller]
fn watch(directory: &Path, path: &Path, arguments: &[&str]) -> Accounts {
    let mut command = Command::new(path);
    let flags = ["--stack-storage-size", "40000"];
    Witness::of_deep_stacks(directory).watch(command.args(arguments), &READY_TO_DONE, &flags)
}

/// Returns the frames that memleak keeps of a stack, which it walks up to its limit, and those that it leaves
/// out.
fn kept(whole: &[Place]) -> (Vec<Place>, Option<LeftOut>) {
    let walked = &whole[..whole.len().min(MAX_DEPTH - OWN)];
    let Some(missing) = (walked.len() + OWN)
        .checked_sub(MAX_FRAMES)
        .filter(|&missing| missing > 0)
    else {
        return (walked.to_vec(), None);
    };
    let inner = INNERMOST_FRAMES - OWN;
    let frames = [&walked[..inner], &walked[inner + missing..]].concat();
    let left_out = LeftOut {
        after: INNERMOST_FRAMES as u64,
        frames: missing as u64,
    };
    (frames, Some(left_out))
}

/// Checks stacks from the bottom of recursions of several depths, with main and three frames below it.
#[track_caller]
fn check_bottom(test: &str, cycle: &str) {
    let (directory, path) = build(test, &RELEASE);
    for depth in [500, 1000, 4000, 4090, 4091, 4092, 5000] {
        let accounts = watch(&directory, &path, &[cycle, "bottom", &depth.to_string()]);
        let stack = only(&accounts);
        let (call, amount) = accounts.reported.first_key_value().expect("a stack");
        let (whole, true_amount) = accounts.witnessed.first_key_value().expect("a stack");
        assert_eq!(accounts.witnessed.len(), 1);
        assert!(
            whole.complete && whole.frames.len() == depth + 4,
            "the witness finds all"
        );
        let (frames, left_out) = kept(&whole.frames);
        assert_eq!(stack.left_out, left_out, "depth {depth}: {stack}");
        assert!(call.frames == frames, "depth {depth}: {stack}");
        assert_eq!(amount, true_amount);
        let end = match depth + 4 + OWN > MAX_DEPTH {
            true => "depth_limit",
            false => "complete",
        };
        assert_eq!(stack.end, end, "depth {depth}");
    }
}

#[track_caller]
fn only(accounts: &Accounts) -> &Stack {
    let [stack] = &accounts.report.stacks[..] else {
        panic!("one stack:\n{}", accounts.report);
    };
    stack
}

/// A function that calls itself.
#[test]
fn direct_recursion() {
    check_bottom("direct", "alone");
}

/// Three functions that call one another.
#[test]
fn mutual_recursion() {
    check_bottom("mutual", "three");
}

/// A recursion that allocates at each of 4000 depths has a stack for each of the first ones, and beyond 512
/// frames one for each place of its cycle; sums are exact.
#[test]
fn runaway_recursion() {
    const DEPTH: u64 = 4000;
    for (cycle, phases) in [("alone", 1), ("three", 3)] {
        let (directory, path) = build(&format!("runaway-{cycle}"), &RELEASE);
        let accounts = watch(&directory, &path, &[cycle, "each", &DEPTH.to_string()]);
        let (expected, whole) = kept_calls(&accounts.witnessed);
        assert_eq!(accounts.witnessed.len() as u64, DEPTH);
        assert_eq!(expected.len(), whole + phases);
        assert!(accounts.reported == expected, "{}", accounts.differences());
        assert_eq!(accounts.report.stacks.len(), whole + phases);
        assert_eq!(
            accounts.report.allocated(),
            Amount {
                bytes: 16 * DEPTH,
                blocks: DEPTH
            }
        );
        assert_eq!(accounts.report.lost.blocks, 0);
        assert!(accounts.report.stacks.iter().all(|stack| stack.end == "complete"));
    }
}

/// Returns the calls as memleak should report them, and the number of given ones of which it leaves out no
/// frame.
fn kept_calls(calls: &Calls) -> (Calls, usize) {
    let mut expected = Calls::new();
    let mut whole = 0;
    for (call, amount) in calls {
        let (frames, left_out) = kept(&call.frames);
        whole += usize::from(left_out.is_none());
        let call = Call {
            frames,
            left_out_after: left_out.map(|left_out| left_out.after),
            ..call.clone()
        };
        let sum = expected.entry(call).or_default();
        *sum = [*sum, *amount].into_iter().sum();
    }
    (expected, whole)
}

/// A library that is loaded at the bottom of a recursion allocates before its table is in the kernel: such a
/// walk is finished in user space, which leaves out the same frames.
#[test]
fn library_loaded_deep_down() {
    let (directory, path) = build("library", &RELEASE);
    let library = directory.join("libdeep.so");
    compile_as(&library, "stacks/deep_library.c", &["-O2", "-shared", "-fPIC"]);
    for depth in [400, 600, 3000] {
        let arguments = [
            "three",
            "bottom",
            &depth.to_string(),
            library.to_str().expect("UTF-8"),
        ];
        let mut program = Program::start(&path, &arguments);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &[]);
        memleak.signal("STOP");
        program.step("done");
        memleak.signal("CONT");
        let report = memleak.finish();
        let unwinding = &report.unwinding;
        assert!(unwinding.finished_in_user_space > 0, "{unwinding:?}");
        assert_eq!(unwinding.not_finished, 0, "{unwinding:?}");
        let stack = report.only_through("leak_when_loaded");
        assert_eq!(stack.left_out.is_some(), depth > 512, "{stack}");
        check_cycle(stack, depth);
    }
}

/// Walks along frame pointers leave out the same frames.
#[test]
fn by_frame_pointers() {
    let flags = [&RELEASE[..], &["-fno-omit-frame-pointer"]].concat();
    let (_, path) = build("fp", &flags);
    let mut program = Program::start(&path, &["three", "bottom", "4000"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--unwind", "fp"]);
    program.step("done");
    let report = memleak.finish();
    let stack = report.only_through("main");
    check_cycle(stack, 4000);
    assert_eq!(stack.frames.len(), INNERMOST_FRAMES + OUTERMOST_FRAMES);
}

/// Checks that `depth` functions of the cycle are above `main`, those left out included, and that each one
/// shown is in its place.
#[track_caller]
fn check_cycle(stack: &Stack, depth: usize) {
    const TURN: [&str; 3] = ["first", "second", "third"];
    let names = stack.names();
    let outermost = names.iter().position(|name| *name == "main").expect("main");
    let innermost = names
        .iter()
        .position(|name| TURN.contains(name))
        .expect("the recursion");
    let missing = stack.left_out.map_or(0, |left_out| {
        assert_eq!(left_out.after, INNERMOST_FRAMES as u64);
        usize::try_from(left_out.frames).expect("it is small")
    });
    assert_eq!(outermost + missing - innermost, depth, "{stack}");
    for (at, name) in names.iter().enumerate().take(outermost).skip(innermost) {
        let beyond = if at < INNERMOST_FRAMES { 0 } else { missing };
        let called = depth - 1 - (at + beyond - innermost);
        assert_eq!(*name, TURN[called % 3], "frame {at}: {stack}");
    }
}

/// Each walk is done again in the same probe without fast paths, and has the same identity.
#[test]
fn fast_paths_change_nothing() {
    for (cycle, flags) in [("alone", &["--unwind", "dwarf"]), ("three", &["--unwind", "fp"])] {
        let frame_pointers = [&RELEASE[..], &["-fno-omit-frame-pointer"]].concat();
        let (_, path) = build(&format!("checked-{cycle}"), &frame_pointers);
        let mut program = Program::start(&path, &[cycle, "each", "4500"]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &[&["--check-walks"][..], flags].concat());
        program.step("done");
        let (report, messages) = memleak.finish_with_messages();
        assert_eq!(report.allocated().blocks, 4500);
        let is_equal =
            |message: &String| message.ends_with("checked: 4500, of which 0 recalled; different: 0");
        assert!(messages.iter().any(is_equal), "{messages:#?}");
    }
}
