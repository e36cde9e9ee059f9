//! Code that processes have had mapped at each moment of the last seconds, by the kernel's log of mappings of
//! code: a walk that is finished later needs that of its moment.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unwind_tables::addr::Avma;
use unwind_tables::mapping::Mapping;

use crate::bpf::collect::DeferredWalk;
use crate::bpf::{Change, CodeLog, Logged, monotonic_nanoseconds};
use crate::process::{GeneratedCode, JvmCode, JvmWatch, Mappings, Modules, ProcessRoot, Target, Timeline};

/// Length of history that timelines keep, in nanoseconds.
const OLDEST: u64 = 2_000_000_000;
/// Minimum pause between two looks at memory for generated code: some compilers keep making theirs writable
/// and then executable again.
const PAUSE_OF_GENERATED: Duration = Duration::from_millis(50);
/// Maximum number of JVMs that are watched at once; the code of others is read between other work.
const MAX_WATCHES: usize = 8;
/// Maximum number of timelines of processes that are not known (yet); beyond it, all of these are dropped.
const MAX_UNKNOWN: usize = 64;

/// Code of processes over time, as far as it is known.
#[derive(Default)]
pub(super) struct CodeOverTime {
    /// `None` if the kernel does not log; then nothing is known of past moments.
    log: Option<CodeLog>,
    /// By process id.
    pub(super) timelines: HashMap<u32, Known>,
    /// Walks that were received and are not finished yet, newest first.
    pub(super) waiting: Vec<DeferredWalk>,
    pub(super) last: Option<LastList>,
    /// Time before which stand-ins are not searched for again.
    pub(super) give_back_not_before: Option<Instant>,
    /// Memory for generated code that processes have mapped, and the time before which it is not looked at
    /// again.
    generated: Vec<(u32, Range<Avma>)>,
    generated_not_before: Option<Instant>,
}

/// Mappings of the last walk, in the form that walks need.
pub(super) struct LastList {
    pub(super) mappings: Arc<Mappings>,
    pub(super) list: Vec<Mapping>,
    /// Code of a JVM, as known when the list was made.
    pub(super) jvm: JvmCode,
    /// [`TableStore::stored`](crate::bpf::TableStore::stored) when the list was made: while it is the same,
    /// tables are where they were.
    pub(super) stored: u64,
}

/// Code of one process over time, and the root directory of its files.
#[derive(Default)]
pub(super) struct Known {
    pub(super) timeline: Timeline,
    /// Its root directory, for after its end; `None` if it had ended before.
    root: Option<Arc<ProcessRoot>>,
    /// Code that it has generated, for after its end.
    pub(super) generated: GeneratedCode,
    /// Code of its JVM, as last known; it does not move.
    pub(super) jvm: JvmCode,
    /// Finds the code of a JVM that starts up.
    watch: Option<JvmWatch>,
    /// Moment when the last reading of its mappings began.
    pub(super) read_at: u64,
}

impl Known {
    fn of(pid: u32) -> Self {
        Self {
            root: ProcessRoot::of(pid).ok().map(Arc::new),
            ..Self::default()
        }
    }

    /// State of a child that was forked at a moment.
    fn forked(&mut self, at: u64) -> Self {
        Self {
            timeline: Timeline::forked(self.timeline.at(at)),
            root: self.root.clone(),
            jvm: self.jvm.clone(),
            ..Self::default()
        }
    }
}

impl CodeOverTime {
    /// Starts the log, before any mappings are read.
    pub(super) fn start() -> Self {
        let log = CodeLog::open().inspect_err(|error| {
            tracing::warn!("the kernel logs no mappings of code, so stacks in code that was just mapped end there: {error}");
        });
        Self {
            log: log.ok(),
            ..Self::default()
        }
    }

