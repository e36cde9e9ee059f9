//! The queue of walks for user space to finish.
//!
//! A newly loaded library can allocate ten thousand times before its table is in the kernel, and each walk
//! has a copy of its stack. So a separate thread takes walks out of the kernel's queue, which would have to
//! be several times as large otherwise. It allocates no memory, and shares a lock with threads that may have
//! to wait for a CPU only for the moment in which they take the received walks.

#![allow(unsafe_code, reason = "a descriptor that libbpf-rs gives as a number")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libbpf_rs::{RingBuffer, RingBufferBuilder};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::deferred::{DeferredWalk, RawWalks, Receiver};
use crate::base::parallel::lock;
use crate::bpf::Kernel;

/// Time to wait while there is no room for more walks.
const PAUSE: Duration = Duration::from_millis(1);
/// Walks that are taken at once.
const AT_ONCE: usize = 64;

/// Walks received so far. Dropping it ends the thread.
pub struct WalkQueue {
    received: Received,
    /// Socket to the thread. Each byte requests all walks that were sent until then; the thread answers it by
    /// a byte.
    requests: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

type Received = Arc<Mutex<Receiver>>;

impl WalkQueue {
    /// Opens the queue of `kernel`.
    ///
    /// # Errors
    ///
    /// Memory or descriptors are used up.
    pub fn open(kernel: &Kernel<'_>) -> io::Result<Self> {
        let receiver = Receiver::new(kernel.sent_stacks).map_err(io::Error::other)?;
        let received = Arc::new(Mutex::new(receiver));
        let sink = Arc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(&kernel.deferred_walks, move |record| {
            lock(&sink).add(record);
            0
        });
        added.map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        let (requests, answers) = UnixStream::pair()?;
        let for_thread = Arc::clone(&received);
        let thread = thread::Builder::new().name("memleak-walks".to_owned());
        Ok(Self {
            received,
            requests: Some(requests),
            thread: Some(thread.spawn(move || receive(&ring, &for_thread, answers))?),
        })
    }

    /// Takes all walks that were sent by now, up to some thousand, in no particular order.
    ///
    /// # Errors
    ///
    /// They cannot be received.
    pub fn take(&self) -> io::Result<Vec<DeferredWalk>> {
        if let Some(mut requests) = self.requests.as_ref() {
            requests.write_all(&[0])?;
            requests.read_exact(&mut [0])?;
        }
        if lock(&self.received).received().is_empty() {
            return Ok(Vec::new());
        }
        let room = RawWalks::with_room().map_err(io::Error::other)?;
        let received = lock(&self.received).replace(room);
        Ok(received.walks())
    }
}

impl Drop for WalkQueue {
    fn drop(&mut self) {
        self.requests = None;
        // If the thread has panicked, nothing can be done about it here.
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Lets this thread run as soon as it has work, if that is permitted (`CAP_SYS_NICE`): it does little, and
/// walks that it takes too late are lost.
fn run_at_once() {
    let priority = libc::sched_param { sched_priority: 1 };
    let this_thread = 0;
    // SAFETY: the kernel reads the parameters, and changes nothing but this thread's scheduling.
    let status = unsafe { libc::sched_setscheduler(this_thread, libc::SCHED_FIFO, &raw const priority) };
    if status != 0 {
        tracing::debug!("walks are received with normal priority");
    }
}

/// Receives walks until the other end of `requests` is closed.
fn receive(ring: &RingBuffer<'_>, received: &Received, mut requests: UnixStream) {
    run_at_once();
    // SAFETY: the ring owns this descriptor, and outlives the borrow.
    let queue = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
    let has_room = || lock(received).received().have_room(AT_ONCE);
    loop {
        let (events, timeout) = match has_room() {
            true => (PollFlags::POLLIN, PollTimeout::NONE),
            false => (PollFlags::empty(), PAUSE.try_into().unwrap_or(PollTimeout::ZERO)),
        };
        let mut ready = [
            PollFd::new(requests.as_fd(), PollFlags::POLLIN),
            PollFd::new(queue, events),
        ];
        // Signals that interrupt this are handled by another thread.
        let is_asked = poll(&mut ready, timeout).is_ok() && ready[0].any() == Some(true);
        if is_asked && requests.read_exact(&mut [0]).is_err() {
            return;
        }
        while has_room() {
            match ring.consume_raw_n(AT_ONCE) {
                1.. => {}
                0 => break,
                error => {
                    tracing::debug!("cannot receive walks: error {error}");
                    return;
                }
            }
        }
        if is_asked && requests.write_all(&[0]).is_err() {
            return;
        }
    }
}
