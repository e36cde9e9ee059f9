//! What holds for a long time and under rough treatment: whatever is done to memleak, the programs that it traces end as they
//! do without it; and a soak, in which it watches a slow leak in heavy churn. Needs root, and the programs.
//!
//! `make test` runs the short form of both, `make chaos` and `make soak` the long ones.

#![allow(unreachable_pub, reason = "a test has no outside")]

#[path = "endurance/chaos.rs"]
mod chaos;
mod common;
#[path = "endurance/soak.rs"]
mod soak;
