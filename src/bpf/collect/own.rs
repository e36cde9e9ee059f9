//! memleak's own memory: resident, and in the kernel for its maps.

use std::collections::BTreeMap;
use std::fs;

use crate::base::proc_fields::ProcFields;
use leak_report::model::OwnMemory;

/// Measures memleak's memory now.
pub(crate) fn own_memory() -> OwnMemory {
    let status = ProcFields::own_status();
    let kilobytes = |name| 1024 * status.number(name).unwrap_or_default();
    let descriptors = fs::read_dir("/proc/self/fdinfo").into_iter().flatten();
    let descriptions = descriptors.filter_map(|entry| ProcFields::read(entry.ok()?.path()).ok());
    OwnMemory {
        resident_bytes: kilobytes("VmRSS"),
        peak_bytes: kilobytes("VmHWM"),
        kernel_bytes: map_bytes(descriptions),
    }
}

/// Bytes of BPF maps, given `fdinfo` of all descriptors: not all are maps, and a map can have several.
fn map_bytes(descriptions: impl Iterator<Item = ProcFields>) -> u64 {
    let map = |fields: ProcFields| Some((fields.number("map_id")?, fields.number("memlock")?));
    let maps: BTreeMap<u64, u64> = descriptions.filter_map(map).collect();
    maps.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each map counts once, by its id, and programs do not count.
    #[test]
    fn own_memory_counts_each_map_once() {
        let map = |id: u32, bytes: u32| {
            format!("pos:\t0\nmap_type:\t2\nkey_size:\t4\nmemlock:\t{bytes}\nmap_id:\t{id}\nfrozen:\t0\n")
        };
        let program = "pos:\t0\nprog_type:\t2\nmemlock:\t4096\nprog_id:\t7\n".to_owned();
        let all = [
            map(1, 100),
            map(2, 4000),
            program,
            map(1, 100),
            "pos:\t0\n".to_owned(),
        ];
        assert_eq!(map_bytes(all.iter().map(|text| text.as_bytes().into())), 4100);
    }

    /// This test's own memory is measured, and is not above its peak.
    #[test]
    fn own_memory_is_resident() {
        let own = own_memory();
        assert!(
            own.resident_bytes > 1 << 20 && own.resident_bytes <= own.peak_bytes,
            "{own:?}"
        );
        assert_eq!(own.resident_bytes % 4096, 0);
    }
}
