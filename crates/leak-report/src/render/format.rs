//! The output formats of a report. What each can do, and how it is written, is in `formats`.

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
