//! ELF in, compact unwind table image out.
#![forbid(unsafe_code)]

pub mod addr;
mod bytes;
pub mod elf;
pub mod encode;
pub mod error;
pub mod image;
pub mod packed;
pub mod rule;
mod sections;
pub mod table;
pub mod walk;
