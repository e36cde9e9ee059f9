//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

use std::fmt::{Display, Write as _};

/// A page that grows.
#[derive(Default)]
pub(super) struct Page(String);

/// Series of one name.
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    /// What only grows, as long as one trace goes on; its name ends with `_total`.
    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    /// What comes and goes.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // Nothing fails that is written to memory; here and below.
        _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: self, name }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// The only series.
    pub(super) fn is(&mut self, value: impl Display) {
        self.of(&[], value);
    }

    /// The series with these labels, which no other has.
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
