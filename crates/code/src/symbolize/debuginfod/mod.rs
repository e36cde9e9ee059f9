//! Opt-in fetching of debug files from servers that index them by build-id
//! (<https://sourceware.org/elfutils/Debuginfod.html>). Only build-ids are sent.
//!
//! Files are fetched by a separate thread, one after the other. No report waits for them while processes are
//! traced, as mapping changes must be followed: each uses the files that have arrived. Only the last report
//! waits.

mod cache;
mod client;
mod settings;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::debug_file::BuildId;
use cache::{Cache, Cached};
use client::{Answer, Client};
use leak_report::units::size;
pub use settings::DebuginfodSettings;

/// Interval in which a waiting caller checks its patience.
const TICK: Duration = Duration::from_millis(100);

/// Access to debuginfod servers and to the files fetched from them.
pub struct Debuginfod {
    requests: Sender<Request>,
    shared: Arc<Shared>,
    cache: Cache,
    timeout: Duration,
    patience: Patience,
    has_waited: Cell<bool>,
}

/// Time that a caller waits for the files that it needs.
#[derive(Clone, Debug, Default)]
pub enum Patience {
    #[default]
    None,
    /// Waits as long as there is progress.
    Long,
    /// Waits as long as there is progress, until this is set.
    Until(Arc<AtomicBool>),
}

impl Patience {
    /// Text for messages that says how the user can end the wait.
    fn how_to_end(&self) -> &'static str {
        match self {
            Self::None | Self::Until(_) => "Ctrl-C makes the report without them",
            Self::Long => "Ctrl-C again exits without a report",
        }
    }

    fn lasts(&self) -> bool {
        match self {
            Self::None => false,
            Self::Long => true,
            Self::Until(end) => !end.load(Ordering::Relaxed),
        }
    }
}

/// A file to fetch.
struct Request {
    id: BuildId,
    /// File name of its object, for messages.
    name: String,
}

/// State shared with the fetching thread.
#[derive(Default)]
struct Shared {
    states: Mutex<HashMap<BuildId, State>>,
    /// Signalled when a state has changed.
    changed: Condvar,
    /// Incremented whenever data arrives or a request is made.
    progress: AtomicU64,
}

/// State of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Requested,
    Found(PathBuf),
    Missing,
}

/// Result of looking for a file.
#[derive(Debug)]
pub(super) enum Fetch {
    Found(File),
    /// No server has it, or it could not be fetched.
    Missing,
    /// Requested, and not yet fetched.
    NotYet,
}

/// Progress of a requested file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Fetched.
    Found,
    /// No server has it, or it could not be fetched.
    Never,
    /// Not yet fetched.
    Awaited,
}

impl Debuginfod {
    /// Starts the fetching thread. Servers are contacted when the first file is needed.
    ///
    /// # Errors
    ///
    /// The cache is unusable, or the thread cannot be started.
    pub fn start(settings: DebuginfodSettings) -> io::Result<Self> {
        let cache = Cache::open(&settings.cache).map_err(|error| {
            let directory = settings.cache.display();
            let remedy = "name another directory in DEBUGINFOD_CACHE_PATH";
            io::Error::new(
                error.kind(),
                format!("cannot keep debug files in {directory}: {error}; {remedy}"),
            )
        })?;
        let timeout = settings.timeout;
        let shared = Arc::new(Shared::default());
        let (requests, wanted) = mpsc::channel();
        let fetcher = Fetcher {
            client: Client::new(settings, cache.clone()),
            cache: cache.clone(),
            shared: Arc::clone(&shared),
        };
        thread::Builder::new()
            .name("debuginfod".to_owned())
            .spawn(move || fetcher.run(&wanted))?;
        Ok(Self {
            requests,
            shared,
            cache,
            timeout,
            patience: Patience::None,
            has_waited: Cell::new(false),
        })
    }

