//! Follows which processes match the selectors: new matches are traced from then on, processes that no longer
//! match are not.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::TraceConfig;
use super::live::Live;
use super::process::Process;
use crate::bpf::collect::Event;
use crate::process::Target;
use crate::process::select::{Found, Selection, Sight};
use leak_report::render::counted;

/// Time between two looks at all processes without a hint at a change. A change of user, for example, gives
/// none.
const PERIOD: Duration = Duration::from_secs(1);
/// Minimum pause between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Minimum pause as a multiple of what the last look took: less than 5 % of the time is spent on looking.
const PAUSE_PER_LOOK: u32 = 20;

/// The selected processes, as they change.
pub(super) struct Membership {
    selection: Selection,
    /// Processes that could not be traced: they are not tried again.
    refused: HashSet<Identity>,
    /// Processes that there was no room for.
    left_out: HashSet<Identity>,
    /// True if something hints at a change since the last look.
    is_hinted: bool,
    /// Times at which to look again: with a hint, and without one.
    not_before: Instant,
    next: Instant,
}

/// Pid and start time of a process.
type Identity = (u32, u64);

impl Membership {
    /// Begins to follow the processes that were found; `None` if all are given by number.
    pub(super) fn of(config: &TraceConfig, live: &mut Live<'_>) -> anyhow::Result<Option<Self>> {
        let Some(selectors) = &config.targets.members else {
            return Ok(None);
        };
        let found: HashSet<_> = config.targets.found.iter().map(|found| found.pid).collect();
        for process in live.roster.all_mut() {
            process.is_member = found.contains(&process.facts.pid);
        }
        let traced: HashSet<_> = live.roster.all().map(|process| process.facts.pid).collect();
        let refused = config
            .targets
            .found
            .iter()
            .filter(|found| !traced.contains(&found.pid));
        let now = Instant::now();
        Ok(Some(Self {
            selection: Selection::new(selectors.clone())?,
            refused: refused.map(|found| (found.pid, found.start_time)).collect(),
            left_out: HashSet::new(),
            // Some may have come while the others were attached.
            is_hinted: true,
            not_before: now,
            next: now,
        }))
    }

    /// Number of processes that there was no room for.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.len() as u64
    }

    /// Looks at all processes if that is due. Starts tracing those that have come, and stops tracing those
    /// that have left.
    pub(super) fn follow(&mut self, live: &mut Live<'_>, events: &[Event]) -> anyhow::Result<()> {
        self.is_hinted |= events.contains(&Event::Members);
        let began = Instant::now();
        let is_due = self.is_hinted && began >= self.not_before || began >= self.next;
        // Looks in any case before the trace ends because no process is left: others may have taken over.
        if !is_due && live.roster.is_any_running() {
            return Ok(());
        }
        // First: a change during the look is a hint for the next one.
        live.kernel.processes.await_members();
        self.is_hinted = false;
        match self.selection.look() {
            Ok(sight) => {
                let looked = began.elapsed();
                self.not_before = Instant::now() + (PAUSE_PER_LOOK * looked).max(MIN_PAUSE);
                self.let_go(live, &sight)?;
                self.admit(live, &sight)?;
            }
            Err(error) => {
                tracing::debug!("{error}");
                self.not_before = Instant::now() + PERIOD;
            }
        }
        self.next = self.not_before.max(Instant::now() + PERIOD);
        Ok(())
    }

    /// Stops tracing members that no longer match. If children are followed, former members stay.
    fn let_go(&self, live: &mut Live<'_>, sight: &Sight) -> anyhow::Result<()> {
        if live.asked.follows_children {
            return Ok(());
        }
        let has_left = |process: &Process| {
            let target = process.target.as_ref().filter(|target| !target.has_exited());
            let identity = target.map(|target| (target.pid(), target.start_time()));
            process.is_member && identity.is_some_and(|identity| sight.others.contains(&identity))
        };
        let left = live.roster.running_that(|_, process| has_left(process));
        for &number in &left {
            live.leave(number);
        }
        // These instances end like others.
        if left.is_empty() { Ok(()) } else { live.observe() }
    }

    /// Starts tracing processes that have come.
    fn admit(&mut self, live: &mut Live<'_>, sight: &Sight) -> anyhow::Result<()> {
        // The kernel side begins children by itself.
        live.observe()?;
        let running = live.roster.running();
        let traced: HashSet<_> = running.map(|process| process.facts.pid).collect();
        for found in &sight.found {
            let identity = (found.pid, found.start_time);
            if traced.contains(&found.pid) || self.refused.contains(&identity) {
                continue;
            }
            let Some(target) = open(found) else {
                continue;
            };
            if live.roster.owner_of_memory(found.pid).is_some() {
                continue;
            }
            if !live.kernel.processes.has_room() {
                if self.left_out.is_empty() {
                    tracing::warn!(
                        "no room for more than {}: others are left out; raise --max-processes",
                        counted(traced.len() as u64, "process")
                    );
                }
                self.left_out.insert(identity);
                continue;
            }
            match live.add_opened(target) {
                Ok(number) => {
                    if let Some(process) = live.roster.get_mut(number) {
                        process.is_member = true;
                    }
                    tracing::info!("also tracing {}", Found::list(std::slice::from_ref(found)));
                }
                Err(error) => {
                    tracing::warn!("left out: process {}: {error:#}", found.pid);
                    self.refused.insert(identity);
                }
            }
        }
        Ok(())
    }
}

/// Opens a process, unless it has ended meanwhile.
fn open(found: &Found) -> Option<Target> {
    let target = Target::open(found.pid).ok()?;
    (target.start_time() == found.start_time && !target.has_exited()).then_some(target)
}
