//! Encodes rows as an [`Image`], and checks that words are a valid one. `image` reads images.

use crate::architecture::Architecture;
use crate::build::SavesTable;
use crate::error::ImageError;
use crate::image::{BLOCK_SHIFT, ESCAPE, HEADER_WORDS, Image, MAGIC, MAX_ROWS, SAVES_MAGIC, header};
use crate::packed::{PackedRule, kind};
use crate::program::{self, MAX_OPS, OP_WORDS, Op};
use crate::saves::LONG_WORDS;
use crate::table::{Row, RowRule, Rows, UnwindTable};

/// Maximum number of blocks of an index: 4 GiB of code.
const MAX_BLOCKS: u64 = 1 << 24;

/// Lays out `table` as an image.
///
/// # Errors
///
/// [`ImageError`] if the table exceeds a limit of the layout.
pub fn encode(table: &UnwindTable) -> Result<Image, ImageError> {
    Ok(Image::from_checked(lay_out_rules(table)?))
}

/// Lays out `table` as an image, followed by an image of saves.
///
/// # Errors
///
/// [`ImageError`] if either table exceeds a limit of the layout.
pub fn encode_with_saves(table: &UnwindTable, saves: &SavesTable) -> Result<Image, ImageError> {
    let mut words = lay_out_rules(table)?;
    let saves = lay_out_saves(saves)?;
    words[header::SAVES_AT] = to_u32(words.len())?;
    words.extend(saves);
    words[header::TOTAL_WORDS] = to_u32(words.len())?;
    Ok(Image::from_checked(words))
}

/// Lays out an image of saves by itself, for [`header::SAVES_AT`] of an image of rules to refer to.
///
/// # Errors
///
/// Fails as [`encode`] does.
pub fn encode_saves(saves: &SavesTable) -> Result<Image, ImageError> {
    Ok(Image::from_checked(lay_out_saves(saves)?))
}

fn lay_out_saves(saves: &SavesTable) -> Result<Vec<u32>, ImageError> {
    let mut words = lay_out(&saves.rows, saves.long.words())?;
    words[header::MAGIC] = SAVES_MAGIC;
    Ok(words)
}

fn lay_out_rules(table: &UnwindTable) -> Result<Vec<u32>, ImageError> {
    let programs: Vec<u32> = table.programs().ops().iter().flat_map(|op| op.words()).collect();
    let mut words = lay_out(table.packed_rows(), &programs)?;
    words[header::ARCHITECTURE] = table.programs().architecture() as u32;
    Ok(words)
}

/// Returns the words of an image of these rows and of `wide`, which its wide rules refer to.
fn lay_out<R: RowRule>(table: &Rows<R>, wide: &[u32]) -> Result<Vec<u32>, ImageError> {
    let rows = table.as_slice();
    let row_count = rows.len() + 1;
    let row_count = u32::try_from(row_count)
        .ok()
        .filter(|&count| count <= MAX_ROWS)
        .ok_or(ImageError::TooManyRows(row_count))?;
    let packed = rows.iter().map(|row| row.rule.pack());
    let rules_of_rows: Vec<_> = packed.collect::<Option<_>>().ok_or(ImageError::TooManyRules)?;
    let numbers = number_by_frequency(&rules_of_rows);

    let mut words = vec![0; HEADER_WORDS];
    words[header::MAGIC] = MAGIC;
    push_index(&mut words, rows)?;
    words[header::ROW_COUNT] = row_count;
    let escapes = push_rows(&mut words, rows, &rules_of_rows, &numbers);

    start_section(
        &mut words,
        header::RULES_AT,
        header::RULE_COUNT,
        numbers.by_number.len(),
    )?;
    words.extend(numbers.by_number.iter().map(|rule| rule.bits()));
    start_section(
        &mut words,
        header::ESCAPES_AT,
        header::ESCAPE_COUNT,
        escapes.len(),
    )?;
    words.extend(escapes.iter().flat_map(|&(row, rule)| [row, rule.bits()]));
    start_section(&mut words, header::WIDE_AT, header::WIDE_COUNT, wide.len())?;
    words.extend(wide);
    words[header::TOTAL_WORDS] = to_u32(words.len())?;
    Ok(words)
}

/// Rules that get a rule number: the 255 most frequent ones.
struct Numbers {
    by_number: Vec<PackedRule>,
    /// Hash table with linear probing, at most a quarter full; one lookup for each row.
    by_rule: [Option<(PackedRule, u8)>; Self::PLACES],
}

