//! The diagnosis for people: one screen.

use std::io::{self, Write};

use super::diagnosis::{Diagnosis, Step};
use leak_report::model::diagnosis::{Cause, Growth};
use leak_report::render::{printable, share, short_size, signed};

/// Maximum number of causes that are shown.
const MOST: usize = 5;

pub(super) fn render(diagnosis: &Diagnosis<'_>, out: &mut dyn Write) -> io::Result<()> {
    let target = diagnosis.target;
    let bytes = diagnosis
        .observed
        .readings
        .last()
        .map_or(0, |last| last.bytes.all());
    let (name, pid) = (printable(target.comm()), target.pid());
    let seconds = diagnosis.took.as_secs_f64();
    write!(
        out,
        "{name} ({pid}), {}, looked at for {seconds:.0} s: ",
        short_size(bytes)
    )?;
    match diagnosis.answer.growth {
        Growth::Grows => writeln!(out, "grows by {}", per_second(diagnosis.answer.bytes_per_second))?,
        Growth::Steady { at_most } => {
            writeln!(out, "does not grow (by at most {})", per_second(at_most))?;
        }
        Growth::NotSure { more } => {
            let minutes = more.as_secs().div_ceil(60).max(1);
            let plural = if minutes == 1 { "" } else { "s" };
            writeln!(out, "not sure yet: {minutes} more minute{plural}")?;
        }
    }
    for (number, cause) in (1..).zip(diagnosis.answer.causes.iter().take(MOST)) {
        writeln!(out)?;
        self::cause(number, cause, out)?;
    }
    let steps: Vec<_> = diagnosis.steps.iter().map(step).collect();
    writeln!(out, "\nlooked at: {}", steps.join(", "))
}

/// A step in words: its time, and its cost for the process.
fn step(step: &Step) -> String {
    let seconds = step.took.as_secs_f64();
    let cost = match (step.cost, step.is_given_up) {
        (Some(cost), true) => format!(" (given up: {} of a CPU)", share(cost)),
        (Some(cost), false) => format!(" ({} of a CPU)", share(cost)),
        (None, _) => String::new(),
    };
    format!("{} {seconds:.0} s{cost}", step.what)
}

fn cause(number: usize, cause: &Cause, out: &mut dyn Write) -> io::Result<()> {
    let what = cause.kind.words();
    let bytes = short_size(cause.amount.bytes);
    match cause.bytes_per_second > 0.0 {
        true => {
            let (part, rate) = (share(cause.share), per_second(cause.bytes_per_second));
            writeln!(
                out,
                "{number}. {what}: {part} of the growth, {rate}, {bytes} by now ({})",
                cause.certainty.name()
            )?;
        }
        false => writeln!(out, "{number}. {what}: {bytes}, which do not grow")?,
    }
    if let Some(site) = &cause.site {
        let function = printable(&site.function);
        match site.source() {
            Some((file, line)) => writeln!(out, "   by    {function} {}:{line}", printable(file))?,
            None => writeln!(out, "   by    {function}")?,
        }
    }
    if let Some(holder) = &cause.holder {
        writeln!(out, "   held  {holder}")?;
    }
    writeln!(out, "   means {}", cause.meaning)?;
    writeln!(out, "   next  {}", cause.next)
}

fn per_second(rate: f64) -> String {
    format!("{}/s", signed(rate).trim_start_matches('+'))
}
