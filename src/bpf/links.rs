//! Links to be made: a program, the instructions that it is attached to, and in which processes.

use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::path::Path;

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, PerfEventOpts, ProgramMut, UprobeMultiOpts, UprobeOpts,
};
use unwind_tables::addr::FileOffset;

use super::attach_helper::{self, Refusal, as_libbpf_says};
use super::dynamic_events::{self, Definition, DynamicEvents, Event};
use super::nop10;
use super::probe::{AttachError, CallEnd, Probe, ProbedIn};
use super::settings::AttachPath;
use super::skeleton::types::{cookie_shift, shared_events};
use super::usdt::UsdtProbe;

/// Makes the links of all requests. Returns for each its descriptor and those of events that keep its probes.
pub(super) fn make_links(
    requests: &[Request<'_>],
    path: AttachPath,
    probed_in: &ProbedIn<'_>,
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
                event.map_err(|error| {
                    refused((
                        number,
                        Refusal::other(format!("cannot define a dynamic event: {error}")),
                    ))
                })
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

/// A link to be made.
#[derive(Clone)]
pub(super) struct Request<'a> {
    pub(super) program: &'a ProgramMut<'a>,
    pub(super) moment: Moment,
    /// Instructions to probe: at least one, all in one file; exactly one for perf events.
    pub(super) places: Vec<Place<'a>>,
}

pub(super) fn requests<'a>(
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
pub(super) fn sharing_events(requests: Vec<Request<'_>>) -> Vec<Request<'_>> {
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

    /// Defines its dynamic event, and tells the kernel side what each place means. Returns the event's cookie
    /// with it.
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

    /// Makes `processes` carry its dynamic event, and attaches the program to that.
    fn make_inherited(
        &self,
        event: Event,
        cookie: u64,
        processes: &[u32],
    ) -> Result<Vec<OwnedFd>, libbpf_rs::Error> {
        let own = dynamic_events::open_for_program(event.number, processes);
        let own = own.map_err(|error| as_libbpf_says(&error))?;
        let options = PerfEventOpts {
            cookie,
            ..Default::default()
        };
        // The link owns the descriptor that it is given.
        let link = self
            .program
            .attach_perf_event_with_opts(own.into_raw_fd(), options)?;
        let held = dynamic_events::carry(event.number, processes);
        let mut held = held.map_err(|error| as_libbpf_says(&error))?;
        held.push(attach_helper::descriptor(&link)?);
        Ok(held)
    }

    /// Positions of the places' semaphores; empty if none has one.
    fn semaphores(&self) -> Vec<usize> {
        let any = self.places.iter().any(|place| place.semaphore.get() != 0);
        let all = self.places.iter().map(|place| position(place.semaphore));
        if any { all.collect() } else { Vec::new() }
    }

    pub(super) fn error(&self, path: AttachPath, refusal: Refusal) -> AttachError {
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
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    /// Names of the file and of the probe, for messages.
    pub(super) file: &'a str,
    pub(super) name: &'a str,
    pub(super) offset: FileOffset,
    /// 0 if there is none.
    pub(super) semaphore: FileOffset,
    pub(super) cookie: u64,
}

impl<'a> Place<'a> {
    /// Offset of the instruction in its page, which is the same wherever its file is mapped.
    fn in_page(&self) -> u64 {
        self.offset.get() & ((1 << shared_events::PROBE_PLACE_BITS.0) - 1)
    }

    pub(super) fn function(probe: &'a Probe, offset: FileOffset, cookie: u64) -> Self {
        Self {
            path: &probe.path,
            file: &probe.file,
            name: &probe.name,
            offset,
            semaphore: FileOffset::new(0),
            cookie,
        }
    }

    pub(super) fn entry(probe: &'a Probe) -> Self {
        let by_ret = u64::from(matches!(probe.end, CallEnd::Rets(_)));
        let cookie = probe.cookie.bits() | by_ret << cookie_shift::COOKIE_BY_RET.0;
        Self::function(probe, probe.offset, cookie)
    }

    pub(super) fn usdt(probe: &'a UsdtProbe) -> Self {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
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
