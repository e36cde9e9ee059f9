//! Draws the model. Decides only which parts fit on the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::model::{Model, Order};
use crate::commands::top::table::{Row, Table, Trend};
use crate::commands::top::text::since;
use crate::sinks::live::{
    Content, MIN_SIZE, Theme, clock, draw_line, draw_too_small, drawn, first_shown, fit, printable,
    right_aligned, separated, shown, width,
};
use leak_report::render::{counted, short_size};

const KEYS: &str = "q quit  ? help  ↑↓ process  Enter trace  s order  / filter  p pause";

/// Minimum width of the screen for the column of limits (`FULL IN`).
const MEDIUM: u16 = 90;
/// Minimum width of the screen for all columns of the table.
const WIDE: u16 = 130;
/// Width of the graph of a process's memory, in columns.
const HISTORY: usize = 20;
/// Minimum height of the screen for a line of messages.
const MESSAGE_HEIGHT: u16 = 14;

/// Parts of the screen, from top to bottom.
struct Panes {
    subject: Rect,
    machine: Rect,
    columns: Rect,
    rows: Rect,
    detail: Rect,
    message: Rect,
    keys: Rect,
}

impl Panes {
    /// Lays out `area`; `None` if it is too small.
    fn of(area: Rect) -> Option<Self> {
        if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
            return None;
        }
        let message = u16::from(area.height >= MESSAGE_HEIGHT);
        let heights = [1, 1, 1, area.height - 5 - message, 1, message, 1];
        let [subject, machine, columns, rows, detail, message, keys] =
            Layout::vertical(heights.map(Constraint::Length)).areas(area);
        Some(Self {
            subject,
            machine,
            columns,
            rows,
            detail,
            message,
            keys,
        })
    }
}

/// Number of rows that a screen of this size has for processes.
pub(super) fn rows_at(area: Rect) -> u16 {
    Panes::of(area).map_or(0, |panes| panes.rows.height)
}

/// Columns of the table, from left to right; the name comes last and takes the rest of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Pid,
    User,
    Anonymous,
    Growth,
    Limits,
    Since,
    Share,
    Full,
    History,
}

impl Column {
    fn width(self) -> usize {
        match self {
            Self::Pid => 7,
            Self::User => 8,
            Self::Anonymous => 10,
            Self::Growth => 11,
            Self::Limits => 23,
            Self::Since | Self::Share => 7,
            Self::Full => 14,
            Self::History => HISTORY,
        }
    }

    fn heading(self, order: Order) -> &'static str {
        match (self, order) {
            (Self::Pid, _) => "PID",
            (Self::User, _) => "USER",
            (Self::Anonymous, Order::Size) => "ANON▼",
            (Self::Anonymous, Order::Growth) => "ANON",
            (Self::Growth, Order::Growth) => "GROWTH/min▼",
            (Self::Growth, Order::Size) => "GROWTH/min",
            (Self::Limits, _) => "FOR CERTAIN (99 %)",
            (Self::Since, _) => "SINCE",
            (Self::Share, _) => "MEM",
            (Self::Full, _) => "FULL IN",
            (Self::History, _) => "TREND",
        }
    }

    fn text(self, row: &Row, table: &Table) -> String {
        match self {
            Self::Pid => row.pid.to_string(),
            Self::User => printable(&row.user_name()),
            Self::Anonymous => short_size(row.memory.bytes()),
            Self::Growth => row.growth_in_words(),
            Self::Limits => row.limits_in_words(),
            Self::Since => since(row),
            Self::Share => format!("{:.1}%", row.share(&table.machine)),
            Self::Full => row.full_in_words(),
            Self::History => history(row),
        }
    }
}

/// Graph of the last points of a process; points that share a column are shown as their maximum.
fn history(row: &Row) -> String {
    let per_cell = row.history.len().div_ceil(HISTORY).max(1);
    let mut cells: Vec<_> = row
        .history
        .rchunks(per_cell)
        .map(|chunk| chunk.iter().copied().max())
        .collect();
    cells.resize(HISTORY, None);
    cells.reverse();
    drawn(&cells)
}

