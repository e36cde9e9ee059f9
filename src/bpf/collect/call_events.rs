//! Calls as the kernel side tells them one by one. What they are called is the session's affair.

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
/// Events that are taken at once: as they can come faster than they are taken, there would be no end.
const AT_ONCE: usize = 1 << 14;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEvent {
    /// What is told of it.
    pub kind: CallKind,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The block's; 0 if there is none.
    pub address: Avma,
    /// The bytes that were asked for; 0 of a block that is not known.
    pub size: u64,
    /// The instance that the block is in.
    pub instance: u32,
    /// The process that calls, in the initial pid namespace.
    pub process: u32,
    /// Its thread, likewise.
    pub thread: u32,
    /// The index of a stack record: that of what was allocated, or that of what allocated what is freed.
    pub stack: u32,
    /// Where it runs.
    pub cpu: u32,
    /// What the thread is called.
    pub comm: String,
}

impl CallEvent {
    /// Reads a record of the queue; `None` for one that this version does not know.
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
    /// That of `kernel`; `None` where calls are not told.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn of(kernel: &Kernel<'_>) -> Result<Option<Self>, libbpf_rs::Error> {
        Self::of_recorded(&kernel.recorded)
    }

    /// That of kernel mode; `None` where calls are not told.
    ///
    /// # Errors
    ///
    /// What the kernel says.
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

    /// Calls that have come, in their order: those that came first, if there are many.
    ///
    /// # Errors
    ///
    /// What the kernel says.
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

    /// Fields are read from where the kernel side has them.
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
