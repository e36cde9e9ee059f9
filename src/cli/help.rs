//! Layout of `--help`, with flags in groups and examples (`examples`), and of `-h`, one screen of essentials.
//! Also the sources that each flag can be set by, since these are declared per flag.
//!
//! Flags are declared in the modules that interpret them (`cli/*.rs`), in any order; `GROUPS` orders them. A
//! flag in no group fails a test.

use clap::{Arg, ArgAction, Command, ValueHint};

use super::examples::{self, EXAMPLES, Example, SECTIONS};

/// Destination of the description of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// A terminal, where `-h` is one screen.
    Screen,
    /// Manual pages and the reference.
    Manual,
}

/// Flags that `-h` shows; each text has at most 54 characters.
const FIRST_FLAGS: &[(&str, &str)] = &[
    (
        "-p, --pid PID[,PID…]",
        "processes, also by name; without any, the kernel",
    ),
    ("    --follow-fork", "trace their children, too"),
    ("-T, --top N", "stacks to show [default: 10]"),
    (
        "    --format FORMAT",
        "text, summary, json, html, svg, pprof, folded …",
    ),
    (
        "    --output FILE",
        "write to a file; its extension selects the format",
    ),
    ("    --duration TIME", "end after 30s, 10m, 2h"),
    (
        "    --fail-on CONDITION",
        "status 1 if, for example, 'outstanding>1MiB'",
    ),
    (
        "    --max-overhead PCT",
        "sample if tracing would cost more than PCT of a CPU",
    ),
];

/// Sources that a flag can be set by besides the command line. Ordered: a source may set a flag if its own
/// level is at least the flag's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Also the settings file of the user who called sudo, which root must not trust. For flags about what is
    /// measured and shown; not for flags that name files, programs, processes or servers, or take kernel
    /// memory.
    Anyone,
    /// Files owned by root or by the user that memleak runs as, and the file that `--config` names.
    Trusted,
    /// Environment variables: the target of a trace does not belong in a settings file.
    Environment,
    /// No source besides the command line.
    CommandLine,
}

/// A flag and where it can be set.
struct Flag {
    /// Name of its field.
    id: &'static str,
    source: Source,
}

/// Flags below one heading.
struct Group {
    heading: &'static str,
    flags: &'static [Flag],
}

const fn flag(id: &'static str, source: Source) -> Flag {
    Flag { id, source }
}

use Source::{Anyone, CommandLine, Environment, Trusted};

/// Groups and their flags in the order of help.
const GROUPS: &[Group] = &[
    Group {
        heading: "What to trace",
        flags: &[
            flag("pid", Environment),
            flag("systemd_unit", Environment),
            flag("cgroup", Environment),
            flag("container", Environment),
            flag("user", Environment),
            flag("wait", Environment),
            flag("command", Environment),
            flag("preload", Environment),
            flag("follow_fork", Trusted),
            flag("ignore_translators", Trusted),
            flag("max_processes", Trusted),
            flag("mmap", Trusted),
            flag("faults", Trusted),
            flag("start_when", Anyone),
            flag("report_when", Anyone),
            flag("duration", Anyone),
            flag("percpu", Anyone),
            flag("wa_missing_free", Anyone),
        ],
    },
    Group {
        heading: "Which report",
        flags: &[
            flag("at", Anyone),
            flag("all", Anyone),
            flag("list", Anyone),
            flag("summary", Anyone),
            flag("window", Anyone),
            flag("once", CommandLine),
        ],
    },
    Group {
        heading: "Output",
        flags: &[
            flag("format", Anyone),
            flag("output", Trusted),
            flag("force", Trusted),
            flag("measure", Anyone),
            flag("report", CommandLine),
            flag("unit", Anyone),
            flag("reverse", Anyone),
            flag("live", Anyone),
            flag("trace", Anyone),
            flag("every", CommandLine),
            flag("verify", CommandLine),
            flag("output_dir", CommandLine),
        ],
    },
    Group {
        heading: "What reports show",
        flags: &[
            flag("top", Anyone),
            flag("sort", Anyone),
            flag("older", Anyone),
            // Can stop threads.
            flag("verdict", Trusted),
            flag("verdict_limit", Anyone),
            flag("pointer_tags", Anyone),
            flag("stop", CommandLine),
            // Reads the processes' memory.
            flag("classes", Trusted),
            flag("pinned", Trusted),
            flag("show_allocs", Anyone),
            flag("combined_only", Anyone),
            flag("perf_max_stack_depth", Anyone),
            flag("verbatim_names", Anyone),
            // Reads files.
            flag("source_lines", Trusted),
            flag("debuginfod", Trusted),
        ],
    },
    Group {
        heading: "Recording",
        flags: &[
            flag("record", Trusted),
            flag("record_limit", Trusted),
            flag("anonymize", Anyone),
        ],
    },
    Group {
        heading: "Gates",
        flags: &[
            flag("fail_on", Anyone),
            flag("max_lost", Anyone),
            flag("suppressions", Trusted),
            flag("write_suppressions", Trusted),
            flag("baseline", Trusted),
            flag("write_baseline", Trusted),
            flag("junit", Trusted),
            flag("annotations", Anyone),
        ],
    },
    Group {
        heading: "Fleets",
        flags: &[
            flag("push", Trusted),
            flag("push_api", Trusted),
            flag("push_label", Trusted),
            flag("push_tenant", Trusted),
            flag("push_header", Trusted),
            flag("push_header_file", Trusted),
            flag("push_token_file", Trusted),
            flag("push_user", Trusted),
            flag("push_ca", Trusted),
            flag("metrics", Trusted),
            flag("metrics_sites", Trusted),
        ],
    },
    Group {
        heading: "Which allocations",
        flags: &[
            flag("max_overhead", Anyone),
            flag("sample_bytes", Anyone),
            flag("sample_rate", Anyone),
            flag("source", Anyone),
            flag("min_size", Anyone),
            flag("max_size", Anyone),
        ],
    },
    Group {
        heading: "Probes and stacks",
        flags: &[
            flag("unwind", Anyone),
            flag("python", Anyone),
            flag("objects", Anyone),
            flag("prefixes", Anyone),
            flag("functions", Trusted),
            flag("max_blocks", Trusted),
            flag("stack_storage_size", Trusted),
            flag("table_memory", Trusted),
            flag("attach", CommandLine),
            flag("break_program", CommandLine),
            flag("walk_cache", CommandLine),
            flag("walk_window", CommandLine),
            flag("walk_memo", CommandLine),
            flag("check_walks", CommandLine),
            flag("probe_first_instructions", CommandLine),
        ],
    },
    Group {
        heading: GENERAL,
        flags: &[
            flag("quiet", Anyone),
            flag("verbose", Anyone),
            flag("color", Anyone),
            flag("config", Environment),
            flag("no_config", Environment),
            flag("ebpf", CommandLine),
            flag("usage", CommandLine),
        ],
    },
];

