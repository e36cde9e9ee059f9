//! Parses ring-buffer records into [`Event`]s. The session reacts to them.

use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use unwind_tables::addr::Avma;

use super::fields::{half, whole};
use super::regions::{self, MemoryEvent};
use crate::bpf::Kernel;
use crate::bpf::types::{event, event_kind};

/// Bytes of `struct event`.
const EVENT_BYTES: usize = size_of::<event>();

/// An event from the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A walk met an address in no known mapping, or in one whose table is not loaded.
    UnknownMapping {
        /// Instance of the walk.
        instance: u32,
        address: Avma,
    },
    /// The loader of a process announced a change of its mappings.
    MappingsChanged { instance: u32 },
    /// A walk needs the saves of the object at an address, and its table does not have them.
    SavesWanted {
        /// Instance of the walk.
        instance: u32,
        address: Avma,
    },
    /// A process was started that shares the memory of an instance.
    Shared { instance: u32, pid: u32 },
    /// The program that memleak has started is stopped before it ends.
    Ending,
    /// The program that memleak has started is stopped after an exec, until probes are attached.
    Stopped { instance: u32 },
    /// A process may belong to the selected ones now, or no longer.
    Members,
    /// An instance began or ended; its record on the kernel side has the details.
    Lifecycle,
    /// A record of unknown kind or size.
    Unknown,
}

impl Event {
    pub(crate) fn parse(record: &[u8]) -> Self {
        if record.len() < EVENT_BYTES {
            return Self::Unknown;
        }
        let instance = half(record, offset_of!(event, instance));
        let address = Avma::new(whole(record, offset_of!(event, address)));
        match event_kind(half(record, offset_of!(event, kind))) {
            event_kind::EVENT_UNKNOWN_MAPPING => Self::UnknownMapping { instance, address },
            event_kind::EVENT_MAPPINGS_CHANGED => Self::MappingsChanged { instance },
            event_kind::EVENT_SAVES_WANTED => Self::SavesWanted { instance, address },
            event_kind::EVENT_ENDING => Self::Ending,
            event_kind::EVENT_STOPPED => Self::Stopped { instance },
            event_kind::EVENT_SHARED => Self::Shared {
                instance,
                pid: u32::try_from(address.get()).unwrap_or_default(),
            },
            event_kind::EVENT_MEMBERS => Self::Members,
            event_kind::EVENT_LIFECYCLE => Self::Lifecycle,
            _ => Self::Unknown,
        }
    }
}

/// The queue of events.
pub struct Events {
    ring: RingBuffer<'static>,
    received: Rc<RefCell<Vec<Event>>>,
    /// Mapping calls and page faults received; `None` where they are not followed.
    regions: Option<Rc<RefCell<Vec<MemoryEvent>>>>,
}

impl Events {
    /// Opens the queue of `kernel`.
    pub fn open(kernel: &Kernel<'_>) -> Result<Self, libbpf_rs::Error> {
        let received = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        builder.add(&kernel.events, move |record| {
            sink.borrow_mut().push(Event::parse(record));
            0
        })?;
        let regions = kernel.region_events.as_ref().map(|queue| {
            let received = Rc::new(RefCell::new(Vec::new()));
            (queue, received)
        });
        if let Some((queue, received)) = &regions {
            let sink = Rc::clone(received);
            builder.add(*queue, move |record| {
                sink.borrow_mut().extend(regions::parse(record));
                0
            })?;
        }
        Ok(Self {
            ring: builder.build()?,
            received,
            regions: regions.map(|(_, received)| received),
        })
    }

    /// Waits up to `timeout` for events and returns those received, none if a signal interrupts.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<Event>, libbpf_rs::Error> {
        match self.ring.poll(timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if self.regions.is_some() {
            // Mapping calls wake the poll only when many are queued.
            self.ring.consume()?;
        }
        Ok(self.received.take())
    }

    /// Receives queued mapping calls and page faults for [`Events::take_memory_events`]. Other events are
    /// kept for [`Events::wait`].
    pub fn consume(&self) -> Result<(), libbpf_rs::Error> {
        self.ring.consume()
    }

    /// Mapping calls and page faults received, in order.
    pub fn take_memory_events(&self) -> Vec<MemoryEvent> {
        self.regions
            .as_ref()
            .map(|regions| regions.take())
            .unwrap_or_default()
    }
}
