//! Memory that is not resident in a process, by the census.

use crate::census;
use crate::census::cgroup::CgroupMemory;
use leak_report::model::{Beside, CgroupRest};

/// Memory beside the resident memory that the census has found; what mappings show is left at 0.
pub fn of(found: &census::Beside) -> Beside {
    let descriptors = found.descriptors.as_ref();
    let held_files = descriptors.map_or(0, |open| open.held_beyond_resident());
    let sockets = found.sockets.bytes();
    let own = found.cgroup.as_ref().filter(|cgroup| cgroup.is_own);
    Beside {
        held_files,
        sockets,
        cgroup: own.map(|cgroup| rest(cgroup, held_files, sockets)),
        ..Beside::default()
    }
}

/// Memory of a process's own group without the process's: its files in memory are part of the page cache.
fn rest(cgroup: &CgroupMemory, held_files: u64, sockets: u64) -> CgroupRest {
    let parts = &cgroup.parts;
    CgroupRest {
        page_cache: parts.unmapped_cache().saturating_sub(held_files),
        slab: parts.slab.unwrap_or(0),
        sockets: parts.sockets.unwrap_or(0).saturating_sub(sockets),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::census::cgroup::CgroupParts;
    use crate::census::descriptors::{Descriptors, HeldFile};

    fn found(is_own: bool) -> census::Beside {
        census::Beside {
            descriptors: Some(Descriptors {
                held: vec![HeldFile {
                    name: PathBuf::from("/memfd:a"),
                    allocated: 100,
                    mapped: 30,
                    descriptors: 1,
                }],
                ..Descriptors::default()
            }),
            cgroup: Some(CgroupMemory {
                is_own,
                parts: CgroupParts {
                    file: 500,
                    mapped_file: 50,
                    slab: Some(5),
                    ..CgroupParts::default()
                },
                ..CgroupMemory::default()
            }),
            ..census::Beside::default()
        }
    }

    /// Memory of a process does not count again in its group; a group with other processes is left out.
    #[test]
    fn nothing_twice() {
        let expected = CgroupRest {
            page_cache: 450 - 70,
            slab: 5,
            sockets: 0,
        };
        let own = of(&found(true));
        assert_eq!((own.held_files, own.cgroup), (70, Some(expected)));
        assert_eq!(of(&found(false)).cgroup, None);
        assert_eq!(of(&census::Beside::default()), Beside::default());
    }
}
