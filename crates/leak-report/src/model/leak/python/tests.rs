//! Tests of placing with hand-made and with random native stacks and chains.

use proptest::prelude::*;
use unwind_tables::walk::LeftOut;

use super::super::tests::totals;
use super::*;
use crate::model::{Amount, Completeness};

/// Eval frames are at these addresses and above.
const EVAL: u64 = 0x9000;
/// Allocated blocks of each stack.
const BLOCKS: u64 = 7;

fn is_eval(_: &StackTotals, frame: &Frame) -> bool {
    frame.found_by != FoundBy::Python && frame.pc >= Avma::new(EVAL)
}

/// Frames of a stack, from the innermost: `c` a C function, `E` an eval frame, `f` a C function found by
/// frame pointer.
fn native(shape: &str) -> Vec<Frame> {
    let frame = |(at, kind): (u64, char)| Frame {
        pc: Avma::new(at + if kind == 'E' { EVAL } else { 0x1000 }),
        found_by: match (kind, at) {
            ('f', _) => FoundBy::Fp,
            (_, 0) => FoundBy::Probe,
            _ => FoundBy::Cfi,
        },
        exact: false,
    };
    (0..).zip(shape.chars()).map(frame).collect()
}

/// Chain from the innermost: `p` a function, `P` one that is the entry of its eval frame, `x` an eval frame
/// without functions.
fn chain(shape: &str, is_whole: bool) -> PythonChain {
    let frame = |(number, kind): (u32, char)| PythonFrame {
        code: if kind == 'x' { PythonFrame::NO_CODE } else { number },
        instruction: 2 * number,
        is_entry: kind != 'p',
    };
    PythonChain {
        frames: (0..).zip(shape.chars()).map(frame).collect(),
        is_whole,
    }
}

fn stack(frames: Vec<Frame>, end: End, chain: PythonChain) -> StackTotals {
    let amount = Amount {
        bytes: 64 * BLOCKS,
        blocks: BLOCKS,
    };
    StackTotals {
        frames,
        end,
        python: Some(chain.into()),
        ..totals(1, amount, Amount::default())
    }
}

fn placed(stack: StackTotals) -> (StackTotals, PythonStacks) {
    let mut snapshot = Snapshot {
        stacks: vec![stack],
        ..Snapshot::default()
    };
    place_python_frames(&mut snapshot, is_eval);
    let stack = snapshot.stacks.remove(0);
    (stack, snapshot.python)
}

/// Shape of frames, Python functions among them.
fn shape(stack: &StackTotals, chain: &str) -> String {
    let kinds: Vec<char> = chain.chars().collect();
    let kind = |frame: &Frame| match (python_code(frame), frame.found_by) {
        (Some((code, instruction)), _) => {
            assert_eq!(instruction, 2 * code);
            kinds[code as usize]
        }
        (None, FoundBy::Fp) => 'f',
        (None, _) if is_eval(stack, frame) => 'E',
        (None, _) => 'c',
    };
    stack.frames.iter().map(kind).collect()
}

/// Count that a stack must be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Whole,
    Part,
    NotPlaced,
    NotRead,
}

fn counted_in(counts: PythonStacks) -> In {
    let PythonStacks {
        whole,
        in_part,
        not_placed,
        not_read,
    } = counts;
    match [whole, in_part, not_placed, not_read] {
        [BLOCKS, 0, 0, 0] => In::Whole,
        [0, BLOCKS, 0, 0] => In::Part,
        [0, 0, BLOCKS, 0] => In::NotPlaced,
        [0, 0, 0, BLOCKS] => In::NotRead,
        other => panic!("{other:?}"),
    }
}

/// Asserts the frames after placing, and the count. A chain that ends with `…` is not whole; `!` at the end
/// of a native stack means that its walk ended early.
#[track_caller]
fn check(frames: &str, functions: &str, expected: &str, is_in: In) {
    check_left_out(frames, None, functions, expected, is_in);
}

#[track_caller]
fn check_left_out(
    frames: &str,
    left_out: Option<u32>,
    functions: &str,
    expected: &str,
    is_in: In,
) -> Option<u32> {
    let (frames, end) = match frames.strip_suffix('!') {
        Some(frames) => (frames, End::NoCfi),
        None => (frames, End::Complete),
    };
    let (functions, is_whole) = match functions.strip_suffix('…') {
        Some(functions) => (functions, false),
        None => (functions, true),
    };
    let given = StackTotals {
        left_out: left_out.map(|after| LeftOut { after, frames: 100 }),
        ..stack(native(frames), end, chain(functions, is_whole))
    };
    let (found, counts) = placed(given);
    assert_eq!(shape(&found, functions), expected);
    assert_eq!(counted_in(counts), is_in);
    assert_eq!(found.python, None, "a second call would find it again");
    found.left_out.map(|left_out| left_out.after)
}

