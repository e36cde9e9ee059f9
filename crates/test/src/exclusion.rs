//! Exclusion among the tests of a suite: all run beside one another, but for those that have to be alone.
//!
//! A test has to be alone if it measures time that others would take, or looks for what others leave:
//! `--follow-fork` puts probes into the code of every process, and a trace of the kernel sees what every
//! process does. It begins with [`alone`]. Every other test takes part, from the first function of `common`
//! that it calls to its end.

use std::cell::{Cell, RefCell};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

static TESTS: RwLock<()> = RwLock::new(());

thread_local! {
    /// Read lock, kept to the end of the test's thread.
    static PART: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Guard of a test that is alone: while it lives, no other test of the suite runs.
#[must_use]
pub struct Alone {
    _tests: RwLockWriteGuard<'static, ()>,
}

/// Waits until no other test runs, and keeps them from running until the guard is dropped. Must come first in
/// a test: anything before it runs beside other tests.
pub fn alone() -> Alone {
    PART.take();
    let tests = TESTS.write().unwrap_or_else(PoisonError::into_inner);
    IS_ALONE.set(true);
    Alone { _tests: tests }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}

/// Makes the calling test run beside others, but not beside one that is alone, until its end. Threads that a
/// test starts have no name, and run with it.
pub fn share_machine() {
    if IS_ALONE.get() || thread::current().name().is_none() {
        return;
    }
    PART.with_borrow_mut(|part| {
        part.get_or_insert_with(|| TESTS.read().unwrap_or_else(PoisonError::into_inner));
    });
}