fn columns(available: u16) -> Vec<Column> {
    let mut columns = vec![
        Column::Pid,
        Column::User,
        Column::Anonymous,
        Column::Growth,
        Column::Limits,
    ];
    match available {
        WIDE.. => columns.extend([Column::Since, Column::Share, Column::Full, Column::History]),
        MEDIUM.. => columns.push(Column::Full),
        _ => {}
    }
    // On a narrow terminal, the name must have some columns left.
    columns.retain(|column| available >= 78 || !matches!(column, Column::User | Column::Limits));
    columns
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    let Some(panes) = Panes::of(area) else {
        return draw_too_small(frame, area);
    };
    if let Some(table) = model.table() {
        draw_subject(frame, panes.subject, model, table, theme);
        draw_machine(frame, panes.machine, table, theme);
        draw_rows(frame, &panes, model, table, theme);
        draw_detail(frame, panes.detail, model, table, theme);
    }
    draw_message(frame, panes.message, model, theme);
    model.shell().draw_keys(frame, panes.keys, KEYS);
    model.shell().draw_overlay(frame, theme);
}

fn draw_subject(frame: &mut Frame<'_>, area: Rect, model: &Model, table: &Table, theme: Theme) {
    let mut right = Vec::new();
    if model.is_paused() {
        right.push(Span::styled("PAUSED", theme.doubtful()));
    }
    let (elapsed, every) = (clock(table.elapsed), table.interval.as_secs_f64());
    right.push(Span::raw(format!("{elapsed} every {every:.1} s")));
    let room = usize::from(area.width);
    let taken: usize = right.iter().map(|span| width(&span.content) + 2).sum();
    let processes = counted(table.rows.len() as u64, "process");
    let left = fit(&format!("memleak top  {processes}"), room.saturating_sub(taken));
    let gap = " ".repeat(room.saturating_sub(width(&left) + taken));
    let right = right.into_iter().flat_map(|span| [Span::raw("  "), span]);
    let left = [Span::styled(left, theme.heading()), Span::raw(gap)];
    draw_line(frame, area, left.into_iter().chain(right));
}

fn draw_machine(frame: &mut Frame<'_>, area: Rect, table: &Table, theme: Theme) {
    let machine = &table.machine;
    let style = if table.count(Trend::Grows) > 0 {
        theme.doubtful()
    } else {
        Theme::strong()
    };
    let [available, total] = [machine.available, machine.total].map(short_size);
    let memory = format!("{available} of {total} available");
    draw_line(
        frame,
        area,
        separated(vec![Span::styled(table.counts(), style), Span::raw(memory)]),
    );
}

fn draw_rows(frame: &mut Frame<'_>, panes: &Panes, model: &Model, table: &Table, theme: Theme) {
    let columns = columns(panes.columns.width);
    let mut headings = vec![Span::raw(" ")];
    for column in &columns {
        let heading = right_aligned(column.heading(model.order()), column.width());
        let style = match heading.ends_with('▼') {
            true => theme.heading().add_modifier(Modifier::BOLD),
            false => Theme::strong(),
        };
        headings.extend([Span::styled(heading, style), Span::raw(" ")]);
    }
    let filter = match model.shell().filter() {
        "" => String::new(),
        filter => format!(" with `{}`", printable(filter)),
    };
    headings.push(Span::styled(format!("NAME{filter}"), Theme::strong()));
    draw_line(frame, panes.columns, headings);
    let rows = model.rows();
    if rows.is_empty() {
        let text = match model.shell().filter() {
            "" => "No process matches.".to_owned(),
            filter => format!("No process has `{}` in its pid, user or name.", printable(filter)),
        };
        return draw_line(frame, panes.rows, [Span::raw(text)]);
    }
    let first = first_shown(model.row(), rows.len(), panes.rows.height.into());
    for ((row, number), area) in rows.iter().zip(0..).skip(first).zip(panes.rows.rows()) {
        let is_selected = number == model.row();
        let mark = Span::raw(if is_selected { ">" } else { " " });
        let style = match row.trend() {
            Trend::Grows => theme.doubtful(),
            Trend::Shrinks => Style::new(),
            Trend::None | Trend::Early => Theme::quiet(),
        };
        let texts = columns
            .iter()
            .map(|column| right_aligned(&column.text(row, table), column.width()));
        let texts = texts.flat_map(|text| [Span::styled(text, style), Span::raw(" ")]);
        let name = Span::styled(printable(&row.comm), style);
        draw_line(frame, area, [mark].into_iter().chain(texts).chain([name]));
        if is_selected {
            frame.buffer_mut().set_style(area, Theme::selected());
        }
    }
}

