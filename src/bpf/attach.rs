//! Probes onto their sites. Frees are attached before allocations and detached after them, so that no block
//! is recorded whose free is not.

use std::path::PathBuf;
use std::thread;

use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};
use thiserror::Error;
use unwind_tables::addr::FileOffset;

use super::load::AttachPath;
use super::skeleton::MemleakProgs;
use super::skeleton::types::{cookie_shift, role};

/// Where a probe goes and what it means there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The file, as the kernel can open it.
    pub path: PathBuf,
    /// The file, as messages name it.
    pub file: String,
    /// The instruction.
    pub offset: FileOffset,
    /// What the function is and what its arguments mean.
    pub cookie: Cookie,
    /// Whether the function frees; otherwise it allocates or resizes.
    pub frees: bool,
    /// What to call it in messages.
    pub name: String,
}

/// What a probed function does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProbeRole {
    /// Makes one.
    Allocate = role::ROLE_ALLOCATE.0,
    /// Makes one of another, which lives on if that fails.
    Resize = role::ROLE_RESIZE.0,
    /// Ends one.
    Free = role::ROLE_FREE.0,
}

/// What a probe tells its program: the function, and which arguments are what, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index into the caller's function table, below 64.
    pub function: u8,
    /// What the function does.
    pub role: ProbeRole,
    /// The size asked for, or one factor of it.
    pub size: Option<u8>,
    /// The other factor.
    pub count: Option<u8>,
    /// The block to resize or free.
    pub block: Option<u8>,
    /// The pointer through which the new block's address is stored, if it is not returned.
    pub result: Option<u8>,
    /// Whether the function calls no other probed function of its module.
    pub leaf: bool,
}

impl Cookie {
    /// As `enum cookie_shift` of `bpf/shared.h` lays it out; arguments are counted from 1 there.
    fn bits(self) -> u64 {
        let argument = |index: Option<u8>| index.map_or(0, |index| u64::from(index) + 1);
        [
            (cookie_shift::COOKIE_FUNCTION, self.function.into()),
            (cookie_shift::COOKIE_ROLE, u64::from(self.role as u32)),
            (cookie_shift::COOKIE_SIZE, argument(self.size)),
            (cookie_shift::COOKIE_COUNT, argument(self.count)),
            (cookie_shift::COOKIE_POINTER, argument(self.block)),
            (cookie_shift::COOKIE_RESULT, argument(self.result)),
            (cookie_shift::COOKIE_LEAF, self.leaf.into()),
        ]
        .into_iter()
        .fold(0, |bits, (shift, value)| bits | value << shift.0)
    }
}

/// A probe could not be attached.
#[derive(Debug, Error)]
#[error("cannot probe {names} in {file}")]
pub struct AttachError {
    /// The functions.
    pub names: String,
    /// The file.
    pub file: String,
    /// What the kernel says.
    pub source: libbpf_rs::Error,
}

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Attached {
    // Dropped in this order.
    allocations: Vec<Link>,
    frees: Vec<Link>,
}

impl Attached {
    /// Links held: one per object, or one per probe and direction.
    pub fn link_count(&self) -> usize {
        self.allocations.len() + self.frees.len()
    }

    /// Adds those of `more`.
    pub fn add(&mut self, more: Self) {
        let Self { allocations, frees } = more;
        self.allocations.extend(allocations);
        self.frees.extend(frees);
    }
}

pub(super) fn attach(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    pid: Option<u32>,
    probes: &[Probe],
) -> Result<Attached, AttachError> {
    let pid = kernel_pid(pid);
    let (frees, allocations): (Vec<_>, Vec<_>) = probes.iter().partition(|probe| probe.frees);
    let mut attached = Attached::default();
    let each = |programs: &[(&ProgramMut<'_>, Moment)], probes: &[&Probe], links: &mut Vec<Link>| {
        by_file(probes).into_iter().try_for_each(|probes| {
            programs
                .iter()
                .try_for_each(|&(program, moment)| attach_file(program, path, moment, pid, &probes, links))
        })
    };
    let allocating: &[_] = match path {
        AttachPath::Session => &[(&programs.allocation_session, Moment::Both)],
        // The return first: a call that is seen to begin must be seen to end.
        AttachPath::Multi | AttachPath::Perf => &[
            (&programs.allocation_return, Moment::Return),
            (&programs.allocation_entry, Moment::Entry),
        ],
    };
    each(
        &[(&programs.free_entry, Moment::Entry)],
        &frees,
        &mut attached.frees,
    )?;
    each(allocating, &allocations, &mut attached.allocations)?;
    Ok(attached)
}

/// Threads that detach at once.
const DETACHING_THREADS: usize = 16;

/// Detaches all of these at once, in no order: for when nothing is recorded any more.
///
/// The kernel takes the probes of a link out of the process, and then waits until no thread is in their programs, which
/// on a busy machine takes a tenth of a second. One after the other, the last link's probes would wait for all others.
pub fn detach_at_once(
    probes: impl IntoIterator<Item = Attached>,
    hooks: impl IntoIterator<Item = AttachedHook>,
) {
    let probes = probes.into_iter();
    let links = probes.flat_map(|Attached { allocations, frees }| allocations.into_iter().chain(frees));
    let mut links: Vec<Link> = links.chain(hooks.into_iter().map(|hook| hook.link)).collect();
    let share = links.len().div_ceil(DETACHING_THREADS).max(1);
    thread::scope(|scope| {
        while !links.is_empty() {
            let links = links.split_off(links.len().saturating_sub(share));
            // A thread that cannot be had drops what it was to drop here.
            _ = thread::Builder::new().spawn_scoped(scope, move || drop(links));
        }
    });
}

/// An instruction that the target's loader runs whenever it maps or unmaps objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The loader, as the kernel can open it.
    pub path: PathBuf,
    /// The loader, as messages name it.
    pub file: String,
    /// The instruction.
    pub offset: FileOffset,
}