    pub(super) fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Finds the debug file of the object at `object` with this build-id; requests it if it is not cached.
    pub(super) fn find(&self, id: &BuildId, object: &Path) -> Fetch {
        let mut states = self.shared.lock();
        if !states.contains_key(id) {
            let state = match self.cache.get(id) {
                Cached::File(path) => State::Found(path),
                Cached::Missing => State::Missing,
                Cached::Nothing => self.request(id, object),
            };
            states.insert(id.clone(), state);
        }
        if states.get(id) == Some(&State::Requested) && self.patience.lasts() {
            states = self.wait(states, id);
        }
        let state = states.get(id).cloned();
        drop(states);
        match state {
            Some(State::Found(path)) => {
                let opened = id.open_same(Path::new("/"), &path);
                opened.map_or(Fetch::Missing, |opened| Fetch::Found(opened.file))
            }
            Some(State::Requested) => Fetch::NotYet,
            Some(State::Missing) | None => Fetch::Missing,
        }
    }

    /// Progress of a file that [`Debuginfod::find`] has requested.
    pub(super) fn arrival(&self, id: &BuildId) -> Arrival {
        match self.shared.lock().get(id) {
            Some(State::Found(_)) => Arrival::Found,
            Some(State::Requested) => Arrival::Awaited,
            Some(State::Missing) | None => Arrival::Never,
        }
    }

    fn request(&self, id: &BuildId, object: &Path) -> State {
        let name = object.file_name().unwrap_or(object.as_os_str());
        let request = Request {
            id: id.clone(),
            name: name.to_string_lossy().into_owned(),
        };
        match self.requests.send(request) {
            Ok(()) => State::Requested,
            // The thread has panicked.
            Err(_) => State::Missing,
        }
    }

    /// Waits until a file was fetched or will not be, as long as there is progress and patience lasts.
    fn wait<'a>(
        &'a self,
        mut states: MutexGuard<'a, HashMap<BuildId, State>>,
        id: &BuildId,
    ) -> MutexGuard<'a, HashMap<BuildId, State>> {
        if !self.has_waited.replace(true) {
            tracing::info!(
                "debuginfod: the report waits for debug files; {}",
                self.patience.how_to_end()
            );
        }
        let mut last = (self.shared.progress.load(Ordering::Relaxed), Instant::now());
        while states.get(id) == Some(&State::Requested) && self.patience.lasts() {
            let progress = self.shared.progress.load(Ordering::Relaxed);
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            if last.1.elapsed() > self.timeout {
                tracing::warn!(
                    "debuginfod: no data for {} seconds (DEBUGINFOD_TIMEOUT): looking up names without this \
                     file",
                    self.timeout.as_secs()
                );
                states.insert(id.clone(), State::Missing);
                break;
            }
            let waited = self.shared.changed.wait_timeout(states, TICK);
            states = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        states
    }
}

impl Shared {
    /// A poisoned lock is usable: nothing panics while holding it.
    fn lock(&self) -> MutexGuard<'_, HashMap<BuildId, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fetching thread.
struct Fetcher {
    client: Client,
    cache: Cache,
    shared: Arc<Shared>,
}

impl Fetcher {
    fn run(mut self, wanted: &Receiver<Request>) {
        self.cache.clean();
        for request in wanted {
            let state = self.fetch(&request);
            self.shared.lock().insert(request.id, state);
            self.shared.changed.notify_all();
        }
    }

    fn fetch(&mut self, Request { id, name }: &Request) -> State {
        if !self.client.has_servers() {
            return State::Missing;
        }
        tracing::info!("debuginfod: asking for the debug information of {name} (build {id})");
        let began = Instant::now();
        match self.client.fetch(id, &self.shared.progress) {
            Answer::Fetched { path, bytes, server } => {
                let size = size(bytes);
                let seconds = began.elapsed().as_secs_f32();
                tracing::info!("debuginfod: {name}: {size} from {server} in {seconds:.1} s");
                State::Found(path)
            }
            Answer::Missing => {
                tracing::info!("debuginfod: {name}: no server has it");
                State::Missing
            }
            Answer::Failed => State::Missing,
        }
    }
}