/// Draws details of the selected process that the table has no room for.
fn draw_detail(frame: &mut Frame<'_>, area: Rect, model: &Model, table: &Table, theme: Theme) {
    let Some(row) = model.selected_row() else {
        return;
    };
    let mut parts = vec![format!("{} of {}", model.row() + 1, model.rows().len())];
    parts.push(format!(
        "{}: {} samples over {}",
        row.pid,
        row.samples,
        since(row)
    ));
    parts.push(format!("{:.1}% of memory", row.share(&table.machine)));
    if row.memory.swapped > 0 {
        parts.push(format!("{} in swap", short_size(row.memory.swapped)));
    }
    if let Some(full) = &row.full {
        let after = full.time_in_words();
        parts.push(match &full.limit {
            None => format!("memory full in {after}"),
            Some(limit) => format!(
                "{} full in {after}: {} of {} left",
                printable(&limit.cgroup),
                short_size(limit.room),
                short_size(limit.limit)
            ),
        });
    }
    let title = fit(&format!("─ {} ", parts.join(", ")), area.width.into());
    let rule = "─".repeat(usize::from(area.width).saturating_sub(width(&title)));
    draw_line(
        frame,
        area,
        [Span::styled(format!("{title}{rule}"), theme.heading())],
    );
}

fn draw_message(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let notes = model.table().map(Table::notes).unwrap_or_default();
    let last = model.shell().messages().last();
    let (text, style) = match (model.shell().said(), notes.first(), last) {
        (Some(said), ..) => (printable(said), theme.doubtful()),
        (None, Some(note), _) => (note.clone(), theme.doubtful()),
        (None, None, Some(message)) => (shown(message), Theme::quiet()),
        (None, None, None) => return,
    };
    draw_line(frame, area, [Span::styled(text, style)]);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::commands::top::table::tests::row;

    fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
        model.resize(Rect::new(0, 0, width, height));
        terminal
            .draw(|frame| draw(frame, model, Theme { colours: false }))
            .expect("it draws");
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content.chunks(usize::from(width));
        let rows = rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// Every screen size can be drawn, and the first process is shown on each that is large enough.
    #[test]
    fn all_sizes() {
        let mut table = Table {
            rows: vec![row(7, 3 << 20, 1024.0, 2048.0), row(8, 1 << 20, -1.0, 1.0)],
            hides_processes: true,
            ..Table::default()
        };
        table.rows[0].comm = "\u{1b}[2J\u{202e}leak".to_owned();
        let mut model = Model::new();
        assert!(screen(&mut model, 80, 24).concat().contains("q quit"));
        model.take(table);
        for height in 1..60 {
            for width in [1, 20, 40, 77, 78, 80, 90, 129, 130, 250] {
                let screen = screen(&mut model, width, height);
                let fits = width >= MIN_SIZE.0 && height >= MIN_SIZE.1;
                let line = screen.iter().find(|line| line.starts_with(">      7"));
                assert_eq!(line.is_some(), fits, "{width}x{height}: {screen:?}");
                assert!(
                    line.is_none_or(|line| line.contains("\\u{1")),
                    "{width}: {line:?}"
                );
            }
        }
        let wide = screen(&mut model, 150, 24);
        assert!(
            wide[2].ends_with("FULL IN                TREND NAME"),
            "{}",
            wide[2]
        );
        assert!(wide[22].starts_with("/proc hides the processes"), "{}", wide[22]);
    }
}
