//! Kinds of things that texts name.

use serde::{Deserialize, Serialize};

/// Kind of thing that a text names. `--anonymize` replaces texts according to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    /// Function.
    Function,
    /// Source file.
    Source,
    /// File of a module, or a name in brackets for a module without a file.
    File,
    /// Build ID in hexadecimal digits.
    BuildId,
    /// Allocator function, mapping call, or kernel allocator.
    Allocator,
    /// Variable.
    Variable,
    /// C++ class.
    Class,
    /// Section of an object.
    Section,
    /// Name of a thread.
    Thread,
}
