//! Attaching probes. Frees are attached before allocations and detached after them, so that every recorded block has its
//! free recorded.

use std::collections::HashSet;
use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, PerfEventOpts, ProgramMut, UprobeMultiOpts, UprobeOpts,
};
use thiserror::Error;
use unwind_tables::addr::FileOffset;

use super::attach_helper::{self, Refusal};
use super::dynamic_events::{self, Definition, DynamicEvents, Event};
use super::load::AttachPath;
use super::nop10;
use super::skeleton::MemleakProgs;
use super::skeleton::types::{cookie_shift, role, shared_events};
use super::usdt::UsdtProbe;

/// Position and meaning of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// File to probe, as the kernel can open it.
    pub path: PathBuf,
    /// File name for messages.
    pub file: String,
    /// Position of the instruction.
    pub offset: FileOffset,
    /// Function and meaning of its arguments.
    pub cookie: Cookie,
    /// How the end of a call is noticed.
    pub end: CallEnd,
    /// Function name for messages.
    pub name: String,
}

/// How the end of a call is noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// Not at all: a function that frees has done so when it is entered.
    Unseen,
    /// By a return probe.
    ReturnProbe,
    /// By a probe on each of these instructions, all `ret`, for a function that can throw: an exception that meets a return
    /// probe ends the program.
    Rets(Vec<FileOffset>),
}

/// Effect of a probed function on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProbeRole {
    /// Allocates a block.
    Allocate = role::ROLE_ALLOCATE.0,
    /// Reallocates a block, which stays if that fails.
    Resize = role::ROLE_RESIZE.0,
    /// Reallocates a block, which is freed even if that fails.
    ResizeOrFree = role::ROLE_RESIZE_OR_FREE.0,
    /// Changes the size of a block in place; returns the new size.
    ResizeInPlace = role::ROLE_RESIZE_IN_PLACE.0,
    /// Frees a block.
    Free = role::ROLE_FREE.0,
}

/// Function and argument positions, counted from 0, that a probe passes to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index into the caller's function table.
    pub function: u8,
    /// Number of the function's module.
    pub module: u32,
    pub role: ProbeRole,
    /// Argument with the requested size, or one factor of it.
    pub size: Option<u8>,
    /// Argument with the other factor.
    pub count: Option<u8>,
    /// Argument with the block to resize or free.
    pub block: Option<u8>,
    /// Argument with the address to store the new block's address at, if it is not returned.
    pub result: Option<u8>,
    /// True if the function calls no other probed function of its module.
    pub leaf: bool,
    /// True if a call can end on another thread than it began on.
    pub moves: bool,
}

impl Cookie {
    /// Packs the fields as `enum cookie_shift` of `bpf/shared.h` defines; arguments are counted from 1 there.
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
            (cookie_shift::COOKIE_MOVES, self.moves.into()),
            (cookie_shift::COOKIE_MODULE, self.module.into()),
        ]
        .into_iter()
        .fold(0, |bits, (shift, value)| bits | value << shift.0)
    }
}

#[derive(Debug, Error)]
#[error("cannot probe {names} in {file}{hint}")]
pub struct AttachError {
    pub names: String,
    pub file: String,
    /// Missing privilege and remedy, if known.
    pub hint: &'static str,
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

/// Missing privilege and remedy if `path` needs one that was denied, else empty.
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
    // Fields drop in this order.
    pub(super) allocations: Vec<OwnedFd>,
    pub(super) frees: Vec<OwnedFd>,
}

impl Attached {
    /// Number of links held: one per object, or one per probe and direction.
    pub fn link_count(&self) -> usize {
        self.allocations.len() + self.frees.len()
    }

    /// Has one more process, and those that it starts from then on, carry all `events`.
    ///
    /// # Errors
    ///
    /// An event could not be opened.
    pub fn carried(events: &DynamicEvents, process: u32) -> io::Result<Self> {
        Ok(Self {
            allocations: carry(events, &[process])?,
            frees: Vec::new(),
        })
    }

    pub fn add(&mut self, more: Self) {
        let Self { allocations, frees } = more;
        self.allocations.extend(allocations);
        self.frees.extend(frees);
    }
}

/// Processes that have a probe.
#[derive(Clone, Copy, Debug)]
pub enum ProbedIn<'a> {
    Process(u32),
    /// These, and those that they start from then on, by events that children inherit. Only by [`AttachPath::Perf`].
    Families(&'a DynamicEvents, &'a [u32]),
    /// All that have mapped the file.
    All,
}

