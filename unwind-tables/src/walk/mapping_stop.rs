//! Values of `a` in a stop rule, besides those of [`stop`](crate::packed::stop), that come from the mapping,
//! not from a table.

pub(super) const ANONYMOUS: u32 = 32;
pub(super) const PENDING: u32 = 33;
pub(super) const NO_MAPPING: u32 = 34;
pub(super) const TRAMPOLINE: u32 = 35;
pub(super) const NOT_CALLED: u32 = 36;
pub(super) const STALE: u32 = 37;
pub(super) const ANONYMOUS_LINKED: u32 = 38;
pub(super) const ANONYMOUS_METHODS: u32 = 39;
pub(super) const ANONYMOUS_STUB: u32 = 40;
pub(super) const NO_TABLE: u32 = 41;
pub(super) const ANONYMOUS_PUSHED: u32 = 42;
