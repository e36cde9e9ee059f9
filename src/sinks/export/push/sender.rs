//! The sending thread, and the state it shares with the reporting thread.

use std::fmt::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::client::{Client, Outcome};
use super::queue::{Item, Queue};
use super::seconds;
use leak_report::render::counted;

/// Maximum number of bytes of queued uploads: enough for some hours without a server, for usual processes and
/// intervals.
const MAX_BYTES: usize = 32 << 20;
/// Failed answers after which an upload is given up. Attempts without an answer do not count.
const MAX_ATTEMPTS: u32 = 10;
/// Maximum age of an upload. (Pyroscope refuses older ones by default: `-validation.reject-older-than`.)
const OLDEST: Duration = Duration::from_secs(3600);

/// Timeouts and delays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Maximum duration of one request.
    pub(super) request: Duration,
    /// Delay after the first failure.
    pub(super) first_wait: Duration,
    /// Maximum delay between two requests.
    pub(super) longest_wait: Duration,
    /// Maximum time for sending the rest once the trace has ended.
    pub(super) end: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            end: Duration::from_secs(5),
        }
    }
}

/// Profiles that were not delivered, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Dropped because the queue was full.
    pub(super) full: u64,
    /// Refused by the server.
    pub(super) refused: u64,
    /// Failed [`MAX_ATTEMPTS`] times, or older than [`OLDEST`].
    pub(super) given_up: u64,
    /// Not sent, or not answered, when [`Timing::end`] had passed.
    pub(super) unsent: u64,
}

impl Lost {
    /// Number of profiles by cause, with the cause's name in metrics.
    pub(crate) fn by_cause(&self) -> [(&'static str, u64); 4] {
        [
            ("buffer_full", self.full),
            ("refused", self.refused),
            ("given_up", self.given_up),
            ("unsent", self.unsent),
        ]
    }
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Profiles that the server accepted.
    pub(crate) sent: u64,
    pub(crate) losses: Lost,
    /// Profiles that are queued or being sent.
    pub(crate) waiting: u64,
    /// Failed requests that were put back to be sent again.
    pub(crate) retries: u64,
}

impl Counts {
    pub(super) fn lost(&self) -> u64 {
        self.losses.by_cause().iter().map(|(_, count)| count).sum()
    }

    /// The causes and counts of the losses, as text for the log.
    pub(super) fn causes(&self) -> String {
        let Lost {
            full,
            refused,
            given_up,
            unsent,
        } = self.losses;
        let causes = [
            (full, "dropped because the queue was full"),
            (refused, "refused by the server"),
            (given_up, "given up after repeated failures"),
            (unsent, "not delivered before the end"),
        ];
        let mut text = String::new();
        for (count, why) in causes.into_iter().filter(|&(count, _)| count > 0) {
            let separator = if text.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            _ = write!(text, "{separator}{count} {why}");
        }
        text
    }
}

/// A handle for reading the live counters.
pub(crate) struct Progress(pub(super) Arc<Shared>);

impl Progress {
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().counts_now()
    }
}

/// State shared by the reporting and the sending thread.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: Queue,
    counts: Counts,
    /// Number of profiles in the request in flight.
    in_flight: u64,
    /// Deadline for the last request; set when the trace ends.
    end: Option<Instant>,
    /// True once the sending thread has ended.
    is_done: bool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(MAX_BYTES),
                counts: Counts::default(),
                in_flight: 0,
                end: None,
                is_done: false,
            }),
            changed: Condvar::new(),
        }
    }
}

impl State {
    fn counts_now(&self) -> Counts {
        Counts {
            waiting: self.queue.profiles() + self.in_flight,
            ..self.counts
        }
    }
}

impl Shared {
    /// Locks the state. A poisoned lock is still usable: nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an upload and wakes the sending thread.
    pub(super) fn put(&self, item: Item) {
        let mut state = self.lock();
        let lost = state.queue.put(item);
        if lost > 0 && state.counts.losses.full == 0 {
            tracing::warn!("push: the queue is full: the oldest profiles are dropped from now on");
        }
        state.counts.losses.full += lost;
        drop(state);
        self.changed.notify_all();
    }

    /// Sets the deadline, waits up to `time` for the sending thread, and returns the final counts.
    pub(super) fn end(&self, time: Duration) -> Counts {
        let mut state = self.lock();
        state.end = Some(Instant::now() + time);
        self.changed.notify_all();
        // A request in flight may have started with a longer timeout, so do not wait for it beyond `time`.
        let ended = self
            .changed
            .wait_timeout_while(state, time, |state| !state.is_done);
        let mut state = ended.unwrap_or_else(PoisonError::into_inner).0;
        state.counts.losses.unsent = state.counts_now().waiting;
        state.counts
    }