/// An attached hook; dropping it detaches.
#[derive(Debug)]
pub struct AttachedHook {
    link: Link,
}

pub(super) fn attach_hook(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    pid: Option<u32>,
    hook: &Hook,
) -> Result<AttachedHook, AttachError> {
    let pid = kernel_pid(pid);
    let program = &programs.loader_hook;
    let offset = position(hook.offset);
    let link = if path == AttachPath::Perf {
        program.attach_uprobe_with_opts(pid, &hook.path, offset, UprobeOpts::default())
    } else {
        let options = UprobeMultiOpts {
            offsets: vec![offset],
            ..Default::default()
        };
        program.attach_uprobe_multi_with_opts(pid, &hook.path, "", options)
    };
    match link {
        Ok(link) => Ok(AttachedHook { link }),
        Err(source) => Err(AttachError {
            names: "the loader's hook".to_owned(),
            file: hook.file.clone(),
            source,
        }),
    }
}

/// To the kernel, -1 is all processes. No process id is above `i32::MAX`.
fn kernel_pid(pid: Option<u32>) -> i32 {
    pid.map_or(-1, |pid| i32::try_from(pid).unwrap_or(i32::MAX))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Entry,
    Return,
    Both,
}

/// Groups of at least one probe, each of one file.
fn by_file<'a>(probes: &[&'a Probe]) -> Vec<Vec<&'a Probe>> {
    let mut files: Vec<Vec<&Probe>> = Vec::new();
    for &probe in probes {
        match files.iter_mut().find(|file| file[0].path == probe.path) {
            Some(file) => file.push(probe),
            None => files.push(vec![probe]),
        }
    }
    files
}

/// Attaches `program` at all `probes`, which are in one file.
fn attach_file(
    program: &ProgramMut<'_>,
    path: AttachPath,
    moment: Moment,
    pid: i32,
    probes: &[&Probe],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    if path != AttachPath::Perf {
        return keep(attach_multi(program, moment, pid, probes), probes, links);
    }
    probes.iter().try_for_each(|probe| {
        let options = UprobeOpts {
            cookie: probe.cookie.bits(),
            retprobe: moment == Moment::Return,
            ..Default::default()
        };
        let link = program.attach_uprobe_with_opts(pid, &probe.path, position(probe.offset), options);
        keep(link, &[probe], links)
    })
}

fn attach_multi(
    program: &ProgramMut<'_>,
    moment: Moment,
    pid: i32,
    probes: &[&Probe],
) -> Result<Link, libbpf_rs::Error> {
    let options = UprobeMultiOpts {
        offsets: probes.iter().map(|probe| position(probe.offset)).collect(),
        cookies: probes.iter().map(|probe| probe.cookie.bits()).collect(),
        retprobe: moment == Moment::Return,
        session: moment == Moment::Both,
        ..Default::default()
    };
    program.attach_uprobe_multi_with_opts(pid, &probes[0].path, "", options)
}

fn position(offset: FileOffset) -> usize {
    // File offsets fit: only 64-bit hosts are supported.
    usize::try_from(offset.get()).unwrap_or(usize::MAX)
}

fn keep(
    link: Result<Link, libbpf_rs::Error>,
    probes: &[&Probe],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let link = link.map_err(|source| {
        let names: Vec<_> = probes.iter().map(|probe| format!("`{}`", probe.name)).collect();
        AttachError {
            names: names.join(", "),
            file: probes[0].file.clone(),
            source,
        }
    })?;
    links.push(link);
    Ok(())
}
