//! Memory by purpose, as a reading of the process tells it apart. Each byte is in one region.

use std::collections::BTreeMap;

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Memory of the process's allocators.
    Heap,
    /// Stacks of threads that run, but the first.
    LiveStacks,
    /// Stacks of threads that have ended.
    EndedStacks,
    /// Stack of the first thread.
    MainStack,
    /// Anonymous mappings of no other purpose.
    Mappings,
    /// Memory that other processes can map, mapped here or held by a descriptor.
    Shared,
    /// Pages of mapped files.
    Files,
    /// Parts of huge pages that were never touched.
    HugePages,
    /// Heaps of runtimes that manage memory by themselves.
    Managed,
    /// Memory of the kernel for open files of the process: queues of sockets, for example.
    Kernel,
    /// Page tables, which grow with what is mapped and touched.
    PageTables,
}

impl Region {
    /// Every region.
    pub const ALL: [Self; 11] = [
        Self::Heap,
        Self::LiveStacks,
        Self::EndedStacks,
        Self::MainStack,
        Self::Mappings,
        Self::Shared,
        Self::Files,
        Self::HugePages,
        Self::Managed,
        Self::Kernel,
        Self::PageTables,
    ];
}

/// Bytes by region: resident and swapped out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<Region, u64>);

impl Amounts {
    pub fn get(&self, region: Region) -> u64 {
        self.0.get(&region).copied().unwrap_or(0)
    }

    pub fn add(&mut self, region: Region, bytes: u64) {
        let sum = self.0.entry(region).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Takes at most `bytes` out of a region. Returns the bytes taken.
    pub fn take(&mut self, region: Region, bytes: u64) -> u64 {
        let sum = self.0.entry(region).or_default();
        let taken = bytes.min(*sum);
        *sum -= taken;
        taken
    }

    /// Bytes of all regions.
    pub fn all(&self) -> u64 {
        self.0.values().copied().fold(0, u64::saturating_add)
    }
}