const GENERAL: &str = "General";

/// Adds groups, headings, examples and help texts to the whole command line.
pub(super) fn arrange(command: Command, page: Page) -> Command {
    let command = command.mut_subcommands(|command| {
        let hidden = command.is_hide_set() || is_left_out(command.get_name());
        command.hide(hidden)
    });
    let command = arrange_flags(command)
        .disable_version_flag(true)
        .arg(version_flag());
    let command = command.after_long_help(long_help()).max_term_width(100);
    let command = match page {
        Page::Manual => command,
        // clap uses one template for `-h` and `--help`, so each page is passed to it as one text.
        Page::Screen => {
            let long = command.clone().render_long_help();
            let command = command.before_help(short_help()).before_long_help(long);
            command.help_template("{before-help}")
        }
    };
    command.mut_subcommands(|command| {
        let examples = listed(examples::of(command.get_name()));
        arrange_flags(command).max_term_width(100).after_help(examples)
    })
}

/// Source level of a flag; [`CommandLine`] for an unknown one.
pub(super) fn source_of(id: &str) -> Source {
    let flags = GROUPS.iter().flat_map(|group| group.flags);
    let flag = flags.into_iter().find(|flag| flag.id == id);
    flag.map_or(CommandLine, |flag| flag.source)
}

/// True if a flag or subcommand belongs to a cargo feature that this build lacks. Such a flag is hidden from
/// help, but still parsed, so that an error can name the feature.
pub(super) fn is_left_out(id: &str) -> bool {
    match id {
        "live" => !cfg!(feature = "tui"),
        "debuginfod" => !cfg!(feature = "net"),
        id => id.starts_with("push") && !cfg!(feature = "net"),
    }
}

/// True if a command line, or the name of a variable, names no flag or subcommand that this build lacks.
pub(super) fn is_built(line: &str) -> bool {
    let name = |word: &str| {
        let word = word.to_ascii_lowercase();
        let word = word.trim_start_matches("--").trim_start_matches("memleak_");
        word.split('_').next().unwrap_or_default().to_owned()
    };
    !line.split(' ').any(|word| is_left_out(&name(word)))
}

/// Assigns each flag of the command to its group. `mut_arg` moves a flag to the end, so flags and headings
/// end up in the order of `GROUPS`.
fn arrange_flags(mut command: Command) -> Command {
    let has = |command: &Command, id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
    for (id, hint) in HINTS {
        if has(&command, id) {
            command = command.mut_arg(id, |arg| arg.value_hint(*hint));
        }
    }
    let flags = GROUPS
        .iter()
        .flat_map(|group| group.flags.iter().map(move |flag| (group, flag)));
    for ((group, flag), place) in flags.zip(0..) {
        if has(&command, flag.id) {
            command = command.mut_arg(flag.id, |arg| {
                let hidden = arg.is_hide_set() || is_left_out(flag.id);
                arg.help_heading(group.heading).display_order(place).hide(hidden)
            });
        }
    }
    command.disable_help_flag(true).arg(help_flag())
}

/// Shell completion of arguments whose type does not imply it.
const HINTS: &[(&str, ValueHint)] = &[
    ("command", ValueHint::CommandString),
    ("program", ValueHint::CommandWithArguments),
    ("before", ValueHint::FilePath),
    ("after", ValueHint::FilePath),
];