    /// Notes the mappings of a process that were read since `began`.
    pub(super) fn note_reading(&mut self, pid: u32, began: u64, mappings: &Mappings) {
        if self.log.is_some() {
            let known = self.timelines.entry(pid).or_insert_with(|| Known::of(pid));
            let generated = GeneratedCode::read(pid, mappings);
            if !generated.is_empty() {
                known.generated = generated;
            }
            // When a process is about to end, its memory is gone before its mappings are.
            if mappings.jvm().keeps_frame_pointers {
                known.jvm = mappings.jvm().clone();
            }
            known.read_at = began;
            let mappings = Arc::new(mappings.clone());
            known.timeline.read(began, monotonic_nanoseconds(), mappings);
        }
    }

    /// Watches a JVM that starts up.
    pub(super) fn watch_jvm(&mut self, target: &Target, mappings: &Mappings, modules: &Modules) {
        let watches = self.timelines.values().filter_map(|known| known.watch.as_ref());
        if mappings.jvm().begins
            && watches.filter(|watch| watch.goes_on()).count() < MAX_WATCHES
            && let Some(known) = self.timelines.get_mut(&target.pid())
            && known.watch.is_none()
        {
            let watch = target.watch_jvm(mappings, modules);
            let watch =
                watch.inspect_err(|error| tracing::debug!("a JVM that begins is not watched: {error}"));
            known.watch = watch.ok();
        }
    }

    /// Notes the code that was found of JVMs that start up.
    pub(super) fn note_watched(&mut self) {
        for known in self.timelines.values_mut() {
            if let Some((jvm, generated)) = known.watch.as_ref().and_then(JvmWatch::take) {
                known.jvm = jvm;
                known.generated = generated;
            }
        }
    }

    /// Reads the log. Returns whether changes were lost.
    pub(super) fn note_changes(&mut self, modules: &mut Modules, follows: bool) -> bool {
        let Some(log) = &mut self.log else {
            return false;
        };
        let mut lost = false;
        for Logged { at, pid, what } in log.read() {
            let timelines = &mut self.timelines;
            match what {
                Change::Mapped(entry) => {
                    if let Some(known) = timelines.get_mut(&pid) {
                        let code = modules.of_past(pid, known.root.as_deref(), &entry, at);
                        // Changes of objects are announced by the loader.
                        if code.code.is_generated() {
                            self.generated.push((pid, entry.range.clone()));
                        }
                        known.timeline.mapped(at, code);
                    }
                }
                Change::Executed => {
                    if let Some(known) = timelines.get_mut(&pid) {
                        known.timeline.executed(at);
                        known.generated = GeneratedCode::default();
                        known.jvm = JvmCode::default();
                        known.watch = None;
                    }
                }
                Change::Forked { parent } => {
                    if let Some(parent) = timelines.get_mut(&parent).filter(|_| follows) {
                        let child = parent.forked(at);
                        timelines.insert(pid, child);
                    }
                }
                Change::Lost(_) => {
                    lost = true;
                    timelines.values_mut().for_each(|known| known.timeline.lost(at));
                }
            }
        }
        lost
    }

    /// Takes the memory for generated code that processes have mapped, in any order; nothing until
    /// [`PAUSE_OF_GENERATED`] has passed.
    pub(super) fn that_generate(&mut self, now: Instant) -> Vec<(u32, Range<Avma>)> {
        if self.generated.is_empty()
            || self
                .generated_not_before
                .is_some_and(|not_before| now < not_before)
        {
            return Vec::new();
        }
        self.generated_not_before = Some(now + PAUSE_OF_GENERATED);
        std::mem::take(&mut self.generated)
    }

    /// Drops history that is older than [`OLDEST`], and timelines of unknown processes if they are too many.
    pub(super) fn forget(&mut self, is_known: impl Fn(u32) -> bool) {
        let oldest = monotonic_nanoseconds().saturating_sub(OLDEST);
        self.timelines
            .values_mut()
            .for_each(|known| known.timeline.forget_before(oldest));
        let unknown = self.timelines.keys().filter(|&&pid| !is_known(pid)).count();
        if unknown > MAX_UNKNOWN {
            self.timelines.retain(|&pid, _| is_known(pid));
        }
    }
}
