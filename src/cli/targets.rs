//! Flags for which processes are traced: by number, name, systemd unit, cgroup, container, user.

use clap::Args;

use super::config::{ConfigError, check_pids, non_zero, parse_pid};
use crate::bpf::Capacity;
use crate::commands::targets::TargetOptions;
use crate::process::select::{NameQuery, Selectors, UnitQuery, Wanted};

/// Ids of the flags that name what is traced. If the command line has one of them, settings from elsewhere
/// for any of them are ignored.
pub(super) const TARGET_FLAGS: [&str; 6] = ["pid", "systemd_unit", "cgroup", "container", "user", "wait"];

/// Flags that select processes by the unit, cgroup, container or user that they belong to.
#[derive(Debug, Args)]
pub struct SelectorArgs {
    /// Select the processes of a systemd unit (of its cgroup); a name without suffix is a service.
    ///
    /// name@ selects all instances of a template. If several of -p, --systemd-unit, --cgroup, --container and
    /// --user are given, a process must match all of them.
    #[arg(long, value_name = "UNIT")]
    pub systemd_unit: Option<String>,
    /// Select the processes of a cgroup, and of all cgroups below it.
    ///
    /// PATH is below the mount point (/sys/fs/cgroup), or as in /proc/PID/cgroup.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
    /// Select the processes of a container, by its name, its ID, or the beginning of its ID.
    ///
    /// It can be of Docker, containerd, podman, CRI-O or Kubernetes. In Kubernetes, names are POD,
    /// POD/CONTAINER, NAMESPACE/POD/CONTAINER. No daemon is asked.
    #[arg(long, value_name = "NAME|ID")]
    pub container: Option<String>,
    /// Select the processes of a user (the real user ID).
    #[arg(long, value_name = "NAME|UID")]
    pub user: Option<String>,
}

/// Flags that select the processes of a trace, besides `-p`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Properties by which processes are selected.
    #[command(flatten)]
    pub selectors: SelectorArgs,
    /// Wait until there is a process that matches, and one for each name given with -p.
    #[arg(long)]
    pub wait: bool,
    /// Maximum number of processes traced at once, up to 2047; further ones are counted as lost.
    ///
    /// Each takes 192 KiB of kernel memory, or 96 KiB if N is above 63; memory is taken for N rounded up to a
    /// power of two.
    ///
    /// [default: as many as are found; if more can join, four times as many, at least 63]
    #[arg(long, value_name = "N")]
    pub max_processes: Option<u32>,
}

/// Flags that select one process.
#[derive(Debug, Args)]
pub struct OneTargetArgs {
    /// Process to examine, by id, or by a name that only one process has.
    #[arg(short = 'p', long = "pid", value_name = "PID|NAME")]
    pub pid: Option<String>,
    /// Other properties by which it is selected.
    #[command(flatten)]
    pub selectors: SelectorArgs,
}

/// Flags that select the processes that a command looks at; all of them if none is given.
#[derive(Debug, Args)]
pub struct AnyTargetArgs {
    /// Processes to look at, by id or name; default: all, unless another flag selects some.
    #[arg(short = 'p', long = "pid", value_name = "PID|NAME", value_delimiter = ',')]
    pub pid: Vec<String>,
    /// Other properties by which they are selected.
    #[command(flatten)]
    pub selectors: SelectorArgs,
}

/// Targets of a trace: process ids, and selectors of processes that are to be found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Targets {
    pub(super) pids: Vec<u32>,
    pub(super) select: Option<TargetOptions>,
    pub(super) max_processes: Option<u32>,
}

impl SelectorArgs {
    /// Checks the flags together with the values of `-p`.
    fn check<'a>(&self, given: impl IntoIterator<Item = &'a String>) -> Result<Selectors, ConfigError> {
        let wanted = given.into_iter().map(|text| parse_wanted(text));
        let unit = self
            .systemd_unit
            .as_deref()
            .map(|name| UnitQuery::new(name).ok_or_else(|| ConfigError::NotAUnit(name.to_owned())));
        let others = [
            ("--cgroup", &self.cgroup),
            ("--container", &self.container),
            ("--user", &self.user),
        ];
        if let Some((flag, _)) = others.iter().find(|(_, value)| value.as_deref() == Some("")) {
            return Err(ConfigError::EmptyTarget(flag));
        }
        Ok(Selectors {
            wanted: wanted.collect::<Result<_, _>>()?,
            unit: unit.transpose()?,
            cgroup: self.cgroup.clone(),
            container: self.container.clone(),
            user: self.user.clone(),
        })
    }
}

impl OneTargetArgs {
    /// Checks the flags; `None` if no process is named.
    pub(super) fn check(&self) -> Result<Option<Selectors>, ConfigError> {
        let selectors = self.selectors.check(&self.pid)?;
        let is_given = selectors.has_others() || !selectors.wanted.is_empty();
        Ok(is_given.then_some(selectors))
    }
}

