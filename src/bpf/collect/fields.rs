//! Fields of the kernel side's records, by byte offset.

/// The `u32` at `at`; 0 if the record is shorter.
pub(super) fn half(record: &[u8], at: usize) -> u32 {
    field(record, at).map_or(0, u32::from_ne_bytes)
}

/// The `u64` at `at`; 0 if the record is shorter.
pub(super) fn whole(record: &[u8], at: usize) -> u64 {
    field(record, at).map_or(0, u64::from_ne_bytes)
}

fn field<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..)?.first_chunk().copied()
}
