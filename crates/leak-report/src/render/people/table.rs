//! The table of sites: one line for each, in the order of the report. Columns are dropped on narrow
//! terminals, and site titles take the rest of the line.

use std::io::{self, Write};

use unwind_tables::walk::End;

use crate::model::leak::{Order, Suspicion};
use crate::model::{Report, StackRef};
use crate::render::cells::{fit, width};
use crate::render::pinned;
use crate::render::recent::{growth_per_second, typical_age};
use crate::render::screen::Screen;
use crate::render::titles::short_title;
use crate::render::words::{percent, short_count, short_size};

/// Minimum terminal widths for the columns FREED and AGE, and for SUSP.
const MEDIUM: usize = 66;
const NARROW: usize = 50;

/// A column: its heading, its width, and its text for a site.
struct Column {
    heading: &'static str,
    width: usize,
    /// Minimum width of a terminal that has the column.
    from: usize,
    /// Reports that have it.
    of: Of,
    text: fn(StackRef<'_>, &Report) -> String,
}

/// Reports that have a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    /// Reports with a verdict.
    Verdicts,
    /// Reports in the order of the peak.
    Peaks,
    /// Reports that say what blocks pin.
    Pinned,
}

const COLUMNS: [Column; 10] = [
    Column {
        heading: "ID",
        width: 5,
        from: 0,
        of: Of::All,
        text: |stack, _| short_id(stack),
    },
    Column {
        heading: "SUSP",
        width: 4,
        from: NARROW,
        of: Of::All,
        text: |stack, _| {
            let suspicion = stack.recent.suspicion.filter(Suspicion::is_known);
            suspicion.map_or_else(|| "-".to_owned(), |suspicion| suspicion.score().to_string())
        },
    },
    Column {
        heading: "DEF. LOST",
        width: 10,
        from: 0,
        of: Of::Verdicts,
        text: |stack, _| short_size(stack.judged().definitely_lost.bytes),
    },
    Column {
        heading: "AT PEAK",
        width: 10,
        from: 0,
        of: Of::Peaks,
        text: |stack, _| short_size(stack.peak.bytes),
    },
    Column {
        heading: "PINS",
        width: 10,
        from: 0,
        of: Of::Pinned,
        text: |stack, _| pinned::cell(stack),
    },
    Column {
        heading: "HELD",
        width: 10,
        from: 0,
        of: Of::All,
        text: |stack, _| short_size(stack.shown().bytes),
    },
    Column {
        heading: "BLOCKS",
        width: 6,
        from: 0,
        of: Of::All,
        text: |stack, _| short_count(stack.shown().blocks),
    },
    Column {
        heading: "GROWTH",
        width: 13,
        from: 0,
        of: Of::All,
        text: |stack, report| growth_per_second(stack, report),
    },
    Column {
        heading: "FREED",
        width: 5,
        from: MEDIUM,
        of: Of::All,
        text: |stack, _| freed(stack),
    },
    Column {
        heading: "AGE",
        width: 6,
        from: MEDIUM,
        of: Of::All,
        text: |stack, _| typical_age(stack),
    },
];

/// Writes the table, unless there are no sites.
pub(super) fn write(
    stacks: &[StackRef<'_>],
    report: &Report,
    screen: Screen,
    out: &mut dyn Write,
) -> io::Result<()> {
    if stacks.is_empty() {
        return Ok(());
    }
    let available = screen.width.unwrap_or(usize::MAX);
    let is_there = |of| match of {
        Of::All => true,
        Of::Verdicts => report.judgement.is_some(),
        Of::Peaks => report.order == Some(Order::Peak),
        Of::Pinned => report.asks_for_pinned(),
    };
    let is_shown = |column: &&Column| column.from <= available && is_there(column.of);
    let columns: Vec<_> = COLUMNS.iter().filter(is_shown).collect();
    let cells = |text: &dyn Fn(&Column) -> String| -> String {
        columns
            .iter()
            .map(|column| right(&text(column), column.width))
            .collect()
    };
    let headings = format!("{}   SITE", cells(&|column| column.heading.to_owned()));
    writeln!(out, "{}", clipped(&headings, screen))?;
    for &stack in stacks {
        let cells = cells(&|column| (column.text)(stack, report));
        let line = format!("{cells} {} {}", mark(stack, report), short_title(stack, report));
        writeln!(out, "{}", clipped(&line, screen).trim_end())?;
    }
    Ok(())
}

/// Mark of incomplete stacks: `…` if the user limited their depth, else `!`.
fn mark(stack: StackRef<'_>, _report: &Report) -> char {
    match (stack.end, stack.is_cut()) {
        (End::Complete, _) => ' ',
        (_, true) => '…',
        (_, false) => '!',
    }
}

/// Share of allocated blocks that were freed.
fn freed(stack: StackRef<'_>) -> String {
    let freed = stack.allocated.less(stack.outstanding);
    percent(freed.amount.blocks, stack.allocated.amount.blocks)
}

/// A blank, and `text` right-aligned in `columns`.
fn right(text: &str, columns: usize) -> String {
    format!(" {}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

/// Cuts `text` to the width of the screen.
fn clipped(text: &str, screen: Screen) -> String {
    match screen.width {
        Some(width) => fit(text, width),
        None => text.to_owned(),
    }
}

/// The first digits of the site's ID, which metrics and JSON have in full.
pub(super) fn short_id(stack: StackRef<'_>) -> String {
    stack.site().short()
}
