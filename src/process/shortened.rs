//! Reading on where a mapped file has become shorter.
//!
//! Who may write a file may cut it off, at any moment. A page of a mapping that is beyond the file's new end is a signal to
//! who reads it, SIGBUS, which ends a process that does not expect it: so every process that is traced could end us. Here
//! such a page, and all that follow it in its mapping, become zeros, and who mapped the file is told. All other causes of
//! that signal end this process, as ever.
#![allow(unsafe_code, reason = "a handler of signals, and what it maps")]

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::{io, ptr};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction, signal};

use crate::base::pages;

/// Memory in which pages that are gone read as zeros, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch(&'static Place);

/// A range of memory, or room for one. Never freed: the handler may look at it at any moment.
#[derive(Debug)]
struct Place {
    is_taken: AtomicBool,
    /// Odd while the range is being changed.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 where there is no range.
    end: AtomicUsize,
    is_cut: AtomicBool,
    next: AtomicPtr<Place>,
}

/// All places, each leading to the next.
static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

impl Watch {
    /// Watches a mapping of a file, which is not to end before this.
    ///
    /// # Errors
    ///
    /// The system refuses a handler.
    pub(super) fn over(mapping: &[u8]) -> io::Result<Self> {
        static INSTALLED: Once = Once::new();
        let mut installed = Ok(());
        INSTALLED.call_once(|| installed = install());
        installed?;
        let place = places().find(|place| !place.is_taken.swap(true, Ordering::SeqCst));
        let place = place.unwrap_or_else(Place::add);
        let start = mapping.as_ptr().addr();
        // The rest of the last page can be read too.
        place.set(start, start + mapping.len().next_multiple_of(page()));
        place.is_cut.store(false, Ordering::SeqCst);
        Ok(Self(place))
    }

    /// Whether something was read that was not there any more.
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
    /// A new one, taken.
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

    /// The end of the range, if `address` is in it. A range that is being changed has nobody reading in it.
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
    // On a stack of its own where the thread has one.
    let action = SigAction::new(
        handler,
        SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK,
        SigSet::empty(),
    );
    // SAFETY: the handler does only what may be done in one: it reads atomics and makes system calls.
    unsafe { sigaction(Signal::SIGBUS, &action) }?;
    Ok(())
}

/// Asked before the handler is installed, which then only reads it.
fn page() -> usize {
    usize::try_from(pages::bytes()).unwrap_or(usize::MAX)
}

extern "C" fn on_missing_page(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let before = Errno::last_raw();
    // SAFETY: the kernel gives a valid one to a handler that was installed with SA_SIGINFO; the address is there for the
    // codes that say so, and is not followed.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_replaced = code == libc::BUS_ADRERR && replace(address);
    if !is_replaced {
        // Not ours. What has no handler comes once this one is done, and ends the process.
        // SAFETY: no handler is installed.
        _ = unsafe { signal(Signal::SIGBUS, SigHandler::SigDfl) };
        _ = raise(Signal::SIGBUS);
    }
    Errno::set_raw(before);
}

/// Puts zeros where `address` is, up to the end of its mapping, if it is in one that is watched.
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
    // SAFETY: all of it is part of one mapping, which the holder of its watch keeps until the watch is gone, and which
    // stays readable throughout.
    unsafe { mmap_anonymous(Some(at), length, ProtFlags::PROT_READ, flags) }.is_ok()
}
