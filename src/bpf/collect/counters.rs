//! The event counters, by name.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::fields::whole;
use crate::bpf::types::counter as c;

/// What is counted; the numbers are those of `enum counter` in `bpf/shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs, reason = "the C side documents each")]
pub enum Counter {
    Failed = 0,
    UnknownFree = 1,
    MissedFree = 2,
    AbandonedCall = 3,
    LostThreadState = 4,
    LostThreadStateBytes = 5,
    LostBlockTable = 6,
    LostBlockTableBytes = 7,
    LostResultFault = 8,
    LostResultFaultBytes = 9,
    LostEvent = 10,
    ProbeHits = 11,
    LostProcess = 12,
    Filtered = 13,
    FilteredBytes = 14,
    LostReturnProbe = 15,
    LostReturnProbeBytes = 16,
    LostRegionEvent = 17,
    LostRegion = 18,
    LostRegionBytes = 19,
    NestedAllocation = 20,
    NestedFree = 21,
    OwnUnknownFree = 22,
    CheckedWalk = 23,
    RecalledWalk = 24,
    DifferentWalk = 25,
    LostCallEvent = 26,
}

macro_rules! same_number {
    ($($c_value:ident => $rust_value:ident),+ $(,)?) => {
        impl Counter {
            /// Every counter, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$rust_value),+];
        }
        $(const _: () = assert!(c::$c_value.0 == Counter::$rust_value as u32);)+
        const _: () = assert!(c::COUNTERS.0 as usize == Counter::ALL.len());
    };
}

same_number! {
    COUNTER_FAILED => Failed,
    COUNTER_UNKNOWN_FREE => UnknownFree,
    COUNTER_MISSED_FREE => MissedFree,
    COUNTER_ABANDONED_CALL => AbandonedCall,
    COUNTER_LOST_THREAD_STATE => LostThreadState,
    COUNTER_LOST_THREAD_STATE_BYTES => LostThreadStateBytes,
    COUNTER_LOST_BLOCK_TABLE => LostBlockTable,
    COUNTER_LOST_BLOCK_TABLE_BYTES => LostBlockTableBytes,
    COUNTER_LOST_RESULT_FAULT => LostResultFault,
    COUNTER_LOST_RESULT_FAULT_BYTES => LostResultFaultBytes,
    COUNTER_LOST_EVENT => LostEvent,
    COUNTER_PROBE_HITS => ProbeHits,
    COUNTER_LOST_PROCESS => LostProcess,
    COUNTER_FILTERED => Filtered,
    COUNTER_FILTERED_BYTES => FilteredBytes,
    COUNTER_LOST_RETURN_PROBE => LostReturnProbe,
    COUNTER_LOST_RETURN_PROBE_BYTES => LostReturnProbeBytes,
    COUNTER_LOST_REGION_EVENT => LostRegionEvent,
    COUNTER_LOST_REGION => LostRegion,
    COUNTER_LOST_REGION_BYTES => LostRegionBytes,
    COUNTER_NESTED_ALLOCATION => NestedAllocation,
    COUNTER_NESTED_FREE => NestedFree,
    COUNTER_OWN_UNKNOWN_FREE => OwnUnknownFree,
    COUNTER_CHECKED_WALK => CheckedWalk,
    COUNTER_RECALLED_WALK => RecalledWalk,
    COUNTER_DIFFERENT_WALK => DifferentWalk,
    COUNTER_LOST_CALL_EVENT => LostCallEvent,
}

impl Counter {
    /// What it has come to, summed over CPUs.
    pub(super) fn read(self, map: &MapHandle) -> Result<u64, libbpf_rs::Error> {
        let key = (self as u32).to_ne_bytes();
        let values = map.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default();
        let values = values.iter().map(|bytes| whole(bytes, 0));
        Ok(values.fold(0, u64::wrapping_add))
    }
}

/// A reading of all counters, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<Counter, u64>);

impl Counters {
    /// Reads all counters.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn read(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let read = |&counter: &Counter| Ok((counter, counter.read(map)?));
        Counter::ALL.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(&counter).copied().unwrap_or_default()
    }
}
