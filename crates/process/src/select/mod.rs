//! Selection of the processes to trace by properties that people know: name, systemd unit, cgroup, container,
//! user.
//!
//! Reads `/proc` and runtimes' files. A [`Selection`] finds the processes that match now, and can be used
//! repeatedly.

pub(super) mod candidate;
mod cgroup;
mod container;
pub(crate) mod limit;
mod name;
mod nothing;
mod reached;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use thiserror::Error;

use super::launch;
use candidate::Candidate;
pub use cgroup::UnitQuery;
use cgroup::{Cgroups, Subtree};
pub use container::Ambiguous;
use container::{Container, Home, Named};
pub use limit::{MemoryLimit, MemoryLimits, MemoryUsage};
pub use name::NameQuery;
pub use nothing::Nothing;

/// Time for which names of containers are kept while the same containers run.
const NAMES_AGE: Duration = Duration::from_secs(1);

/// A value of `-p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Pid(u32),
    Name(NameQuery),
}

/// Properties of the processes to select. A process must match all that are given, and one of the values of
/// `-p`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Values of `-p`; any process if there are none.
    pub wanted: Vec<Wanted>,
    pub unit: Option<UnitQuery>,
    /// Path of a cgroup, which may be below a mount.
    pub cgroup: Option<String>,
    /// Name or ID of a container.
    pub container: Option<String>,
    /// Name or ID of a user.
    pub user: Option<String>,
}

impl Selectors {
    /// True if any selector besides `-p` is given.
    pub fn has_others(&self) -> bool {
        self.unit.is_some() || self.cgroup.is_some() || self.container.is_some() || self.user.is_some()
    }

    /// Processes that are given by number.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Pid(pid) => Some(*pid),
            Wanted::Name(_) => None,
        })
    }

    /// Names that are given.
    fn names(&self) -> impl Iterator<Item = &NameQuery> {
        self.wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Pid(_) => None,
            Wanted::Name(name) => Some(name),
        })
    }
}

/// A reason for which a process matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Pid as given.
    Pid,
    /// Name of the process.
    Name,
    /// Name or path of its executable.
    Executable,
    /// Name of the process, cut by the kernel, and confirmed by its command line.
    CommandLine,
    /// Path of a cgroup that it is in.
    Cgroup(String),
    /// ID of the container that it is in.
    Container(String),
    /// User, by name or ID as given.
    User(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid => f.write_str("by pid"),
            Self::Name => f.write_str("by name"),
            Self::Executable => f.write_str("by executable"),
            Self::CommandLine => f.write_str("by name and command line"),
            Self::Cgroup(path) => write!(f, "in {path}"),
            Self::Container(id) => write!(f, "in container {}", container::short(id)),
            Self::User(user) => write!(f, "of user {user}"),
        }
    }
}

/// A process that matches. It is identified by pid and start time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_time: u64,
    /// Lowest address of its code, most often another one after an exec. Without permission to read it, the
    /// kernel gives 1.
    pub start_code: u64,
    /// Command name, at most 15 bytes.
    pub comm: String,
    pub reasons: Vec<Reason>,
}

impl Found {
    /// Formats processes on one line. Groups those with the same name and the same reasons.
    pub fn list(all: &[Self]) -> String {
        let mut groups: BTreeMap<(&str, &[Reason]), Vec<String>> = BTreeMap::new();
        for found in all {
            let group = groups.entry((&found.comm, &found.reasons)).or_default();
            group.push(found.pid.to_string());
        }
        let texts = groups.iter().map(|((comm, reasons), pids)| {
            let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
            format!("{} ({comm}, {})", pids.join(","), reasons.join(", "))
        });
        texts.collect::<Vec<_>>().join("; ")
    }
}

