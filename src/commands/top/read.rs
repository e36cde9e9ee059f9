//! Reads of `/proc`: the memory of processes, and of the machine.

use std::collections::HashMap;
use std::fs;

use nix::unistd::geteuid;

use crate::base::proc_fields::ProcFields;
use crate::process::launch;
use crate::process::select::Found;

/// Memory of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) process: Found,
    /// Real user ID.
    pub(super) user: u32,
    pub(super) memory: Anonymous,
}

/// Bytes of anonymous memory: of heaps, stacks and private mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Anonymous {
    pub(super) resident: u64,
    pub(super) swapped: u64,
}

impl Anonymous {
    pub(super) fn bytes(self) -> u64 {
        self.resident.saturating_add(self.swapped)
    }
}

impl Reading {
    /// Reads a process's status; `None` if it has ended, or while it executes another program.
    pub(super) fn of(process: Found) -> Option<Self> {
        let status = ProcFields::status(process.pid).ok()?;
        let kibibytes = |name| status.number(name).map(|number| number.saturating_mul(1024));
        Some(Self {
            user: status.words("Uid").next()?.parse().ok()?,
            memory: Anonymous {
                resident: kibibytes("RssAnon")?,
                swapped: kibibytes("VmSwap").unwrap_or(0),
            },
            process,
        })
        .filter(|reading| reading.process.start_code != 0)
    }
}

/// Bytes of memory of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) total: u64,
    /// The kernel's estimate of the memory that can be allocated without swapping.
    pub(super) available: u64,
    pub(super) swap_free: u64,
}

impl Machine {
    pub(super) fn read() -> Self {
        let fields = ProcFields::read("/proc/meminfo").unwrap_or_default();
        let bytes = |name| fields.number(name).unwrap_or(0).saturating_mul(1024);
        Self {
            total: bytes("MemTotal"),
            available: bytes("MemAvailable"),
            swap_free: bytes("SwapFree"),
        }
    }
}

/// Names of users, each looked up once.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<u32, Option<String>>);

impl Users {
    /// Name of a user; `None` if there is none with this ID.
    pub(super) fn name(&mut self, id: u32) -> Option<String> {
        let look_up = || launch::name_of_user(id).unwrap_or_default();
        self.0.entry(id).or_insert_with(look_up).clone()
    }
}

/// Returns whether `/proc` hides processes of other users from this one (`hidepid` of proc(5)).
pub(super) fn hides_processes() -> bool {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    !geteuid().is_root() && has_hidepid(&mountinfo)
}

fn has_hidepid(mountinfo: &str) -> bool {
    // The last mount at a path is the visible one.
    let mounts = mountinfo.lines().filter_map(|line| line.split_once(" - "));
    let mut of_proc = mounts.filter(|(mount, _)| mount.split(' ').nth(4) == Some("/proc"));
    let options = of_proc.next_back().and_then(|(_, rest)| rest.split(' ').nth(2));
    let mut values = options.into_iter().flat_map(|options| options.split(','));
    values.any(|option| {
        option
            .strip_prefix("hidepid=")
            .is_some_and(|value| !["0", "off"].contains(&value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options of the visible mount decide, in both spellings.
    #[test]
    fn hidden_processes() {
        let line = |options: &str| format!("22 27 0:21 / /proc rw,relatime shared:5 - proc proc {options}\n");
        for (mounts, hides) in [
            (line("rw"), false),
            (line("rw,gid=5,hidepid=2"), true),
            (line("rw,hidepid=invisible"), true),
            (line("rw,hidepid=off"), false),
            (line("rw,hidepid=2") + &line("rw"), false),
            (
                line("rw") + "1 2 0:1 / /other/proc rw - proc proc rw,hidepid=2\n",
                false,
            ),
            (String::new(), false),
        ] {
            assert_eq!(has_hidepid(&mounts), hides, "{mounts}");
        }
    }
}
