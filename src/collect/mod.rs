//! What the kernel side has gathered, as plain values.

pub mod snapshot;
