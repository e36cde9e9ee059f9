//! How `-h` and `--help` show the flags, in groups, and what they show besides (`examples`). Also which settings may come
//! from where, as that is a matter of each flag.
//!
//! Flags are declared where they are understood (`cli/*.rs`), in any order; here they get their places. A flag that is in
//! no group fails a test.

use clap::{Arg, ArgAction, Command, ValueHint};

use super::examples::{self, EXAMPLES, Example, SECTIONS};

/// What of the flags is for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// `-h` leaves out what is rarely needed.
    Screen,
    /// The manual leaves out nothing.
    Manual,
}

/// Where a flag can be set besides the command line. Who may set a later one may set those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Also in the file of the user who called sudo, which root must not believe: what is measured and shown. Nothing that
    /// names files, programs, processes or servers, or takes memory of the kernel.
    Anyone,
    /// In files of root or of the very user that memleak runs as, and in the file that `--config` names.
    Trusted,
    /// In the environment only: what to trace is no matter of habit.
    Environment,
    /// Nowhere else.
    CommandLine,
}

/// A flag's place.
struct Flag {
    /// The name of its field.
    id: &'static str,
    /// Whether `-h` shows it.
    is_common: bool,
    source: Source,
}

/// Flags that belong together.
struct Group {
    heading: &'static str,
    flags: &'static [Flag],
}

const fn common(id: &'static str, source: Source) -> Flag {
    Flag {
        id,
        is_common: true,
        source,
    }
}

const fn rare(id: &'static str, source: Source) -> Flag {
    Flag {
        id,
        is_common: false,
        source,
    }
}

use Source::{Anyone, CommandLine, Environment, Trusted};

/// In the order in which help shows them.
const GROUPS: &[Group] = &[
    Group {
        heading: "What to trace",
        flags: &[
            common("pid", Environment),
            common("command", Environment),
            common("follow_fork", Trusted),
            common("mmap", Trusted),
            rare("percpu", Anyone),
            rare("wa_missing_free", Anyone),
        ],
    },
    Group {
        heading: "Which report",
        flags: &[
            common("at", Anyone),
            common("all", Anyone),
            common("list", Anyone),
            common("summary", Anyone),
        ],
    },
    Group {
        heading: "Output",
        flags: &[
            common("format", Anyone),
            common("output", Trusted),
            common("force", Trusted),
            rare("measure", Anyone),
            rare("unit", Anyone),
            common("live", Anyone),
            rare("trace", Anyone),
            common("verify", CommandLine),
            common("output_dir", CommandLine),
        ],
    },
    Group {
        heading: "What reports show",
        flags: &[
            common("top", Anyone),
            common("sort", Anyone),
            rare("older", Anyone),
            rare("show_allocs", Anyone),
            rare("combined_only", Anyone),
            rare("perf_max_stack_depth", Anyone),
            rare("verbatim_names", Anyone),
            rare("debuginfod", Trusted),
        ],
    },
    Group {
        heading: "Recording",
        flags: &[
            common("record", Trusted),
            rare("record_limit", Trusted),
            rare("anonymize", Anyone),
        ],
    },
    Group {
        heading: "Gates",
        flags: &[
            common("fail_on", Anyone),
            rare("max_lost", Anyone),
            rare("suppressions", Trusted),
            rare("write_suppressions", Trusted),
            rare("baseline", Trusted),
            rare("write_baseline", Trusted),
            rare("junit", Trusted),
            rare("annotations", Anyone),
        ],
    },
    Group {
        heading: "Fleets",
        flags: &[
            rare("push", Trusted),
            rare("push_api", Trusted),
            rare("push_label", Trusted),
            rare("push_tenant", Trusted),
            rare("push_header", Trusted),
            rare("push_header_file", Trusted),
            rare("push_token_file", Trusted),
            rare("push_user", Trusted),
            rare("push_ca", Trusted),
            rare("metrics", Trusted),
            rare("metrics_sites", Trusted),
        ],
    },
    Group {
        heading: "Which allocations",
        flags: &[
            common("max_overhead", Anyone),
            rare("sample_bytes", Anyone),
            rare("sample_rate", Anyone),
            rare("min_size", Anyone),
            rare("max_size", Anyone),
        ],
    },
    Group {
        heading: "Probes and stacks",
        flags: &[
            rare("unwind", Anyone),
            rare("objects", Anyone),
            rare("prefixes", Anyone),
            rare("functions", Trusted),
            rare("max_blocks", Trusted),
            rare("stack_storage_size", Trusted),
            rare("table_memory", Trusted),
            rare("attach", CommandLine),
            rare("walk_cache", CommandLine),
            rare("walk_window", CommandLine),
            rare("walk_memo", CommandLine),
            rare("check_walks", CommandLine),
            rare("probe_first_instructions", CommandLine),
        ],
    },
    Group {
        heading: GENERAL,
        flags: &[
            common("quiet", Anyone),
            common("verbose", Anyone),
            rare("color", Anyone),
            rare("config", Environment),
            rare("no_config", Environment),
            rare("ebpf", CommandLine),
            rare("usage", CommandLine),
        ],
    },
];

