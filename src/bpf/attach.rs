//! Probes onto their sites. Frees are attached before allocations and detached after them, so that no block
//! is recorded whose free is not.

use std::collections::HashSet;
use std::path::PathBuf;

use libbpf_rs::{ErrorKind, Link, ProgramMut, UprobeMultiOpts, UprobeOpts};
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
    /// How the end of a call is seen.
    pub end: CallEnd,
    /// What to call it in messages.
    pub name: String,
}

/// How the end of a call is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// Not at all: of a function that frees, the beginning says everything.
    Unseen,
    /// By a return probe.
    ReturnProbe,
    /// By a probe on each of these instructions, all `ret`: the function can throw, and an exception that meets a
    /// return probe ends the program.
    Rets(Vec<FileOffset>),
}

/// What a probed function does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProbeRole {
    /// Makes one.
    Allocate = role::ROLE_ALLOCATE.0,
    /// Makes one of another, which lives on if that fails.
    Resize = role::ROLE_RESIZE.0,
    /// Makes one of another, which ends even if that fails.
    ResizeOrFree = role::ROLE_RESIZE_OR_FREE.0,
    /// Changes the size of one where it is; returns what it then has.
    ResizeInPlace = role::ROLE_RESIZE_IN_PLACE.0,
    /// Ends one.
    Free = role::ROLE_FREE.0,
}

/// What a probe tells its program: the function, and which arguments are what, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index into the caller's function table.
    pub function: u8,
    /// Tells the function's module from all others.
    pub module: u32,
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
            (cookie_shift::COOKIE_MODULE, self.module.into()),
        ]
        .into_iter()
        .fold(0, |bits, (shift, value)| bits | value << shift.0)
    }
}

/// A probe could not be attached.
#[derive(Debug, Error)]
#[error("cannot probe {names} in {file}{hint}")]
pub struct AttachError {
    /// The functions.
    pub names: String,
    /// The file.
    pub file: String,
    /// What may be missing.
    pub hint: &'static str,
    /// What the kernel says.
    pub source: libbpf_rs::Error,
}

/// What who may not attach by `path` may lack.
fn hint(path: AttachPath, error: &libbpf_rs::Error) -> &'static str {
    // `perf_uprobe_event_init` of the kernel's kernel/events/core.c asks for it.
    match (path, error.kind()) {
        (AttachPath::Perf, ErrorKind::PermissionDenied) => {
            " by perf events, which need CAP_SYS_ADMIN: run as root (sudo memleak …), or use Linux 6.6 or newer, which has other ways"
        }
        _ => "",
    }
}

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Attached {
    // Dropped in this order.
    pub(super) allocations: Vec<Link>,
    pub(super) frees: Vec<Link>,
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
    let mut attached = Attached::default();
    let each = |program, moment, places: Vec<Place<'_>>, links: &mut Vec<Link>| {
        by_file(places)
            .iter()
            .try_for_each(|places| attach_file(program, path, moment, pid, places, links))
    };
    let entries = |wanted: fn(&CallEnd) -> bool| {
        let probes = probes.iter().filter(|probe| wanted(&probe.end));
        probes.map(Place::entry).collect::<Vec<_>>()
    };
    let is_unseen = |end: &CallEnd| *end == CallEnd::Unseen;
    let is_return_probe = |end: &CallEnd| *end == CallEnd::ReturnProbe;
    let is_rets = |end: &CallEnd| matches!(end, CallEnd::Rets(_));
    each(
        &programs.free_entry,
        Moment::Entry,
        entries(is_unseen),
        &mut attached.frees,
    )?;
    // Ends before beginnings: a call that is seen to begin must be seen to end.
    let links = &mut attached.allocations;
    each(&programs.allocation_ret, Moment::Entry, rets(probes), links)?;
    if path != AttachPath::Session {
        each(
            &programs.allocation_return,
            Moment::Return,
            entries(is_return_probe),
            links,
        )?;
    }
    each(&programs.allocation_entry, Moment::Entry, entries(is_rets), links)?;
    match path {
        AttachPath::Session => {
            each(
                &programs.allocation_session,
                Moment::Both,
                entries(is_return_probe),
                links,
            )?;
        }
        AttachPath::Multi | AttachPath::Perf => {
            each(
                &programs.allocation_entry,
                Moment::Entry,
                entries(is_return_probe),
                links,
            )?;
        }
    }
    Ok(attached)
}

