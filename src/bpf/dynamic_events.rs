//! Probes that only traced processes have and, from the fork on, the processes that they start: perf events
//! of the kernel's dynamic events (tracefs, `uprobe_events`), which children inherit.
//!
//! A link without a process puts a breakpoint into every process that maps the file; a link with a process
//! has no effect on its children. A perf event of a process's own probe (`PERF_TYPE` of the `uprobe` unit) is
//! inherited without its program; a dynamic event has one program for all of its perf events. The kernel
//! relies on a child's copy of its parent's memory (`trace_uprobe_filter_add`): the child has its breakpoints
//! before it runs, and a program that it executes later as soon as that is mapped.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use libbpf_sys::perf_event_attr;
use unwind_tables::addr::FileOffset;

use super::perf_event::{self, Scope};
use crate::base::kernel_clock::ticks_after_boot;
use crate::process::stat::Stat;

/// Directories where tracefs is mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Prefix of the names of memleak's groups of events; its process id and start time follow.
const GROUP: &str = "memleak_";
/// Ticks by which the start time of a process can differ between time namespaces.
const ROUNDING: u64 = 1;

/// Dynamic events of this process. Dropping it removes them; nothing may be attached to them then.
#[derive(Debug)]
pub struct DynamicEvents {
    tracefs: PathBuf,
    group: String,
    names: Mutex<Vec<String>>,
}

/// A probe of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition<'a> {
    pub(super) path: &'a Path,
    pub(super) offset: FileOffset,
    /// 0 if there is none.
    pub(super) semaphore: FileOffset,
    pub(super) at_return: bool,
}

/// An event that was defined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Its number among those of this process.
    pub(super) index: u32,
    /// Its number for the kernel, for [`carry`].
    pub(super) number: u64,
}

impl DynamicEvents {
    /// Events of this process; `None` where it may not define any, or tracefs is not there.
    pub fn available() -> Option<Self> {
        let tracefs = TRACEFS.iter().map(PathBuf::from).find(|tracefs| {
            let definitions = OpenOptions::new()
                .append(true)
                .open(tracefs.join("uprobe_events"));
            definitions.is_ok()
        })?;
        let own = std::process::id();
        let group = format!("{GROUP}{own}_{}", start_time(own)?);
        let events = Self {
            tracefs,
            group,
            names: Mutex::default(),
        };
        events.remove_abandoned();
        Some(events)
    }

