//! Layout of one object's table, as the kernel side reads it.
//!
//! An image is a sequence of little-endian 32-bit words; every `*_at` is a number of words from the image's
//! start, so an image can be copied anywhere. `bpf/walk/tables.h` reads the same layout.
//!
//! ```text
//!  header   HEADER_WORDS words, see [`header`]
//!  index    block_count + 1 words: the first row of each 256-byte block of code
//!  rows     row_count half-words: low byte = low byte of the row's address, high byte = rule number
//!  rules    rule_count words: packed rules
//!  escapes  escape_count pairs of words {row, packed rule}, sorted: for rows whose rule number is ESCAPE
//!  wide     wide_count words: the programs that wide rules refer to by the number of an op
//!  saves    optional: an image of saves, of the same layout, see [`saves`](crate::saves)
//! ```
//!
//! A row applies from its address up to the next row's. Row 0 is a gap before the first block, so if no row
//! of a block starts at or below an address, the row before the block always exists and applies.

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::error::ImageError;
use crate::packed::{PackedRule, kind};
use crate::places::Places;
use crate::program::{OP_WORDS, Op, Opcode, ProgramId};
use crate::rule::UnwindRule;

/// First word of every image: `MLT` and the version of this layout.
pub const MAGIC: u32 = u32::from_le_bytes(*b"MLT\x02");
/// First word of an image of saves.
pub const SAVES_MAGIC: u32 = u32::from_le_bytes(*b"MLS\x01");
/// Binary logarithm of the bytes of code that one index entry covers.
pub const BLOCK_SHIFT: u32 = 8;
/// Rule number of a row whose rule is in the escapes.
pub const ESCAPE: u8 = 255;
/// Maximum number of rows of one object.
pub const MAX_ROWS: u32 = 1 << 24;

/// Numbers of the words of an image's header.
pub mod header {
    /// [`super::MAGIC`], or [`super::SAVES_MAGIC`] in an image of saves.
    pub const MAGIC: usize = 0;
    /// SVMA of the first block, shifted down by [`super::BLOCK_SHIFT`].
    pub const FIRST_BLOCK: usize = 1;
    /// Number of blocks.
    pub const BLOCK_COUNT: usize = 2;
    /// Start of the index.
    pub const INDEX_AT: usize = 3;
    /// Start of the rows.
    pub const ROWS_AT: usize = 4;
    /// Number of rows.
    pub const ROW_COUNT: usize = 5;
    /// Start of the rules.
    pub const RULES_AT: usize = 6;
    /// Number of rules.
    pub const RULE_COUNT: usize = 7;
    /// Start of the escapes.
    pub const ESCAPES_AT: usize = 8;
    /// Number of escapes.
    pub const ESCAPE_COUNT: usize = 9;
    /// Start of the words that wide rules refer to.
    pub const WIDE_AT: usize = 10;
    /// Number of words that wide rules refer to.
    pub const WIDE_COUNT: usize = 11;
    /// Number of words of the whole image, including an image of saves.
    pub const TOTAL_WORDS: usize = 12;
    /// Start of the image of saves; 0 for none.
    pub const SAVES_AT: usize = 13;
    /// [`Architecture`](super::Architecture) of the rules.
    pub const ARCHITECTURE: usize = 14;
}

/// Number of words of the header; a multiple of a cache line.
pub const HEADER_WORDS: usize = 16;

/// One object's table in the kernel side's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    words: Vec<u32>,
    places: Places,
}

impl Image {
    /// Converts `words` to an image after checking every count, offset and reference in it.
    ///
    /// # Errors
    ///
    /// [`ImageError`] for the first violation of the layout.
    pub fn from_words(words: Vec<u32>) -> Result<Self, ImageError> {
        crate::encode::check(&words)?;
        Ok(Self::from_checked(words))
    }

    /// Converts words that the encoder laid out, without a check.
    pub(crate) fn from_checked(words: Vec<u32>) -> Self {
        Self {
            words,
            places: Places::default(),
        }
    }

    /// Returns the image, with the places of its code.
    pub(crate) fn with_places(self, places: Places) -> Self {
        Self { places, ..self }
    }

    /// Returns the places of the object's code in the image.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns the words that the kernel side reads.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Returns the size in bytes.
    pub fn byte_len(&self) -> usize {
        self.words.len() * size_of::<u32>()
    }

    /// Returns the number of rows, including the leading gap.
    pub fn row_count(&self) -> u32 {
        self.words[header::ROW_COUNT]
    }

    /// Returns the rule for one address of the object; a gap outside of the blocks.
    pub fn rule_at(&self, svma: Svma) -> UnwindRule {
        let rule = self.packed_rule_at(svma);
        rule.unpack(self.architecture()).unwrap_or(UnwindRule::Gap)
    }

    /// Returns whether code without CFI at an address has a frame pointer of its own.
    pub fn has_own_frame_pointer(&self, svma: Svma) -> bool {
        self.packed_rule_at(svma) == PackedRule::FRAMED_GAP
    }

    fn packed_rule_at(&self, svma: Svma) -> PackedRule {
        let view = ImageView {
            words: &self.words,
            at: 0,
        };
        let place = self.places.in_image(svma);
        place.map_or(PackedRule::GAP, |svma| view.relative_rule_at(svma))
    }

