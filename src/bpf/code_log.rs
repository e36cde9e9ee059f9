//! Log of the code mappings, execs and forks of all processes, which the kernel reports by a software event:
//! what was mapped at any past moment, including objects that came and went since `/proc/PID/maps` was last
//! read.
//!
//! Not reported: `munmap`, `mremap`, and the end of a process. A mapping counts until another is made over
//! it, or another program is executed. A process that shares its memory with the one it was forked from
//! (`vfork`) maps for both.

mod record;
mod ring;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::clock::monotonic_nanoseconds;
use crate::process::maps::MapsEntry;
use ring::Ring;

/// Data pages of a CPU's ring, which are locked memory: 256 KiB with pages of 4 KiB, half of what
/// `perf_event_mlock_kb` permits each CPU by default. Room for about 1,900 mappings.
const RING_PAGES: usize = 64;

/// A change of the code mappings of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Process ID as this pid namespace sees it; 0 for [`Change::Lost`].
    pub pid: u32,
    pub what: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The process mapped code, or made a mapping executable. The entry is as `/proc/PID/maps` would list it
    /// at that moment, with two exceptions: the path is relative to the root of the process, and anonymous
    /// memory that has a name (`[anon:…]`) has none here.
    Mapped(MapsEntry),
    /// The process executes another program, which has none of the earlier mappings.
    Executed,
    /// The process was forked from `parent`, and has all of its mappings; `parent` is 0 for a process outside
    /// of this pid namespace. Threads are not reported.
    Forked { parent: u32 },
    /// A CPU could not log this many changes before this moment. 0 if there may have been some: a ring was
    /// found full, or a CPU came online. The number of those that did not fit follows later, with the CPU's
    /// next change.
    Lost(u64),
}

impl Logged {
    fn lost(at: u64, count: u64) -> Self {
        Self {
            at,
            pid: 0,
            what: Change::Lost(count),
        }
    }
}

/// The running log. Dropping it ends it.
#[derive(Debug)]
pub struct CodeLog {
    /// Rings by number of the CPU.
    rings: BTreeMap<u32, Ring>,
    online: File,
    ring_pages: usize,
    /// Changes that were read and are later than the moment up to which the last result is complete.
    early: Vec<Logged>,
}

impl CodeLog {
    /// Starts to log on all CPUs that are online. Earlier changes are not in the log.
    ///
    /// # Errors
    ///
    /// No permission (`CAP_PERFMON`), or no locked memory for even the smallest rings.
    pub fn open() -> io::Result<Self> {
        Self::with_rings(RING_PAGES)
    }

    fn with_rings(ring_pages: usize) -> io::Result<Self> {
        let online = File::open("/sys/devices/system/cpu/online")?;
        let mut log = Self {
            rings: BTreeMap::new(),
            online,
            ring_pages,
            early: Vec::new(),
        };
        for cpu in log.online_cpus()? {
            log.follow(cpu)?;
        }
        Ok(log)
    }

    /// Takes the changes that were logged since the last call, in the order of time.
    ///
    /// Complete for each process: with a change, all earlier changes of that process are in this or an
    /// earlier result. A CPU that goes offline and comes back between two calls is not noticed.
    pub fn read(&mut self) -> Vec<Logged> {
        // Rings are read one after another, so that the first can lack changes as late as those in the last.
        // Changes after this moment are for the next call.
        let now = monotonic_nanoseconds();
        let mut changes = std::mem::take(&mut self.early);
        for ring in self.rings.values() {
            read_ring(ring, now, &mut changes);
        }
        if !self.follow_hotplug() {
            changes.push(Logged::lost(now, 0));
        }
        changes.sort_by_key(|change| change.at);
        let until_now = changes.partition_point(|change| change.at <= now);
        self.early = changes.split_off(until_now);
        changes
    }

    /// Adjusts to the CPUs that are online. Returns false if one was not logged until now, or still is not.
    fn follow_hotplug(&mut self) -> bool {
        let Ok(online) = self.online_cpus() else {
            return false;
        };
        // The kernel detaches the events of a CPU that goes offline, for good.
        self.rings.retain(|cpu, _| online.contains(cpu));
        let new: Vec<u32> = online
            .into_iter()
            .filter(|cpu| !self.rings.contains_key(cpu))
            .collect();
        for cpu in &new {
            if let Err(error) = self.follow(*cpu) {
                tracing::debug!("changes of code on CPU {cpu} are not logged: {error}");
            }
        }
        new.is_empty()
    }

    /// Starts to log on a CPU, unless it is offline.
    fn follow(&mut self, cpu: u32) -> io::Result<()> {
        match Ring::open(cpu, self.ring_pages) {
            Ok(ring) => {
                self.rings.insert(cpu, ring);
                Ok(())
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn online_cpus(&self) -> io::Result<Vec<u32>> {
        // A page, as all files of sysfs.
        let mut text = [0; 4096];
        let length = self.online.read_at(&mut text, 0)?;
        let text = str::from_utf8(text.get(..length).unwrap_or_default()).map_err(io::Error::other)?;
        parse_cpus(text.trim_end()).ok_or_else(|| io::Error::other(format!("unknown list of CPUs: {text}")))
    }
}

/// Adds the changes in a ring, and a loss if some cannot be read or may not have fitted.
fn read_ring(ring: &Ring, now: u64, changes: &mut Vec<Logged>) {
    let content = ring.take();
    let mut bytes = content.bytes.as_slice();
    changes.extend(take_changes(&mut bytes));
    if content.was_full || !bytes.is_empty() {
        changes.push(Logged::lost(now, 0));
    }
}

/// Takes all records off `bytes`, and returns their changes. Bytes that remain are no record.
pub(crate) fn take_changes(bytes: &mut &[u8]) -> impl Iterator<Item = Logged> {
    let records = std::iter::from_fn(|| record::take_record(bytes));
    records.filter_map(record::parse)
}

/// Parses a list such as `0-3,5`. Ranges are cut at the maximum number of CPUs that the kernel can be built
/// for.
fn parse_cpus(text: &str) -> Option<Vec<u32>> {
    const MAX_CPU: u32 = 8191;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last.min(MAX_CPU));
    }
    Some(cpus)
}
