//! Ring-buffer records into [`Event`]s. Reacting to them is the session's affair.

use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use unwind_tables::addr::Avma;

use super::fields::{half, whole};
use super::regions;
use crate::bpf::Kernel;
use crate::bpf::types::{event, event_kind};
use crate::process::regions::RegionEvent;

/// Bytes of `struct event`.
const EVENT_BYTES: usize = size_of::<event>();

/// What the kernel side tells user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A walk met an address in no known mapping, or in one whose table is not loaded.
    UnknownMapping {
        /// The instance that walked.
        instance: u32,
        /// The address.
        address: Avma,
    },
    /// The loader of a process announced a change of its mappings.
    MappingsChanged {
        /// The instance.
        instance: u32,
    },
    /// A walk must know where the object at an address saves registers, and its table does not say it.
    SavesWanted {
        /// The instance that walked.
        instance: u32,
        /// The address.
        address: Avma,
    },
    /// An instance began or ended; the kernel side's own record of them says which.
    Lifecycle,
    /// A record that this version does not know.
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
            event_kind::EVENT_LIFECYCLE => Self::Lifecycle,
            _ => Self::Unknown,
        }
    }
}

/// The queue of events.
pub struct Events {
    ring: RingBuffer<'static>,
    received: Rc<RefCell<Vec<Event>>>,
    /// Mapping calls; `None` where they are not followed.
    regions: Option<Rc<RefCell<Vec<RegionEvent>>>>,
}

impl Events {
    /// Opens the queue of `kernel`.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn open(kernel: &Kernel<'_>) -> Result<Self, libbpf_rs::Error> {
        let received = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        builder.add(&kernel.recorded.events, move |record| {
            sink.borrow_mut().push(Event::parse(record));
            0
        })?;
        let regions = kernel.recorded.region_events.as_ref().map(|queue| {
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

    /// Waits up to `timeout` for events and returns those that came.
    ///
    /// # Errors
    ///
    /// What the kernel says; an interrupting signal is no error and gives no events.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<Event>, libbpf_rs::Error> {
        match self.ring.poll(timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if self.regions.is_some() {
            // Mapping calls do not wake us before there are many.
            self.ring.consume()?;
        }
        Ok(self.received.take())
    }

    /// Takes the mapping calls that have come since out of the queue. Other events are kept for [`Events::wait`].
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn consume(&self) -> Result<(), libbpf_rs::Error> {
        self.ring.consume()
    }

    /// The mapping calls that have come, in their order.
    pub fn take_regions(&self) -> Vec<RegionEvent> {
        self.regions
            .as_ref()
            .map(|regions| regions.take())
            .unwrap_or_default()
    }
}
