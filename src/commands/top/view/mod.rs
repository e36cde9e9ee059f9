//! The table on the terminal, in the live view's look.

mod draw;
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::options::Outcome;
use super::pace::{next_sample, pause_until};
use super::sampler::Sampler;
use crate::bpf::preflight;
use crate::process::select::Found;
use crate::session::Signals;
use crate::sinks::live::{Content, Messages, Screen};
use model::{Chosen, Model};

/// Shows the table until the user leaves or chooses a process that can be traced.
pub(super) fn run(
    mut sampler: Sampler,
    interval: Duration,
    stop: &Arc<AtomicBool>,
    messages: &Messages,
) -> anyhow::Result<Outcome> {
    let signals = Signals {
        stop: Arc::clone(stop),
        ..Signals::default()
    };
    let mut screen = Screen::open(Model::new(), &signals, Arc::default(), messages.clone())?;
    let mut sampled = Instant::now();
    let mut outcome = Outcome::Done;
    while !stop.load(Ordering::Relaxed) {
        sampler.sample()?;
        let table = sampler.table();
        screen.update(|model| model.take(table));
        sampled = next_sample(sampled, interval);
        let mut traced = None;
        pause_until(sampled, || {
            traced = screen
                .update(Model::take_chosen)
                .and_then(|chosen| check(chosen, &screen));
            traced.is_some() || stop.load(Ordering::Relaxed)
        });
        if let Some(found) = traced {
            outcome = Outcome::Trace(found);
            break;
        }
    }
    screen.close()?;
    Ok(outcome)
}

/// The chosen process, if anything can be traced; otherwise the view shows the reason why not.
fn check(chosen: Chosen, screen: &Screen<Model>) -> Option<Found> {
    match preflight::check() {
        Ok(()) => Some(Found {
            pid: chosen.pid,
            start_time: chosen.start_time,
            start_code: 0,
            comm: chosen.comm,
            reasons: Vec::new(),
        }),
        Err(error) => {
            let text = format!("process {} cannot be traced: {error}", chosen.pid);
            screen.update(|model| model.shell_mut().say(text));
            None
        }
    }
}