/// The nth eval frame runs the nth group, and a group is before its eval frame.
#[test]
fn groups_are_before_their_eval_frames() {
    check("cEc", "P", "cPEc", In::Whole);
    check("E", "pP", "pPE", In::Whole);
    check("ccEccEcc", "ppPpP", "ccppPEccpPEcc", In::Whole);
    check("cEE", "PP", "cPEPE", In::Whole);
    // By frame pointers, too, if the numbers agree.
    check("cEfEc", "PP", "cPEfPEc", In::Whole);
}

/// An eval frame whose function is gone takes no functions of the next eval frame.
#[test]
fn eval_frames_can_have_no_function() {
    check("cEcEc", "xP", "cEcPEc", In::Whole);
    check("cEcEc", "pPx", "cpPEcEc", In::Whole);
    check("cEcEcEc", "PxpP", "cPEcEcpPEc", In::Whole);
    check("cEc!", "PxP", "cPEcP", In::Whole);
    check("cEc", "xP", "cEc", In::NotPlaced);
}

/// Stacks through the interpreter whose functions were not read are counted; other stacks are not.
#[test]
fn chains_that_were_not_read_are_counted() {
    let without_chain = |shape| StackTotals {
        python: None,
        ..stack(native(shape), End::Complete, chain("", true))
    };
    let (found, counts) = placed(without_chain("cEc"));
    assert_eq!(
        (shape(&found, ""), counted_in(counts)),
        ("cEc".to_owned(), In::NotRead)
    );
    assert_eq!(placed(without_chain("ccc")).1, PythonStacks::default());
}

/// A whole chain is not placed in a whole walk if the numbers of groups and eval frames differ.
#[test]
fn other_numbers_are_not_placed() {
    check("cEcEc", "P", "cEcEc", In::NotPlaced);
    check("cEc", "PP", "cEc", In::NotPlaced);
    check("ccc", "pP", "ccc", In::NotPlaced);
    check("cEc", "", "cEc", In::NotPlaced);
    check("ccc", "…", "ccc", In::NotPlaced);
}

/// A chain that is not whole is placed as far as it is known.
#[test]
fn chains_that_go_on() {
    check("cEcEcEc", "pPp…", "cpPEcpEcEc", In::Part);
    check("cEcEcEc", "pP…", "cpPEcEcEc", In::Part);
    check("cEc", "PPP…", "cEc", In::NotPlaced);
    // A function without frame pointer can have hidden an eval frame.
    check("cEcfEcE", "PP…", "cPEcfEcE", In::Part);
}

/// If a walk ended early, the remaining functions are further out.
#[test]
fn walks_that_ended_early() {
    check("ccEcc!", "pPpPP", "ccpPEccpPP", In::Whole);
    check("cc!", "pP", "ccpP", In::Whole);
    check("!", "pP", "pP", In::Whole);
    check("cEcc!", "PpPp…", "cPEccpPp", In::Part);
    check("cEcE!", "P", "cEcE", In::NotPlaced);
    check("cEcE!", "P…", "cPEcE", In::Part);
    // Not beyond a frame found by frame pointer, which may have skipped eval frames.
    check("cEcfcE!", "PPP", "cPEcfcE", In::Part);
    check("cf!", "PPP", "cf", In::NotPlaced);
}

/// Nothing is placed beyond left-out frames: which eval frame is which is not known there. Their position
/// moves with inserted functions.
#[test]
fn frames_left_out() {
    let check = |after, functions, expected, is_in| {
        check_left_out("cEcEcEc", Some(after), functions, expected, is_in)
    };
    assert_eq!(check(4, "pPPPPP", "cpPEcPEcEc", In::Part), Some(7));
    assert_eq!(check(3, "pPPPPP", "cpPEcEcEc", In::Part), Some(5));
    assert_eq!(check(1, "pPPPPP", "cEcEcEc", In::NotPlaced), Some(1));
    assert_eq!(check(4, "PP…", "cPEcPEcEc", In::Part), Some(6));
    assert_eq!(check(4, "PP", "cEcEcEc", In::NotPlaced), Some(4));
}

/// A stack without eval frames and functions does not involve Python, and is not counted.
#[test]
fn other_stacks_are_not_counted() {
    let (found, counts) = placed(stack(native("ccc"), End::Complete, chain("", true)));
    assert_eq!(found.frames, native("ccc"));
    assert_eq!(counts, PythonStacks::default());
}

/// Both numbers of a function survive in its frame; frames of walks have none.
#[test]
fn numbers_of_functions() {
    for (code, instruction) in [(0, 0), (u32::MAX, 7), (7, u32::MAX), (1 << 31, 1 << 31)] {
        let frame = frame_of(PythonFrame {
            code,
            instruction,
            is_entry: false,
        });
        assert_eq!(python_code(&frame), Some((code, instruction)));
        let walked = Frame {
            found_by: FoundBy::Cfi,
            ..frame
        };
        assert_eq!(python_code(&walked), None);
    }
}

