//! Detects a process id in the place of INTERVAL or COUNT: `-p $(pidof server)` with two servers is `-p A B`.
//!
//! Kernel threads and the first processes have small numbers, so not every number that is a process id is
//! meant as one. It is if that process resembles a traced one, as all processes of `pidof` do, or if it would
//! be an implausibly long interval; the number of any other process is taken for an interval, with a note.
//! Hours and other whole minutes are intervals, too: scripts that use them must not fail when a process
//! happens to have that number. And 1 nearly always means one second, though it is the first process's
//! number.

use thiserror::Error;

use super::TraceArgs;
use crate::process::ProcessName;

/// Seconds above which an interval without a unit, not in whole minutes, is refused if it is also a process
/// id.
const LONG: u32 = 3600;

/// The init process; in a container, often the program itself.
const FIRST_PROCESS: u32 = 1;

/// A number that is more likely a process id.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{name} `{number}` is the pid of a process ({comm}): to trace several, separate them by commas: -p {pids}{}",
    interval(.name, *.number)
)]
pub struct StrayPid {
    /// Argument in whose place it is.
    name: &'static str,
    number: u32,
    comm: String,
    /// Value for -p with all processes.
    pids: String,
}

impl StrayPid {
    /// Note for a number that is taken for an interval anyway.
    fn note(&self) -> String {
        let Self {
            number, comm, pids, ..
        } = self;
        format!(
            "taking {number} as INTERVAL in seconds, not as process {number} ({comm}): to trace that process, too, use -p {pids}"
        )
    }
}

/// A number in the place of TIME of `memleak why`, without any -p, that is more likely a process id.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "TIME `{number}` is the pid of a process ({comm}): to diagnose it, use -p {number}; for a time of that many seconds, write \
     {number}s"
)]
pub struct StrayTime {
    number: u32,
    comm: String,
}

impl StrayTime {
    /// Checks a time, with processes from `name_of`. Returns a note about a number that is taken for a time
    /// although it may be a process id.
    pub(super) fn check(
        time: &str,
        name_of: &dyn Fn(u32) -> Option<ProcessName>,
    ) -> Result<Option<String>, Self> {
        let number = time.parse().ok().filter(|&number| number != FIRST_PROCESS);
        let Some((number, process)) = number.and_then(|number| Some((number, name_of(number)?))) else {
            return Ok(None);
        };
        let comm = process.comm;
        if number > LONG && number % 60 != 0 {
            return Err(Self { number, comm });
        }
        Ok(Some(format!(
            "taking {number} as TIME in seconds, not as process {number} ({comm}): to diagnose that process, use -p {number}"
        )))
    }
}

fn interval(name: &str, number: u32) -> String {
    match name {
        "INTERVAL" => format!("; for an interval of that many seconds, write {number}s"),
        _ => String::new(),
    }
}

impl TraceArgs {
    /// Checks that INTERVAL and COUNT are not process ids. Returns a note about a number that may be one.
    ///
    /// # Errors
    ///
    /// If one of them most likely is a process id.
    pub fn check_stray_pids(&self) -> Result<Option<String>, StrayPid> {
        self.check_stray(&ProcessName::of)
    }

