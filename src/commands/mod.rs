//! Commands that trace nothing, or only to find out whether tracing works.

pub mod doctor;
pub mod inspect;
pub mod replay;
pub mod verdict;
