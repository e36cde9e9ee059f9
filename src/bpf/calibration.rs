//! Cost of a probe's trap on this machine, which program statistics do not include: empty programs probe
//! functions of this process as the target's are probed, and the functions are called.

#![allow(unsafe_code, reason = "the functions that are probed are assembly")]

use std::arch::global_asm;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::Context;
use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};

use unwind_tables::addr::Avma;

use super::clock::thread_nanoseconds;
use super::detach;
use super::settings::AttachPath;
use super::skeleton::MemleakProgs;
use super::statistics::{Statistics, runs_of};
use crate::process::maps;
use leak_report::model::Traps;

// The first instruction of each function is probed. The kernel emulates that of the first two functions and
// single-steps that of the last. Global because callers may be in another codegen unit; hidden from other
// objects.
macro_rules! calibration_functions {
    ([$($emulated:literal),*], [$($stepped:literal),*]) => {
        global_asm!(
            ".pushsection .text.memleak_calibration, \"ax\", @progbits",
            ".p2align 4",
            ".globl memleak_calibration_emulated",
            ".hidden memleak_calibration_emulated",
            "memleak_calibration_emulated:",
            $($emulated,)*
            ".p2align 4",
            ".globl memleak_calibration_returning",
            ".hidden memleak_calibration_returning",
            "memleak_calibration_returning:",
            $($emulated,)*
            ".p2align 4",
            ".globl memleak_calibration_stepped",
            ".hidden memleak_calibration_stepped",
            "memleak_calibration_stepped:",
            $($stepped,)*
            ".popsection",
        );
    };
}

#[cfg(target_arch = "x86_64")]
calibration_functions!(["push rbx", "pop rbx", "ret"], ["lea rax, [rax]", "ret"]);
#[cfg(target_arch = "aarch64")]
calibration_functions!(["cbz xzr, 2f", "2: ret"], ["mov x0, x0", "ret"]);

unsafe extern "C" {
    safe fn memleak_calibration_emulated();
    safe fn memleak_calibration_returning();
    safe fn memleak_calibration_stepped();
}

/// A function that does nothing.
type Function = extern "C" fn();

/// This program's own file, as the kernel can open it.
const OWN_FILE: &str = "/proc/self/exe";

/// Calls per mean, and number of means that the median is taken of.
const CALLS: u32 = 50;
const STEPPED_CALLS: u32 = 8;
const MEANS: usize = 9;

/// Probed functions of this process. Dropping it detaches.
#[derive(Debug)]
pub struct Calibration {
    links: Vec<Link>,
    /// Program attached to [`memleak_calibration_emulated`].
    program: OwnedFd,
}

impl Calibration {
    pub(super) fn attach(programs: &MemleakProgs<'_>, path: AttachPath) -> anyhow::Result<Self> {
        let mut links = Vec::new();
        let entry = &programs.calibration_entry;
        let mut add = |program: &ProgramMut<'_>, function: Function, attachment: Attachment| {
            let offset = file_offset(function as usize)?;
            links.push(attach_at(program, offset, attachment)?);
            anyhow::Ok(())
        };
        let program = match path {
            AttachPath::Session => {
                let session = &programs.calibration_session;
                add(
                    session,
                    memleak_calibration_emulated,
                    Attachment::Session { refuse: true },
                )?;
                add(
                    session,
                    memleak_calibration_returning,
                    Attachment::Session { refuse: false },
                )?;
                add(
                    entry,
                    memleak_calibration_stepped,
                    Attachment::Multi { at_return: false },
                )?;
                session
            }
            AttachPath::Multi | AttachPath::Perf => {
                let attachment = |at_return| match path {
                    AttachPath::Perf => Attachment::Perf { at_return },
                    AttachPath::Session | AttachPath::Multi => Attachment::Multi { at_return },
                };
                add(entry, memleak_calibration_emulated, attachment(false))?;
                add(
                    &programs.calibration_return,
                    memleak_calibration_returning,
                    attachment(true),
                )?;
                add(entry, memleak_calibration_returning, attachment(false))?;
                add(entry, memleak_calibration_stepped, attachment(false))?;
                entry
            }
        };
        let program = program.as_fd().try_clone_to_owned()?;
        Ok(Self { links, program })
    }

    /// Measures the traps, in a millisecond. `stepped`: also measures single-stepping, in two more.
    pub fn measure(&self, stepped: bool) -> Traps {
        debug_assert!(!self.links.is_empty(), "the functions are probed");
        let emulated = time(memleak_calibration_emulated, CALLS);
        let returning = time(memleak_calibration_returning, CALLS);
        Traps {
            emulated,
            stepped: stepped.then(|| time(memleak_calibration_stepped, STEPPED_CALLS)),
            returning: (returning - emulated).max(0.0),
            empty_program: self.time_program().unwrap_or_default(),
        }
    }

    fn time_program(&self) -> io::Result<f64> {
        let _statistics = Statistics::keep()?;
        let before = runs_of(&self.program)?;
        for _ in 0..2 * CALLS {
            memleak_calibration_emulated();
        }
        let runs = runs_of(&self.program)?.since(before);
        Ok(mean(runs.nanoseconds, runs.count))
    }
}

/// Median of the mean time of a call, in nanoseconds.
fn time(function: Function, calls: u32) -> f64 {
    // Not the mean: some calls are interrupted.
    let mut means: [f64; MEANS] = std::array::from_fn(|_| {
        let before = thread_nanoseconds();
        for _ in 0..calls {
            function();
        }
        mean(thread_nanoseconds().saturating_sub(before), calls.into())
    });
    means.sort_by(f64::total_cmp);
    means[MEANS / 2]
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mean(nanoseconds: u64, count: u64) -> f64 {
    nanoseconds as f64 / count.max(1) as f64
}

/// Attachment of a calibration program.
#[derive(Clone, Copy)]
enum Attachment {
    Session { refuse: bool },
    Multi { at_return: bool },
    Perf { at_return: bool },
}

fn attach_at(
    program: &ProgramMut<'_>,
    offset: usize,
    attachment: Attachment,
) -> Result<Link, libbpf_rs::Error> {
    let pid = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let (retprobe, session, refuse) = match attachment {
        Attachment::Perf { at_return } => {
            let options = UprobeOpts {
                retprobe: at_return,
                ..Default::default()
            };
            return program.attach_uprobe_with_opts(pid, OWN_FILE, offset, options);
        }
        Attachment::Multi { at_return } => (at_return, false, false),
        Attachment::Session { refuse } => (false, true, refuse),
    };
    let options = UprobeMultiOpts {
        offsets: vec![offset],
        cookies: vec![refuse.into()],
        retprobe,
        session,
        ..Default::default()
    };
    program.attach_uprobe_multi_with_opts(pid, OWN_FILE, "", options)
}

impl Drop for Calibration {
    fn drop(&mut self) {
        detach::close(std::mem::take(&mut self.links), 1);
    }
}

/// File offset of code of this program.
fn file_offset(address: usize) -> anyhow::Result<usize> {
    let maps = fs::read("/proc/self/maps").context("cannot read our own mappings")?;
    let address = Avma::new(u64::try_from(address)?);
    let found = maps::parse(&maps)
        .flatten()
        .find(|entry| entry.range.contains(&address));
    let entry = found.context("our own code is in no mapping")?;
    Ok(usize::try_from(
        address.get() - entry.range.start.get() + entry.offset.get(),
    )?)
}
