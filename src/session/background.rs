//! Threads that repeat their work until their owner is dropped.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::base::parallel::lock;

/// A thread that ends when this is dropped, which waits for it.
pub(super) struct Background {
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
}

/// Tells such a thread to end.
#[derive(Default)]
pub(super) struct Ending {
    has_come: Mutex<bool>,
    come: Condvar,
}

impl Background {
    /// Starts a thread of this name.
    ///
    /// # Errors
    ///
    /// The thread cannot be created.
    pub(super) fn start(name: &str, work: impl FnOnce(&Ending) + Send + 'static) -> io::Result<Self> {
        let ending = Arc::new(Ending::default());
        let of_thread = Arc::clone(&ending);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || work(&of_thread))?;
        Ok(Self {
            ending,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *lock(&self.ending.has_come) = true;
        self.ending.come.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic message was printed; nothing else can be done about it.
            _ = thread.join();
        }
    }
}

impl Ending {
    /// Waits for the end, for at most `time`; returns whether it has come.
    pub(super) fn comes_within(&self, time: Duration) -> bool {
        let has_come = lock(&self.has_come);
        let waited = self
            .come
            .wait_timeout_while(has_come, time, |has_come| !*has_come);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use super::*;

    /// A thread goes on until its owner is dropped, and has ended then, however long it would have waited.
    #[test]
    fn ends_with_its_owner() {
        let rounds = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&rounds);
        let work = move |ending: &Ending| {
            while !ending.comes_within(Duration::from_millis(1)) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            counted.store(u32::MAX, Ordering::Relaxed);
        };
        let background = Background::start("test", work).expect("a thread");
        let began = Instant::now();
        while rounds.load(Ordering::Relaxed) < 3 {
            assert!(began.elapsed() < Duration::from_secs(60), "it goes on");
            thread::yield_now();
        }
        drop(background);
        assert_eq!(rounds.load(Ordering::Relaxed), u32::MAX);
        let began = Instant::now();
        drop(Background::start("test", |ending| {
            _ = ending.comes_within(Duration::from_secs(600))
        }));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
