//! Reads the code of a JVM that starts up as soon as there is any: a JVM that runs a small program may end
//! before anything else reads it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unwind_tables::addr::Bias;

use super::generated::GeneratedCode;
use super::hotspot::{LONGEST_JVM_BEGINNING, jvm_code};
use super::jvm_code::JvmCode;
use super::maps::MapsName;
use super::maps_of;
use super::modules::Module;
use super::process_memory::ProcessMemory;
use memleak_base::parallel::lock;

/// Pause between two looks. A JVM has code 20 ms after it was mapped, and may end 50 ms later. Once code was
/// found, the pause doubles each time: the rest appears while the JVM runs.
const PAUSE: Duration = Duration::from_millis(2);

/// Facts about a JVM's code, and a copy of it.
type FoundCode = (JvmCode, GeneratedCode);

/// A thread that looks for the code of one JVM, for some seconds. It ends soon after this is dropped.
#[derive(Debug)]
pub struct JvmWatch {
    found: Arc<Mutex<Option<FoundCode>>>,
    thread: JoinHandle<()>,
    _end: Sender<()>,
}

impl JvmWatch {
    /// Watches the JVM with one of `libraries` in process `pid`.
    pub(super) fn start(
        pid: u32,
        libraries: Vec<(Arc<Module>, Bias)>,
        memory: ProcessMemory,
    ) -> io::Result<Self> {
        let found = Arc::default();
        let (end, ended) = channel();
        let looks = Looks {
            pid,
            libraries,
            memory,
            found: Arc::clone(&found),
        };
        let thread = thread::Builder::new().name("memleak-jvm".to_owned());
        Ok(Self {
            found,
            thread: thread.spawn(move || looks.go_on(&ended))?,
            _end: end,
        })
    }

    /// Takes the latest result; `None` if there was none since the last call.
    pub fn take(&self) -> Option<FoundCode> {
        lock(&self.found).take()
    }

    /// True as long as the thread runs.
    pub fn goes_on(&self) -> bool {
        !self.thread.is_finished()
    }
}

struct Looks {
    pid: u32,
    libraries: Vec<(Arc<Module>, Bias)>,
    memory: ProcessMemory,
    found: Arc<Mutex<Option<FoundCode>>>,
}

impl Looks {
    fn go_on(&self, ended: &Receiver<()>) {
        let deadline = Instant::now() + LONGEST_JVM_BEGINNING;
        let mut pause = PAUSE;
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) && Instant::now() < deadline {
            if let Some(found) = self.look() {
                *lock(&self.found) = Some(found);
                pause *= 2;
            }
        }
    }

    /// Looks once; `None` as long as the JVM has no interpreter, and after its end.
    fn look(&self) -> Option<FoundCode> {
        let code = jvm_code(&self.libraries, &self.memory);
        if code.begins && !code.keeps_frame_pointers {
            return None;
        }
        let entries = maps_of(self.pid).ok()?.into_iter();
        let generated = entries.filter(|entry| entry.executable && entry.name == MapsName::Anonymous);
        let copy = GeneratedCode::of(&self.memory, generated.map(|entry| entry.range));
        (!copy.is_empty()).then_some((code, copy))
    }
}
