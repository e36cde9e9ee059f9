//! What an ELF file says about how it is linked: its own name, the objects it needs, its loader.

use crate::process::dynamic::Dynamic;

/// Names by which objects ask for one another. Bytes: no encoding is promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Linking {
    /// `DT_SONAME`.
    pub(super) soname: Option<Vec<u8>>,
    /// `DT_NEEDED`.
    pub(super) needed: Vec<Vec<u8>>,
    /// `PT_INTERP`: the path of the loader.
    pub(super) interpreter: Option<Vec<u8>>,
    /// A program that runs without a loader and without other objects.
    pub(super) is_static_program: bool,
}

impl Linking {
    /// Reads an ELF file; what cannot be read is as if it were not there.
    pub(super) fn read(bytes: &[u8]) -> Self {
        Dynamic::of(bytes).map_or_else(Self::default, |dynamic| Self {
            soname: dynamic.soname().map(<[u8]>::to_vec),
            needed: dynamic.needed().map(<[u8]>::to_vec).collect(),
            interpreter: dynamic.interpreter().map(<[u8]>::to_vec),
            is_static_program: dynamic.is_static_program(),
        })
    }
}
