//! Choices taken from input bytes. The walk's claim, which is not compiled with this crate, includes this
//! file by its path (crates/test/src/any_walk.rs).

/// Numbers, taken from bytes; 0 at the end.
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl Choices<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let length = N.min(self.0.len());
        let (first, rest) = self.0.split_at(length);
        taken[..length].copy_from_slice(first);
        self.0 = rest;
        taken
    }

    pub(super) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }
}
