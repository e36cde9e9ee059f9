//! The thread that sends, and what it shares with the one that reports.

use std::fmt::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::client::{Client, Outcome};
use super::queue::{Item, Queue};
use super::seconds;

/// Bytes of uploads that wait: some hours of a server's absence for usual processes and intervals.
const MAX_BYTES: usize = 32 << 20;
/// What a server cannot take so often is not sent to it again. (What none was there to take is.)
const MAX_ATTEMPTS: u32 = 10;
/// What is older is not sent. (Pyroscope refuses it, if nothing else is set: `-validation.reject-older-than`.)
const OLDEST: Duration = Duration::from_secs(3600);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// One request.
    pub(super) request: Duration,
    /// The wait after the first failure.
    pub(super) first_wait: Duration,
    /// The longest wait between two requests.
    pub(super) longest_wait: Duration,
    /// Everything, once the trace has ended.
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

/// Profiles that did not arrive, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// No room was left for them.
    pub(super) full: u64,
    /// The server refused them.
    pub(super) refused: u64,
    /// They were sent too often in vain, or got too old.
    pub(super) given_up: u64,
    /// They had not been sent, or not been answered, when there was no time left.
    pub(super) unsent: u64,
}

impl Lost {
    /// Each with its name.
    pub(crate) fn by_cause(&self) -> [(&'static str, u64); 4] {
        [
            ("buffer_full", self.full),
            ("refused", self.refused),
            ("given_up", self.given_up),
            ("unsent", self.unsent),
        ]
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Profiles that servers have.
    pub(crate) sent: u64,
    pub(crate) losses: Lost,
    /// Profiles that wait, or are being sent.
    pub(crate) waiting: u64,
    /// Requests that failed and were, or are to be, made again.
    pub(crate) retries: u64,
}

impl Counts {
    pub(super) fn lost(&self) -> u64 {
        self.losses.by_cause().iter().map(|(_, count)| count).sum()
    }

    /// Why what was lost was, in words.
    pub(super) fn causes(&self) -> String {
        let Lost {
            full,
            refused,
            given_up,
            unsent,
        } = self.losses;
        let causes = [
            (full, "for want of room"),
            (refused, "that the server refused"),
            (given_up, "that it could not take for too long"),
            (unsent, "that it had not taken at the end"),
        ];
        let mut text = String::new();
        for (count, why) in causes.into_iter().filter(|&(count, _)| count > 0) {
            let separator = if text.is_empty() { "" } else { ", " };
            // Nothing fails that is written to memory.
            _ = write!(text, "{separator}{count} {why}");
        }
        text
    }
}

/// How far pushing has come, for others.
pub(crate) struct Progress(pub(super) Arc<Shared>);

impl Progress {
    /// Now.
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().counts_now()
    }
}

/// What two threads share.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: Queue,
    counts: Counts,
    /// Profiles in the request that is under way.
    under_way: u64,
    /// When everything has to end, once that is known.
    end: Option<Instant>,
    /// The thread does nothing any more.
    is_done: bool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(MAX_BYTES),
                counts: Counts::default(),
                under_way: 0,
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
            waiting: self.queue.profiles() + self.under_way,
            ..self.counts
        }
    }
}

impl Shared {
    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what is to be sent.
    pub(super) fn put(&self, item: Item) {
        let mut state = self.lock();
        let lost = state.queue.put(item);
        if lost > 0 && state.counts.losses.full == 0 {
            tracing::warn!("push: no room is left: from now on, the oldest profiles are dropped");
        }
        state.counts.losses.full += lost;
        drop(state);
        self.changed.notify_all();
    }

    /// Ends after `time`, and says how far it came.
    pub(super) fn end(&self, time: Duration) -> Counts {
        let mut state = self.lock();
        state.end = Some(Instant::now() + time);
        self.changed.notify_all();
        // The request that is under way may have begun with more time.
        let ended = self
            .changed
            .wait_timeout_while(state, time, |state| !state.is_done);
        let mut state = ended.unwrap_or_else(PoisonError::into_inner).0;
        state.counts.losses.unsent = state.counts_now().waiting;
        state.counts
    }

    /// The oldest, and how long sending it may take; waits for one. `None`: there will be none.
    fn take(&self, request: Duration) -> Option<(Item, Duration)> {
        let mut state = self.lock();
        loop {
            let left = state.end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if let Some(item) = state.queue.take() {
                state.under_way = item.upload.profiles;
                return Some((item, left.unwrap_or(request).min(request)));
            }
            if left.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What was under way is no more.
    fn settle(&self, change: impl FnOnce(&mut Counts)) {
        let mut state = self.lock();
        state.under_way = 0;
        change(&mut state.counts);
    }

    /// What was under way is to be sent again. Says whether there is time for that.
    fn put_back(&self, item: Item) -> bool {
        let mut state = self.lock();
        state.under_way = 0;
        state.counts.retries += 1;
        let lost = state.queue.put_back(item);
        state.counts.losses.full += lost;
        state.end.is_none()
    }

    /// Whether the end is not near.
    fn has_time(&self) -> bool {
        self.lock().end.is_none()
    }

    /// Waits, but not beyond the end of the trace.
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

/// What the thread does.
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) shared: Arc<Shared>,
    pub(super) timing: Timing,
}

impl Sender {
    /// Sends until the end.
    pub(super) fn run(mut self) {
        let mut backoff = Backoff::new(self.timing.first_wait, self.timing.longest_wait);
        let mut said = Said::of(self.client.server());
        while let Some((mut item, time)) = self.shared.take(self.timing.request) {
            let profiles = item.upload.profiles;
            let outcome = self.client.send(&item.upload, time);
            said.say(&outcome, self.shared.has_time());
            let (asked, answered) = match outcome {
                Outcome::Accepted => {
                    backoff.reset();
                    self.shared.settle(|counts| counts.sent += profiles);
                    continue;
                }
                Outcome::Refused(_) => {
                    backoff.reset();
                    self.shared.settle(|counts| counts.losses.refused += profiles);
                    continue;
                }
                Outcome::Later(_, asked) => (asked, true),
                Outcome::Unreachable(_) => (None, false),
            };
            item.attempts += u32::from(answered);
            if item.attempts >= MAX_ATTEMPTS || item.made.elapsed() > OLDEST {
                self.shared.settle(|counts| counts.losses.given_up += profiles);
            } else if !self.shared.put_back(item) {
                break;
            }
            self.shared.pause(backoff.next(asked));
        }
        self.shared.done();
    }
}

/// What was said of failures: each once, until something else happens.
struct Said {
    server: String,
    failure: Option<(Instant, String)>,
    refusal: Option<String>,
}

impl Said {
    fn of(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            failure: None,
            refusal: None,
        }
    }

    /// `again`: what failed is sent again.
    fn say(&mut self, outcome: &Outcome, again: bool) {
        let server = &self.server;
        match outcome {
            Outcome::Accepted => {
                if let Some((since, _)) = self.failure.take() {
                    tracing::info!(
                        "push: {server} takes profiles again, after {}",
                        seconds(since.elapsed())
                    );
                }
                self.refusal = None;
            }
            Outcome::Refused(why) if self.refusal.as_ref() != Some(why) => {
                tracing::warn!("push: {server} refuses a profile: {why}; it is not sent again");
                self.refusal = Some(why.clone());
            }
            Outcome::Later(why, _) | Outcome::Unreachable(why)
                if self.failure.as_ref().is_none_or(|(_, said)| said != why) =>
            {
                let kept = MAX_BYTES >> 20;
                match again {
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
}
