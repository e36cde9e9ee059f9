//! ELF in, compact unwind table image out.
#![forbid(unsafe_code)]

pub mod addr;
pub mod encode;
pub mod error;
pub mod image;
pub mod packed;
pub mod rule;
pub mod table;
pub mod walk;
