//! A process id where INTERVAL or COUNT is expected: `-p $(pidof server)` with two servers is `-p A B`.
//!
//! Kernel threads and the first processes have small numbers, so that not every number that is a process id is meant as
//! one. It is if that process is like one that is traced, which all processes of `pidof` are, or if nobody would wait for
//! so long; what else is a process is taken for an interval, with a note. Hours and other whole minutes are intervals, too:
//! scripts that give these must not fail whenever a process happens to have that number. And one second is what nearly
//! everybody means by 1, which is the first process's number.

use thiserror::Error;

use super::TraceArgs;
use crate::process::ProcessName;

/// Seconds from which on an interval without a unit is not believed if it is a process id, too, unless it is in minutes.
const LONG: u32 = 3600;

/// Starts all others; in a container, it often is the program itself.
const FIRST_PROCESS: u32 = 1;

/// A number that is rather a process id.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{name} `{number}` is the pid of a process ({comm}): to trace several, separate them by commas: -p {pids}{}",
    interval(.name, *.number)
)]
pub struct StrayPid {
    /// The argument that it was taken for.
    name: &'static str,
    number: u32,
    comm: String,
    /// The value that -p needs for all processes.
    pids: String,
}

impl StrayPid {
    /// A note for where it is taken for an interval all the same.
    fn note(&self) -> String {
        let Self {
            number, comm, pids, ..
        } = self;
        format!("INTERVAL is {number} s, not process {number} ({comm}): to trace that, too, use -p {pids}")
    }
}

fn interval(name: &str, number: u32) -> String {
    match name {
        "INTERVAL" => format!("; for an interval of that many seconds, write {number}s"),
        _ => String::new(),
    }
}

impl TraceArgs {
    /// Checks that INTERVAL and COUNT are no process ids. Returns what there is to note about them.
    ///
    /// # Errors
    ///
    /// One of them is.
    pub fn check_stray_pids(&self) -> Result<Option<String>, StrayPid> {
        self.check_stray(&ProcessName::of)
    }

    /// As [`TraceArgs::check_stray_pids`], with names of processes from `name_of`.
    fn check_stray(&self, name_of: &dyn Fn(u32) -> Option<ProcessName>) -> Result<Option<String>, StrayPid> {
        let pids: Vec<u32> = self.pid.iter().filter_map(|pid| pid.parse().ok()).collect();
        let traced: Vec<_> = pids.iter().filter_map(|&pid| name_of(pid)).collect();
        let given = [("INTERVAL", &self.interval), ("COUNT", &self.count)];
        let mut note = None;
        for (name, text) in given {
            let number = text.as_ref().and_then(|text| text.parse().ok());
            let process = number.and_then(|number| Some((number, name_of(number)?)));
            // `-p 1 1` is what one writes in a container; the same process twice is what nobody means.
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
            let is_meant = is_like || (is_interval && number > LONG && number % 60 != 0);
            if is_meant && number != FIRST_PROCESS {
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

    /// The first process, servers 4711, 4712 and 10, a shell 5, a daemon 300, and something else with a large number.
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

    /// Numbers that are no process, or written with a unit, or where nothing is traced by -p, are what they seem.
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
    fn others_are_noted() {
        let note = check("-p 4711 5").expect("an interval").expect("with a note");
        assert_eq!(
            note,
            "INTERVAL is 5 s, not process 5 (sh): to trace that, too, use -p 4711,5"
        );
        // Of a container's first process, one second is what is meant, and said.
        let note = check_in("-p 4711 1 1", true).expect("an interval");
        assert!(note.is_some_and(|note| note.contains("use -p 4711,1")));
        for arguments in ["-p 4711 3600 5", "-p 4711 7200"] {
            assert!(check(arguments).is_ok_and(|note| note.is_some()), "{arguments}");
        }
    }

    /// Processes like those that are traced are meant to be traced, too, as are those with numbers beyond an hour.
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
}
