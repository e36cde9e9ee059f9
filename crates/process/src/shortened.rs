//! Handles reads from a mapped file that was truncated.
//!
//! Whoever can write a file can truncate it at any moment. Reading a page of a mapping beyond the file's new
//! end raises SIGBUS, which kills a process without a handler: so every traced process could kill the tracer.
//! Here, that page and all that follow it in its mapping are replaced by zeros, and the mapping is marked as
//! cut. Any other cause of SIGBUS ends this process as usual.
#![allow(unsafe_code, reason = "a handler of signals, and what it maps")]

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::{io, ptr};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction, signal};

use memleak_base::pages;

/// A mapping whose missing pages read as zeros, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch(&'static Place);

/// A watched range of memory, or a free slot for one. Never freed: the signal handler may read it at any
/// moment.
#[derive(Debug)]
struct Place {
    is_taken: AtomicBool,
    /// Odd while the range is being changed: a sequence lock, as the handler must not wait.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 if there is no range.
    end: AtomicUsize,
    is_cut: AtomicBool,
    next: AtomicPtr<Place>,
}

/// Head of the list of all places; only ever prepended to.
static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

impl Watch {
    /// Watches a mapping of a file, which must outlive this value.
    ///
    /// # Errors
    ///
    /// The signal handler cannot be installed.
    pub(super) fn over(mapping: &[u8]) -> io::Result<Self> {
        static INSTALLED: Once = Once::new();
        let mut installed = Ok(());
        INSTALLED.call_once(|| installed = install());
        installed?;
        let place = places().find(|place| !place.is_taken.swap(true, Ordering::SeqCst));
        let place = place.unwrap_or_else(Place::add);
        let start = mapping.as_ptr().addr();
        // The rest of the last page is readable, too.
        place.set(start, start + mapping.len().next_multiple_of(page()));
        place.is_cut.store(false, Ordering::SeqCst);
        Ok(Self(place))
    }

    /// True if truncated pages were read, as zeros.
    pub(super) fn is_cut(&self) -> bool {
        self.0.is_cut.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(0, 0);
        self.0.is_taken.store(false, Ordering::SeqCst);
    }
}

impl Place {
    /// Allocates a new place, taken, and prepends it to the list.
    fn add() -> &'static Self {
        let place: &'static mut Self = Box::leak(Box::new(Self {
            is_taken: AtomicBool::new(true),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
            next: AtomicPtr::new(FIRST.load(Ordering::SeqCst)),
        }));
        let own: *mut Self = place;
        while let Err(first) = FIRST.compare_exchange(
            place.next.load(Ordering::SeqCst),
            own,
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            place.next.store(first, Ordering::SeqCst);
        }
        place
    }

    fn set(&self, start: usize, end: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of the range, if `address` is in it. A range that is being changed does not match: nothing
    /// reads from it then.
    fn end_if_holds(&self, address: usize) -> Option<usize> {
        let version = self.version.load(Ordering::SeqCst);
        let (start, end) = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == version;
        (is_whole && (start..end).contains(&address)).then_some(end)
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: the pointers are null or lead to places, which are never freed and only have atomic fields.
    let place = |pointer: *mut Place| unsafe { pointer.as_ref() };
    let first = place(FIRST.load(Ordering::SeqCst));
    std::iter::successors(first, move |last| place(last.next.load(Ordering::SeqCst)))
}

fn install() -> io::Result<()> {
    _ = page();
    let handler = SigHandler::SigAction(on_missing_page);
    // On the alternate signal stack, if the thread has one.
    let action = SigAction::new(
        handler,
        SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK,
        SigSet::empty(),
    );
    // SAFETY: the handler is async-signal-safe: it reads atomics and makes system calls.
    unsafe { sigaction(Signal::SIGBUS, &action) }?;
    Ok(())
}

/// Size of a page. First called before the handler is installed, which then only reads the stored value.
fn page() -> usize {
    usize::try_from(pages::bytes()).unwrap_or(usize::MAX)
}

extern "C" fn on_missing_page(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let before = Errno::last_raw();
    // SAFETY: the kernel passes a valid pointer to a handler that was installed with SA_SIGINFO; the address
    // is set for the codes that define it, and is not dereferenced.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_replaced = code == libc::BUS_ADRERR && replace(address);
    if !is_replaced {
        // Not a watched mapping: restore the default action. The signal stays pending until this handler
        // returns, and then ends the process. SAFETY: no handler is installed.
        _ = unsafe { signal(Signal::SIGBUS, SigHandler::SigDfl) };
        _ = raise(Signal::SIGBUS);
    }
    Errno::set_raw(before);
}

/// Maps zeros from the page of `address` to the end of its mapping, if that is watched.
fn replace(address: usize) -> bool {
    let found = places().find_map(|place| Some((place, place.end_if_holds(address)?)));
    let Some((place, end)) = found else {
        return false;
    };
    let start = address - address % page();
    let (Some(at), Some(length)) = (NonZeroUsize::new(start), NonZeroUsize::new(end - start)) else {
        return false;
    };
    place.is_cut.store(true, Ordering::SeqCst);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the range lies in one mapping, whose owner keeps it mapped until its watch is dropped, and it
    // stays readable throughout.
    unsafe { mmap_anonymous(Some(at), length, ProtFlags::PROT_READ, flags) }.is_ok()
}