/// clap's own flag, but below the general heading.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help; -h is short, --help is long")
        .help_heading(GENERAL)
        .display_order(usize::MAX - 1)
}

fn version_flag() -> Arg {
    Arg::new("version")
        .short('V')
        .long("version")
        .action(ArgAction::Version)
        .help("Print version")
        .help_heading(GENERAL)
        .display_order(usize::MAX)
}

/// Text of at most 24 lines and 80 columns.
fn short_help() -> String {
    let mut text = format!(
        "Find memory leaks in a running process: shows the call stacks whose allocations\nwere never freed.\n\n\
         {} memleak [OPTIONS] [-p PID | -c COMMAND] [INTERVAL] [COUNT] [-- PROGRAM…]\n",
        title("Usage")
    );
    for (line, meaning) in EXAMPLES.iter().filter(|(line, _)| is_built(line)) {
        text.push_str(&format!("\n  {line:<37} {meaning}"));
    }
    text.push('\n');
    for (flag, meaning) in FIRST_FLAGS {
        text.push_str(&format!("\n  {flag:<24} {meaning}"));
    }
    text.push_str("\n\nAll flags and commands: memleak --help. One command: memleak help report.");
    text
}

fn long_help() -> String {
    let all: Vec<_> = examples::of_memleak().copied().collect();
    let mut text = listed(&all);
    for (heading, entries) in SECTIONS {
        text.push_str(&format!("\n\n{}", title(heading)));
        for (word, meaning) in entries.iter().filter(|(word, _)| is_built(word)) {
            let separator = match word.len() < 8 && meaning.len() < 60 {
                true => format!("{:1$}", "", 8 - word.len()),
                false => "\n          ".to_owned(),
            };
            text.push_str(&format!("\n  {word}{separator}{meaning}"));
        }
    }
    text
}

/// Examples with their meaning on the same line, or below a long command line.
fn listed(examples: &[Example]) -> String {
    const COLUMN: usize = 42;
    if examples.is_empty() {
        return String::new();
    }
    let mut text = title("Examples");
    for (line, meaning) in examples {
        let separator = match line.chars().count() < COLUMN {
            true => format!("{:1$}", "", COLUMN - line.chars().count()),
            false => "\n        ".to_owned(),
        };
        text.push_str(&format!("\n  {line}{separator}{meaning}"));
    }
    text
}

/// A heading in clap's style.
fn title(text: &str) -> String {
    let style = anstyle::Style::new().bold().underline();
    format!("{style}{text}:{style:#}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn commands() -> Vec<Command> {
        let root = Cli::command();
        root.get_subcommands().cloned().chain([root.clone()]).collect()
    }

    /// Every flag is in exactly one group, and every flag in a group exists.
    #[test]
    fn every_flag_has_its_place() {
        let declared: BTreeSet<_> = commands()
            .iter()
            .flat_map(|command| {
                command
                    .get_opts()
                    .map(|arg| arg.get_id().to_string())
                    .collect::<Vec<_>>()
            })
            .collect();
        let flags = GROUPS.iter().flat_map(|group| group.flags);
        let placed: Vec<_> = flags.map(|flag| flag.id.to_owned()).collect();
        assert_eq!(placed.len(), placed.iter().collect::<BTreeSet<_>>().len());
        assert_eq!(placed.into_iter().collect::<BTreeSet<_>>(), declared);
    }

    /// Every command has examples, and they parse.
    #[test]
    fn examples_can_be_typed() {
        let names = commands()
            .into_iter()
            .map(|command| command.get_name().to_owned());
        let all = names.filter(|name| name != "memleak").flat_map(|name| {
            let examples = examples::of(&name);
            assert!(!examples.is_empty(), "{name}");
            examples
        });
        for (line, _) in all.chain(examples::of_memleak()) {
            let of_memleak = line.find("memleak ").map_or("", |at| &line[at..]);
            let ends = [" > ", " | ", ")"]
                .into_iter()
                .filter_map(|end| of_memleak.find(end));
            let end = ends.min().unwrap_or(of_memleak.len());
            let words = shlex::split(&of_memleak[..end]).expect("words");
            let parsed = crate::cli::command(Page::Screen).try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    /// The short help fits on a screen and names existing flags; headings of the long help are in order.
    #[test]
    fn short_and_long_help() {
        let mut command = crate::cli::command(Page::Screen).term_width(80);
        let short = command.render_help().to_string();
        assert!(short.lines().count() <= 24, "{short}");
        assert!(short.lines().all(|line| line.chars().count() <= 80), "{short}");
        for (text, _) in FIRST_FLAGS {
            let names = text.split([' ', ',']).filter_map(|word| word.strip_prefix("--"));
            let is_flag = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
            assert!(names.into_iter().all(is_flag), "{text}");
        }
        let long = command.render_long_help().to_string();
        let headings: Vec<_> = GROUPS
            .iter()
            .map(|group| long.find(&format!("\n{}:\n", group.heading)))
            .filter(Option::is_some)
            .collect();
        assert!(headings.len() >= 7 && headings.is_sorted(), "{long}");
        assert!(!long.contains("\nOptions:\n"));
    }
}
