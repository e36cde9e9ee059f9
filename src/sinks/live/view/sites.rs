//! The table of sites.

use ratatui::Frame;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use unwind_tables::walk::End;

use crate::sinks::live::layout::Panes;
use crate::sinks::live::model::{Model, ShownReport};
use crate::sinks::live::paint::{Theme, draw_line, first_shown, right_aligned};
use crate::sinks::live::sample::{Order, Sample, Site};
use crate::sinks::live::text::{block_rate, printable, short_count};
use leak_report::model::Unit;
use leak_report::render::{growth_rate, short_size};

/// Minimum width of the screen for the trend.
const MEDIUM: u16 = 70;
/// Minimum width of the screen for all columns of the table.
const WIDE: u16 = 110;
const TREND: usize = 6;
const WIDE_TREND: usize = 30;

/// Columns of the table, from left to right; the name of the site comes last and takes the rest of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Suspicion,
    /// Definitely lost by the verdict.
    Lost,
    Outstanding,
    Blocks,
    Allocated,
    Growth,
    Trend(usize),
    Pid,
}

impl Column {
    fn width(self) -> usize {
        match self {
            Self::Suspicion => 5,
            Self::Outstanding => 12,
            Self::Blocks | Self::Pid => 7,
            Self::Allocated | Self::Lost => 10,
            Self::Growth => 13,
            Self::Trend(width) => width,
        }
    }

    /// Order of the list that sorts by this column.
    fn order(self) -> Option<Order> {
        match self {
            Self::Suspicion => Some(Order::Suspicion),
            Self::Outstanding => Some(Order::Outstanding),
            Self::Blocks => Some(Order::Blocks),
            Self::Allocated => Some(Order::Allocated),
            Self::Growth => Some(Order::Growth),
            Self::Lost | Self::Trend(_) | Self::Pid => None,
        }
    }

    fn heading(self, shown: &ShownReport) -> &'static str {
        match self {
            Self::Suspicion => "SUSP",
            Self::Lost => "DEF. LOST",
            Self::Outstanding => "OUTSTANDING",
            Self::Blocks => "BLOCKS",
            Self::Allocated => "ALLOCATED",
            Self::Growth if shown.sample.marked.is_some() => "SINCE MARK/s",
            Self::Growth => "GROWTH/s",
            Self::Trend(_) => "TREND",
            Self::Pid => "PID",
        }
    }

    fn text(self, site: &Site, shown: &ShownReport, unit: Unit) -> String {
        let time = shown.sample.grown_in();
        match (self, unit) {
            (Self::Suspicion, _) if !site.suspicion.is_known() => "-".to_owned(),
            (Self::Suspicion, _) => site.suspicion.score().to_string(),
            (Self::Lost, _) => short_size(site.verdict.unwrap_or_default().definitely_lost.bytes),
            (Self::Outstanding, _) => short_size(site.shown.bytes),
            (Self::Blocks, _) => short_count(site.shown.blocks),
            (Self::Allocated, Unit::Bytes) => short_size(site.allocated.bytes),
            (Self::Allocated, Unit::Blocks) => short_count(site.allocated.blocks),
            (Self::Growth, Unit::Bytes) => growth_rate(site.growth.bytes, time),
            (Self::Growth, Unit::Blocks) => block_rate(site.growth.blocks, time),
            (Self::Trend(width), _) => shown.trends.line(site.key, unit, width),
            (Self::Pid, _) => site.pid.to_string(),
        }
    }
}

fn columns(available: u16, order: Order, sample: &Sample) -> Vec<Column> {
    let mut columns = match (available, order) {
        (WIDE.., _) => vec![
            Column::Suspicion,
            Column::Outstanding,
            Column::Blocks,
            Column::Allocated,
            Column::Growth,
            Column::Trend(WIDE_TREND),
        ],
        (MEDIUM.., Order::Allocated) => vec![
            Column::Suspicion,
            Column::Outstanding,
            Column::Allocated,
            Column::Growth,
            Column::Trend(TREND),
        ],
        (MEDIUM.., _) => vec![
            Column::Suspicion,
            Column::Outstanding,
            Column::Blocks,
            Column::Growth,
            Column::Trend(TREND),
        ],
        (_, Order::Suspicion) => vec![Column::Suspicion, Column::Outstanding, Column::Growth],
        (_, Order::Outstanding | Order::Growth) => vec![Column::Outstanding, Column::Growth],
        (_, Order::Allocated) => vec![Column::Allocated, Column::Growth],
        (_, Order::Blocks) => vec![Column::Blocks, Column::Growth],
    };
    if sample.health.verdict.is_some() {
        // On a narrow terminal it takes the place of the trend.
        columns.retain(|column| available >= WIDE || !matches!(column, Column::Trend(_)));
        columns.insert(usize::from(columns.contains(&Column::Suspicion)), Column::Lost);
    }
    if sample.is_of_several && available >= MEDIUM {
        columns.push(Column::Pid);
    }
    columns
}