impl Numbers {
    const PLACE_BITS: u32 = 10;
    const PLACES: usize = 1 << Self::PLACE_BITS;

    fn new(by_number: Vec<PackedRule>) -> Self {
        let mut by_rule = [None; Self::PLACES];
        for (&rule, number) in by_number.iter().zip(0..) {
            let free = Self::places(rule).find(|&place| by_rule[place].is_none());
            if let Some(free) = free {
                by_rule[free] = Some((rule, number));
            }
        }
        Self { by_number, by_rule }
    }

    /// Returns the places where a rule can be, in order of probing.
    fn places(rule: PackedRule) -> impl Iterator<Item = usize> {
        /// 2^32 over the golden ratio: spreads rules that differ in few bits.
        const SPREAD: u32 = 0x9e37_79b1;
        let first = (rule.bits().wrapping_mul(SPREAD) >> (32 - Self::PLACE_BITS)) as usize;
        (first..first + Self::PLACES).map(|place| place % Self::PLACES)
    }

    fn of(&self, rule: PackedRule) -> Option<u8> {
        let mut taken = Self::places(rule).map_while(|place| self.by_rule[place]);
        taken.find(|&(known, _)| known == rule).map(|(_, number)| number)
    }
}

/// Numbers the most frequent rules. Counts by sorting: with a million rows and a few hundred distinct rules,
/// this is four times faster than counting in a map.
fn number_by_frequency(rules_of_rows: &[PackedRule]) -> Numbers {
    let mut sorted = rules_of_rows.to_vec();
    // The leading row.
    sorted.push(PackedRule::GAP);
    sorted.sort_unstable();
    let mut ordered: Vec<_> = sorted
        .chunk_by(|a, b| a == b)
        .map(|equal| (equal.len(), equal[0]))
        .collect();
    // The second key makes the order, and so the image, deterministic.
    ordered.sort_unstable_by_key(|&(count, rule)| (std::cmp::Reverse(count), rule));
    let rules = ordered.into_iter().map(|(_, rule)| rule);
    Numbers::new(rules.take(ESCAPE.into()).collect())
}

fn push_index<R: RowRule>(words: &mut Vec<u32>, rows: &[Row<R>]) -> Result<(), ImageError> {
    let block_of = |row: &Row<R>| row.start.get() >> BLOCK_SHIFT;
    let (first, count) = match (rows.first(), rows.last()) {
        (Some(first), Some(last)) => (block_of(first), block_of(last) - block_of(first) + 1),
        _ => (0, 0),
    };
    if count > MAX_BLOCKS {
        return Err(ImageError::TooSparse(count << BLOCK_SHIFT));
    }
    words[header::FIRST_BLOCK] = u32::try_from(first).map_err(|_| ImageError::TooSparse(first))?;
    let count = usize::try_from(count).map_err(|_| ImageError::TooSparse(count))?;
    start_section(words, header::INDEX_AT, header::BLOCK_COUNT, count)?;
    let mut row = 0;
    for block in first..first + count as u64 {
        while rows.get(row).is_some_and(|row| block_of(row) < block) {
            row += 1;
        }
        words.push(to_u32(row + 1)?);
    }
    words.push(to_u32(rows.len() + 1)?);
    Ok(())
}

/// Pushes the words of all rows; returns the rows whose rule has no number.
fn push_rows<R: RowRule>(
    words: &mut Vec<u32>,
    rows: &[Row<R>],
    rules_of_rows: &[PackedRule],
    numbers: &Numbers,
) -> Vec<(u32, PackedRule)> {
    let mut escapes = Vec::new();
    let leading_gap = (0, numbers.of(PackedRule::GAP).unwrap_or(ESCAPE));
    if leading_gap.1 == ESCAPE {
        escapes.push((0, PackedRule::GAP));
    }
    let halves = rows
        .iter()
        .zip(rules_of_rows)
        .zip(1..)
        .map(|((row, rule), number)| {
            let pc_low = row.start.get().to_le_bytes()[0];
            let rule_number = numbers.of(*rule).unwrap_or_else(|| {
                escapes.push((number, *rule));
                ESCAPE
            });
            (pc_low, rule_number)
        });
    let halves: Vec<(u8, u8)> = std::iter::once(leading_gap).chain(halves).collect();
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the length was checked against MAX_ROWS; sections start on a word"
    )]
    {
        words[header::ROWS_AT] = words.len() as u32;
    }
    words.extend(halves.chunks(2).map(|pair| {
        let (low, high) = (pair[0], pair.get(1).copied().unwrap_or_default());
        u32::from_le_bytes([low.0, low.1, high.0, high.1])
    }));
    escapes
}

