//! Probes onto their sites. Frees are attached before allocations and detached after them, so that no block
//! is recorded whose free is not.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};
use thiserror::Error;
use unwind_tables::addr::FileOffset;

use super::attach_helper::{self, Refusal};
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
    pub source: Refusal,
}

impl AttachError {
    fn new(path: AttachPath, names: &str, file: &str, source: Refusal) -> Self {
        Self {
            names: names.to_owned(),
            file: file.to_owned(),
            hint: hint(path, &source),
            source,
        }
    }
}

/// What who may not attach by `path` may lack.
fn hint(path: AttachPath, refusal: &Refusal) -> &'static str {
    // `perf_uprobe_event_init` of the kernel's kernel/events/core.c asks for it.
    if path == AttachPath::Perf && refusal.denied {
        " by perf events, which need CAP_SYS_ADMIN: run as root (sudo memleak …), or use Linux 6.6 or newer, which has other ways"
    } else {
        ""
    }
}

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Attached {
    // Dropped in this order.
    pub(super) allocations: Vec<OwnedFd>,
    pub(super) frees: Vec<OwnedFd>,
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
    let frees = free_requests(programs, path, probes);
    let requests: Vec<_> = [frees.as_slice(), &allocation_requests(programs, path, probes)].concat();
    let links = attach_helper::make_links(requests.len(), |number| requests[number].make(path, pid));
    let mut links = links.map_err(|(number, refusal)| requests[number].error(path, refusal))?;
    let allocations = links.split_off(frees.len());
    Ok(Attached {
        allocations,
        frees: links,
    })
}

fn free_requests<'a>(
    programs: &'a MemleakProgs<'_>,
    path: AttachPath,
    probes: &'a [Probe],
) -> Vec<Request<'a>> {
    let is_unseen = |end: &CallEnd| *end == CallEnd::Unseen;
    requests(
        path,
        &programs.free_entry,
        Moment::Entry,
        entries(probes, is_unseen),
    )
}

/// In the order in which they are to be made.
fn allocation_requests<'a>(
    programs: &'a MemleakProgs<'_>,
    path: AttachPath,
    probes: &'a [Probe],
) -> Vec<Request<'a>> {
    let is_rets = |end: &CallEnd| matches!(end, CallEnd::Rets(_));
    let returning = || entries(probes, |end| *end == CallEnd::ReturnProbe);
    let entry = |places| requests(path, &programs.allocation_entry, Moment::Entry, places);
    // Ends before beginnings: a call that is seen to begin must be seen to end.
    let by_ret = requests(path, &programs.allocation_ret, Moment::Entry, rets(probes));
    let (returns, beginnings) = match path {
        AttachPath::Session => {
            let both = &programs.allocation_session;
            (vec![], requests(path, both, Moment::Both, returning()))
        }
        AttachPath::Multi | AttachPath::Perf => {
            let at_return = &programs.allocation_return;
            let returns = requests(path, at_return, Moment::Return, returning());
            (returns, entry(returning()))
        }
    };
    let by_ret_beginnings = entry(entries(probes, is_rets));
    [by_ret, returns, by_ret_beginnings, beginnings].concat()
}

/// A link to be made.
#[derive(Clone)]
struct Request<'a> {
    program: &'a ProgramMut<'a>,
    moment: Moment,
    /// At least one, in one file; one alone by perf events.
    places: Vec<Place<'a>>,
}

fn requests<'a>(
    path: AttachPath,
    program: &'a ProgramMut<'a>,
    moment: Moment,
    places: Vec<Place<'a>>,
) -> Vec<Request<'a>> {
    let groups = match path {
        AttachPath::Perf => places.into_iter().map(|place| vec![place]).collect(),
        AttachPath::Session | AttachPath::Multi => by_file(places),
    };
    let request = |places| Request {
        program,
        moment,
        places,
    };
    groups.into_iter().map(request).collect()
}

impl Request<'_> {
    fn make(&self, path: AttachPath, pid: i32) -> Result<Link, libbpf_rs::Error> {
        let first = self.places[0];
        let file = &first.probe.path;
        if path == AttachPath::Perf {
            let options = UprobeOpts {
                cookie: first.cookie,
                retprobe: self.moment == Moment::Return,
                ..Default::default()
            };
            return self
                .program
                .attach_uprobe_with_opts(pid, file, position(first.offset), options);
        }
        let options = UprobeMultiOpts {
            offsets: self.places.iter().map(|place| position(place.offset)).collect(),
            cookies: self.places.iter().map(|place| place.cookie).collect(),
            retprobe: self.moment == Moment::Return,
            session: self.moment == Moment::Both,
            ..Default::default()
        };
        self.program.attach_uprobe_multi_with_opts(pid, file, "", options)
    }

    fn error(&self, path: AttachPath, refusal: Refusal) -> AttachError {
        let name = |place: &Place<'_>| format!("`{}`", place.probe.name);
        let names: Vec<_> = self.places.iter().map(name).collect();
        AttachError::new(path, &names.join(", "), &self.places[0].probe.file, refusal)
    }
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

/// The entries of functions whose ends are seen as `wanted`.
fn entries(probes: &[Probe], wanted: impl Fn(&CallEnd) -> bool) -> Vec<Place<'_>> {
    let probes = probes.iter().filter(|probe| wanted(&probe.end));
    probes.map(Place::entry).collect()
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
    pub(super) link: OwnedFd,
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
    let make = |_| {
        if path == AttachPath::Perf {
            return program.attach_uprobe_with_opts(pid, &hook.path, offset, UprobeOpts::default());
        }
        let options = UprobeMultiOpts {
            offsets: vec![offset],
            ..Default::default()
        };
        program.attach_uprobe_multi_with_opts(pid, &hook.path, "", options)
    };
    let error = |refusal| AttachError::new(path, "the loader's hook", &hook.file, refusal);
    let links = attach_helper::make_links(1, make).map_err(|(_, refusal)| error(refusal))?;
    let link = links
        .into_iter()
        .next()
        .expect("one was asked for, and none refused");
    Ok(AttachedHook { link })
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

fn position(offset: FileOffset) -> usize {
    // File offsets fit: only 64-bit hosts are supported.
    usize::try_from(offset.get()).unwrap_or(usize::MAX)
}
