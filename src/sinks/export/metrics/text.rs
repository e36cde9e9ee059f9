//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

use std::fmt::{Display, Write as _};

/// The format's media type.
pub(super) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page under construction.
#[derive(Default)]
pub(super) struct Page(String);

/// The series of one metric.
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    /// Adds a counter, which only grows during a trace; `name` must end with `_total`.
    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    /// Adds a gauge, which can go up and down.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // Writing to a string cannot fail; here and below.
        _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: self, name }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds the metric's only series, without labels.
    pub(super) fn is(&mut self, value: impl Display) {
        self.of(&[], value);
    }

    /// Adds the series with these labels, which must be unique within the metric.
    pub(super) fn of(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.page.0;
        text.push_str(self.name);
        for (number, (name, value)) in labels.iter().enumerate() {
            let separator = if number == 0 { '{' } else { ',' };
            _ = write!(text, "{separator}{name}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() {
            text.push('}');
        }
        _ = writeln!(text, " {value}");
    }
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\");
    value.replace('"', "\\\"").replace('\n', r"\n")
}
