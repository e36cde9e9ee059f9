//! Long times and rough treatment: whatever is done to memleak, the programs that it traces end as they do
//! without it; and in a soak it watches a slow leak in heavy churn.
//!
//! `make test` runs the short form of both, `make chaos` and `make soak` the long ones.

#![allow(unreachable_pub, reason = "a test has no outside")]

mod chaos;
mod soak;