impl ProbedIn<'_> {
    /// As the kernel expects it: -1 for all processes. No process id exceeds `i32::MAX`.
    fn pid(self) -> i32 {
        match self {
            Self::Process(pid) => i32::try_from(pid).unwrap_or(i32::MAX),
            Self::Families(..) | Self::All => -1,
        }
    }
}

pub(super) fn attach(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    probed_in: ProbedIn<'_>,
    cookies: &MapHandle,
    probes: &[Probe],
    usdt: &[UsdtProbe],
) -> Result<Attached, AttachError> {
    let announced = |program, frees: bool| {
        let places = usdt.iter().filter(|probe| probe.frees == frees).map(Place::usdt);
        requests(path, program, Moment::Entry, places.collect())
    };
    let frees = [
        free_requests(programs, path, probes),
        announced(&programs.usdt_free, true),
    ]
    .concat();
    let allocations = [
        allocation_requests(programs, path, probes),
        announced(&programs.usdt_allocation, false),
    ]
    .concat();
    let [frees, allocations] = [frees, allocations].map(|requests| match probed_in {
        ProbedIn::Families(..) => sharing_events(requests),
        ProbedIn::Process(_) | ProbedIn::All => requests,
    });
    let requests: Vec<_> = [frees.as_slice(), &allocations].concat();
    let mut links = make_links(&requests, path, probed_in, cookies)?;
    let allocations = links.split_off(frees.len());
    Ok(Attached {
        allocations: allocations.into_iter().flatten().collect(),
        frees: links.into_iter().flatten().collect(),
    })
}

