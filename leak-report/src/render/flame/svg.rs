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

/// What a picture can show in all, since scripts in it reckon with doubles: 8 PiB, or as many blocks.
const MAX: u64 = 1 << 53;

/// Draws what the stacks of `report` have.
pub(crate) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let folded = Folded::of(report, report.quantity);
    let mut left = MAX;
    // In place: of many stacks there can be hundreds of megabytes.
    let lines: Vec<_> = folded
        .into_stacks()
        .map(|(stack, amount)| stack + &format!(" {}", taken(&mut left, amount)))
        .collect();
    draw(&lines, &Caption::of(report, report.quantity), out)
}

/// Draws what became of `before`: widths are those of `after`; of a stack that grew, the innermost frame is red, of one
/// that shrank blue, the more the deeper. What is not in `after` has no width.
///
/// # Errors
///
/// `out` cannot be written.
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

/// As much of `amount` as there is left.
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
    // Of monospace fonts, with their margin: where no script runs, names are cut by it, and go beyond their frames else.
    options.font_width = 0.63;
    options.title = title;
    options.subtitle = subtitle;
    caption.unit.name().clone_into(&mut options.count_name);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// A picture of no stacks, which flame graph tools refuse.
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

/// Text of an XML element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