    /// Defines an event of several probes. This attaches nothing.
    pub(super) fn define<'a>(&self, probes: impl IntoIterator<Item = Definition<'a>>) -> io::Result<Event> {
        let mut names = self.names.lock().map_err(|_| io::ErrorKind::Other)?;
        let index = names.len();
        let name = format!("probes{index}");
        for probe in probes {
            self.add(&name, probe)?;
            if names.len() == index {
                names.push(name.clone());
            }
        }
        Ok(Event {
            index: index.try_into().map_err(io::Error::other)?,
            number: self.number(&name)?,
        })
    }

    /// Adds a probe to an event. The first probe creates the event.
    fn add(&self, name: &str, probe: Definition<'_>) -> io::Result<()> {
        // Definitions are split at blanks, which a path may contain.
        let file = File::open(probe.path)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let kind = if probe.at_return { 'r' } else { 'p' };
        let counter = match probe.semaphore.get() {
            0 => String::new(),
            semaphore => format!("({semaphore:#x})"),
        };
        let (group, offset) = (&self.group, probe.offset.get());
        self.write(&format!("{kind}:{group}/{name} {path}:{offset:#x}{counter}\n"))
    }

    /// Numbers of all events.
    pub(super) fn numbers(&self) -> io::Result<Vec<u64>> {
        let names = self.names.lock().map_err(|_| io::ErrorKind::Other)?;
        names.iter().map(|name| self.number(name)).collect()
    }

    /// The kernel's number of an event.
    fn number(&self, name: &str) -> io::Result<u64> {
        let path = self.tracefs.join("events").join(&self.group).join(name);
        let text = fs::read_to_string(path.join("id"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    fn write(&self, definitions: &str) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .open(self.tracefs.join("uprobe_events"));
        file?.write_all(definitions.as_bytes())
    }

    /// Removes the events of memleaks that were killed.
    fn remove_abandoned(&self) {
        let groups = fs::read_dir(self.tracefs.join("events"));
        for group in groups.into_iter().flatten().flatten() {
            let name = group.file_name().into_string().unwrap_or_default();
            let of = name.strip_prefix(GROUP).and_then(|of| of.split_once('_'));
            let Some((Ok(pid), began)) = of.map(|(pid, began)| (pid.parse(), began)) else {
                continue;
            };
            if start_time(pid).is_none_or(|time| {
                !began
                    .parse()
                    .is_ok_and(|began: u64| began.abs_diff(time) <= ROUNDING)
            }) {
                self.remove(&name, names_in(&group.path()));
            }
        }
    }

    fn remove(&self, group: &str, names: impl IntoIterator<Item = String>) {
        for name in names {
            if let Err(error) = self.write(&format!("-:{group}/{name}\n")) {
                tracing::debug!("cannot remove the event {group}/{name}: {error}");
            }
        }
    }
}

impl Drop for DynamicEvents {
    fn drop(&mut self) {
        let names = self.names.get_mut().map(std::mem::take).unwrap_or_default();
        self.remove(&self.group, names);
    }
}

fn names_in(group: &Path) -> Vec<String> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let events = entries.filter(|entry| entry.path().is_dir());
    events
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Start time of a process in ticks after boot, whatever this process's time namespace; `None` if there is no
/// such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks_after_boot(Stat::parse(&stat)?.start_time))
}

/// Makes all threads of some processes carry an event, which everything that they start from then on
/// inherits.
///
/// Each thread must carry it: a child inherits from the thread that forks.
pub(super) fn carry(event: u64, processes: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let mut attributes = attributes_of(event)?;
    attributes.set_inherit(1);
    let (mut carriers, mut seen) = (Vec::new(), HashSet::new());
    loop {
        let new: Vec<_> = threads_of(processes)
            .filter(|&thread| seen.insert(thread))
            .collect();
        // Threads that began meanwhile may have been started by threads that did not carry it yet.
        if new.is_empty() {
            return Ok(carriers);
        }
        for thread in new {
            carriers.extend(open(&attributes, thread)?);
        }
    }
}

/// Opens an event for a program, which runs for all carriers. This one is not inherited: an inherited event
/// that ends takes the program of its origin with it.
pub(super) fn open_for_program(event: u64, processes: &[u32]) -> io::Result<OwnedFd> {
    let attributes = attributes_of(event)?;
    for thread in threads_of(processes) {
        if let Some(opened) = open(&attributes, thread)? {
            return Ok(opened);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

fn attributes_of(event: u64) -> io::Result<perf_event_attr> {
    let mut attributes = perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_TRACEPOINT,
        size: size_of::<perf_event_attr>()
            .try_into()
            .map_err(io::Error::other)?,
        config: event,
        ..perf_event_attr::default()
    };
    // Programs run for disabled events, too; enabled ones take time whenever a thread gets a CPU.
    attributes.set_disabled(1);
    Ok(attributes)
}

/// Opens an event for a thread; `None` if that has ended.
fn open(attributes: &perf_event_attr, thread: u32) -> io::Result<Option<OwnedFd>> {
    match perf_event::open(attributes, Scope::Thread(thread)) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

fn threads_of(processes: &[u32]) -> impl Iterator<Item = u32> {
    processes.iter().flat_map(|process| {
        let threads = fs::read_dir(format!("/proc/{process}/task"))
            .into_iter()
            .flatten();
        threads
            .flatten()
            .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
    })
}
