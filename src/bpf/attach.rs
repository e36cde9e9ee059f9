//! Attaching probes. Frees are attached before allocations and detached after them, so that every recorded
//! block has its free recorded.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use libbpf_rs::MapHandle;
use unwind_tables::addr::FileOffset;

use super::attach_helper::{self, Refusal, as_libbpf_says};
use super::dynamic_events::{self, DynamicEvents};
use super::links::{Moment, Place, Request, make_links, requests, sharing_events};
use super::probe::{AttachError, CallEnd, Probe, ProbedIn};
use super::return_probes;
use super::settings::AttachPath;
use super::skeleton::MemleakProgs;
use super::skeleton::types::cookie_shift;
use super::usdt::UsdtProbe;

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Attached {
    // Fields drop in this order.
    pub(super) allocations: Vec<OwnedFd>,
    pub(super) frees: Vec<OwnedFd>,
}

impl Attached {
    /// Number of links: one per object, or one per probe and direction.
    pub fn link_count(&self) -> usize {
        self.allocations.len() + self.frees.len()
    }

    /// Makes one more process, and those that it starts from then on, carry all `events`.
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

/// Probes to attach, all or none.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) probes: &'a [Probe],
    pub(super) usdt: &'a [UsdtProbe],
}

pub(super) fn attach(
    programs: &MemleakProgs<'_>,
    path: AttachPath,
    probed_in: &ProbedIn<'_>,
    cookies: &MapHandle,
    Wanted { probes, usdt }: Wanted<'_>,
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
    if let Some(harm) = return_probes::harm(probed_in, probes)
        && let Some(request) = allocations.first()
    {
        return Err(request.error(path, Refusal::other(harm)));
    }
    let mut links = make_links(&requests, path, probed_in, cookies)?;
    let allocations = links.split_off(frees.len());
    Ok(Attached {
        allocations: allocations.into_iter().flatten().collect(),
        frees: links.into_iter().flatten().collect(),
    })
}

/// Makes more processes, and those that they start from then on, carry all `events`.
fn carry(events: &DynamicEvents, processes: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let numbers = events.numbers()?;
    let carry = |number: usize| {
        let carriers = dynamic_events::carry(numbers[number], processes);
        carriers.map_err(|error| as_libbpf_says(&error))
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

/// Links for allocations, in the order in which they are made.
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
    /// File that contains the instruction, as the kernel can open it.
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
    probed_in: &ProbedIn<'_>,
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
