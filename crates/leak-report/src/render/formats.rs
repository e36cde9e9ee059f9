//! Table of the output formats: the abilities of each, and its writer.

use std::io::{self, Write};
use std::path::Path;

use super::dialect::{Dialect, Stage, StderrLine, omitted_facts};
use super::format::{Format, Span};
use super::{
    bcc, blocks, flame, gperftools, heaptrack, html, json, libbpf, people, pprof, speedscope, summary,
};
use crate::model::{ListLimits, Report};

/// Properties of a format.
struct Facts {
    format: Format,
    /// Value of `--format`.
    name: &'static str,
    /// File name extensions; the first is the usual one.
    endings: &'static [&'static str],
    span: Span,
    /// True if it should not be written to a terminal.
    is_binary: bool,
    /// True if only people read it, so that it may have colours.
    is_for_people: bool,
    /// True if it shows one number for each stack, at least at first: the chosen [`Report::quantity`].
    has_quantity: bool,
    /// Maximum number of single blocks that it lists for each stack; `None` if it lists none.
    listed_blocks: Option<usize>,
    /// Output of the original tool besides its reports, if it is a tool's format.
    dialect: Option<&'static Dialect>,
    write: fn(&Report, &mut dyn Write) -> io::Result<()>,
}

/// A format without any of the abilities.
const PLAIN: Facts = Facts {
    format: Format::Text,
    name: "",
    endings: &[],
    span: Span::EachReport,
    is_binary: false,
    is_for_people: false,
    has_quantity: false,
    listed_blocks: None,
    dialect: None,
    write: people::render,
};

const FORMATS: &[Facts] = &[
    Facts {
        format: Format::Text,
        name: "text",
        endings: &[".txt"],
        is_for_people: true,
        listed_blocks: Some(10),
        write: people::render,
        ..PLAIN
    },
    Facts {
        format: Format::Json,
        name: "json",
        endings: &[".json", ".jsonl"],
        listed_blocks: Some(1000),
        write: json::render,
        ..PLAIN
    },
    Facts {
        format: Format::Summary,
        name: "summary",
        is_for_people: true,
        write: summary::render,
        ..PLAIN
    },
    Facts {
        format: Format::Folded,
        name: "folded",
        endings: &[".folded"],
        span: Span::LastReport,
        has_quantity: true,
        write: flame::render_folded,
        ..PLAIN
    },
    Facts {
        format: Format::Svg,
        name: "svg",
        endings: &[".svg"],
        span: Span::LastReport,
        has_quantity: true,
        write: flame::render_svg,
        ..PLAIN
    },
    Facts {
        format: Format::Pprof,
        name: "pprof",
        endings: &[".pb.gz", ".pprof"],
        span: Span::LastReport,
        is_binary: true,
        write: pprof::render,
        ..PLAIN
    },
    Facts {
        format: Format::Speedscope,
        name: "speedscope",
        endings: &[".speedscope.json"],
        span: Span::LastReport,
        has_quantity: true,
        write: speedscope::render,
        ..PLAIN
    },
    Facts {
        format: Format::Gperftools,
        name: "gperftools",
        endings: &[".heap"],
        span: Span::LastReport,
        write: gperftools::render,
        ..PLAIN
    },
    Facts {
        format: Format::Heaptrack,
        name: "heaptrack",
        endings: &[".heaptrack.gz"],
        span: Span::LastReport,
        is_binary: true,
        write: heaptrack::render,
        ..PLAIN
    },
    Facts {
        format: Format::Bcc,
        name: "bcc",
        // The original tools list all blocks, and readers of their formats expect them.
        listed_blocks: Some(usize::MAX),
        dialect: Some(&bcc::DIALECT),
        write: bcc::render,
        ..PLAIN
    },
    Facts {
        format: Format::Libbpf,
        name: "libbpf",
        listed_blocks: Some(usize::MAX),
        dialect: Some(&libbpf::DIALECT),
        write: libbpf::render,
        ..PLAIN
    },
    Facts {
        format: Format::Html,
        name: "html",
        endings: &[".html", ".htm"],
        span: Span::AllReports,
        has_quantity: true,
        write: html::render,
        ..PLAIN
    },
];

impl Format {
    /// All formats.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(|facts| facts.format)
    }

    /// The format for a file name: that of the longest extension that matches; `None` if none does.
    pub fn of_file(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let fitting = FORMATS.iter().flat_map(|facts| {
            let endings = facts.endings.iter().filter(|ending| name.ends_with(**ending));
            endings.map(|ending| (ending.len(), facts.format))
        });
        fitting
            .max_by_key(|(length, _)| *length)
            .map(|(_, format)| format)
    }

    /// All file name extensions that [`Format::of_file`] recognizes.
    pub fn endings() -> impl Iterator<Item = &'static str> {
        FORMATS.iter().flat_map(|facts| facts.endings.iter().copied())
    }

    /// Value of `--format` that selects it.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Reports of a trace that one document contains.
    pub fn span(self) -> Span {
        self.facts().span
    }

    /// Returns true if it should not be written to a terminal.
    pub fn is_binary(self) -> bool {
        self.facts().is_binary
    }

    /// Returns true if only people read it, so that it may have colours.
    pub fn is_for_people(self) -> bool {
        self.facts().is_for_people
    }

    /// Returns true if it shows one number for each stack, at least at first: the chosen
    /// [`Report::quantity`].
    pub fn has_quantity(self) -> bool {
        self.facts().has_quantity
    }

    /// Maximum numbers of blocks that the format lists; `None` if it lists none.
    pub fn list_limits(self) -> Option<ListLimits> {
        let of_a_stack = self.facts().listed_blocks;
        of_a_stack.map(|of_a_stack| ListLimits {
            of_a_stack,
            in_all: blocks::IN_ALL,
        })
    }

    /// Lines that are printed between reports at this stage.
    pub fn stage_lines(self, stage: &Stage<'_>) -> Vec<String> {
        let dialect = self.facts().dialect;
        dialect.map_or_else(Vec::new, |dialect| (dialect.stage_lines)(stage))
    }

    /// Lines for standard error that go with `report`.
    pub fn stderr_lines(self, report: &Report) -> Vec<StderrLine> {
        let Some(dialect) = self.facts().dialect else {
            return Vec::new();
        };
        let own = (dialect.stderr_line)(report).map(StderrLine::Verbatim);
        let omitted_facts = omitted_facts(report, self.name()).map(StderrLine::Warning);
        own.into_iter().chain(omitted_facts).collect()
    }

    fn facts(self) -> &'static Facts {
        let facts = FORMATS.iter().find(|facts| facts.format == self);
        // Not reached: the test below checks that each format has an entry.
        facts.unwrap_or(&FORMATS[0])
    }
}

/// Writes `report` to `out` as a complete document.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn render(report: &Report, format: Format, out: &mut dyn Write) -> io::Result<()> {
    (format.facts().write)(report, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each format is recognized by its file name extensions in any case, and other names are not.
    #[test]
    fn files_have_a_format() {
        for facts in FORMATS {
            for ending in facts.endings {
                for name in [
                    format!("leaks{ending}"),
                    format!("/tmp/A.B{}", ending.to_uppercase()),
                ] {
                    assert_eq!(Format::of_file(Path::new(&name)), Some(facts.format), "{name}");
                }
            }
            assert_eq!(facts.format.name(), facts.name);
        }
        for name in ["leaks", "leaks.xml", "txt", "/", ".."] {
            assert_eq!(Format::of_file(Path::new(name)), None, "{name}");
        }
    }
}
