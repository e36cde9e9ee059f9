//! Known facts about the code that a JVM generates.

use std::ops::Range;

use unwind_tables::addr::Avma;

/// Code that a JVM generates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JvmCode {
    /// Set if a JVM is starting up: it has not generated all of its startup code yet, as far as can be seen.
    pub begins: bool,
    /// Set if there is a JVM: the functions that it generates begin by pushing the frame pointer.
    pub pushes_frame_pointers: bool,
    /// Set if its code is known to keep frame pointers.
    pub keeps_frame_pointers: bool,
    /// Code that is known to keep them, and code that is known not to; ascending, without overlap.
    pub known: Vec<KnownCode>,
    /// Part that a JVM with code does not describe in a known way, if any: a later version may differ.
    pub lacks: Option<&'static str>,
}

/// Range of code of one kind, in a JVM that keeps frame pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCode {
    /// Addresses of the code.
    pub range: Range<Avma>,
    /// Kind of all code there.
    pub kind: KnownCodeKind,
}

/// Treatment of frame pointers in a JVM's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownCodeKind {
    /// All code keeps frame pointers.
    Methods,
    /// A stub that calls native code with the frame pointer pushed, and not set.
    Stub,
}