fn start_section(words: &mut [u32], at: usize, count_at: usize, count: usize) -> Result<(), ImageError> {
    words[at] = to_u32(words.len())?;
    words[count_at] = to_u32(count)?;
    Ok(())
}

fn to_u32(value: usize) -> Result<u32, ImageError> {
    u32::try_from(value).map_err(|_| ImageError::TooManyRows(value))
}

/// Checks every count, offset and reference, so that a reader that follows them stays in bounds.
pub(crate) fn check(words: &[u32]) -> Result<(), ImageError> {
    let header = words.get(..HEADER_WORDS).ok_or(ImageError::BadMagic)?;
    let architecture = header[header::ARCHITECTURE];
    let architecture = Architecture::from_number(architecture).ok_or(ImageError::Damaged("architecture"))?;
    check_layout(words, MAGIC, |rule, wide| is_rule(rule, wide, architecture))?;
    match header[header::SAVES_AT] {
        0 => Ok(()),
        at => {
            let saves = words.get(at as usize..).ok_or(ImageError::Damaged("saves"))?;
            check_layout(saves, SAVES_MAGIC, is_saves_rule)
        }
    }
}

fn is_rule(rule: PackedRule, wide: &[u32], architecture: Architecture) -> bool {
    if rule.kind() != kind::WIDE {
        return rule.bits() >> 31 == 0 && rule.unpack(architecture).is_some();
    }
    let first = rule.wide_index() as usize * OP_WORDS;
    let words = wide.get(first..).unwrap_or_default().chunks_exact(OP_WORDS);
    let ops = words.map_while(|words| Op::from_words([words[0], words[1]]));
    program::is_sound(&ops.take(MAX_OPS).collect::<Vec<_>>(), architecture)
}

fn is_saves_rule(rule: PackedRule, wide: &[u32]) -> bool {
    match rule.kind() {
        kind::SP => rule.bits() >> 31 == 0,
        kind::WIDE => wide.len() >= rule.wide_index() as usize * OP_WORDS + LONG_WORDS,
        _ => rule == PackedRule::GAP,
    }
}

