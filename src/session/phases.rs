//! Durations of the steps of an attach, or of a report, and the CPU time of all threads in each.

use std::fmt;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Finished steps, in order.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    done: Vec<Phase>,
    last: (Instant, Duration),
}

#[derive(Clone, Debug)]
struct Phase {
    name: &'static str,
    took: Duration,
    cpu: Duration,
}

impl Phases {
    /// Starts the first step.
    pub(super) fn begin() -> Self {
        Self {
            done: Vec::new(),
            last: now(),
        }
    }

    /// Ends the step called `name`, and starts the next.
    pub(super) fn end(&mut self, name: &'static str) {
        let now = now();
        self.done.push(Phase {
            name,
            took: now.0 - self.last.0,
            cpu: now.1.saturating_sub(self.last.1),
        });
        self.last = now;
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        for (number, Phase { name, took, cpu }) in self.done.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            let (took, cpu) = (milliseconds(*took), milliseconds(*cpu));
            write!(f, "{comma}{name} {took:.1} ms (CPU {cpu:.1} ms)")?;
        }
        Ok(())
    }
}

/// Current time, and CPU time of this process.
fn now() -> (Instant, Duration) {
    let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    (Instant::now(), cpu.map_or(Duration::ZERO, Duration::from))
}