    /// Checks as [`TraceArgs::check_stray_pids`] does, with processes from `name_of`.
    fn check_stray(&self, name_of: &dyn Fn(u32) -> Option<ProcessName>) -> Result<Option<String>, StrayPid> {
        let pids: Vec<u32> = self.pid.iter().filter_map(|pid| pid.parse().ok()).collect();
        let traced: Vec<_> = pids.iter().filter_map(|&pid| name_of(pid)).collect();
        let given = [("INTERVAL", &self.interval), ("COUNT", &self.count)];
        let mut note = None;
        for (name, text) in given {
            let number = text.as_ref().and_then(|text| text.parse().ok());
            let process = number.and_then(|number| Some((number, name_of(number)?)));
            // `-p 1 1` is common in a container; naming the same process twice is not.
            let process = process.filter(|(number, _)| !pids.is_empty() && !pids.contains(number));
            let Some((number, process)) = process else {
                continue;
            };
            let is_interval = name == "INTERVAL";
            let is_like = traced.iter().any(|traced| traced.is_like(&process));
            let all: Vec<_> = pids.iter().chain([&number]).map(u32::to_string).collect();
            let stray = StrayPid {
                name,
                number,
                comm: process.comm,
                pids: all.join(","),
            };
            let is_intended = is_like || (is_interval && number > LONG && number % 60 != 0);
            if is_intended && number != FIRST_PROCESS {
                return Err(stray);
            }
            if is_interval && (is_like || number != FIRST_PROCESS) {
                note = Some(stray.note());
            }
        }
        Ok(note)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// Processes: the first one, servers 4711, 4712 and 10, a shell 5, a worker 300, and others with large
    /// numbers.
    fn name_of(pid: u32, is_container: bool) -> Option<ProcessName> {
        let named = |comm: &str, exe: &str| ProcessName {
            comm: comm.to_owned(),
            exe: Some(exe.into()),
        };
        match pid {
            1 if is_container => Some(named("server", "/bin/server")),
            1 => Some(named("init", "/sbin/init")),
            4711 | 4712 | 10 => Some(named("server", "/bin/server")),
            5 => Some(named("sh", "/bin/dash")),
            300 => Some(named("worker", "/bin/server")),
            3600 | 7200 | 7201 => Some(named("cron", "/sbin/cron")),
            _ => None,
        }
    }

    fn check(arguments: &str) -> Result<Option<String>, String> {
        check_in(arguments, false)
    }

    fn check_in(arguments: &str, is_container: bool) -> Result<Option<String>, String> {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        let checked = cli.trace.check_stray(&|pid| name_of(pid, is_container));
        checked.map_err(|error| error.to_string())
    }

    /// Numbers that are not processes, that have a unit, or that appear without -p, are intervals and counts.
    #[test]
    fn intervals() {
        for arguments in [
            "-p 4711",
            "-p 4711 1 3",
            "-p 4711 7 100000",
            "-p 4711 10s",
            "-p 10 10",
            "-p 4711 7200s 1",
            "-p 4711 0.5",
            "-p 4711 7202",
            "-p 4711 1 7200",
            "-c server 10",
            "10 10",
        ] {
            assert_eq!(check(arguments), Ok(None), "{arguments}");
        }
    }

    /// Small numbers of other programs are intervals: common ones are process ids in every container.
    #[test]
    fn intervals_that_are_process_ids_are_noted() {
        let note = check("-p 4711 5").expect("an interval").expect("with a note");
        assert_eq!(
            note,
            "taking 5 as INTERVAL in seconds, not as process 5 (sh): to trace that process, too, use -p 4711,5"
        );
        // In a container whose first process is like the target, 1 is an interval, with a note.
        let note = check_in("-p 4711 1 1", true).expect("an interval");
        assert!(note.is_some_and(|note| note.contains("use -p 4711,1")));
        for arguments in ["-p 4711 3600 5", "-p 4711 7200"] {
            assert!(check(arguments).is_ok_and(|note| note.is_some()), "{arguments}");
        }
    }

    /// Numbers of processes like the traced ones are refused, as are process ids above an hour.
    #[test]
    fn process_ids() {
        for (arguments, parts) in [
            (
                "-p 4711 4712",
                &["INTERVAL `4712` is the pid", "(server)", "-p 4711,4712;", "4712s"][..],
            ),
            ("-p 4711,4712 10", &["`10`", "-p 4711,4712,10;", "10s"]),
            ("-p 4711 300", &["(worker)"]),
            ("-p 4711 7201", &["(cron)", "7201s"]),
            ("-p 4711 1 4712", &["COUNT `4712`", "-p 4711,4712"]),
        ] {
            let error = check(arguments).expect_err(arguments);
            for part in parts {
                assert!(error.contains(part), "no {part:?} in {error}");
            }
        }
    }

    /// A number that is a process id is refused in the place of TIME, unless it is a likely time.
    #[test]
    fn times() {
        let name_of = |pid| name_of(pid, false);
        let error = StrayTime::check("4711", &name_of)
            .expect_err("a process")
            .to_string();
        assert!(
            error.contains("use -p 4711; for a time of that many seconds, write 4711s"),
            "{error}"
        );
        let note = StrayTime::check("300", &name_of).expect("a time");
        assert!(note.is_some_and(|note| note.contains("not as process 300")));
        for time in ["1", "60s", "4713", "10"] {
            let note = StrayTime::check(time, &name_of).expect(time);
            assert_eq!(note.is_some(), time == "10", "{time}");
        }
    }
}