/// Draws the headings and the sites.
pub(super) fn draw(frame: &mut Frame<'_>, panes: &Panes, model: &Model, theme: Theme) {
    let Some(shown) = model.shown() else {
        let text = "Attaching. The first report comes after the first interval.";
        return draw_line(frame, panes.sites, [Span::raw(text)]);
    };
    let columns = columns(panes.columns.width, model.order(), &shown.sample);
    draw_line(frame, panes.columns, headings(model, shown, &columns, theme));
    let sites = model.sites();
    if sites.is_empty() {
        let text = match model.shell.filter() {
            "" => "Nothing is outstanding.".to_owned(),
            filter => format!("No site has `{}` in its stack.", printable(filter)),
        };
        return draw_line(frame, panes.sites, [Span::raw(text)]);
    }
    let first = first_shown(model.row(), sites.len(), panes.sites.height.into());
    for ((site, number), area) in sites.iter().zip(0..).skip(first).zip(panes.sites.rows()) {
        let is_selected = number == model.row();
        let mark = Span::raw(if is_selected { ">" } else { " " });
        let spans = row(site, shown, model.unit(), &columns, theme);
        draw_line(frame, area, [mark].into_iter().chain(spans));
        if is_selected {
            frame.buffer_mut().set_style(area, Theme::selected());
        }
    }
}

fn headings(model: &Model, shown: &ShownReport, columns: &[Column], theme: Theme) -> Vec<Span<'static>> {
    let mut spans = vec![Span::raw(" ")];
    for column in columns {
        let is_order = column.order() == Some(model.order());
        let heading = match is_order {
            true => format!("{}▼", column.heading(shown)),
            false => column.heading(shown).to_owned(),
        };
        let style = match is_order {
            true => theme.heading().add_modifier(Modifier::BOLD),
            false => Theme::strong(),
        };
        spans.push(Span::styled(right_aligned(&heading, column.width()), style));
        spans.push(Span::raw(" "));
    }
    spans.push(Span::styled(
        format!("  SITE{}", left_out(model)),
        Theme::strong(),
    ));
    spans
}

/// Numbers of sites that are not in the table, in words.
fn left_out(model: &Model) -> String {
    let left_out = model.left_out();
    let filter = match model.shell.filter() {
        "" => String::new(),
        filter => format!(" with `{}`, {} without", printable(filter), left_out.filtered),
    };
    match left_out.unlisted {
        0 => filter,
        more => format!("{filter} (+{} not listed)", short_count(more)),
    }
}

fn row<'a>(site: &Site, shown: &ShownReport, unit: Unit, columns: &[Column], theme: Theme) -> Vec<Span<'a>> {
    let mut spans = Vec::new();
    for &column in columns {
        let style = match column {
            Column::Growth if site.growth.of(unit) > 0 => theme.doubtful(),
            Column::Lost
                if site
                    .verdict
                    .is_some_and(|verdict| verdict.definitely_lost.blocks > 0) =>
            {
                theme.bad()
            }
            Column::Suspicion | Column::Outstanding | Column::Blocks | Column::Allocated => Style::new(),
            Column::Growth | Column::Lost | Column::Trend(_) | Column::Pid => Style::new(),
        };
        let text = right_aligned(&column.text(site, shown, unit), column.width());
        spans.push(Span::styled(text, style));
        spans.push(Span::raw(" "));
    }
    spans.push(match (site.end == End::Complete, site.is_cut) {
        (true, _) => Span::styled("✓ ", theme.good()),
        (false, true) => Span::styled("… ", Theme::quiet()),
        (false, false) => Span::styled("✗ ", theme.doubtful()),
    });
    let style = if site.ended.is_some() {
        Theme::quiet()
    } else {
        Style::new()
    };
    spans.push(Span::styled(site.name.clone(), style));
    spans
}
