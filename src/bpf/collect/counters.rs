//! Event counters of the kernel side.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::fields::whole;
/// An event counter, as `bpf/shared.h` lists them.
pub use crate::bpf::types::counter;

/// Reads a counter, summed over CPUs.
pub(super) fn read(number: counter, map: &MapHandle) -> Result<u64, libbpf_rs::Error> {
    let values = map.lookup_percpu(&number.0.to_ne_bytes(), MapFlags::ANY)?;
    let values = values.unwrap_or_default();
    let values = values.iter().map(|bytes| whole(bytes, 0));
    Ok(values.fold(0, u64::wrapping_add))
}

/// Values of all counters, by number, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(Vec<u64>);

impl Counters {
    /// Reads all counters.
    pub fn read(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let all = (0..counter::COUNTERS.0).map(counter);
        all.map(|number| read(number, map))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub fn get(&self, number: counter) -> u64 {
        self.0.get(number.0 as usize).copied().unwrap_or_default()
    }
}
