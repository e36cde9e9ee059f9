//! Reading on in a mapped file that somebody cuts short is a signal, SIGBUS, which ends who reads. Here it is answered
//! instead: the rest of the mapping, from the page on that is not there any more, becomes zeros, and it is noted for whom.
//!
//! `cp` over a library that programs run does that, and a target could do it on purpose.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_void, siginfo_t};

/// A mapping of a file. Without a start, the place is free.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    was_hit: AtomicBool,
}

/// Files that can be mapped at once: more than the kernel allows mappings of a process, unless told otherwise.
const MOST: usize = 1 << 16;
const PAGE: usize = 4096;

/// The signal's handler looks through it, so that nobody may be waited for.
static PLACES: [Place; MOST] = [const {
    Place {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        was_hit: AtomicBool::new(false),
    }
}; MOST];
/// Places that have ever been taken are below.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The free ones of them; held while places are taken and given back, never by the handler.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// What was to be done about the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping whose missing pages are made up for.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Watches a whole mapping of a file, until it is dropped, which is to be before the mapping is.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub(super) fn new(range: Range<*const u8>) -> io::Result<Self> {
        listen()?;
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match free.pop() {
            Some(number) => number,
            None => TAKEN.load(Ordering::Relaxed),
        };
        let place = PLACES.get(number).ok_or(io::ErrorKind::OutOfMemory)?;
        place.was_hit.store(false, Ordering::Relaxed);
        place.end.store(range.end as usize, Ordering::Relaxed);
        place.start.store(range.start as usize, Ordering::Release);
        TAKEN.fetch_max(number + 1, Ordering::Release);
        Ok(Self(number))
    }

    /// Whether a page was missing.
    pub(super) fn was_cut_short(&self) -> bool {
        PLACES[self.0].was_hit.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        PLACES[self.0].start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Answers the signal from now on.
fn listen() -> io::Result<()> {
    static LISTENING: Mutex<bool> = Mutex::new(false);
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if *listening {
        return Ok(());
    }
    // SAFETY: both are plain structures, for which all zeros is a value; the handler has the type that SA_SIGINFO asks
    // for. What was there before, the standard library's handler of stack overflows, is known before ours can run.
    let installed = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before);
        _ = BEFORE.set(before);
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())
    };
    if installed != 0 {
        return Err(io::Error::last_os_error());
    }
    *listening = true;
    Ok(())
}

/// The place that holds an address.
fn place_of(address: usize) -> Option<&'static Place> {
    let taken = TAKEN.load(Ordering::Acquire).min(MOST);
    PLACES[..taken].iter().find(|place| {
        let start = place.start.load(Ordering::Acquire);
        start != 0 && (start..place.end.load(Ordering::Relaxed)).contains(&address)
    })
}

/// Runs in the middle of anything: nothing here allocates, waits, or can panic.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid structure, of a signal that has an address. The pages that are replaced are those of
    // a mapping that is watched, and so exists, is read-only, and is nobody's but its file's. `errno` is as it was.
    unsafe {
        let address = (*info).si_addr() as usize;
        if let Some(place) = place_of(address) {
            place.was_hit.store(true, Ordering::Relaxed);
            let errno = *libc::__errno_location();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let page = address - address % PAGE;
            let length = place.end.load(Ordering::Relaxed) - page;
            let made = libc::mmap(page as *mut c_void, length, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            if made != libc::MAP_FAILED {
                return;
            }
        }
        pass_on(signal, info, context);
    }
}

/// Does what would have been done without this handler.
///
/// # Safety
///
/// To be called by the handler alone, with what it was given.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = BEFORE
        .get()
        .filter(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: a handler with SA_SIGINFO is a function of these arguments; without one, the instruction runs again, and its
    // signal does what it does by itself.
    unsafe {
        match before {
            Some(before) => {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            }
            None => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}
