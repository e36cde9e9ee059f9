//! Counts of functions of Python in reports.

use serde::Deserialize;

/// Numbers of stacks by how many of their Python functions are shown.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct PythonStacks {
    pub whole: u64,
    pub in_part: u64,
    pub not_placed: u64,
    pub not_read: u64,
}
