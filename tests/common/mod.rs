//! Tools of several suites. Each suite uses its own part of them.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each suite uses its own part"
)]

pub mod attach_paths;
pub mod browser;
pub mod cgroup;
pub mod compile;
pub mod exclusion;
pub mod hand_made;
pub mod holders;
pub mod host;
pub mod machine;
pub mod makeup;
pub mod memleak;
pub mod overhead;
pub mod profiles;
pub mod program;
pub mod python;
pub mod random;
pub mod random_rules;
pub mod receiver;
pub mod recent;
pub mod recorded;
pub mod report;
pub mod started;
pub mod terminal;
pub mod tracefs;
pub mod witness;
