//! ELF in, compact unwind table image out: what a walker in the kernel needs to get from a frame to its caller.
//!
//! ```text
//!  ELF bytes ─ elf ──► segments, build-id, .eh_frame / .debug_frame      sections: decompression
//!                        │
//!                       cfi ─ plain, or gimli and translate ──► functions and their rows, packed   (gimli ends here)
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
//! What is deliberately absent: opening files, `/proc`, BPF, and any rule for what the CFI does not say. A row
//! that no rule expresses exactly is [`rule::UnwindRule::Unsupported`] with a reason, and code without CFI is
//! [`rule::UnwindRule::Gap`]; both are counted in [`Coverage`], and a walk that meets them says so.
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
pub mod error;
mod expression;
pub mod fingerprint;
pub mod image;
pub mod mapping;
pub mod packed;
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
pub use rule::UnwindRule;

/// An object's table in the kernel's layout, and what it covers.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The table; `None` when the object has no CFI at all.
    pub image: Option<Image>,
    /// What it covers.
    pub coverage: Coverage,
}

/// Compiles an ELF file's call frame information, with where registers are saved if its own rules need that.
///
/// # Errors
///
/// [`TableError`] when the bytes are not an executable or shared object for a known [`Architecture`], or when the table
/// exceeds what an image can hold. What is wrong with single functions is counted in [`Coverage`] instead.
pub fn compile(elf: &[u8]) -> Result<Compiled, TableError> {
    compile_as(elf, Saves::IfNeeded)
}

/// Whether an image says where registers are saved, which only rules of unusual frames ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// If a rule of this object starts from a register that another frame may have saved.
    IfNeeded,
    /// Always: for an object between such a frame and a probe.
    Always,
}

/// As [`compile`].
///
/// # Errors
///
/// As [`compile`].
pub fn compile_as(elf: &[u8], saves: Saves) -> Result<Compiled, TableError> {
    let view = ElfView::parse_any(elf)?;
    let (table, coverage) = build::build(&view)?;
    let image = if table.packed_rows().as_slice().is_empty() {
        None
    } else if table.programs().use_registers() || (saves == Saves::Always && saves::are_followed(&view)) {
        Some(encode::encode_with_saves(&table, &build::build_saves(&view)?)?)
    } else {
        Some(encode::encode(&table)?)
    };
    Ok(Compiled { image, coverage })
}

/// Compiles only where an ELF file's functions save registers: what a walk asks for that comes through it to a frame
/// whose rule starts from such a register. `None` without any CFI, and on AArch64, where no such rule is supported.
///
/// # Errors
///
/// As [`compile`].
pub fn compile_saves(elf: &[u8]) -> Result<Option<Image>, TableError> {
    let view = ElfView::parse_any(elf)?;
    if !saves::are_followed(&view) {
        return Ok(None);
    }
    let saves = build::build_saves(&view)?;
    if saves.rows.as_slice().is_empty() {
        return Ok(None);
    }
    Ok(Some(encode::encode_saves(&saves)?))
}
