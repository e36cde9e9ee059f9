//! Tables of unwind rules and walks by them: what code, call frame information and damaged files are compiled
//! to.

mod aarch64;
mod common;
mod framed;
mod go;
mod hostile;
mod objects;
mod properties;
mod switches;
mod trampolines;
mod verify;