    /// Returns the ops of a program that a rule of this image refers to, without the final `End`.
    pub fn program(&self, program: ProgramId) -> Vec<Op> {
        let first = self.words[header::WIDE_AT] as usize + program.0 as usize * OP_WORDS;
        let words = self.words.get(first..).unwrap_or_default().chunks_exact(OP_WORDS);
        let ops = words.map_while(|words| Op::from_words([words[0], words[1]]));
        ops.take_while(|op| op.code != Opcode::End).collect()
    }

    /// Returns the architecture of the object's code.
    pub fn architecture(&self) -> Architecture {
        Architecture::from_number(self.words[header::ARCHITECTURE]).unwrap_or_default()
    }

    /// Returns whether the image includes an image of saves.
    pub fn has_saves(&self) -> bool {
        self.words[header::SAVES_AT] != 0
    }
}

/// An image inside a larger sequence of words, read as the kernel side reads it: words out of range read as
/// 0.
///
/// Mirrors `bpf/walk/tables.h` function by function.
#[derive(Clone, Copy, Debug)]
pub struct ImageView<'a> {
    /// The whole sequence of words.
    pub words: &'a [u32],
    /// Index of the image's first word.
    pub at: u32,
}

impl ImageView<'_> {
    /// Returns a word of the whole sequence; 0 if out of range.
    pub fn word(&self, at: u32) -> u32 {
        self.words.get(at as usize).copied().unwrap_or(0)
    }

    fn header(&self, number: usize) -> u32 {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "numbers of header words are below HEADER_WORDS"
        )]
        self.word(self.at.wrapping_add(number as u32))
    }

    fn section(&self, number: usize) -> u32 {
        self.at.wrapping_add(self.header(number))
    }

    fn row(&self, rows: u32, row: u32) -> u32 {
        self.word(rows.wrapping_add(row / 2)) >> (16 * (row % 2)) & 0xffff
    }

    /// Returns the packed rule for one address; a gap outside of the blocks.
    ///
    /// The operand of a wide rule is replaced by the index in `words` of the first word that it refers to.
    pub fn rule_at(&self, svma: Svma) -> PackedRule {
        let rule = self.relative_rule_at(svma);
        if rule.kind() != kind::WIDE {
            return rule;
        }
        let at = rule.wide_index().wrapping_mul(2);
        PackedRule::wide(self.section(header::WIDE_AT).wrapping_add(at)).unwrap_or(PackedRule::GAP)
    }

    /// Returns the number of the row for one address. Two addresses in a gap have the same number if all code
    /// between them is in the gap, too.
    pub fn row_at(&self, svma: Svma) -> u32 {
        match self.place_of(svma) {
            Ok((block, pc_low)) => self.find_row(block, pc_low),
            Err(outside) => outside,
        }
    }

    /// Returns the packed rule for one address as stored: a wide rule's operand is the number of an op; a gap
    /// outside of the blocks.
    pub fn relative_rule_at(&self, svma: Svma) -> PackedRule {
        match self.place_of(svma) {
            Ok((block, pc_low)) => self.rule_of_row(self.find_row(block, pc_low)),
            Err(_) => PackedRule::GAP,
        }
    }

    /// The block of an address, and the address's low byte. Outside of the blocks, the error is a number that
    /// no row has, a different one on each side.
    fn place_of(&self, svma: Svma) -> Result<(u32, u32), u32> {
        let first = u64::from(self.header(header::FIRST_BLOCK));
        let block = (svma.get() >> BLOCK_SHIFT).wrapping_sub(first);
        if block >= self.header(header::BLOCK_COUNT).into() {
            let is_before = svma.get() >> BLOCK_SHIFT < first;
            return Err(if is_before { u32::MAX } else { u32::MAX - 1 });
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the block's number is below BLOCK_COUNT, the masked address below 256"
        )]
        Ok((block as u32, (svma.get() & 0xff) as u32))
    }

    /// Returns the image of saves, if included.
    pub fn saves(&self) -> Option<Self> {
        match self.header(header::SAVES_AT) {
            0 => None,
            _ => Some(Self {
                words: self.words,
                at: self.section(header::SAVES_AT),
            }),
        }
    }

    /// Returns the last row of `block` whose address is at or below `pc_low`, or else the row before the
    /// block.
    fn find_row(&self, block: u32, pc_low: u32) -> u32 {
        let index = self.section(header::INDEX_AT);
        let rows = self.section(header::ROWS_AT);
        let first = self.word(index.wrapping_add(block));
        let end = self.word(index.wrapping_add(block + 1));
        let mut found = first.wrapping_sub(1);
        for shift in (0..=8).rev() {
            let candidate = found.wrapping_add(1 << shift);
            if candidate < end && (self.row(rows, candidate) & 0xff) <= pc_low {
                found = candidate;
            }
        }
        found
    }

    fn rule_of_row(&self, row: u32) -> PackedRule {
        let number = self.row(self.section(header::ROWS_AT), row) >> 8;
        if number != u32::from(ESCAPE) {
            return PackedRule::from_bits(self.word(self.section(header::RULES_AT).wrapping_add(number)));
        }
        self.escaped_rule(row)
    }

    /// Returns the rule of the last escape at or below `row`.
    fn escaped_rule(&self, row: u32) -> PackedRule {
        let escapes = self.section(header::ESCAPES_AT);
        let count = self.header(header::ESCAPE_COUNT);
        let mut found = 0;
        for shift in (0..24).rev() {
            let candidate = found + (1 << shift);
            if candidate < count && self.word(escapes.wrapping_add(2 * candidate)) <= row {
                found = candidate;
            }
        }
        PackedRule::from_bits(self.word(escapes.wrapping_add(2 * found + 1)))
    }
}
