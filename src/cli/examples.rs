//! Texts of help and the manual besides those of flags: examples, exit status, signals, environment, files.
//! `help` and `manual` lay them out.

use super::help::is_built;

/// Command line, and a description of its effect.
pub(super) type Example = (&'static str, &'static str);

/// Examples for beginners, the only ones that `-h` shows: at most 37 characters for a line and 41 for its
/// description.
pub(super) const EXAMPLES: &[Example] = &[
    ("memleak -p 4711", "report every 5 seconds until Ctrl-C"),
    ("memleak -p 4711 1m 3", "report three times, a minute apart"),
    ("memleak live -p 4711", "browse reports on the terminal"),
    (
        "memleak -c './server --port 80'",
        "start it, and report until it ends",
    ),
    (
        "memleak --output leaks.html -p 4711",
        "a page with flame graph, sites, memory",
    ),
    (
        "memleak --record a.memleak -p 4711",
        "record, for memleak report, diff, trend",
    ),
    (
        "memleak --verdict -p 4711 1m 1",
        "blocks the process can no longer reach",
    ),
    ("memleak doctor -p 4711", "check what would prevent a trace"),
];

const MORE_EXAMPLES: &[Example] = &[
    (
        "memleak --fail-on 'outstanding>1MiB' -- ./tests",
        "status 1 if more is outstanding at its end",
    ),
    ("memleak top", "which processes grow"),
    (
        "memleak --wait -p redis-server",
        "wait until one runs; all processes of this name",
    ),
    (
        "memleak --start-when 'rss>2GiB' -p 4711",
        "attach only when it is that large",
    ),
    (
        "memleak --report-when 'outstanding>256MiB' -p 4711",
        "a report when that much is outstanding",
    ),
    (
        "memleak --systemd-unit nginx.service",
        "a unit; also --cgroup, --container, --user",
    ),
    (
        "memleak --preload -- ./server --port 80",
        "a sample of its allocations, at next to no cost",
    ),
    ("memleak 10", "the kernel's own allocations, every 10 seconds"),
    (
        "memleak --format json -p 4711 60 1 > leaks.json",
        "everything about one minute, for programs",
    ),
    (
        "memleak --max-overhead 5 -p 4711",
        "costs at most 5% of one CPU; amounts are estimates then",
    ),
    (
        "memleak --output leaks.svg -p 4711 60 1",
        "a minute's flame graph",
    ),
    (
        "memleak diff leaks.memleak:1 leaks.memleak",
        "what grew from the first report to the last",
    ),
    (
        "memleak table /usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "how well its code can be unwound",
    ),
];

/// Examples of the subcommands.
const OF_COMMANDS: &[(&str, &[Example])] = &[
    (
        "table",
        &[
            ("memleak table ./server", "rows, bytes, rules, gaps of its table"),
            (
                "memleak table --verify /usr/lib",
                "compare every table there with the CFI",
            ),
        ],
    ),
    (
        "live",
        &[
            ("memleak live -p 4711", "`?` lists the keys"),
            (
                "memleak live -c ./server",
                "start it, and trace from its first allocation on",
            ),
        ],
    ),
    (
        "report",
        &[
            ("memleak report leaks.memleak", "the last report, as it was"),
            (
                "memleak report leaks.memleak --summary",
                "the five largest sources",
            ),
            (
                "memleak report leaks.memleak --at 3 --output leaks.svg",
                "a flame graph of the third report",
            ),
            (
                "ssh host cat leaks.memleak | memleak report - --list",
                "a line for each report of a recording elsewhere",
            ),
        ],
    ),
    (
        "top",
        &[
            ("memleak top", "all processes, on the terminal; Enter traces one"),
            ("memleak top --user www-data", "processes of one user"),
            (
                "memleak top 1m 1 -T 5",
                "the five that grew most within a minute, as a table",
            ),
        ],
    ),
    (
        "diff",
        &[
            (
                "memleak diff leaks.memleak:1 leaks.memleak",
                "growth from the first report to the last",
            ),
            (
                "memleak diff before.memleak after.memleak --output diff.svg",
                "red and blue, for a browser",
            ),
        ],
    ),
    (
        "trend",
        &[
            ("memleak trend leaks.memleak", "growth rates over all reports"),
            (
                "memleak trend mon.memleak tue.memleak",
                "growth rates over the last report of each recording",
            ),
        ],
    ),
    (
        "doctor",
        &[
            ("memleak doctor", "kernel, capabilities, settings"),
            (
                "memleak doctor -p 4711",
                "also how complete the process's stacks would be",
            ),
            (
                "memleak doctor -p 4711 --measure",
                "also the cost of each way to trace it",
            ),
            (
                "memleak doctor --report",
                "a file for an issue about a kernel that refuses programs",
            ),
        ],
    ),
    (
        "why",
        &[
            (
                "memleak why -p 4711",
                "one screen: the causes in order, and what to do",
            ),
            (
                "memleak why -p nginx 3m --format json",
                "for scripts, over three minutes",
            ),
            ("memleak why 2m", "of all processes, the one that grows fastest"),
            (
                "memleak why -p nginx --fail-on cause=lost --record why.memleak",
                "status 1 if it leaks; `memleak report why.memleak` shows the stacks",
            ),
        ],
    ),
    (
        "verdict",
        &[
            ("memleak verdict -p 4711", "which of all its blocks are lost"),
            (
                "memleak verdict -p 4711 --stop -a",
                "stopped while its memory is copied; with the blocks' addresses",
            ),
        ],
    ),
    (
        "mcp",
        &[
            (
                "memleak mcp leaks.memleak",
                "a recording; an assistant starts this by itself",
            ),
            (
                "memleak mcp --every 5 4711",
                "a process, which is traced while the client runs",
            ),
        ],
    ),
    (
        "library",
        &[(
            "memleak library --output /usr/local/lib/libmemleak.so",
            "for LD_PRELOAD in services, to trace them at any time",
        )],
    ),
    (
        "completions",
        &[
            (
                "memleak completions bash > /usr/share/bash-completion/completions/memleak",
                "for all users",
            ),
            ("source <(memleak completions bash)", "for this shell"),
            (
                "memleak completions fish > ~/.config/fish/completions/memleak.fish",
                "for one user",
            ),
        ],
    ),
    (
        "man",
        &[
            ("memleak man | man -l -", "read it"),
            (
                "memleak man --output-dir /usr/local/share/man/man8",
                "install all pages",
            ),
        ],
    ),
];

