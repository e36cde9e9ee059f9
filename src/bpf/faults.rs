//! Attaches the program for page faults to the threads of a process, by the kernel's software event: other
//! processes pay nothing.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::{Link, ProgramMut};
use libbpf_sys::{perf_event_attr, perf_event_attr__bindgen_ty_1};

use super::kernel::Kernel;
use super::perf_event::{self, Scope};

/// Links of the program for page faults, one for each thread; dropping it detaches them.
#[derive(Default)]
pub struct FaultWatch(Vec<Link>);

impl FaultWatch {
    /// Number of links.
    pub fn link_count(&self) -> usize {
        self.0.len()
    }
}

/// Maximum number of times that the threads of a process are listed while it starts new ones.
const MAX_LISTINGS: usize = 16;

impl Kernel<'_> {
    /// Starts to trace the page faults of process `pid`: of all of its threads and of those that they start,
    /// with `children` also of the processes that they start. Requires [`super::Settings::faults`].
    ///
    /// A thread that is started meanwhile may be attached to twice. A page has only one first fault all the
    /// same.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or memleak is out of file descriptors.
    pub fn watch_faults(&self, watch: &mut FaultWatch, pid: u32, children: bool) -> io::Result<()> {
        let program = &self.skeleton.progs.page_fault;
        let mut known = HashSet::new();
        for _ in 0..MAX_LISTINGS {
            let new: Vec<u32> = threads(pid)?.filter(|thread| known.insert(*thread)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                match attach(program, thread, children) {
                    Ok(link) => watch.0.push(link),
                    // It has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

fn threads(pid: u32) -> io::Result<impl Iterator<Item = u32>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(threads
        .flatten()
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok()))
}

fn attach(program: &ProgramMut<'_>, thread: u32, children: bool) -> io::Result<Link> {
    let event = open_event(thread, children)?;
    let link = program
        .attach_perf_event(event.as_raw_fd())
        .map_err(io::Error::other)?;
    // The link closes it.
    _ = event.into_raw_fd();
    Ok(link)
}

/// Opens the event of page faults of a thread and of the threads that it starts, with `children` also of the
/// processes that it starts. It fires at every fault: a longer period would begin anew with each thread, and
/// threads with few faults would not be seen.
fn open_event(thread: u32, children: bool) -> io::Result<OwnedFd> {
    let mut event = perf_event_attr {
        __bindgen_anon_1: perf_event_attr__bindgen_ty_1 { sample_period: 1 },
        sample_type: libbpf_sys::PERF_SAMPLE_ADDR.into(),
        ..perf_event::software(libbpf_sys::PERF_COUNT_SW_PAGE_FAULTS)?
    };
    event.set_disabled(1);
    event.set_inherit(1);
    event.set_inherit_thread(u64::from(!children));
    event.set_exclude_hv(1);
    perf_event::open(&event, Scope::Thread(thread))
}