/// One instruction of a probe.
#[derive(Clone, Copy)]
struct Place<'a> {
    probe: &'a Probe,
    offset: FileOffset,
    cookie: u64,
}

impl<'a> Place<'a> {
    fn entry(probe: &'a Probe) -> Self {
        let by_ret = u64::from(matches!(probe.end, CallEnd::Rets(_)));
        Self {
            probe,
            offset: probe.offset,
            cookie: probe.cookie.bits() | by_ret << cookie_shift::COOKIE_BY_RET.0,
        }
    }
}

/// The `ret` instructions of all probes, each once: functions share code that they jump to.
fn rets(probes: &[Probe]) -> Vec<Place<'_>> {
    let mut seen = HashSet::new();
    let mut places = Vec::new();
    for probe in probes {
        let CallEnd::Rets(offsets) = &probe.end else {
            continue;
        };
        let new = offsets
            .iter()
            .filter(|&&offset| seen.insert((&probe.path, offset)));
        places.extend(new.map(|&offset| Place {
            probe,
            offset,
            cookie: 0,
        }));
    }
    places
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
    pub(super) link: Link,
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
            hint: self::hint(path, &source),
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

/// Groups of at least one place, each of one file.
fn by_file(places: Vec<Place<'_>>) -> Vec<Vec<Place<'_>>> {
    let mut files: Vec<Vec<Place<'_>>> = Vec::new();
    for place in places {
        match files
            .iter_mut()
            .find(|file| file[0].probe.path == place.probe.path)
        {
            Some(file) => file.push(place),
            None => files.push(vec![place]),
        }
    }
    files
}

/// Attaches `program` at all `places`, which are in one file.
fn attach_file(
    program: &ProgramMut<'_>,
    path: AttachPath,
    moment: Moment,
    pid: i32,
    places: &[Place<'_>],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    if path != AttachPath::Perf {
        return keep(path, attach_multi(program, moment, pid, places), places, links);
    }
    places.iter().try_for_each(|place| {
        let options = UprobeOpts {
            cookie: place.cookie,
            retprobe: moment == Moment::Return,
            ..Default::default()
        };
        let link = program.attach_uprobe_with_opts(pid, &place.probe.path, position(place.offset), options);
        keep(path, link, std::slice::from_ref(place), links)
    })
}

fn attach_multi(
    program: &ProgramMut<'_>,
    moment: Moment,
    pid: i32,
    places: &[Place<'_>],
) -> Result<Link, libbpf_rs::Error> {
    let options = UprobeMultiOpts {
        offsets: places.iter().map(|place| position(place.offset)).collect(),
        cookies: places.iter().map(|place| place.cookie).collect(),
        retprobe: moment == Moment::Return,
        session: moment == Moment::Both,
        ..Default::default()
    };
    program.attach_uprobe_multi_with_opts(pid, &places[0].probe.path, "", options)
}

fn position(offset: FileOffset) -> usize {
    // File offsets fit: only 64-bit hosts are supported.
    usize::try_from(offset.get()).unwrap_or(usize::MAX)
}

fn keep(
    path: AttachPath,
    link: Result<Link, libbpf_rs::Error>,
    places: &[Place<'_>],
    links: &mut Vec<Link>,
) -> Result<(), AttachError> {
    let link = link.map_err(|source| {
        let names: Vec<_> = places
            .iter()
            .map(|place| format!("`{}`", place.probe.name))
            .collect();
        AttachError {
            names: names.join(", "),
            file: places[0].probe.file.clone(),
            hint: hint(path, &source),
            source,
        }
    })?;
    links.push(link);
    Ok(())
}