/// Checks the layout. `is_known` returns whether an image can contain a rule, given the words that wide rules
/// refer to.
fn check_layout(
    words: &[u32],
    magic: u32,
    is_known: impl Fn(PackedRule, &[u32]) -> bool,
) -> Result<(), ImageError> {
    let damaged = ImageError::Damaged;
    let header = words.get(..HEADER_WORDS).ok_or(ImageError::BadMagic)?;
    if header[header::MAGIC] != magic {
        return Err(ImageError::BadMagic);
    }
    if header[header::TOTAL_WORDS] as usize != words.len() {
        return Err(damaged("length"));
    }
    let section = |at: usize, words_long: usize, name| {
        let at = header[at] as usize;
        at.checked_add(words_long)
            .and_then(|end| words.get(at..end))
            .ok_or(damaged(name))
    };
    let count = |number: usize| header[number] as usize;
    let row_count = count(header::ROW_COUNT);
    if row_count == 0 || row_count > MAX_ROWS as usize {
        return Err(damaged("row count"));
    }
    let index = section(
        header::INDEX_AT,
        count(header::BLOCK_COUNT).saturating_add(1),
        "index",
    )?;
    let rows = section(header::ROWS_AT, row_count.div_ceil(2), "rows")?;
    let rules = section(header::RULES_AT, count(header::RULE_COUNT), "rules")?;
    let escapes = section(
        header::ESCAPES_AT,
        count(header::ESCAPE_COUNT).saturating_mul(2),
        "escapes",
    )?;
    let wide = section(header::WIDE_AT, count(header::WIDE_COUNT), "wide rules")?;

    let bounded = index.first().is_some_and(|&first| first > 0)
        && index.is_sorted()
        && index.last().is_some_and(|&last| last as usize <= row_count);
    if !bounded {
        return Err(damaged("index order"));
    }
    if !escapes.chunks(2).is_sorted_by(|a, b| a[0] < b[0]) {
        return Err(damaged("escape order"));
    }
    let numbers = rows
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .skip(1)
        .step_by(2)
        .take(row_count);
    for (number, row) in numbers.zip(0_u32..) {
        let known = match number {
            ESCAPE => escapes.first().is_some_and(|&first| first <= row),
            number => usize::from(number) < rules.len(),
        };
        if !known {
            return Err(damaged("rule number"));
        }
    }
    let escaped = escapes.iter().skip(1).step_by(2);
    for &bits in rules.iter().chain(escaped) {
        if !is_known(PackedRule::from_bits(bits), wide) {
            return Err(damaged("rule"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Svma;
    use crate::program::Programs;
    use crate::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};
    use crate::table::Row;

    /// Returns an image with 300 rules, and so with escapes, and one wide rule.
    fn words() -> Vec<u32> {
        let mut programs = Programs::default();
        let mut frame = |offset| {
            let frame = FrameRule {
                cfa: CfaRule::Offset {
                    register: Register::Sp,
                    offset,
                },
                ra: Saved::AtCfa(-8),
                ra_signed: false,
                fp: Saved::Same,
                signal_frame: false,
            };
            programs.rule(frame).expect("a rule or a short program")
        };
        let row = |(start, rule)| Row {
            start: Svma::new(start),
            rule,
        };
        let mut rules: Vec<_> = (0..300).map(|number| frame(8 * number)).collect();
        rules.extend([frame(12), UnwindRule::Gap]);
        let rows = (0x1000..).zip(rules).map(row).collect();
        let table = UnwindTable::with_programs(rows, programs).expect("ascending rows with a closing gap");
        encode(&table).expect("a small table").words().to_vec()
    }

    /// Each number that a reader follows is checked, and the error names the wrong one.
    #[test]
    fn damaged_numbers_are_named() {
        let whole = words();
        assert_eq!(check(&whole), Ok(()));
        let at = |number: usize| whole[number] as usize;
        let (index, rows, rules) = (at(header::INDEX_AT), at(header::ROWS_AT), at(header::RULES_AT));
        let (escapes, wide_count) = (at(header::ESCAPES_AT), header::WIDE_COUNT);
        let wide_escape = whole
            .iter()
            .skip(rules)
            .position(|&bits| bits & 7 == kind::WIDE && bits != 0);
        let wide_rule = rules + wide_escape.expect("one rule is wide");
        let damaged = ImageError::Damaged;
        for (word, value, error) in [
            (header::MAGIC, 0, ImageError::BadMagic),
            (header::TOTAL_WORDS, 7, damaged("length")),
            (header::ROW_COUNT, 0, damaged("row count")),
            (header::ROW_COUNT, MAX_ROWS + 1, damaged("row count")),
            (header::ROW_COUNT, 10_000, damaged("rows")),
            (header::BLOCK_COUNT, u32::MAX, damaged("index")),
            (header::INDEX_AT, u32::MAX, damaged("index")),
            (header::RULE_COUNT, u32::MAX, damaged("rules")),
            (header::ESCAPE_COUNT, u32::MAX, damaged("escapes")),
            (wide_count, u32::MAX, damaged("wide rules")),
            (wide_count, 0, damaged("rule")),
            (index, 0, damaged("index order")),
            (index, u32::MAX, damaged("index order")),
            (index + 1, 10_000, damaged("index order")),
            (escapes, u32::MAX, damaged("escape order")),
            (header::ESCAPE_COUNT, 0, damaged("rule number")),
            (header::RULE_COUNT, 3, damaged("rule number")),
            (rules, 0, damaged("rule")),
            (rules, 1 << 31 | 1, damaged("rule")),
            (rules, kind::CHAIN, damaged("rule")),
            (escapes + 1, kind::STOP | 500 << 3, damaged("rule")),
            (
                wide_rule,
                PackedRule::wide(1).expect("a small number").bits(),
                damaged("rule"),
            ),
        ] {
            let mut words = whole.clone();
            words[word] = value;
            assert_eq!(check(&words), Err(error), "word {word} = {value:#x}");
        }
        assert_eq!(check(&whole[..10]), Err(ImageError::BadMagic));
        assert_eq!(check(&whole[..rows]), Err(damaged("length")));
    }
}
