//! Debuggers of traced processes: one of their breakpoints and one of our probes cannot be on the same
//! instruction.

use std::collections::BTreeMap;

use crate::base::proc_fields::ProcFields;

/// Tracers by ptrace(2) that set no breakpoints: strace, and memleak itself while it copies memory.
const OTHERS: [&str; 2] = ["strace", "memleak"];

/// Debuggers that were warned of, by the process that they debug.
#[derive(Debug, Default)]
pub(super) struct Debuggers(BTreeMap<u32, u32>);

impl Debuggers {
    /// Warns of new debuggers of processes. A debugger that sets a breakpoint where a probe is takes the
    /// probe's instruction for the program's own, and restores it when memleak has left: the process is then
    /// killed there by SIGTRAP.
    pub(super) fn warn_of(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids {
            let Some((debugger, comm)) = debugger_of(pid) else {
                continue;
            };
            if self.0.insert(pid, debugger) != Some(debugger) {
                tracing::warn!(
                    "{pid} is debugged by {comm} ({debugger}): a breakpoint on an instruction with a probe \
                     does not stop it, and kills it if the breakpoint is removed after memleak has exited; \
                     remove such breakpoints before"
                );
            }
        }
    }
}

/// The process that debugs another, and its name.
fn debugger_of(pid: u32) -> Option<(u32, String)> {
    let debugger = ProcFields::status(pid).ok()?.number("TracerPid")?;
    let debugger = u32::try_from(debugger).ok().filter(|&debugger| debugger != 0)?;
    let comm = std::fs::read(format!("/proc/{debugger}/comm")).ok()?;
    let comm = String::from_utf8_lossy(comm.trim_ascii_end()).into_owned();
    (!OTHERS.contains(&comm.as_str())).then_some((debugger, comm))
}