/// A section of the long help: its heading, and words with their meaning.
pub(super) type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// Sections of the long help and the manual.
pub(super) const SECTIONS: &[Section] = &[
    (
        "Exit status",
        &[
            (
                "0",
                "success; also if the reader of standard output has closed it",
            ),
            (
                "1",
                "a condition of --fail-on is exceeded, or `table --verify` found a wrong rule",
            ),
            ("2", "wrong usage, an error, or (doctor) no trace is possible"),
            ("3", "a condition is inconclusive"),
            (
                "other",
                "exit status of the started program, unless 1 or 3 applies; 128 + N if signal N killed it; 127 if it was not found, 126 if \
                 it cannot be executed",
            ),
            (
                "128 + N",
                "a second signal N ended memleak before its last report was made",
            ),
        ],
    ),
    (
        "Signals",
        &[
            (
                "SIGINT, SIGTERM, SIGHUP",
                "make the last report and end; a second SIGINT or SIGTERM ends at once. If memleak started a program, they are \
                 passed on to it, and memleak ends when it does",
            ),
            (
                "SIGUSR1",
                "set the mark: growth is measured from what is outstanding now",
            ),
        ],
    ),
    (
        "Environment",
        &[
            (
                "MEMLEAK_FLAG",
                "sets --flag, for example MEMLEAK_FORMAT=json; write _ for -, 1 or 0 for switches, and several values on \
                 separate lines. MEMLEAK_INTERVAL sets INTERVAL, MEMLEAK_REPORT_FORMAT the --format of `memleak report`. The \
                 command line takes precedence over the environment, and the environment over files",
            ),
            (
                "NO_COLOR, CLICOLOR_FORCE, TERM",
                "colours in text for people, unless --color is given",
            ),
            (
                "DEBUGINFOD_URLS, DEBUGINFOD_CACHE_PATH",
                "servers that --debuginfod asks, and the cache for their files",
            ),
            (
                "DEBUGINFOD_TIMEOUT, DEBUGINFOD_MAXTIME, DEBUGINFOD_MAXSIZE",
                "limits for one file: seconds without data (90), seconds in all (600), bytes (2 GiB)",
            ),
            (
                "MEMLEAK_PUSH_TOKEN",
                "token for --push if --push-token-file is not given; a started program does not get it",
            ),
            (
                "SUDO_UID",
                "id of the user that started programs run as, and that written files belong to",
            ),
        ],
    ),
    (
        "Files",
        &[
            (
                "$XDG_CONFIG_HOME/memleak/config.toml",
                "settings of the user (~/.config without that variable). Under sudo, those of the user who called it, and only \
                 settings of what is measured and shown, none that names a file, a process or a server. It must not be \
                 writable by others",
            ),
            (
                "/etc/memleak/config.toml",
                "system-wide settings; the user's file takes precedence",
            ),
        ],
    ),
];

/// Examples of a subcommand.
pub(super) fn of(command: &str) -> &'static [Example] {
    let own = OF_COMMANDS.iter().find(|(name, _)| *name == command);
    own.map_or(&[], |(_, examples)| examples)
}

/// All examples without a subcommand.
pub(super) fn of_memleak() -> impl Iterator<Item = &'static Example> {
    let all = EXAMPLES.iter().chain(MORE_EXAMPLES);
    all.filter(|(line, _)| is_built(line))
}