/// Makes the links of all requests, each with what else holds its probes.
fn make_links(
    requests: &[Request<'_>],
    path: AttachPath,
    probed_in: ProbedIn<'_>,
    cookies: &MapHandle,
) -> Result<Vec<Vec<OwnedFd>>, AttachError> {
    let refused = |(number, refusal): (usize, Refusal)| {
        let request: &Request<'_> = &requests[number];
        request.error(path, refusal)
    };
    let links = match probed_in {
        ProbedIn::Families(events, processes) => {
            let define = |(number, request): (usize, &Request<'_>)| {
                let event = request.define(events, cookies);
                event.map_err(|error| refused((number, Refusal::other(format!("no dynamic event: {error}")))))
            };
            let events = requests.iter().enumerate().map(define);
            let events = events.collect::<Result<Vec<_>, _>>()?;
            attach_helper::make_links(requests.len(), |number| {
                let (event, cookie) = events[number];
                requests[number].make_inherited(event, cookie, processes)
            })
        }
        ProbedIn::Process(_) | ProbedIn::All => attach_helper::make_links(requests.len(), |number| {
            let link = requests[number].make(path, probed_in.pid())?;
            Ok(vec![attach_helper::descriptor(&link)?])
        }),
    };
    links.map_err(refused)
}

/// Has more processes, and those that they start from then on, carry all `events`.
fn carry(events: &DynamicEvents, processes: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let numbers = events.numbers()?;
    let carry = |number: usize| {
        let carriers = dynamic_events::carry(numbers[number], processes);
        carriers
            .map_err(|error| libbpf_rs::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))
    };
    let carriers = attach_helper::make_links(numbers.len(), carry);
    let carriers = carriers.map_err(|(_, refusal)| io::Error::other(refusal.to_string()))?;
    Ok(carriers.into_iter().flatten().collect())
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

/// Links for allocations, in the order in which they are to be made.
fn allocation_requests<'a>(
    programs: &'a MemleakProgs<'_>,
    path: AttachPath,
    probes: &'a [Probe],
) -> Vec<Request<'a>> {
    let is_rets = |end: &CallEnd| matches!(end, CallEnd::Rets(_));
    let returning = || entries(probes, |end| *end == CallEnd::ReturnProbe);
    let entry = |places| requests(path, &programs.allocation_entry, Moment::Entry, places);
    // Returns before entries: a call whose entry is recorded must have its return recorded.
    let (by_ret, returns, beginnings) = match path {
        AttachPath::Session => {
            let both = |places| requests(path, &programs.allocation_session, Moment::Both, places);
            (both(rets(probes)), vec![], both(returning()))
        }
        AttachPath::Multi | AttachPath::Perf => {
            let end = |moment, places| requests(path, &programs.allocation_return, moment, places);
            let returns = end(Moment::Return, returning());
            (end(Moment::Entry, rets(probes)), returns, entry(returning()))
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
    /// At least one, all in one file; exactly one for perf events.
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

/// Joins requests whose probes can share an event, in their order.
fn sharing_events(requests: Vec<Request<'_>>) -> Vec<Request<'_>> {
    let mut joined: Vec<Request<'_>> = Vec::new();
    for request in requests {
        let fits = |one: &&mut Request<'_>| {
            let is_same = std::ptr::eq(one.program, request.program) && one.moment == request.moment;
            let is_free =
                |place: &Place<'_>| one.places.iter().all(|other| other.in_page() != place.in_page());
            is_same && request.places.iter().all(is_free)
        };
        match joined.iter_mut().find(fits) {
            Some(one) => one.places.extend(request.places),
            None => joined.push(request),
        }
    }
    joined
}

impl Request<'_> {
    fn make(&self, path: AttachPath, pid: i32) -> Result<Link, libbpf_rs::Error> {
        let first = self.places[0];
        let file = first.path;
        if path == AttachPath::Perf {
            let options = UprobeOpts {
                cookie: first.cookie,
                retprobe: self.moment == Moment::Return,
                ref_ctr_offset: position(first.semaphore),
                ..Default::default()
            };
            return self
                .program
                .attach_uprobe_with_opts(pid, file, position(first.offset), options);
        }
        let options = UprobeMultiOpts {
            offsets: self.places.iter().map(|place| position(place.offset)).collect(),
            cookies: self.places.iter().map(|place| place.cookie).collect(),
            ref_ctr_offsets: self.semaphores(),
            retprobe: self.moment == Moment::Return,
            session: self.moment == Moment::Both,
            ..Default::default()
        };
        self.program.attach_uprobe_multi_with_opts(pid, file, "", options)
    }

    /// Defines its dynamic event, and tells the kernel side what each place means. Returns the event's cookie with it.
    fn define(&self, events: &DynamicEvents, cookies: &MapHandle) -> anyhow::Result<(Event, u64)> {
        let at_return = self.moment == Moment::Return;
        let event = events.define(self.places.iter().map(|place| Definition {
            path: place.path,
            offset: place.offset,
            semaphore: place.semaphore,
            at_return,
        }))?;
        let first = self.places[0].cookie;
        if at_return || self.places.iter().all(|place| place.cookie == first) {
            return Ok((event, if at_return { 0 } else { first }));
        }
        let index = u64::from(event.index);
        for place in &self.places {
            let key = index << shared_events::PROBE_PLACE_BITS.0 | place.in_page();
            cookies.update(&key.to_ne_bytes(), &place.cookie.to_ne_bytes(), MapFlags::ANY)?;
        }
        let of_probe = u64::from(shared_events::ROLE_OF_PROBE.0) << cookie_shift::COOKIE_ROLE.0;
        Ok((event, of_probe | index << cookie_shift::COOKIE_MODULE.0))
    }

    /// Has `processes` carry its dynamic event, and attaches the program to that.
    fn make_inherited(
        &self,
        event: Event,
        cookie: u64,
        processes: &[u32],
    ) -> Result<Vec<OwnedFd>, libbpf_rs::Error> {
        let error =
            |error: io::Error| libbpf_rs::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO));
        let own = dynamic_events::open_for_program(event.number, processes).map_err(error)?;
        let options = PerfEventOpts {
            cookie,
            ..Default::default()
        };
        // The link owns the descriptor that it is given.
        let link = self
            .program
            .attach_perf_event_with_opts(own.into_raw_fd(), options)?;
        let mut held = dynamic_events::carry(event.number, processes).map_err(error)?;
        held.push(attach_helper::descriptor(&link)?);
        Ok(held)
    }

    /// Positions of the places' semaphores; empty if none has one.
    fn semaphores(&self) -> Vec<usize> {
        let any = self.places.iter().any(|place| place.semaphore.get() != 0);
        let all = self.places.iter().map(|place| position(place.semaphore));
        if any { all.collect() } else { Vec::new() }
    }

    fn error(&self, path: AttachPath, refusal: Refusal) -> AttachError {
        let name = |place: &Place<'_>| match place.name.contains(' ') {
            true => place.name.to_owned(),
            false => format!("`{}`", place.name),
        };
        let names: Vec<_> = self.places.iter().map(name).collect();
        AttachError::new(path, &names.join(", "), self.places[0].file, refusal)
    }
}

