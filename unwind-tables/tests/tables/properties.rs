//! Claims over random tables: an image gives the same rules as its table, compaction changes no rule, and
//! damaged words are refused or read inside their bounds.

use proptest::collection::vec;
use proptest::prelude::*;
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;
use unwind_tables::compact::compact;
use unwind_tables::encode::encode;
use unwind_tables::image::{Image, ImageView};
use unwind_tables::packed::PackedRule;
use unwind_tables::program::Programs;
use unwind_tables::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};
use unwind_tables::table::{Row, UnwindTable};

fn register() -> impl Strategy<Value = Register> {
    prop_oneof![Just(Register::Sp), Just(Register::Fp)]
}

/// Mostly offsets that compilers write, sometimes any.
fn offset() -> impl Strategy<Value = i32> {
    prop_oneof![4 => (1..40_i32).prop_map(|slots| slots * 8), 2 => (-4000..4000_i32).prop_map(|slots| slots * 8), 1 => any::<i32>()]
}

fn slot() -> impl Strategy<Value = Saved> {
    prop_oneof![
        3 => offset().prop_map(Saved::AtCfa),
        1 => (register(), offset()).prop_map(|(register, offset)| Saved::At { register, offset }),
    ]
}

fn cfa() -> impl Strategy<Value = CfaRule> {
    prop_oneof![
        4 => (register(), offset()).prop_map(|(register, offset)| CfaRule::Offset { register, offset }),
        1 => (register(), offset(), offset())
            .prop_map(|(register, at, offset)| CfaRule::Deref { register, at, offset }),
    ]
}

fn frame() -> impl Strategy<Value = FrameRule> {
    let ra = prop_oneof![6 => Just(Saved::AtCfa(-8)), 1 => slot()];
    let fp = prop_oneof![2 => Just(Saved::Same), 2 => slot()];
    (cfa(), ra, fp, prop::bool::weighted(0.1)).prop_map(|(cfa, ra, fp, signal_frame)| FrameRule {
        cfa,
        ra,
        ra_signed: false,
        fp,
        signal_frame,
    })
}

fn rule() -> impl Strategy<Value = UnwindRule> {
    let plt = |threshold| FrameRule {
        cfa: CfaRule::Plt { threshold },
        ra: Saved::AtCfa(-8),
        ra_signed: false,
        fp: Saved::Same,
        signal_frame: false,
    };
    prop_oneof![
        20 => frame().prop_map(|frame| {
            let rule = UnwindRule::Frame(frame);
            PackedRule::pack(rule, Architecture::X86_64).map_or(UnwindRule::Gap, |_| rule)
        }),
        1 => any::<u8>().prop_map(plt).prop_map(UnwindRule::Frame),
        1 => Just(UnwindRule::EndOfStack),
        2 => Just(UnwindRule::Gap),
        1 => prop::sample::select(Reason::ALL.to_vec()).prop_map(UnwindRule::Unsupported),
    ]
}

/// Distances between rows: neighbours, block edges, far.
fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..4_u64, 4 => 4..64_u64, 1 => 250..260_u64, 1 => Just(256_u64), 1 => 1..100_000_u64]
}

/// Rows of rules that pack, and of some that become programs.
fn rows() -> impl Strategy<Value = (Vec<Row>, Programs)> {
    let start = prop_oneof![Just(0_u64), Just(0x1000), Just(0x10_00ff), 0..1_u64 << 40];
    let unusual = proptest::option::weighted(0.1, frame());
    (start, vec((distance(), rule(), unusual), 0..1500)).prop_map(|(start, rows)| {
        let mut programs = Programs::default();
        let mut at = start;
        let mut next = |distance| {
            at += distance;
            Svma::new(at)
        };
        let mut rows: Vec<_> = rows
            .into_iter()
            .map(|(distance, rule, unusual)| Row {
                start: next(distance),
                rule: unusual
                    .and_then(|frame| programs.rule(frame).ok())
                    .unwrap_or(rule),
            })
            .collect();
        if !rows.is_empty() {
            rows.push(Row {
                start: next(1),
                rule: UnwindRule::Gap,
            });
        }
        (rows, programs)
    })
}

fn table((rows, programs): (Vec<Row>, Programs)) -> UnwindTable {
    UnwindTable::with_programs(rows, programs).expect("ascending rows with a closing gap")
}

/// Addresses where the rule can change, and some more.
fn addresses(rows: &[Row]) -> impl Iterator<Item = Svma> + '_ {
    let around = |row: &Row| {
        let at = row.start.get();
        [at.wrapping_sub(1), at, at + 1, at | 0xff, (at | 0xff) + 1].map(Svma::new)
    };
    rows.iter()
        .flat_map(around)
        .chain([0, u64::MAX, 1 << 47].map(Svma::new))
}

