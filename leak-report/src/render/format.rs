//! The output formats of a report, and their properties besides how they are written.

use std::io::{self, Write};
use std::path::Path;

use super::{bcc, flame, gperftools, heaptrack, html, json, libbpf, people, pprof, speedscope, summary};
use crate::model::Report;

/// A way to write reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Format {
    /// For people.
    Text,
    /// One object per line.
    Json,
    /// Totals and the five largest sources.
    Summary,
    /// One line per stack, root first, with its amount: input of flame graph tools.
    Folded,
    /// A flame graph, for a browser.
    Svg,
    /// For `pprof` and other readers of its format: allocated and outstanding blocks and bytes.
    Pprof,
    /// For speedscope.app.
    Speedscope,
    /// gperftools' heap profile in text: for google-pprof and jeprof, which read nothing else.
    Gperftools,
    /// For heaptrack_gui and heaptrack_print: one event per call, with the mean size of its stack.
    Heaptrack,
    /// Exactly as bcc's memleak.py writes them.
    Bcc,
    /// Exactly as libbpf-tools' memleak writes them.
    Libbpf,
    /// A page for a browser, with all reports of the trace: flame graph, sites, memory, health.
    Html,
}

/// Reports of a trace that one document contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Every report, appended as soon as it is made.
    EachReport,
    /// The last report only.
    LastReport,
    /// All reports, in one [`Page`](super::Page).
    AllReports,
}

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
    write: fn(&Report, &mut dyn Write) -> io::Result<()>,
}

const FORMATS: &[Facts] = &[
    Facts {
        format: Format::Text,
        name: "text",
        endings: &[".txt"],
        span: Span::EachReport,
        is_binary: false,
        write: people::render,
    },
    Facts {
        format: Format::Json,
        name: "json",
        endings: &[".json", ".jsonl"],
        span: Span::EachReport,
        is_binary: false,
        write: json::render,
    },
    Facts {
        format: Format::Summary,
        name: "summary",
        endings: &[],
        span: Span::EachReport,
        is_binary: false,
        write: summary::render,
    },
    Facts {
        format: Format::Folded,
        name: "folded",
        endings: &[".folded"],
        span: Span::LastReport,
        is_binary: false,
        write: flame::render_folded,
    },
    Facts {
        format: Format::Svg,
        name: "svg",
        endings: &[".svg"],
        span: Span::LastReport,
        is_binary: false,
        write: flame::render_svg,
    },
    Facts {
        format: Format::Pprof,
        name: "pprof",
        endings: &[".pb.gz", ".pprof"],
        span: Span::LastReport,
        is_binary: true,
        write: pprof::render,
    },
    Facts {
        format: Format::Speedscope,
        name: "speedscope",
        endings: &[".speedscope.json"],
        span: Span::LastReport,
        is_binary: false,
        write: speedscope::render,
    },
    Facts {
        format: Format::Gperftools,
        name: "gperftools",
        endings: &[".heap"],
        span: Span::LastReport,
        is_binary: false,
        write: gperftools::render,
    },
    Facts {
        format: Format::Heaptrack,
        name: "heaptrack",
        endings: &[".heaptrack.gz"],
        span: Span::LastReport,
        is_binary: true,
        write: heaptrack::render,
    },
    Facts {
        format: Format::Bcc,
        name: "bcc",
        endings: &[],
        span: Span::EachReport,
        is_binary: false,
        write: bcc::render,
    },
    Facts {
        format: Format::Libbpf,
        name: "libbpf",
        endings: &[],
        span: Span::EachReport,
        is_binary: false,
        write: libbpf::render,
    },
    Facts {
        format: Format::Html,
        name: "html",
        endings: &[".html", ".htm"],
        span: Span::AllReports,
        is_binary: false,
        write: html::render,
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
        matches!(self, Self::Text | Self::Summary)
    }

    /// Returns true if it shows one number for each stack, at least at first: the chosen
    /// [`Report::quantity`].
    pub fn has_quantity(self) -> bool {
        matches!(self, Self::Folded | Self::Svg | Self::Speedscope | Self::Html)
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
