//! Cost of tracing, as text.

use super::words::{counted, rate, share, size};
use crate::model::Report;
use crate::model::{Governed, Overhead, ProbeProgram, Spent};

/// Share of one CPU up to which tracing is cheap; above it, cheaper ways are suggested.
pub const CHEAP: f64 = 0.05;
/// Cost of a trace with `--sample-bytes 512K`, relative to a trace of every call: `benches/RESULTS.md`,
/// redis.
pub const SAMPLED: f64 = 0.7;

/// Lines of the closing block; none if nothing was spent.
pub(super) fn lines(report: &Report) -> Vec<String> {
    spent(report).map_or_else(Vec::new, lines_of)
}

/// Share of one CPU; `None` if nothing was spent.
pub(super) fn brief(report: &Report) -> Option<String> {
    let overhead = spent(report)?;
    let about = if overhead.measured { "" } else { "about " };
    Some(format!("{about}{} of one CPU", share(overhead.spent.share())))
}

/// State of the governor, for reports that show only the share; empty without `--max-overhead`.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let governed = spent(report).and_then(|overhead| overhead.governed.as_ref());
    governed.map_or_else(Vec::new, governed_lines)
}

fn spent(report: &Report) -> Option<&Overhead> {
    let overhead = report.overhead.as_ref();
    overhead.filter(|overhead| overhead.spent.entries + overhead.spent.traps > 0.0)
}

fn lines_of(overhead: &Overhead) -> Vec<String> {
    let spent = &overhead.spent;
    let mut lines = vec![
        format!(
            "{} of one CPU over {:.1} s, {} lately",
            share(spent.share()),
            spent.seconds,
            share(overhead.lately)
        ),
        format!(
            "{} in {} traps, {} in programs{}",
            seconds(spent.trap_nanoseconds),
            rate(spent.traps),
            seconds(spent.program_nanoseconds()),
            per_run(spent)
        ),
    ];
    if !overhead.measured {
        lines.push(
            "time in programs is assumed: the kernel shows its statistics to CAP_SYS_ADMIN only (try sudo)"
                .to_owned(),
        );
    }
    if spent.unmeasured > 0.0 {
        let text = "before the first measurement, not included";
        lines.push(format!("{} allocations {text}", rate(spent.unmeasured)));
    }
    if let Some(governed) = &overhead.governed {
        lines.extend(governed_lines(governed));
    }
    lines
}

fn governed_lines(governed: &Governed) -> Vec<String> {
    let limit = format!("limit {}", share(governed.limit));
    let mut lines = vec![match governed.changes {
        0 => format!("{limit}: {} was recorded", recorded(governed.now)),
        changes => format!(
            "{limit}: {} is recorded now; before, from {} to {} ({})",
            recorded(governed.now),
            recorded(governed.least),
            recorded(governed.most),
            counted(changes, "change")
        ),
    }];
    lines.extend(governed.floor.map(|floor| {
        format!(
            "tracing costs at least {}: the limit cannot be kept",
            share(floor)
        )
    }));
    lines
}

/// The allocations recorded at a sampling interval in bytes; 1 stands for all.
fn recorded(bytes: u64) -> String {
    match bytes {
        0 | 1 => "every allocation".to_owned(),
        more => format!("one for each {}", size(more)),
    }
}

/// Expected rate and cost, extrapolated from about one second; one line.
pub fn forecast(spent: &Spent) -> String {
    let (rate, share) = (rate(spent.rate()), share(spent.share()));
    let about = if share.starts_with(|first: char| first.is_ascii_digit()) {
        "about "
    } else {
        ""
    };
    format!("{rate} allocations/s: {about}{share} of one CPU")
}

/// Cheaper ways to trace, with the expected cost of each; `None` if tracing is cheap. `spent` is the cost of
/// a trace of every call.
pub fn cheaper_ways(spent: &Spent) -> Option<String> {
    (spent.share() >= CHEAP).then(|| {
        format!(
            "cheaper: --sample-bytes 512K (about {}), --max-overhead PCT (a limit), or --preload (almost \
             free, but the program must be restarted)",
            share(spent.share() * SAMPLED)
        )
    })
}

