//! Estimates the cost of each way to trace a process, from its rates of allocations and page faults in a
//! short trace.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::finding::Finding;
use crate::allocator::usdt::DEFAULT_DISTANCE;
use crate::process::Target;
use crate::session::{Session, Signals, SourceChoice, TraceConfig, View, storages};
use leak_report::model::{Overhead, Report, Source};
use leak_report::render::{CHEAP, SAMPLED, rate, share};

/// Time that the process is traced for.
const PERIOD: Duration = Duration::from_secs(2);
/// Nanoseconds that tracing adds to a page fault with `--faults`, to an announced block and its free, and to
/// a pair of malloc and free with `libmemleak.so`; measured in `benches/RESULTS.md`.
const FAULT: f64 = 1100.0;
const ANNOUNCED: f64 = 3700.0;
const PAIR: f64 = 3.0;

/// Rates of the process, per second.
struct Rates {
    allocations: f64,
    bytes: f64,
    faults: f64,
    /// Share of one CPU that the trace of every call took.
    every_call: f64,
}

/// Traces the process briefly, and returns a finding with the cost of each way to trace it.
pub(super) fn findings(pid: u32) -> Vec<Finding> {
    match measure(pid) {
        Ok(Measured::Announced(overhead)) => vec![announced(&overhead)],
        Ok(Measured::Calls(rates)) => of_calls(&rates),
        Err(error) => vec![Finding::warning(
            "cost",
            format!("cannot measure the cost of a trace: {error:#}"),
        )],
    }
}

enum Measured {
    Calls(Rates),
    Announced(Overhead),
}

fn measure(pid: u32) -> anyhow::Result<Measured> {
    let target = Target::open(pid)?;
    let faults = || target.page_faults().context("cannot read its page faults");
    let mut config = TraceConfig::of_process(pid);
    config.count.source = SourceChoice::Auto;
    let mut storages = storages();
    let mut session = Session::start(&mut storages, &config)?;
    let (before, began) = (faults()?, Instant::now());
    let signals = Signals::default();
    session.follow(began + PERIOD, &signals)?;
    let (after, seconds) = (faults()?, began.elapsed().as_secs_f64());
    let report: Report = session.last_report(&View::default(), 0, &signals)?;
    let overhead = report.overhead.context("nothing was measured")?;
    if report.source == Source::Usdt {
        return Ok(Measured::Announced(overhead));
    }
    let allocated = report.stacks.iter().map(|stack| stack.allocated.amount.bytes);
    Ok(Measured::Calls(Rates {
        allocations: overhead.spent.rate(),
        bytes: allocated.fold(0, u64::saturating_add) as f64 / seconds,
        faults: after.saturating_sub(before) as f64 / seconds,
        every_call: overhead.spent.share(),
    }))
}

fn announced(overhead: &Overhead) -> Finding {
    let text = format!(
        "memleak -p PID, by its announcements: {} blocks/s, {} of one CPU",
        rate(overhead.spent.rate()),
        share(overhead.spent.share())
    );
    Finding::fine("cost", text)
}

/// Findings about the ways to trace, from the most complete to the cheapest; recommends the first cheap one.
fn of_calls(rates: &Rates) -> Vec<Finding> {
    // Factor by which the process may be faster without the cost of tracing every call.
    let faster = 1.0 / (1.0 - rates.every_call).max(0.1);
    let samples = faster * rates.allocations.min(rates.bytes / DEFAULT_DISTANCE as f64);
    let preloaded = (samples * ANNOUNCED + faster * rates.allocations * PAIR) / 1e9;
    let per_second = |number: f64, unit| format!("{} {unit}/s", rate(number));
    let ways = [
        (
            "memleak -p PID",
            per_second(rates.allocations, "allocations"),
            rates.every_call,
        ),
        (
            "memleak -p PID --sample-bytes 512K",
            "estimates".to_owned(),
            SAMPLED * rates.every_call,
        ),
        (
            "memleak --faults -p PID",
            per_second(rates.faults, "page faults"),
            rates.faults * FAULT / 1e9,
        ),
        (
            "started anew, memleak --preload -- PROGRAM",
            per_second(samples, "samples"),
            preloaded,
        ),
    ];
    // A cost of 0 means that there are no such events: that way would show nothing.
    let recommended = ways.iter().position(|(_, _, cost)| *cost <= CHEAP && *cost > 0.0);
    let finding = |(number, (way, what, cost)): (usize, (&str, String, f64))| {
        let text = format!("{way}: {what}, about {} of one CPU", share(cost));
        match recommended == Some(number) {
            true => Finding::fine("cost", format!("{text}; recommended")),
            false => Finding::note("cost", text),
        }
    };
    ways.into_iter().enumerate().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the most complete of the cheap ways is recommended.
    #[test]
    fn recommendations() {
        let recommended = |allocations: f64, faults: f64| {
            let findings = of_calls(&Rates {
                allocations,
                bytes: 100.0 * allocations,
                faults,
                every_call: allocations * 3e-6,
            });
            let mut recommended = findings.iter().map(|finding| finding.text.as_str());
            let recommended = recommended.find(|text| text.ends_with("; recommended"));
            recommended.map(|text| text.split(": ").next().expect("the way").to_owned())
        };
        let is = |way: &str| Some(way.to_owned());
        assert_eq!(recommended(1e3, 0.0), is("memleak -p PID"));
        assert_eq!(recommended(2e4, 0.0), is("memleak -p PID --sample-bytes 512K"));
        assert_eq!(recommended(1e6, 1e3), is("memleak --faults -p PID"));
        assert_eq!(
            recommended(1e6, 1e6),
            is("started anew, memleak --preload -- PROGRAM")
        );
    }
}