const GENERAL: &str = "General";

/// The whole command line, with help.
pub(super) fn arrange(command: Command, page: Page) -> Command {
    let command = arrange_flags(command, page)
        .disable_version_flag(true)
        .arg(version_flag());
    let (short, long) = (listed(EXAMPLES), long_help());
    let command = command
        .after_help(short)
        .after_long_help(long)
        .max_term_width(100);
    command.mut_subcommands(|command| {
        let examples = listed(examples::of(command.get_name()));
        arrange_flags(command, Page::Manual)
            .max_term_width(100)
            .after_help(examples)
    })
}

/// Where a flag can be set; only on the command line if that is not known.
pub(super) fn source_of(id: &str) -> Source {
    let flags = GROUPS.iter().flat_map(|group| group.flags);
    let flag = flags.into_iter().find(|flag| flag.id == id);
    flag.map_or(CommandLine, |flag| flag.source)
}

/// Each flag that the command has gets its group. As a changed flag goes to the end, they are in the order of the groups
/// then, and so are the groups.
fn arrange_flags(mut command: Command, page: Page) -> Command {
    let has = |command: &Command, id| command.get_arguments().any(|arg| arg.get_id() == id);
    let flags = GROUPS
        .iter()
        .flat_map(|group| group.flags.iter().map(move |flag| (group, flag)));
    for ((group, flag), place) in flags.zip(0..) {
        if has(&command, flag.id) {
            command = command.mut_arg(flag.id, |arg| {
                arg.help_heading(group.heading)
                    .display_order(place)
                    .hide_short_help(page == Page::Screen && !flag.is_common)
            });
        }
    }
    for (id, hint) in HINTS {
        if has(&command, id) {
            command = command.mut_arg(id, |arg| arg.value_hint(*hint));
        }
    }
    command.disable_help_flag(true).arg(help_flag())
}

/// What shells complete, where the type does not say so.
const HINTS: &[(&str, ValueHint)] = &[
    ("command", ValueHint::CommandString),
    ("program", ValueHint::CommandWithArguments),
    ("before", ValueHint::FilePath),
    ("after", ValueHint::FilePath),
];

/// As clap has it, but among the general ones.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help; -h the short, --help the long one")
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

fn long_help() -> String {
    let all: Vec<_> = examples::of_memleak().copied().collect();
    let mut text = listed(&all);
    for (heading, entries) in SECTIONS {
        text.push_str(&format!("\n\n{}", title(heading)));
        for (word, meaning) in *entries {
            let separator = match word.len() < 8 && meaning.len() < 60 {
                true => format!("{:1$}", "", 8 - word.len()),
                false => "\n          ".to_owned(),
            };
            text.push_str(&format!("\n  {word}{separator}{meaning}"));
        }
    }
    text
}

/// What comes of a command line stands behind it, or below if that is long.
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

/// In the style of clap's own headings.
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

    /// Every flag is in one group, and there is none in a group that no command has.
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

    /// Every command has examples, which are command lines that make sense.
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

    /// The short help fits on a screen or two, and each heading of the long one is in its place.
    #[test]
    fn short_and_long() {
        let mut command = crate::cli::command(Page::Screen).term_width(80);
        let short = command.render_help().to_string();
        assert!(short.lines().count() < 90, "{short}");
        assert!(!short.contains("--walk-cache") && !short.contains("--table-memory"));
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
