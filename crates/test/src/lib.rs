//! Tools of memleak's test suites: programs that tests compile and trace, memleak as its users start it, its
//! reports as their readers read them, a witness of stacks, a browser, a terminal.
#![allow(missing_docs, reason = "a test's own words say what it does")]

pub mod amount;
pub mod any_walk;
pub mod attach_paths;
pub mod browser;
pub mod cgroup;
pub mod compile;
pub mod exclusion;
pub mod fragmentation;
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