/// Time per run of each program that ran.
fn per_run(spent: &Spent) -> String {
    let name = |program| match program {
        ProbeProgram::Session => "allocate and return",
        ProbeProgram::Entry => "allocate",
        ProbeProgram::Return => "return",
        ProbeProgram::Ret => "`ret`",
        ProbeProgram::Free => "free",
    };
    let programs = ProbeProgram::ALL.into_iter().zip(spent.programs);
    let ran = programs.filter(|(_, time)| time.runs > 0.0);
    let ran: Vec<_> = ran
        .map(|(program, time)| format!("{} {:.0} ns", name(program), time.per_run()))
        .collect();
    match ran.is_empty() {
        true => String::new(),
        false => format!(" ({} per run)", ran.join(", ")),
    }
}

fn seconds(nanoseconds: f64) -> String {
    match nanoseconds / 1e9 {
        seconds if seconds >= 0.1 => format!("{seconds:.1} s"),
        seconds => format!("{:.1} ms", seconds * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProgramTime;

    fn spent() -> Spent {
        let mut programs = [ProgramTime::default(); ProbeProgram::ALL.len()];
        for (program, runs, each) in [
            (ProbeProgram::Session, 4.0e6, 500.0),
            (ProbeProgram::Free, 2.0e6, 400.0),
        ] {
            programs[program as usize] = ProgramTime {
                runs,
                nanoseconds: runs * each,
            };
        }
        Spent {
            seconds: 10.0,
            entries: 2_140_000.0,
            programs,
            traps: 6.0e6,
            trap_nanoseconds: 1.3e9,
            unmeasured: 0.0,
        }
    }

    /// The forecast has a rate and a share, both readable.
    #[test]
    fn forecasts() {
        assert_eq!(forecast(&spent()), "214 k allocations/s: about 41% of one CPU");
        let ways = cheaper_ways(&spent()).expect("it costs much");
        assert!(
            ways.starts_with("cheaper: --sample-bytes 512K (about 29%), "),
            "{ways}"
        );
        let quiet = Spent {
            seconds: 1.0,
            entries: 3.0,
            traps: 9.0,
            trap_nanoseconds: 4500.0,
            ..Spent::default()
        };
        assert_eq!(forecast(&quiet), "3 allocations/s: less than 0.1% of one CPU");
        assert_eq!(cheaper_ways(&quiet), None);
        for (number, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.0 k"),
            (9949.0, "9.9 k"),
            (9960.0, "10 k"),
            (999_600.0, "1.0 M"),
            (2.5e9, "2.5 G"),
        ] {
            assert_eq!(rate(number), text);
        }
    }

    /// The closing lines show traps, programs and time per run, and with a governor the sampling intervals.
    #[test]
    fn closing_lines() {
        let mut overhead = Overhead {
            spent: spent(),
            lately: 0.05,
            measured: true,
            ..Overhead::default()
        };
        assert_eq!(
            lines_of(&overhead),
            [
                "41% of one CPU over 10.0 s, 5.0% lately",
                "1.3 s in 6.0 M traps, 2.8 s in programs (allocate and return 500 ns, free 400 ns per run)",
            ]
        );
        overhead.measured = false;
        overhead.governed = Some(Governed {
            limit: 0.02,
            now: 4096,
            least: 1,
            most: 8192,
            changes: 7,
            floor: Some(0.03),
        });
        let lines = lines_of(&overhead);
        assert!(lines[2].contains("CAP_SYS_ADMIN"), "{lines:?}");
        assert_eq!(
            lines[3..],
            [
                "limit 2.0%: one for each 4.0 KiB (4096 B) is recorded now; before, from every allocation to \
                 one for each 8.0 KiB (8192 B) (7 changes)",
                "tracing costs at least 3.0%: the limit cannot be kept",
            ]
        );
        assert!(lines.iter().all(|line| !line.contains("byte")));
    }
}
