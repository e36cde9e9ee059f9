//! Flame graphs as SVG: one self-contained file that a browser shows, zooms and searches. Drawn by inferno.
//!
//! Equal reports give equal files.

use std::io::{self, Write};

use inferno::flamegraph::color::BasicPalette;
use inferno::flamegraph::{self, Options, Palette};

use super::caption::Caption;
use super::folded::Folded;
use super::names::one_line;
use crate::model::Report;

/// Maximum total of a graph, since its scripts compute with doubles: 8 PiB, or as many blocks.
const MAX: u64 = 1 << 53;

/// Draws the flame graph of `report`.
pub(crate) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let folded = Folded::of(report, report.quantity);
    let mut left = MAX;
    // Appended in place: many stacks can take hundreds of megabytes.
    let lines: Vec<_> = folded
        .into_stacks()
        .map(|(stack, amount)| stack + &format!(" {}", taken(&mut left, amount)))
        .collect();
    draw(&lines, &Caption::of(report, report.quantity), out)
}

/// Draws the difference between `before` and `after`. Widths are those of `after`; the innermost frame of a
/// stack is red if it grew and blue if it shrank, deeper for larger changes. Stacks that are not in `after`
/// have no width.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn difference(before: &Folded, after: &Folded, caption: &Caption, out: &mut dyn Write) -> io::Result<()> {
    let mut left = MAX;
    let lines: Vec<_> = after
        .stacks()
        .map(|(stack, amount)| {
            let earlier = before.get(stack).min(MAX);
            format!("{stack} {earlier} {}", taken(&mut left, amount))
        })
        .collect();
    draw(&lines, caption, out)
}

/// Takes as much of `amount` as there is left, so that the total stays within [`MAX`].
fn taken(left: &mut u64, amount: u64) -> u64 {
    let amount = amount.min(*left);
    *left -= amount;
    amount
}

fn draw(lines: &[String], caption: &Caption, out: &mut dyn Write) -> io::Result<()> {
    let title = one_line(&caption.title);
    let subtitle = caption.subtitle.as_deref().map(one_line);
    if lines.is_empty() {
        return draw_nothing(&title, subtitle.as_deref().unwrap_or_default(), out);
    }
    let mut options = Options::default();
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    // Width of monospace fonts with a margin: where no script runs, names are cut by this width, and would
    // overflow their frames if it were less.
    options.font_width = 0.63;
    options.title = title;
    options.subtitle = subtitle;
    caption.unit.name().clone_into(&mut options.count_name);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// Draws a graph without stacks, which inferno refuses.
fn draw_nothing(title: &str, subtitle: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"1200\" height=\"90\" viewBox=\"0 0 1200 90\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#eef2ee\"/>\n\
         <g text-anchor=\"middle\" font-family=\"monospace\" font-size=\"12\">\n\
         <text x=\"600\" y=\"24\" font-size=\"17\">{}</text>\n\
         <text x=\"600\" y=\"48\">{}</text>\n\
         <text x=\"600\" y=\"72\">There is nothing to show.</text>\n\
         </g>\n</svg>",
        escaped(title),
        escaped(subtitle)
    )
}

/// Escapes text of an XML element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
