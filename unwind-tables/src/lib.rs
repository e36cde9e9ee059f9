//! Compiles an ELF file's call frame information to a compact unwind table image, by which a walker in the
//! kernel gets from a frame to its caller.
//!
//! ```text
//!  ELF bytes ─ elf ──► segments, build-id, .eh_frame / .debug_frame      sections: decompression
//!                        │
//!                       cfi ─ plain, or gimli and translate ──► functions and packed rows (end of gimli)
//!                        │
//!                      build ──► sorted, overlaps cut, gaps explicit ─ compact ──► UnwindTable
//!                        │                                                            │
//!                    coverage ──► Coverage                                   encode (packed) ──► Image
//!                                                                                     │
//!                                            mappings, registers, memory ──► walk ──► Stack
//! ```
//!
//! `verify` compares an image with gimli's own evaluation of the same CFI, at every address.
//!
//! Deliberately absent: opening files, `/proc`, BPF, and guesses about code that the CFI does not cover,
//! except whether its functions set up frame pointers. A row that no rule expresses exactly is
//! [`rule::UnwindRule::Unsupported`] with a reason, and code without CFI is [`rule::UnwindRule::Gap`]; both
//! are counted in [`Coverage`], and a walk that meets them reports it as its end.
//!
//! ```
//! use unwind_tables::addr::Svma;
//! use unwind_tables::rule::UnwindRule;
//!
//! let elf = std::fs::read(std::env::current_exe()?)?;
//! let compiled = unwind_tables::compile(&elf)?;
//! let image = compiled.image.ok_or("this executable has no CFI")?;
//!
//! // A process starts at the ELF header's entry point, which nothing has called.
//! let entry = Svma::new(u64::from_le_bytes(elf[24..32].try_into()?));
//! assert_eq!(image.rule_at(entry), UnwindRule::EndOfStack);
//! // No code lies at address 0.
//! assert_eq!(image.rule_at(Svma::new(0)), UnwindRule::Gap);
//! println!("{} rows, {} bytes", compiled.coverage.rows, image.byte_len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod addr;
pub mod architecture;
pub mod build;
mod bytes;
mod cfi;
pub mod compact;
pub mod coverage;
pub mod elf;
pub mod encode;
mod entry;
pub mod error;
mod expression;
pub mod fingerprint;
mod framed;
mod go_table;
pub mod image;
pub mod mapping;
pub mod packed;
pub mod places;
mod plain;
pub mod program;
mod ranges;
pub mod rule;
pub mod saves;
mod sections;
mod switches;
pub mod table;
mod trampoline;
mod translate;
pub mod verify;
pub mod walk;

pub use architecture::Architecture;
pub use coverage::Coverage;
pub use elf::ElfView;
pub use error::TableError;
pub use image::Image;
use places::Places;
pub use rule::UnwindRule;

/// An object's table in the kernel side's layout, and its statistics.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The table; `None` if the object has no CFI.
    pub image: Option<Image>,
    /// Statistics of the table, also if it has no rows.
    pub coverage: Coverage,
}

/// Compiles an ELF file's call frame information, with an image of saves if its own rules need one.
///
/// # Errors
///
/// [`TableError`] if the bytes are not an executable or shared object for a known [`Architecture`], or if the
/// table exceeds the limits of an image. Faults in single functions are counted in [`Coverage`] instead.
pub fn compile(elf: &[u8]) -> Result<Compiled, TableError> {
    compile_as(elf, Saves::IfNeeded)
}

/// Choice of including an image of saves, which only rules of unusual frames need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// Only if a rule of this object uses a register that another frame may have saved.
    IfNeeded,
    /// Always: for an object with frames between such a frame and a probe.
    Always,
}

/// Compiles an ELF file's call frame information, with an image of saves as `saves` requires.
///
/// # Errors
///
/// Fails as [`compile`] does.
pub fn compile_as(elf: &[u8], saves: Saves) -> Result<Compiled, TableError> {
    compile_view(&ElfView::parse_any(elf)?, saves)
}

/// Compiles the call frame information of a file whose headers were read, with an image of saves as `saves`
/// requires.
///
/// # Errors
///
/// Fails as [`compile`] does.
pub fn compile_view(view: &ElfView<'_>, saves: Saves) -> Result<Compiled, TableError> {
    let trampolines = build::Trampolines::new();
    let (table, coverage) = build::build_with(view, &trampolines)?;
    if table.packed_rows().as_slice().is_empty() {
        let image = None;
        return Ok(Compiled { image, coverage });
    }
    let places = Places::of(view.segments());
    let needs_saves =
        table.programs().use_registers() || (saves == Saves::Always && saves::are_followed(view));
    let table = table.placed(&places);
    let image = if needs_saves {
        let saves = build::build_saves_with(view, &trampolines)?;
        encode::encode_with_saves(&table, &saves.placed(&places))?
    } else {
        encode::encode(&table)?
    };
    Ok(Compiled {
        image: Some(image.with_places(places)),
        coverage,
    })
}

/// Compiles only the image of saves of an ELF file, for walks through it to a frame whose rule uses a saved
/// register. `None` without CFI, and on AArch64, where no such rule is supported.
///
/// # Errors
///
/// Fails as [`compile`] does.
pub fn compile_saves(elf: &[u8]) -> Result<Option<Image>, TableError> {
    compile_saves_of_view(&ElfView::parse_any(elf)?)
}

/// Compiles as [`compile_saves`] does, for a file whose headers were read.
///
/// # Errors
///
/// Fails as [`compile`] does.
pub fn compile_saves_of_view(view: &ElfView<'_>) -> Result<Option<Image>, TableError> {
    if !saves::are_followed(view) {
        return Ok(None);
    }
    let saves = build::build_saves(view)?;
    if saves.rows.as_slice().is_empty() {
        return Ok(None);
    }
    let places = Places::of(view.segments());
    let image = encode::encode_saves(&saves.placed(&places))?;
    Ok(Some(image.with_places(places)))
}
