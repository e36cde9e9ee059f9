//! Page sizes of this machine: 4 KiB on x86-64; 4, 16 or 64 KiB on AArch64, as the kernel is configured.

use std::sync::LazyLock;

use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a page.
pub fn bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        size.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
    });
    *BYTES
}

/// Default size of a huge page in bytes, if nothing states it: as many pages as one page holds addresses.
pub fn huge_bytes() -> u64 {
    bytes() * (bytes() / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel starts and ends every mapping at a multiple of the page size.
    #[test]
    fn as_mapped() {
        assert!(bytes().is_power_of_two());
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our own");
        let ranges = maps.lines().filter_map(|line| line.split(' ').next());
        let ends: Vec<_> = ranges.flat_map(|range| range.split('-')).collect();
        assert!(!ends.is_empty());
        for end in ends {
            let address = u64::from_str_radix(end, 16).expect("an address");
            assert!(address.is_multiple_of(bytes()), "{end}");
        }
        if cfg!(target_arch = "x86_64") {
            assert_eq!((bytes(), huge_bytes()), (4096, 2 << 20));
        }
    }
}
