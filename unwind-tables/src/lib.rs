//! ELF in, compact unwind table image out: what a walker in the kernel needs to get from a frame to its caller.
#![forbid(unsafe_code)]

pub mod addr;
pub mod build;
mod bytes;
mod cfi;
pub mod compact;
pub mod coverage;
pub mod elf;
pub mod encode;
pub mod error;
pub mod image;
pub mod packed;
mod ranges;
pub mod rule;
mod sections;
pub mod table;
mod translate;
pub mod walk;

pub use coverage::Coverage;
pub use elf::ElfView;
pub use error::TableError;
pub use image::Image;

/// An object's table in the kernel's layout, and what it covers.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The table; `None` when the object has no CFI at all.
    pub image: Option<Image>,
    /// What it covers.
    pub coverage: Coverage,
}

/// Compiles an ELF file's call frame information.
///
/// # Errors
///
/// [`TableError`] when the bytes are not an x86-64 executable or shared object, or when the table exceeds what
/// an image can hold. What is wrong with single functions is counted in [`Coverage`] instead.
pub fn compile(elf: &[u8]) -> Result<Compiled, TableError> {
    let view = ElfView::parse(elf)?;
    let (table, coverage) = build::build(&view)?;
    let image = match table.rows() {
        [] => None,
        _ => Some(encode::encode(&table)?),
    };
    Ok(Compiled { image, coverage })
}
