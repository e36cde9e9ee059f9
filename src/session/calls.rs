//! Calls traced one by one (`-t`): reads them from the kernel side, resolves their callers and sends them to
//! the sinks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::describe::{self, Caller};
use super::{Session, Signals};
use crate::bpf::collect::{CallEvent, CallQueue, Counters, Moment, counter, stack_of};
use crate::process::History;
use leak_report::render::{Call, ReportSink};

/// Interval between reads of the queue. It holds the calls of 10 ms at ten million calls per second.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Maximum reads of the queue each time; half of them usually take all that it can hold.
const BATCHES: usize = 16;

/// Interval between checks whether calls were left out, until some were.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of stacks whose caller is cached.
const MAX_CALLERS: usize = 1 << 16;

/// Traces calls one by one: reads the queue and sends the calls to the sinks.
pub(super) struct CallTracer {
    queue: CallQueue,
    began: Moment,
    /// Callers by stack record number.
    callers: HashMap<u32, Caller>,
    /// Time of the next check whether calls were left out; `None` once that was logged.
    next_check: Option<Instant>,
}

impl CallTracer {
    /// `started` is when the last probe was attached.
    pub(super) fn new(queue: CallQueue, started: Instant) -> Self {
        Self {
            queue,
            began: Moment::ago(started.elapsed()),
            callers: HashMap::new(),
            next_check: Some(Instant::now()),
        }
    }

    /// Sends the queued calls to `reports`. `caller_of` gives the caller for a stack record, `pid_of` the
    /// process of a call.
    pub(super) fn trace_all(
        &mut self,
        reports: &mut dyn ReportSink,
        pid_of: impl Fn(&CallEvent) -> u32,
        mut caller_of: impl FnMut(u32) -> Caller,
    ) -> anyhow::Result<()> {
        for _ in 0..BATCHES {
            if !self.send_batch(reports, &pid_of, &mut caller_of)? {
                break;
            }
        }
        Ok(())
    }

    /// Sends one batch of calls. Returns whether the queue may hold more.
    fn send_batch(
        &mut self,
        reports: &mut dyn ReportSink,
        pid_of: &impl Fn(&CallEvent) -> u32,
        caller_of: &mut impl FnMut(u32) -> Caller,
    ) -> anyhow::Result<bool> {
        let events = self.queue.take().context("cannot read the queue of calls")?;
        let calls: Vec<_> = events
            .into_iter()
            .map(|event| {
                let caller = self.caller(event.stack, caller_of);
                Call {
                    kind: event.kind,
                    elapsed: self.began.until(event.time),
                    clock: Duration::from_nanos(event.time),
                    pid: pid_of(&event),
                    thread: event.thread,
                    comm: event.comm,
                    cpu: event.cpu,
                    allocator: caller.allocator,
                    address: event.address,
                    size: event.size,
                    caller: caller.at,
                }
            })
            .collect();
        reports.calls(&calls)?;
        Ok(!calls.is_empty())
    }

    fn caller(&mut self, record: u32, caller_of: &mut impl FnMut(u32) -> Caller) -> Caller {
        if let Some(known) = self.callers.get(&record) {
            return known.clone();
        }
        let caller = caller_of(record);
        // An unknown caller may be resolved later, once its mappings are read.
        if caller.at.is_some() && self.callers.len() < MAX_CALLERS {
            self.callers.insert(record, caller.clone());
        }
        caller
    }

    /// Logs once that calls are too frequent to be written. Reports give the number left out.
    pub(super) fn warn(
        &mut self,
        counters: impl FnOnce() -> Result<Counters, libbpf_rs::Error>,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.next_check.is_none_or(|check| now < check) {
            return Ok(());
        }
        let counters = counters().context("cannot read the counters")?;
        self.next_check = Some(now + CHECK_INTERVAL);
        if counters.get(counter::COUNTER_LOST_CALL_EVENT) > 0 {
            self.next_check = None;
            tracing::warn!(
                "calls come faster than they can be written: some are left out; -z, -Z or -s select fewer"
            );
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Like [`Session::follow`], but sends calls to `reports` as they arrive, if calls are traced.
    pub(super) fn follow_calls(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<bool> {
        if self.call_tracer.is_none() {
            return self.follow_with(deadline, signals, &mut |session| session.show_vitals(reports));
        }
        loop {
            let next = deadline.min(Instant::now() + PAUSE);
            let ended = self.follow(next, signals)?;
            self.trace_calls(reports)?;
            self.show_vitals(reports)?;
            if ended || next == deadline {
                return Ok(ended);
            }
        }
    }

    /// Sends all calls queued by now to `reports`.
    pub(super) fn trace_calls(&mut self, reports: &mut dyn ReportSink) -> anyhow::Result<()> {
        let Some(call_tracer) = &mut self.call_tracer else {
            return Ok(());
        };
        self.live.finish_all_walks()?;
        let live = &self.live;
        let processes = describe::Processes {
            all: &live.roster,
            modules: live.code.modules(),
            tables: live.code.tables(),
            allocators: live.attach.probes().catalog(),
            symbolizer: &mut self.symbolizer,
            facts: &mut self.facts,
            perf_maps: &self.perf_maps,
            python: &self.python_names,
            unknown: History::default(),
        };
        let mut describer = describe::Describer::new(processes);
        let pid_of = |event: &CallEvent| {
            let process = live.roster.get(event.instance);
            process.map_or(event.process, |process| process.facts.pid)
        };
        let caller_of = |record| {
            let mut stack = stack_of(&live.kernel, record);
            live.leave_out_providers(stack.as_mut_slice());
            describer.caller(stack)
        };
        call_tracer.trace_all(reports, pid_of, caller_of)?;
        call_tracer.warn(|| Counters::read(&live.kernel.recorded.counters))
    }
}