/// An instruction to probe, with its cookie.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path,
    /// Names of the file and of the probe, for messages.
    file: &'a str,
    name: &'a str,
    offset: FileOffset,
    /// 0 if there is none.
    semaphore: FileOffset,
    cookie: u64,
}

impl<'a> Place<'a> {
    /// Its place in its page, which is that of the instruction wherever its file is mapped.
    fn in_page(&self) -> u64 {
        self.offset.get() & ((1 << shared_events::PROBE_PLACE_BITS.0) - 1)
    }

    fn function(probe: &'a Probe, offset: FileOffset, cookie: u64) -> Self {
        Self {
            path: &probe.path,
            file: &probe.file,
            name: &probe.name,
            offset,
            semaphore: FileOffset::new(0),
            cookie,
        }
    }

    fn entry(probe: &'a Probe) -> Self {
        let by_ret = u64::from(matches!(probe.end, CallEnd::Rets(_)));
        let cookie = probe.cookie.bits() | by_ret << cookie_shift::COOKIE_BY_RET.0;
        Self::function(probe, probe.offset, cookie)
    }

    fn usdt(probe: &'a UsdtProbe) -> Self {
        let (function, site) = (u64::from(probe.function), u64::from(probe.site));
        let distance = probe.distance.map_or(0, |distance| u64::from(distance.ilog2()));
        let nop10 = probe.nop10.filter(|_| nop10::outcome() == nop10::Outcome::Call);
        Self {
            path: &probe.path,
            file: &probe.file,
            name: &probe.name,
            offset: nop10.unwrap_or(probe.offset),
            semaphore: probe.semaphore.unwrap_or(FileOffset::new(0)),
            cookie: function << cookie_shift::COOKIE_FUNCTION.0
                | distance << cookie_shift::COOKIE_DISTANCE.0
                | site << cookie_shift::COOKIE_MODULE.0,
        }
    }
}

/// Entries of the functions whose end is noticed in a `wanted` way.
fn entries(probes: &[Probe], wanted: impl Fn(&CallEnd) -> bool) -> Vec<Place<'_>> {
    let probes = probes.iter().filter(|probe| wanted(&probe.end));
    probes.map(Place::entry).collect()
}

/// The `ret` instructions of all probes, without duplicates: functions can share code that they jump to.
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
        let at_ret = 1 << cookie_shift::COOKIE_AT_RET.0;
        places.extend(new.map(|&offset| Place::function(probe, offset, at_ret)));
    }
    places
}

/// Event that a hook announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// The loader maps or unmaps objects.
    Loader,
    /// The program is about to end.
    Exit,
    /// A code object of Python ends.
    PythonCode,
}

/// An instruction that a target executes whenever something happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: HookKind,
    /// File that has it, as the kernel can open it.
    pub path: PathBuf,
    /// File name for messages.
    pub file: String,
    /// Position of the instruction.
    pub offset: FileOffset,
}

/// An attached hook; dropping it detaches.
#[derive(Debug)]
pub struct AttachedHook {
    pub(super) links: Vec<OwnedFd>,
}

pub(super) fn attach_hook(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    probed_in: ProbedIn<'_>,
    cookies: &MapHandle,
    hook: &Hook,
) -> Result<AttachedHook, AttachError> {
    let (program, name) = match hook.kind {
        HookKind::Loader => (&programs.loader_hook, "the loader's hook"),
        HookKind::Exit => (&programs.exit_hook, "the end of the program"),
        HookKind::PythonCode => (&programs.python_code_end, "the end of Python's code objects"),
    };
    let place = Place {
        path: &hook.path,
        file: &hook.file,
        name,
        offset: hook.offset,
        semaphore: FileOffset::new(0),
        cookie: 0,
    };
    let request = Request {
        program,
        moment: Moment::Entry,
        places: vec![place],
    };
    let links = make_links(&[request], path, probed_in, cookies)?;
    Ok(AttachedHook {
        links: links.into_iter().flatten().collect(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Entry,
    Return,
    Both,
}

/// Groups places by file; no group is empty.
fn by_file(places: Vec<Place<'_>>) -> Vec<Vec<Place<'_>>> {
    let mut files: Vec<Vec<Place<'_>>> = Vec::new();
    for place in places {
        match files.iter_mut().find(|file| file[0].path == place.path) {
            Some(file) => file.push(place),
            None => files.push(vec![place]),
        }
    }
    files
}

fn position(offset: FileOffset) -> usize {
    // It fits: only 64-bit hosts are supported.
    usize::try_from(offset.get()).unwrap_or(usize::MAX)
}
