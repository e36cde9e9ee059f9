//! The log of what all processes map as code, execute and fork, as the kernel tells it by a software event: what was mapped at any past
//! moment, also of objects that have come and gone since `/proc/PID/maps` was read last.
//!
//! Not told: `munmap`, `mremap`, and the end of a process. A mapping lasts until another is made over it, or another program is
//! executed. A process that shares its memory with the one it was forked from (`vfork`) maps for both.

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

/// Pages of data of a CPU's ring, which are locked memory: 256 KiB of pages of 4 KiB, half of what `perf_event_mlock_kb` permits each
/// CPU by default. Holds about 1,900 mappings.
const RING_PAGES: usize = 64;

/// A change of what is mapped as code in a process.
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
    /// It mapped code, or made executable what was mapped. The entry is as `/proc/PID/maps` would list it at that moment, with two
    /// exceptions: the path is relative to the root of the process, and memory with a name of its own (`[anon:…]`) has none.
    Mapped(MapsEntry),
    /// It executes another program: nothing of what was mapped before is.
    Executed,
    /// It was forked from `parent`, of which it has all mappings; 0 for a process outside of this pid namespace. Of threads, nothing
    /// is told.
    Forked { parent: u32 },
    /// Some CPU could not log this many changes before this moment. 0 if it is not known whether there were any: a ring was found
    /// full, or a CPU came online. How many did not fit is told later, with the CPU's next change.
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
    /// By number of the CPU.
    rings: BTreeMap<u32, Ring>,
    online: File,
    ring_pages: usize,
    /// Changes that are later than the moment up to which the last reading is complete.
    early: Vec<Logged>,
}

impl CodeLog {
    /// Starts to log, on all CPUs that are online. Changes before are not in it.
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

    /// Takes what was logged since the last call until now, in the order of time.
    ///
    /// Complete for each process: a change that it made before another that is in here, is in here or in an earlier result. Not
    /// noticed is a CPU that goes offline and comes back between two calls.
    pub fn read(&mut self) -> Vec<Logged> {
        // A ring that is read first can lack what another has: what is later than this is for the next call.
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
        // The kernel detaches the events of a CPU that goes offline for good.
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

/// Adds what a ring has. Of what cannot be read, that it is lost.
fn read_ring(ring: &Ring, now: u64, changes: &mut Vec<Logged>) {
    let content = ring.take();
    let mut bytes = content.bytes.as_slice();
    changes.extend(take_changes(&mut bytes));
    if content.was_full || !bytes.is_empty() {
        changes.push(Logged::lost(now, 0));
    }
}

/// Takes all records off `bytes`, and gives what they tell. What is left is no record.
pub(crate) fn take_changes(bytes: &mut &[u8]) -> impl Iterator<Item = Logged> {
    let records = std::iter::from_fn(|| record::take_record(bytes));
    records.filter_map(record::parse)
}

/// Parses a list such as `0-3,5`: of at most as many CPUs as the kernel can be built for.
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