/// Why nothing can be selected.
#[derive(Debug, Error)]
pub enum SelectError {
    #[error(transparent)]
    Nothing(#[from] Nothing),
    #[error(transparent)]
    Ambiguous(#[from] Ambiguous),
    #[error("no user is named `{0}`: give a name that `getent passwd` lists, or a user ID")]
    NoSuchUser(String),
    #[error("cannot look up user `{user}`: {error}; give the user ID")]
    User { user: String, error: io::Error },
    #[error("cannot read the processes of {}: {error}; is it mounted?", .path.display())]
    Proc { path: PathBuf, error: io::Error },
}

/// Sources of processes and names.
#[derive(Clone, Debug)]
struct Places {
    proc: PathBuf,
    root: PathBuf,
    home: Option<Home>,
    /// This process, which is never selected.
    own: u32,
}

/// A selection that can be used repeatedly.
#[derive(Debug)]
pub struct Selection {
    selectors: Selectors,
    places: Places,
    cgroup: Option<Subtree>,
    user: Option<u32>,
    names: Names,
}

/// All processes at a moment.
#[derive(Debug)]
pub struct Sight {
    /// Those that match, ascending.
    pub found: Vec<Found>,
    /// Pids and start times of those that do not.
    pub others: HashSet<(u32, u64)>,
}

/// Names of containers as they were last read.
#[derive(Debug, Default)]
struct Names {
    read: Option<Instant>,
    running: BTreeSet<Container>,
    all: Vec<Named>,
}

impl Names {
    /// Reads them again if other containers run, or if they are old.
    fn refresh(&mut self, running: BTreeSet<Container>, places: &Places) {
        let is_fresh = self.read.is_some_and(|read| read.elapsed() < NAMES_AGE);
        if !is_fresh || running != self.running {
            self.all = container::read_names(&places.root, places.home.as_ref());
            self.read = Some(Instant::now());
        }
        self.running = running;
    }
}

/// A candidate, and its cgroups if they are needed.
type Seen = (Candidate, Cgroups);

impl Selection {
    /// Prepares a selection of this system's processes.
    ///
    /// # Errors
    ///
    /// The user does not exist.
    pub fn new(selectors: Selectors) -> Result<Self, SelectError> {
        let places = Places {
            proc: "/proc".into(),
            root: "/".into(),
            home: home().filter(|_| selectors.container.is_some()),
            own: std::process::id(),
        };
        Self::at(selectors, places)
    }

    fn at(selectors: Selectors, places: Places) -> Result<Self, SelectError> {
        let mountinfo = || fs::read_to_string(places.proc.join("self/mountinfo")).unwrap_or_default();
        let cgroup = selectors
            .cgroup
            .as_ref()
            .map(|path| Subtree::new(path, &mountinfo()));
        let user = selectors.user.as_deref().map(user_id).transpose()?;
        Ok(Self {
            selectors,
            places,
            cgroup,
            user,
            names: Names::default(),
        })
    }

    /// Finds all processes that match now, ascending: at least one, and at least one for each name that is
    /// given.
    ///
    /// # Errors
    ///
    /// [`SelectError::Nothing`] if a match is missing: a later scan may succeed.
    pub fn scan(&mut self) -> Result<Vec<Found>, SelectError> {
        let seen = self.read()?;
        let container = self.containers(&seen)?;
        let found: Vec<_> = seen
            .iter()
            .filter_map(|seen| self.check(seen, container.as_ref()))
            .collect();
        let is_found = |name: &&NameQuery| {
            seen.iter().any(|(candidate, _)| {
                found.iter().any(|found| found.pid == candidate.pid)
                    && matches_name(name, candidate).is_some()
            })
        };
        let missing_name = self.selectors.names().find(|name| !is_found(name));
        // Without other selectors, pids are not checked here: opening the process gives a more precise error.
        let pids = self.selectors.pids().filter(|_| self.selectors.has_others());
        let missing_pid = { pids }.find(|&pid| !found.iter().any(|found| found.pid == pid));
        if found.is_empty() || missing_name.is_some() || missing_pid.is_some() {
            let nothing = nothing::Search {
                selectors: &self.selectors,
                seen: &seen,
                names: &self.names.all,
                running: &self.names.running,
            };
            return Err(nothing.explain(missing_name, missing_pid).into());
        }
        Ok(found)
    }

    /// Looks at all processes; it is no error if none matches.
    ///
    /// # Errors
    ///
    /// Processes cannot be read, or a name has become ambiguous.
    pub fn look(&mut self) -> Result<Sight, SelectError> {
        let seen = self.read()?;
        let mut sight = Sight {
            found: Vec::new(),
            others: HashSet::new(),
        };
        let container = self.containers(&seen)?;
        for seen in &seen {
            match self.check(seen, container.as_ref()) {
                Some(found) => sight.found.push(found),
                None => _ = sight.others.insert((seen.0.pid, seen.0.stat.start_time)),
            }
        }
        Ok(sight)
    }

    fn read(&self) -> Result<Vec<Seen>, SelectError> {
        let Places { proc, own, .. } = &self.places;
        let error = |error| SelectError::Proc {
            path: proc.clone(),
            error,
        };
        let candidates = Candidate::all(proc, *own).map_err(error)?;
        let selectors = &self.selectors;
        let by_cgroup =
            selectors.unit.is_some() || selectors.cgroup.is_some() || selectors.container.is_some();
        let with_cgroups = candidates.into_iter().map(|candidate| {
            let cgroups = match by_cgroup {
                true => candidate.cgroups(),
                false => Cgroups::default(),
            };
            (candidate, cgroups)
        });
        Ok(with_cgroups.collect())
    }

    /// The selected container, once for each slice that it runs in; `None` if no container is selected.
    fn containers(&mut self, seen: &[Seen]) -> Result<Option<BTreeSet<Container>>, SelectError> {
        let Some(text) = &self.selectors.container else {
            return Ok(None);
        };
        let running = seen
            .iter()
            .flat_map(|(_, cgroups)| container::containers_of(cgroups));
        self.names.refresh(running.collect(), &self.places);
        Ok(Some(container::choose(
            text,
            &self.names.running,
            &self.names.all,
        )?))
    }

    /// Checks all selectors, cheap ones first.
    fn check(&self, (candidate, cgroups): &Seen, containers: Option<&BTreeSet<Container>>) -> Option<Found> {
        let mut reasons = Vec::new();
        if !self.selectors.wanted.is_empty() {
            let mut wanted = self.selectors.wanted.iter();
            reasons.push(wanted.find_map(|wanted| match wanted {
                Wanted::Pid(pid) => (*pid == candidate.pid).then_some(Reason::Pid),
                Wanted::Name(name) => matches_name(name, candidate),
            })?);
        }
        if let Some(unit) = &self.selectors.unit {
            reasons.push(Reason::Cgroup(unit.find(cgroups)?.to_owned()));
        }
        if let Some(subtree) = &self.cgroup {
            reasons.push(Reason::Cgroup(subtree.find(cgroups)?.to_owned()));
        }
        if let Some(containers) = containers {
            let own = container::containers_of(cgroups);
            let container = own.into_iter().find(|container| containers.contains(container))?;
            reasons.push(Reason::Container(container.id));
        }
        if let Some(user) = self.user {
            let name = self.selectors.user.clone().unwrap_or_default();
            reasons.push((candidate.user()? == user).then_some(Reason::User(name))?);
        }
        reasons.dedup();
        Some(Found {
            pid: candidate.pid,
            start_time: candidate.stat.start_time,
            start_code: candidate.stat.start_code,
            comm: candidate.stat.comm.clone(),
            reasons,
        })
    }
}

fn matches_name(name: &NameQuery, candidate: &Candidate) -> Option<Reason> {
    name.matches(&candidate.stat.comm, || candidate.exe(), || candidate.words())
}

/// ID of a user given by name or number.
fn user_id(text: &str) -> Result<u32, SelectError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let found = launch::user_named(text).map_err(|error| SelectError::User {
        user: text.to_owned(),
        error,
    })?;
    found.ok_or_else(|| SelectError::NoSuchUser(text.to_owned()))
}

/// Home directory of the user for whom memleak runs, unless that is root.
fn home() -> Option<Home> {
    if let Some((user, _)) = launch::invoking_user().ok()? {
        let path = launch::invoking_home().ok()??;
        return Some(Home { path, user });
    }
    let user = geteuid();
    let path = std::env::var_os("HOME").filter(|_| !user.is_root())?;
    Some(Home {
        path: path.into(),
        user: user.as_raw(),
    })
}

#[cfg(test)]
mod tests;
