//! Event counters, by name.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::fields::whole;
use crate::bpf::types::counter as c;

/// List of the counters; their numbers are those of `enum counter` in `bpf/shared.h`.
macro_rules! counters {
    ($($number:ident => $name:ident),+ $(,)?) => {
        /// An event counter of the kernel side.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the C side documents each")]
        pub enum Counter {
            $($name = c::$number.0),+
        }

        impl Counter {
            /// Every counter, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }

        const _: () = assert!(c::COUNTERS.0 as usize == Counter::ALL.len(), "a counter is missing");
    };
}

counters! {
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
    COUNTER_RET_HITS => RetHits,
    COUNTER_LOST_FAULT_EVENT => LostFaultEvent,
    COUNTER_NESTED_REGION_CALL => NestedRegionCall,
    COUNTER_LOST_DEFERRAL => LostDeferral,
}

impl Counter {
    /// Value of the counter, summed over CPUs.
    pub(super) fn read(self, map: &MapHandle) -> Result<u64, libbpf_rs::Error> {
        let key = (self as u32).to_ne_bytes();
        let values = map.lookup_percpu(&key, MapFlags::ANY)?.unwrap_or_default();
        let values = values.iter().map(|bytes| whole(bytes, 0));
        Ok(values.fold(0, u64::wrapping_add))
    }
}

/// Values of all counters, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<Counter, u64>);

impl Counters {
    /// Reads all counters.
    pub fn read(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let read = |&counter: &Counter| Ok((counter, counter.read(map)?));
        Counter::ALL.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(&counter).copied().unwrap_or_default()
    }
}