impl AnyTargetArgs {
    /// Checks the flags.
    pub(super) fn check(&self) -> Result<Selectors, ConfigError> {
        let selectors = self.selectors.check(&self.pid)?;
        let pids: Vec<_> = selectors.pids().collect();
        check_pids(&pids, u32::MAX)?;
        Ok(selectors)
    }
}

impl TargetArgs {
    /// Checks the flags together with the values of `-p`.
    pub(super) fn check(&self, given: &[String]) -> Result<Targets, ConfigError> {
        let selectors = self.selectors.check(given)?;
        let pids: Vec<_> = selectors.pids().collect();
        let max_processes = self.max_processes.map(check_max_processes).transpose()?;
        let pids = check_pids(&pids, max_processes.unwrap_or(Capacity::MAX_PROCESSES))?;
        let is_selected = selectors.has_others() || pids.len() < selectors.wanted.len();
        if self.wait && !is_selected {
            return Err(ConfigError::NothingToWaitFor);
        }
        let waits = self.wait;
        let select = is_selected.then_some(TargetOptions { selectors, waits });
        Ok(Targets {
            pids,
            select,
            max_processes,
        })
    }
}

/// Checks the number of processes that can be traced at once.
fn check_max_processes(given: u32) -> Result<u32, ConfigError> {
    let given = non_zero("--max-processes", given)?;
    match given <= Capacity::MAX_PROCESSES {
        true => Ok(given),
        false => Err(ConfigError::TooManyProcesses),
    }
}

/// Parses a value of `-p`: a number is a process, all else a name.
pub(super) fn parse_wanted(text: &str) -> Result<Wanted, ConfigError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        return parse_pid(text).map(Wanted::Pid);
    }
    let name = NameQuery::new(text).ok_or(ConfigError::EmptyTarget("-p"))?;
    Ok(Wanted::Name(name))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, Config};
    use crate::session::Counted;

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.try_into()
    }

    /// The target of `doctor` is optional; values that a trace refuses are refused here, too.
    #[test]
    fn one_target() {
        let check = |arguments: &str| {
            let words = ["memleak", "doctor"]
                .into_iter()
                .chain(arguments.split_whitespace());
            let cli = Cli::try_parse_from(words).expect("the command line parses");
            match cli.command {
                Some(Command::Doctor(args)) => args.target.check(),
                command => panic!("{command:?}"),
            }
        };
        assert_eq!(check("").expect("it makes sense"), None);
        let found = check("-p nginx --container web").expect("it makes sense");
        let found = found.expect("a process");
        assert_eq!((found.wanted.len(), found.container.as_deref()), (1, Some("web")));
        for (arguments, part) in [("--user=", "--user needs a value"), ("-p=", "-p needs a value")] {
            let error = check(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// Numbers are processes, all else are names; either alone, or with other selectors.
    #[test]
    fn numbers_and_names() {
        let plain = config("-p 3,4").expect("it makes sense");
        assert_eq!((plain.trace.targets.pids, plain.select), (vec![3, 4], None));
        let mixed = config("-p 12,nginx -p redis-server").expect("it makes sense");
        let select = mixed.select.expect("names");
        let name = |name| Wanted::Name(NameQuery::new(name).expect("not empty"));
        let expected = [Wanted::Pid(12), name("nginx"), name("redis-server")];
        assert_eq!(select.selectors.wanted, expected);
        assert!(
            !select.waits && mixed.trace.targets.pids == [12] && mixed.trace.count.counted == Counted::Blocks
        );
        for arguments in [
            "--systemd-unit nginx",
            "--cgroup /a",
            "--container web --follow-fork",
            "--user 0 -p 7",
            "-p x --wait",
            "--user www-data --wait",
        ] {
            let config = config(arguments).expect(arguments);
            let select = config.select.expect(arguments);
            assert_eq!(select.waits, arguments.contains("--wait"), "{arguments}");
            assert_eq!(config.trace.count.counted, Counted::Blocks, "{arguments}");
        }
    }

    /// Selectors are refused if they are empty, cannot match, or conflict with a program or the kernel.
    #[test]
    fn refused() {
        for (arguments, part) in [
            ("-p 7 --wait", "--wait waits for"),
            ("--wait", "--wait waits for"),
            ("--wait -- ls", "--wait waits for"),
            ("-p nginx -- ls", "start one: use only one"),
            ("--container a -c ls", "start one: use only one"),
            ("--systemd-unit a/b", "`a/b` is not the name of a unit"),
            ("--user= -p 1", "--user needs a value"),
            ("-p nginx,", "-p needs a value"),
            ("-p nginx --percpu", "--percpu applies to the kernel"),
            ("-p 1,nginx,1", "process 1 is given twice"),
            ("-p 0,nginx", "0 is not a process id"),
            (
                "-p 1,2 --max-processes 1",
                "2 processes are too many: at most 1 can be",
            ),
            ("-p 1 --max-processes 0", "--max-processes must be above 0"),
            ("-p nginx --max-processes 2048", "at most 2047 processes"),
        ] {
            let error = config(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
    }
}
