//! Detects the end of the reader of standard output, after which nothing is left to do. A write would fail
//! too, but the next one can be an interval away.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};

/// Sets `gone` when standard output, if it is a pipe or a socket, loses its reader.
///
/// # Errors
///
/// Fails if the thread that waits for it cannot be created.
pub fn await_end_of_reader(gone: Arc<AtomicBool>) -> io::Result<()> {
    let kind = fstat(io::stdout()).map_or(SFlag::empty(), |facts| {
        SFlag::from_bits_truncate(facts.st_mode) & SFlag::S_IFMT
    });
    if ![SFlag::S_IFIFO, SFlag::S_IFSOCK].contains(&kind) {
        return Ok(());
    }
    let wait = move || {
        if is_error_awaited(&io::stdout()) {
            gone.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("reader".to_owned()).spawn(wait)?;
    Ok(())
}

/// Waits while `out` has a reader. Returns true once the reader is gone, and false if `out` cannot be polled.
fn is_error_awaited(out: &impl AsFd) -> bool {
    loop {
        // POLLERR and POLLHUP are reported without being requested.
        let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(_) => return false,
            Ok(_) => {
                let events = fds[0].revents().unwrap_or(PollFlags::empty());
                return events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The wait goes on while there is a reader, and ends at once when it is gone.
    #[test]
    fn readers_end() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let waiting = thread::spawn(move || is_error_awaited(&writer));
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        drop(reader);
        assert!(waiting.join().expect("it has no reason to panic"));
    }
}
