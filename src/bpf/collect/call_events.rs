//! Parses calls that the kernel side reports one by one. The session resolves their names.

use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::Rc;

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use unwind_tables::addr::Avma;

use super::fields::{half, whole};
use crate::bpf::types::{call_event, call_event_kind};
use crate::bpf::{Kernel, KernelTrace, Recorded};
use leak_report::model::CallKind;

/// Bytes of `struct call_event`.
const EVENT_BYTES: usize = size_of::<call_event>();
/// Maximum number of events taken at once: they can arrive faster than they are taken, without end.
const AT_ONCE: usize = 1 << 14;

/// An allocation, a free, or the beginning of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEvent {
    pub kind: CallKind,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Address of the block; 0 if there is none.
    pub address: Avma,
    /// Requested size in bytes; 0 for an unknown block.
    pub size: u64,
    /// Instance that the block is in.
    pub instance: u32,
    /// Calling process, in the initial pid namespace.
    pub process: u32,
    /// Calling thread, in the initial pid namespace.
    pub thread: u32,
    /// Stack record of the allocation; for a free, that of the block's allocation.
    pub stack: u32,
    /// CPU that the call runs on.
    pub cpu: u32,
    /// Name of the thread.
    pub comm: String,
}

impl CallEvent {
    /// Parses a record of the queue; `None` for one of unknown size or kind.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let record = record.first_chunk::<EVENT_BYTES>()?;
        let half = |at| half(record, at);
        let whole = |at| whole(record, at);
        let comm = &record[offset_of!(call_event, comm)..];
        let comm = comm.split(|&byte| byte == 0).next().unwrap_or_default();
        let kind = match call_event_kind(half(offset_of!(call_event, kind))) {
            call_event_kind::CALL_BEGINS => CallKind::Begins,
            call_event_kind::BLOCK_ALLOCATED => CallKind::Allocated,
            call_event_kind::CALL_FAILED => CallKind::Failed,
            call_event_kind::BLOCK_FREED => CallKind::Freed,
            call_event_kind::UNKNOWN_FREED => CallKind::UnknownFreed,
            _ => return None,
        };
        Some(Self {
            kind,
            time: whole(offset_of!(call_event, time)),
            address: Avma::new(whole(offset_of!(call_event, address))),
            size: whole(offset_of!(call_event, size)),
            instance: half(offset_of!(call_event, instance)),
            process: half(offset_of!(call_event, process)),
            thread: half(offset_of!(call_event, thread)),
            stack: half(offset_of!(call_event, stack)),
            cpu: half(offset_of!(call_event, cpu)),
            comm: String::from_utf8_lossy(comm).into_owned(),
        })
    }
}

/// The queue of calls.
pub struct CallQueue {
    ring: RingBuffer<'static>,
    received: Rc<RefCell<Vec<CallEvent>>>,
}

impl CallQueue {
    /// Opens the queue of `kernel`; `None` where calls are not traced.
    pub fn of(kernel: &Kernel<'_>) -> Result<Option<Self>, libbpf_rs::Error> {
        Self::of_recorded(&kernel.recorded)
    }

    /// Opens the queue of kernel mode; `None` where calls are not traced.
    pub fn of_kernel_mode(trace: &KernelTrace<'_>) -> Result<Option<Self>, libbpf_rs::Error> {
        Self::of_recorded(&trace.recorded)
    }

    fn of_recorded(recorded: &Recorded) -> Result<Option<Self>, libbpf_rs::Error> {
        let Some(events) = &recorded.call_events else {
            return Ok(None);
        };
        let received = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        builder.add(events, move |record| {
            sink.borrow_mut().extend(CallEvent::parse(record));
            0
        })?;
        let ring = builder.build()?;
        Ok(Some(Self { ring, received }))
    }

    /// Receives queued calls in order, up to a limit.
    pub fn take(&self) -> Result<Vec<CallEvent>, libbpf_rs::Error> {
        let count = self.ring.consume_raw_n(AT_ONCE);
        if count < 0 {
            return Err(libbpf_rs::Error::from_raw_os_error(-count));
        }
        Ok(self.received.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are read from their offsets in `struct call_event`.
    #[test]
    fn an_event_is_decoded() {
        let halves =
            |halves: &[u32]| -> Vec<u8> { halves.iter().flat_map(|half| half.to_ne_bytes()).collect() };
        let wholes =
            |wholes: &[u64]| -> Vec<u8> { wholes.iter().flat_map(|whole| whole.to_ne_bytes()).collect() };
        let record = [
            wholes(&[5_000, 0x7f00_1234, 40]),
            halves(&[call_event_kind::BLOCK_FREED.0, 7, 100, 101, 600, 3]),
            b"leaker\0junk\0\0\0\0\0".to_vec(),
        ]
        .concat();
        let expected = CallEvent {
            kind: CallKind::Freed,
            time: 5_000,
            address: Avma::new(0x7f00_1234),
            size: 40,
            instance: 7,
            process: 100,
            thread: 101,
            stack: 600,
            cpu: 3,
            comm: "leaker".to_owned(),
        };
        assert_eq!(record.len(), EVENT_BYTES);
        assert_eq!(CallEvent::parse(&record), Some(expected));
        assert_eq!(CallEvent::parse(&record[1..]), None);
        let mut unknown = record;
        unknown[24..28].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(CallEvent::parse(&unknown), None);
    }
}