fn check_image_answers_as_table(rows: (Vec<Row>, Programs)) {
    let table = table(rows);
    let image = encode(&table).expect("it fits");
    for address in addresses(&table.rows()) {
        assert_eq!(image.rule_at(address), table.rule_at(address), "at {address}");
    }
    assert_eq!(Image::from_words(image.words().to_vec()), Ok(image));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// An image gives the same rule as its table at every address, and passes its own check.
    #[test]
    fn image_answers_as_table(rows in rows()) {
        check_image_answers_as_table(rows);
    }

    /// Compaction changes no rule and leaves nothing to compact.
    #[test]
    fn compaction_changes_no_answer(rows in rows(), few in vec(rule(), 3)) {
        // Few distinct rules, so that neighbours are often equal.
        let cycled = few.iter().cycle();
        let (mut rows, programs) = rows;
        let last = rows.len().saturating_sub(1);
        for (row, rule) in rows.iter_mut().take(last).zip(cycled) {
            if row.start.get() % 3 != 0 {
                row.rule = *rule;
            }
        }
        let mut compacted = rows.clone();
        compact(&mut compacted);
        let (before, after) = (table((rows, programs.clone())), table((compacted, programs)));
        for address in addresses(&before.rows()) {
            prop_assert_eq!(before.rule_at(address), after.rule_at(address));
        }
        prop_assert!(after.rows().len() <= before.rows().len());
        prop_assert!(after.rows().windows(2).all(|pair| pair[0].rule != pair[1].rule));
    }

    /// Damaged words are refused, or lookups depend on these words alone: results are the same wherever the
    /// words are.
    #[test]
    fn damaged_images_are_read_inside_their_bounds(
        rows in rows(),
        damage in vec((any::<prop::sample::Index>(), prop::bool::ANY, word()), 1..4),
    ) {
        let table = table(rows);
        let mut words = encode(&table).expect("it fits").words().to_vec();
        let (length, header) = (words.len(), unwind_tables::image::HEADER_WORDS);
        for (index, in_header, value) in damage {
            let index = index.index(if in_header { header } else { length });
            words[index] = match value {
                Ok(value) => value,
                Err(bit) => words[index] ^ 1 << bit,
            };
        }
        if Image::from_words(words.clone()).is_ok() {
            let embedded = [0, u32::MAX].map(|junk| [vec![junk; 9], words.clone(), vec![junk; 9]].concat());
            for address in addresses(&table.rows()) {
                let answers = [0, 1].map(|number| {
                    let view = ImageView { words: &embedded[number], at: 9 };
                    view.relative_rule_at(address)
                });
                prop_assert_eq!(answers[0], answers[1], "at {}", address);
            }
        }
    }
}

/// A whole word, or one bit of the word that is there.
fn word() -> impl Strategy<Value = Result<u32, u32>> {
    prop_oneof![
        any::<u32>().prop_map(Ok),
        (0..64_u32).prop_map(Ok),
        Just(Ok(u32::MAX)),
        (0..32_u32).prop_map(Err),
        (0..32_u32).prop_map(Err),
    ]
}

fn numbered_rules(count: i32, distance: u64) -> Vec<Row> {
    let row = |(number, at): (i32, u64)| Row {
        start: Svma::new(0x1000 + at * distance),
        rule: UnwindRule::Frame(FrameRule {
            cfa: CfaRule::Offset {
                register: Register::Sp,
                offset: 8 * (number % count),
            },
            ra: Saved::AtCfa(-8),
            ra_signed: false,
            fp: Saved::Same,
            signal_frame: false,
        }),
    };
    let mut rows: Vec<_> = (0..3 * count).zip(0..).map(row).collect();
    let end = rows.len() as u64;
    rows.push(Row {
        start: Svma::new(0x1000 + end * distance),
        rule: UnwindRule::Gap,
    });
    rows
}

/// More rules than have numbers: those past the 255 most frequent are escaped, and are found all the same.
#[test]
fn more_rules_than_numbers_are_escaped() {
    for count in [253, 254, 255, 256, 257, 1000] {
        check_image_answers_as_table((numbered_rules(count, 7), Programs::default()));
    }
}

/// A row at every byte of a block, the fullest that a block can be.
#[test]
fn blocks_can_be_full() {
    check_image_answers_as_table((numbered_rules(300, 1), Programs::default()));
}
