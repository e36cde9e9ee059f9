//! Claims about unwind tables: from ELF files to tables, and tables as the kernel side reads them.

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::build;
use unwind_tables::image::{BLOCK_SHIFT, Image, ImageView, header};
use unwind_tables::mapping::Mapping;
use unwind_tables::verify::verify;
use unwind_tables::walk::{self, Registers, ReturnProbes, Tables, Unwind};
use unwind_tables::{Architecture, ElfView, Saves, UnwindRule, compile, compile_as, compile_saves};

/// Maximum number of addresses that are looked up in an image.
const MAX_ADDRESSES: u32 = 4096;
/// Word of another image, which follows in the kernel side's memory.
const FOREIGN: u32 = 0xffff_ffff;

/// A file gives a table or an error. A table agrees with gimli at every address, takes no more memory than
/// the file's size allows, and has a valid layout.
pub(super) fn elf(bytes: &[u8]) {
    let compiled = compile(bytes);
    let image = compiled
        .as_ref()
        .ok()
        .and_then(|compiled| compiled.image.as_ref());
    if let Some(image) = image {
        assert!(
            image.byte_len() <= 4 * bytes.len() + (1 << 20),
            "{}",
            image.byte_len()
        );
        check_layout(image);
        check_rows(bytes, image);
    }
    let verified = verify(bytes, image);
    assert_eq!(verified.is_ok(), ElfView::parse_any(bytes).is_ok());
    if let (Ok(_), Ok(verified)) = (&compiled, verified) {
        assert_eq!(verified.wrong, 0, "{:?}", verified.examples);
    }
    if let Ok(compiled) = compile_as(bytes, Saves::Always)
        && let Some(image) = compiled.image
    {
        check_layout(&image);
        let verified = verify(bytes, Some(&image)).expect("it compiled");
        assert_eq!(verified.wrong, 0, "{:?}", verified.examples);
    }
    // An image of saves alone is not an image of rules.
    if let Ok(Some(saves)) = compile_saves(bytes) {
        Image::from_words(saves.words().to_vec()).expect_err("an image of saves");
    }
}

fn check_layout(image: &Image) {
    let second = Image::from_words(image.words().to_vec()).expect("what was encoded is accepted");
    assert_eq!(second.words(), image.words());
}

/// The image has the rules of the table that it was made from.
fn check_rows(bytes: &[u8], image: &Image) {
    let view = ElfView::parse_any(bytes).expect("it compiled");
    let (table, _) = build::build(&view).expect("it compiled");
    for row in table.rows() {
        assert_eq!(image.rule_at(row.start), row.rule, "{:#x}", row.start);
        let before = row.start.wrapping_sub(1);
        assert_eq!(image.rule_at(before), table.rule_at(before), "{before:#x}");
    }
}

/// Words are an image or not. An accepted one is only read within its bounds, whatever surrounds it, and each
/// of its rules can be followed.
pub(super) fn image(bytes: &[u8]) {
    let words = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let Ok(image) = Image::from_words(words.collect()) else {
        return;
    };
    // Images are aligned to two words in the kernel side's memory.
    let before = 2;
    let mut among_others = vec![FOREIGN; before];
    among_others.extend(image.words());
    among_others.extend([FOREIGN; 64]);
    for address in addresses(&image) {
        assert!(image.rule_at(address) != UnwindRule::Gap || is_gap(&image, address));
        let alone = step(image.architecture(), image.words(), 0, address);
        assert_eq!(
            step(image.architecture(), &among_others, 2, address),
            alone,
            "{address:#x}"
        );
    }
}

/// Addresses in all blocks, and around them.
fn addresses(image: &Image) -> Vec<Svma> {
    let [first, count] = [header::FIRST_BLOCK, header::BLOCK_COUNT].map(|number| image.words()[number]);
    let start = u64::from(first) << BLOCK_SHIFT;
    let blocks = (0..count.min(MAX_ADDRESSES / 4)).map(|block| start + (u64::from(block) << BLOCK_SHIFT));
    let inside = blocks.flat_map(|block| [0, 1, 0x7f, 0xff].map(|low| block + low));
    let outside = [
        0,
        start.wrapping_sub(1),
        start + (u64::from(count) << BLOCK_SHIFT),
        u64::MAX,
    ];
    inside.chain(outside).map(Svma::new).collect()
}

fn is_gap(image: &Image, address: Svma) -> bool {
    let view = ImageView {
        words: image.words(),
        at: 0,
    };
    view.relative_rule_at(address).unpack(image.architecture()) == Some(UnwindRule::Gap)
}

/// One step of a walk from `address`, with an image at `at` in `words`.
fn step(
    architecture: Architecture,
    words: &[u32],
    at: u32,
    address: Svma,
) -> Result<walk::Caller, walk::End> {
    let mapping = Mapping {
        image_at: at,
        ..Mapping::everywhere()
    };
    let tables = Tables {
        architecture,
        words,
        mappings: &[mapping],
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let frame = Registers {
        pc: Avma::new(address.get()),
        general: std::array::from_fn(|number| 0x7fff_0000 + 0x100 * number as u64),
    };
    walk::caller(tables, frame, |slot| Some(slot.get().rotate_left(7) ^ 0x5555))
}
