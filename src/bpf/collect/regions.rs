//! Parses mapping calls, page faults and takes from the kernel side. `crate::process::regions` and
//! `crate::process::touched` apply the former.

use std::mem::offset_of;

use unwind_tables::addr::Avma;

use super::fields::{half, whole};
use crate::bpf::types::{self, fault_event, limits, region_event, take_event, take_kind};
use crate::process::regions::{CallMoment, REGION_ARGUMENTS, RegionEvent};
use crate::process::touched::Fault;
use leak_report::model::RegionCall;

/// Bytes of `struct region_event`.
const EVENT_BYTES: usize = size_of::<region_event>();
const _: () = assert!(REGION_ARGUMENTS == limits::REGION_ARGUMENTS.0 as usize);
/// The function number of the first mapping call; lower numbers are allocator functions.
const FIRST_FUNCTION: u32 = limits::MAX_FUNCTIONS.0 - types::region_call::REGION_CALLS.0;

/// Mapping call with the kernel side's `number`.
fn region_call(number: u32) -> Option<RegionCall> {
    match types::region_call(number) {
        types::region_call::CALL_MMAP => Some(RegionCall::Mmap),
        types::region_call::CALL_MREMAP => Some(RegionCall::Mremap),
        types::region_call::CALL_BRK => Some(RegionCall::Brk),
        types::region_call::CALL_MUNMAP => Some(RegionCall::Munmap),
        types::region_call::CALL_MADVISE => Some(RegionCall::Madvise),
        _ => None,
    }
}

/// Mapping call that a stack's function number stands for; `None` for allocator functions.
pub fn region_call_of_function(function: u8) -> Option<RegionCall> {
    region_call(u32::from(function).checked_sub(FIRST_FUNCTION)?)
}

/// Event of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    Call(RegionEvent),
    Fault(Fault),
    Take(Take),
}

/// Memory taken by neither a mapping call nor a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    pub instance: u32,
    /// Index of its stack record.
    pub stack: u32,
    pub taken: Taken,
}

/// Memory that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A file descriptor.
    Descriptor(u32),
    /// Bytes written to a file in memory.
    Written(u64),
}

impl MemoryEvent {
    /// Bytes that it takes in the queue.
    pub fn queued_bytes(&self) -> usize {
        /// Bytes that the kernel puts before each record.
        const HEADER_BYTES: usize = 8;
        let bytes = match self {
            Self::Call(_) => size_of::<region_event>(),
            Self::Fault(_) => size_of::<fault_event>(),
            Self::Take(_) => size_of::<take_event>(),
        };
        HEADER_BYTES + bytes
    }
}

/// Parses a record of the queue; `None` for one of unknown size or call.
pub(crate) fn parse(record: &[u8]) -> Option<MemoryEvent> {
    match record.first_chunk::<EVENT_BYTES>() {
        Some(call) => parse_call(call).map(MemoryEvent::Call),
        None if record.len() >= size_of::<take_event>() => parse_take(record).map(MemoryEvent::Take),
        None => parse_fault(record).map(MemoryEvent::Fault),
    }
}

fn parse_take(record: &[u8]) -> Option<Take> {
    let record = record.first_chunk::<{ size_of::<take_event>() }>()?;
    let amount = whole(record, offset_of!(take_event, amount));
    let taken = match take_kind(half(record, offset_of!(take_event, kind))) {
        take_kind::TAKE_DESCRIPTOR => Taken::Descriptor(u32::try_from(amount).ok()?),
        take_kind::TAKE_WRITE => Taken::Written(amount),
        _ => return None,
    };
    Some(Take {
        instance: half(record, offset_of!(take_event, instance)),
        stack: half(record, offset_of!(take_event, stack)),
        taken,
    })
}

fn parse_fault(record: &[u8]) -> Option<Fault> {
    let record = record.first_chunk::<{ size_of::<fault_event>() }>()?;
    Some(Fault {
        instance: half(record, offset_of!(fault_event, instance)),
        address: Avma::new(whole(record, offset_of!(fault_event, address))),
        stack: half(record, offset_of!(fault_event, stack)),
    })
}

fn parse_call(record: &[u8; EVENT_BYTES]) -> Option<RegionEvent> {
    let half = |at| half(record, at);
    let whole = |at| whole(record, at);
    let result = whole(offset_of!(region_event, result));
    let moment = match record[offset_of!(region_event, ended)] {
        0 => CallMoment::Begins {
            program_break: result,
        },
        _ => CallMoment::Ended {
            result,
            stack: half(offset_of!(region_event, stack)),
        },
    };
    Some(RegionEvent {
        instance: half(offset_of!(region_event, instance)),
        thread: half(offset_of!(region_event, thread)),
        call: region_call(record[offset_of!(region_event, call)].into())?,
        arguments: std::array::from_fn(|number| {
            whole(offset_of!(region_event, arguments) + number * size_of::<u64>())
        }),
        time: whole(offset_of!(region_event, time)),
        moment,
    })
}
