//! Linking of an ELF file: its own name, the objects it needs, its loader.

use crate::dynamic::Dynamic;

/// Names by which objects refer to each other. Bytes: no encoding is guaranteed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Linking {
    /// `DT_SONAME`.
    pub(super) soname: Option<Vec<u8>>,
    /// `DT_NEEDED`.
    pub(super) needed: Vec<Vec<u8>>,
    /// `PT_INTERP`: the path of the loader.
    pub(super) interpreter: Option<Vec<u8>>,
    /// True for a program without a loader and without needed objects.
    pub(super) is_static_program: bool,
}

impl Linking {
    /// Reads an ELF file; parts that cannot be read are treated as absent.
    pub(super) fn read(bytes: &[u8]) -> Self {
        Dynamic::of(bytes).map_or_else(Self::default, |dynamic| Self {
            soname: dynamic.soname().map(<[u8]>::to_vec),
            needed: dynamic.needed().map(<[u8]>::to_vec).collect(),
            interpreter: dynamic.interpreter().map(<[u8]>::to_vec),
            is_static_program: dynamic.is_static_program(),
        })
    }
}
