//! Frames per second of the reference walker over a synthetic stack: the cost of the algorithm, not of the
//! kernel. The walk inside probes is measured elsewhere.
#![allow(missing_docs, reason = "criterion's macros define a public function")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::encode::encode;
use unwind_tables::image::Image;
use unwind_tables::mapping::Identity;
use unwind_tables::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};
use unwind_tables::table::{Row, UnwindTable};
use unwind_tables::walk::{End, Mapping, MappingKind, Registers, ReturnProbes, Tables, Unwind, walk};

const CODE: u64 = 0x5555_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const FUNCTION_BYTES: u64 = 96;
const FUNCTIONS: u64 = 10_000;

/// Bytes of a function's frame at its call: 16 to 128.
fn frame_bytes(function: u64) -> u64 {
    16 + 16 * (function % 8)
}

/// Functions of three rows: entry, body, epilogue. The last one is where the stack ends.
fn image() -> Image {
    let rule = |offset: u64| {
        UnwindRule::Frame(FrameRule {
            cfa: CfaRule::Offset {
                register: Register::Sp,
                offset: i32::try_from(offset).expect("frames are small"),
            },
            ra: Saved::AtCfa(-8),
            ra_signed: false,
            fp: Saved::Same,
            signal_frame: false,
        })
    };
    let mut rows = Vec::new();
    for function in 0..FUNCTIONS {
        let start = function * FUNCTION_BYTES;
        for (at, offset) in [(0, 8), (4, frame_bytes(function)), (90, 8)] {
            rows.push(Row {
                start: Svma::new(start + at),
                rule: rule(offset),
            });
        }
    }
    let end = FUNCTIONS * FUNCTION_BYTES;
    rows.push(Row {
        start: Svma::new(end),
        rule: UnwindRule::EndOfStack,
    });
    rows.push(Row {
        start: Svma::new(end + FUNCTION_BYTES),
        rule: UnwindRule::Gap,
    });
    let table = UnwindTable::from_rows(rows).expect("ascending rows with a closing gap");
    encode(&table).expect("a small table")
}

/// A stack of `depth` frames: the words of memory at [`STACK`] and where the walk starts.
fn stack(depth: u64) -> (Vec<u64>, Registers) {
    let function = |frame: u64| frame * 2_654_435_761 % FUNCTIONS;
    let body = |frame: u64| match frame + 1 < depth {
        true => CODE + function(frame) * FUNCTION_BYTES + 40,
        false => CODE + FUNCTIONS * FUNCTION_BYTES + 40,
    };
    let mut words = Vec::new();
    for frame in 0..depth - 1 {
        let slots = frame_bytes(function(frame)) / 8;
        words.extend((1..slots).map(|_| 0));
        words.push(body(frame + 1));
    }
    let start = Registers::new(Avma::new(body(0)), Avma::new(STACK), Avma::new(0));
    (words, start)
}

fn walk_frames(criterion: &mut Criterion) {
    let image = image();
    let mappings = [Mapping {
        start: Avma::new(CODE),
        end: Avma::new(CODE + (FUNCTIONS + 1) * FUNCTION_BYTES),
        bias: Bias::between(Avma::new(CODE), Svma::new(0)),
        image_at: 0,
        kind: MappingKind::Table,
        identity: Identity::SETTLED,
    }];
    let tables = Tables {
        architecture: Architecture::X86_64,
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let mut group = criterion.benchmark_group("walk");
    for depth in [10, 40, 200] {
        let (words, start) = stack(depth);
        let read = |address: Avma| {
            let slot = address.get().checked_sub(STACK)? / 8;
            words.get(usize::try_from(slot).ok()?).copied()
        };
        let walked = walk(tables, start, read);
        assert_eq!((walked.frames.len() as u64, walked.end), (depth, End::Complete));
        group.throughput(Throughput::Elements(depth));
        group.bench_function(BenchmarkId::from_parameter(depth), |bencher| {
            bencher.iter(|| walk(black_box(tables), start, read));
        });
    }
    group.finish();
}

criterion_group!(benches, walk_frames);
criterion_main!(benches);
