//! Both walks end at the same limits, at the same frame.

use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::build::SavesTable;
use unwind_tables::encode::{encode, encode_with_saves};
use unwind_tables::image::Image;
use unwind_tables::mapping::Identity;
use unwind_tables::program::{Op, Opcode, Programs, SP};
use unwind_tables::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};
use unwind_tables::saves::{LongSaves, Saved as SavedRegister, SavesRule};
use unwind_tables::table::{Row, RowRule, Rows, UnwindTable};
use unwind_tables::walk::{
    End, MAX_LOOKS, Mapping, MappingKind, Registers, ReturnProbes, Stack, Tables, Unwind,
};

use super::{CODE, STACK, check};
use crate::common::compile::host_walk;
use crate::common::host::{HostWalk, Memory};

/// A stack deeper than the limit ends with that cause, at the same frame.
#[test]
fn depth_limit_is_equal() {
    check_depth_limit(Architecture::X86_64);
    check_depth_limit(Architecture::Aarch64);
}

fn check_depth_limit(architecture: Architecture) {
    let mut host = host_walk(architecture);
    let rule = UnwindRule::Frame(FrameRule {
        cfa: CfaRule::Offset {
            register: Register::Sp,
            offset: 16,
        },
        ra: Saved::AtCfa(-8),
        ra_signed: false,
        fp: Saved::Same,
        signal_frame: false,
    });
    let table = recursive_table(rule, Programs::new(architecture));
    let image = encode(&table).expect("the table fits");
    for (frames, end) in [(510, End::Complete), (511, End::Complete), (512, End::DepthLimit)] {
        let stack = walk_recursion(&mut host, &image, frames);
        assert_eq!((stack.end, stack.frames.len()), (end, (frames + 1).min(512)));
    }
}

/// A register that nobody saved is looked for in every frame below; when that was done in as many frames as a walk may look
/// at, it is not known, and the walk ends with that cause, at the same frame.
#[test]
fn look_limit_is_equal() {
    let mut host = host_walk(Architecture::X86_64);
    let mut programs = Programs::new(Architecture::X86_64);
    let rbx = 3;
    let rule = programs.intern(vec![
        Op::register(rbx, 0),
        Op::plain(Opcode::Drop),
        Op::register(SP, 16),
        Op::plain(Opcode::SetCfa),
        Op::cfa(-8),
        Op::deref(),
        Op::plain(Opcode::SetRa),
    ]);
    let table = recursive_table(UnwindRule::Program(rule.expect("a program")), programs);
    let mut long = LongSaves::default();
    let same = [
        (0, long.pack(&[SavedRegister::Same; 16])),
        (0x200, SavesRule::GAP),
    ];
    let rows = same.map(|(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    let rows = Rows::new(rows.to_vec()).expect("rows ascend and end in a gap");
    let image = encode_with_saves(&table, &SavesTable { rows, long }).expect("the table fits");
    // 0 + 1 + ... + 90 looks are one less than the limit.
    assert_eq!(MAX_LOOKS, 91 * 90 / 2 + 1);
    for (frames, end) in [(91, End::Complete), (92, End::LookLimit), (500, End::LookLimit)] {
        let stack = walk_recursion(&mut host, &image, frames);
        assert_eq!((stack.end, stack.frames.len()), (end, 92));
    }
}

/// A function with one rule, of frames of two words, and the outermost one above it.
fn recursive_table(rule: UnwindRule, programs: Programs) -> UnwindTable {
    let rows = [
        (0, rule),
        (0x100, UnwindRule::EndOfStack),
        (0x200, UnwindRule::Gap),
    ];
    let rows = rows.map(|(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    UnwindTable::with_programs(rows.to_vec(), programs).expect("rows ascend")
}

/// Walks so many frames of that function, and the outermost one.
fn walk_recursion(host: &mut HostWalk, image: &Image, frames: usize) -> Stack {
    let code = Avma::new(CODE);
    let mappings = [Mapping {
        start: code,
        end: Avma::new(CODE + 0x200),
        bias: Bias::between(code, Svma::new(0)),
        image_at: 0,
        kind: MappingKind::Table,
        identity: Identity::SETTLED,
    }];
    let tables = Tables {
        architecture: image.architecture(),
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let mut words = vec![CODE + 0x80; 2 * frames];
    words[2 * frames - 1] = CODE + 0x180;
    words.push(0);
    let mut memory = Memory::default();
    memory.add_words(Avma::new(STACK), &words);
    let start = Registers::new(Avma::new(CODE + 0x80), Avma::new(STACK), Avma::new(0));
    check(host, tables, start, &memory)
}