    /// Waits for the oldest upload and returns it with the timeout for its request. `None` once the trace has
    /// ended and the queue is empty or the deadline has passed.
    fn take(&self, request: Duration) -> Option<(Item, Duration)> {
        let mut state = self.lock();
        loop {
            let left = state.end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if let Some(item) = state.queue.take() {
                state.in_flight = item.upload.profiles;
                return Some((item, left.unwrap_or(request).min(request)));
            }
            if left.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the request in flight and counts its result.
    fn settle(&self, change: impl FnOnce(&mut Counts)) {
        let mut state = self.lock();
        state.in_flight = 0;
        change(&mut state.counts);
    }

    /// Queues a failed upload again. Returns whether the trace still runs.
    fn put_back(&self, item: Item) -> bool {
        let mut state = self.lock();
        state.in_flight = 0;
        state.counts.retries += 1;
        let lost = state.queue.put_back(item);
        state.counts.losses.full += lost;
        state.end.is_none()
    }

    /// Returns whether the trace still runs.
    fn has_time(&self) -> bool {
        self.lock().end.is_none()
    }

    /// Sleeps for `time`, or until the trace ends.
    fn pause(&self, time: Duration) {
        let state = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(state, time, |state| state.end.is_none());
        drop(waited);
    }

    fn done(&self) {
        self.lock().is_done = true;
        self.changed.notify_all();
    }
}

/// The sending thread.
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) shared: Arc<Shared>,
    pub(super) timing: Timing,
}

impl Sender {
    /// Sends uploads until the trace ends, and then the queued ones once, until the first failure or the
    /// deadline.
    pub(super) fn run(mut self) {
        let mut backoff = Backoff::new(self.timing.first_wait, self.timing.longest_wait);
        let mut outcome_log = OutcomeLog::of(self.client.server());
        while let Some((mut item, time)) = self.shared.take(self.timing.request) {
            let profiles = item.upload.profiles;
            let outcome = self.client.send(&item.upload, time);
            outcome_log.log(&outcome, self.shared.has_time());
            let (retry_after, answered) = match outcome {
                Outcome::Accepted => {
                    backoff.reset();
                    self.shared.settle(|counts| counts.sent += profiles);
                    continue;
                }
                Outcome::Partly(rejected, _) => {
                    backoff.reset();
                    let rejected = rejected.min(profiles);
                    self.shared.settle(|counts| {
                        counts.sent += profiles - rejected;
                        counts.losses.refused += rejected;
                    });
                    continue;
                }
                Outcome::Refused(_) => {
                    backoff.reset();
                    self.shared.settle(|counts| counts.losses.refused += profiles);
                    continue;
                }
                Outcome::Later(_, retry_after) => (retry_after, true),
                Outcome::Unreachable(_) => (None, false),
            };
            item.attempts += u32::from(answered);
            if item.attempts >= MAX_ATTEMPTS || item.made.elapsed() > OLDEST {
                self.shared.settle(|counts| counts.losses.given_up += profiles);
            } else if !self.shared.put_back(item) {
                break;
            }
            self.shared.pause(backoff.next(retry_after));
        }
        self.shared.done();
    }
}

/// The last logged failure and refusal, so that each is logged once until something else happens.
struct OutcomeLog {
    server: String,
    failure: Option<(Instant, String)>,
    refusal: Option<String>,
}

impl OutcomeLog {
    fn of(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            failure: None,
            refusal: None,
        }
    }

    /// Logs `outcome`. `is_kept` is true if a failed upload will be sent again.
    fn log(&mut self, outcome: &Outcome, is_kept: bool) {
        let server = &self.server;
        match outcome {
            Outcome::Accepted => {
                self.log_recovery();
                self.refusal = None;
            }
            Outcome::Partly(rejected, why) => {
                self.log_recovery();
                if self.refusal.as_ref() != Some(why) {
                    let server = &self.server;
                    match rejected {
                        0 => tracing::warn!("push: {server} warns: {why}"),
                        rejected => tracing::warn!(
                            "push: {server} refuses {}: {why}; these are not sent again",
                            counted(*rejected, "profile")
                        ),
                    }
                    self.refusal = Some(why.clone());
                }
            }
            Outcome::Refused(why) if self.refusal.as_ref() != Some(why) => {
                tracing::warn!("push: {server} refuses a profile: {why}; it is not sent again");
                self.refusal = Some(why.clone());
            }
            Outcome::Later(why, _) | Outcome::Unreachable(why)
                if self.failure.as_ref().is_none_or(|(_, logged)| logged != why) =>
            {
                let kept = MAX_BYTES >> 20;
                match is_kept {
                    true => tracing::warn!(
                        "push: {server}: {why}; profiles are kept and sent later ({kept} MiB of them at most)"
                    ),
                    false => tracing::warn!("push: {server}: {why}"),
                }
                let since = self.failure.take().map_or_else(Instant::now, |(since, _)| since);
                self.failure = Some((since, why.clone()));
            }
            Outcome::Refused(_) | Outcome::Later(..) | Outcome::Unreachable(_) => {}
        }
    }

    fn log_recovery(&mut self) {
        if let Some((since, _)) = self.failure.take() {
            tracing::info!(
                "push: {} accepts profiles again, after {}",
                self.server,
                seconds(since.elapsed())
            );
        }
    }
}