/// Sums that were recorded by a version without Python functions can be read.
#[test]
fn older_sums_are_read() {
    let older = r#"{"stacks": {"complete": 2}, "allocations": {"complete": 5}, "frames": {"cfi": 7}}"#;
    let sums: Completeness = serde_json::from_str(older).unwrap();
    assert_eq!(
        (sums.python, sums.frames_by(FoundBy::Cfi)),
        (PythonStacks::default(), 7)
    );
    let newer = Completeness {
        python: PythonStacks {
            whole: 1,
            in_part: 2,
            not_placed: 3,
            not_read: 4,
        },
        ..sums
    };
    let written = serde_json::to_string(&newer).unwrap();
    assert_eq!(serde_json::from_str::<Completeness>(&written).unwrap(), newer);
}

prop_compose! {
    fn native_frames()(kinds in prop::collection::vec(prop_oneof![6 => Just('c'), 4 => Just('E'), 1 => Just('f')], 0..40))
        -> String { kinds.into_iter().collect() }
}

prop_compose! {
    fn functions()(kinds in prop::collection::vec(prop_oneof![Just('p'), Just('P')], 0..60)) -> String {
        kinds.into_iter().collect()
    }
}

/// Number of the group of each function, from the innermost.
fn group_numbers(chain: &PythonChain) -> Vec<usize> {
    let mut group = 0;
    let number = |frame: &PythonFrame| {
        let number = group;
        group += usize::from(frame.is_entry);
        number
    };
    chain.frames.iter().map(number).collect()
}

proptest! {
    /// For any input, native frames stay as they are; functions appear once and in order, from the innermost
    /// without a gap; each is right inside of its own eval frame, or behind all native frames of a walk that
    /// ended early; and each stack is in one count.
    #[test]
    fn nothing_is_lost_or_misplaced(
        frames in native_frames(),
        functions in functions(),
        is_whole in any::<bool>(),
        is_complete in any::<bool>(),
        after in prop::option::of(0_u32..50),
    ) {
        let end = if is_complete { End::Complete } else { End::ReadFault };
        let (native, chain) = (native(&frames), chain(&functions, is_whole));
        let given = StackTotals {
            left_out: after.map(|after| LeftOut { after, frames: 3 }),
            ..stack(native.clone(), end, chain.clone())
        };
        let is_none = chain.frames.is_empty() && is_whole && !frames.contains('E');
        let (found, counts) = placed(given);
        let (python, kept): (Vec<_>, Vec<_>) = found.frames.iter().copied().partition(|frame| python_code(frame).is_some());
        prop_assert_eq!(&kept, &native);
        let expected: Vec<_> = chain.frames.iter().take(python.len()).copied().map(frame_of).collect();
        prop_assert_eq!(&python, &expected);

        let numbers = group_numbers(&chain);
        let mut evals = 0;
        let mut inside: Option<usize> = None;
        let mut at_function = 0;
        for frame in &found.frames {
            if python_code(frame).is_some() {
                let number = numbers[at_function];
                at_function += 1;
                prop_assert!(number >= evals, "outside of its eval frame");
                inside = Some(number);
            } else if is_eval(&found, frame) {
                prop_assert!(inside.is_none_or(|number| number == evals), "in another eval frame");
                inside = None;
                evals += 1;
            } else {
                prop_assert_eq!(inside, None, "a C function between functions and their eval frame");
            }
        }
        prop_assert!(inside.is_none() || !is_complete, "no eval frame around functions");

        let sums = [counts.whole, counts.in_part, counts.not_placed, counts.not_read];
        let in_one = if is_none { 0 } else { 1 };
        prop_assert_eq!(sums.iter().filter(|&&sum| sum == BLOCKS).count(), in_one);
        prop_assert_eq!(counts.all(), BLOCKS * u64::try_from(in_one).unwrap());
        prop_assert_eq!(counts.whole > 0, is_whole && !python.is_empty() && python.len() == chain.frames.len());
        prop_assert_eq!(counts.not_placed > 0, python.is_empty() && !is_none);
        if let (Some(after), Some(found_left_out)) = (after, found.left_out) {
            let before = found.frames.iter().take(found_left_out.after as usize);
            let of_walk = before.filter(|frame| python_code(frame).is_none()).count();
            prop_assert_eq!(of_walk, native.len().min(after as usize), "the gap has moved");
        }
    }

    /// A chain that matches the native stack is placed whole, every function in its own eval frame.
    #[test]
    fn right_chains_are_placed_whole(groups in prop::collection::vec((0_usize..4, 0_usize..4), 1..20)) {
        let (mut frames, mut functions, mut expected) = (String::new(), String::new(), String::new());
        for &(of_c, callees) in &groups {
            let (of_c, group) = ("c".repeat(of_c), "p".repeat(callees) + "P");
            frames += &format!("{of_c}E");
            functions += &group;
            expected += &format!("{of_c}{group}E");
        }
        let (found, counts) = placed(stack(native(&frames), End::Complete, chain(&functions, true)));
        prop_assert_eq!(shape(&found, &functions), expected);
        prop_assert_eq!(counted_in(counts), In::Whole);
    }
}
