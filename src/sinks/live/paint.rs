//! Styles, lines that are cut to fit, and overlay windows, which all views on the terminal are drawn with.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear};

use super::layout::MIN;
use super::messages::Message;
use super::text::{fit, printable, width, wrap};

/// Appearance of the view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    /// False if attributes such as bold and inverse replace colours.
    pub(crate) colours: bool,
}

impl Theme {
    pub(crate) fn coloured(self, colour: Color, otherwise: Modifier) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(otherwise),
        }
    }

    pub(crate) fn strong() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn quiet() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn heading(self) -> Style {
        self.coloured(Color::Cyan, Modifier::BOLD)
    }

    pub(crate) fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    pub(crate) fn doubtful(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    /// Style of losses, which must not be missed.
    pub(crate) fn bad(self) -> Style {
        let modifier = Modifier::BOLD | Modifier::REVERSED;
        self.coloured(Color::Red, modifier).add_modifier(Modifier::BOLD)
    }
}

/// Draws a message that the terminal is too small.
pub(crate) fn draw_too_small(frame: &mut Frame<'_>, area: Rect) {
    let (columns, rows) = MIN;
    let lines = [
        "The terminal is too small.".to_owned(),
        format!("Needed: {columns}x{rows}"),
        format!("This is: {}x{}", area.width, area.height),
        "q quits".to_owned(),
    ];
    for (text, row) in lines.iter().zip(area.rows()) {
        draw_line(frame, row, [Span::raw(text.as_str())]);
    }
}

/// Draws as much of one line as fits.
pub(crate) fn draw_line<'a>(frame: &mut Frame<'_>, area: Rect, spans: impl IntoIterator<Item = Span<'a>>) {
    let mut left = usize::from(area.width);
    let mut fitting = Vec::new();
    for span in spans {
        let content = fit(&span.content, left);
        left -= width(&content);
        fitting.push(Span::styled(content, span.style));
    }
    if area.height > 0 {
        frame.render_widget(Line::from(fitting), Rect { height: 1, ..area });
    }
}

/// Puts a gap between spans.
pub(crate) fn separated<'a>(parts: Vec<Span<'a>>) -> impl Iterator<Item = Span<'a>> {
    let with_gap = |part| [Span::raw("  "), part];
    parts.into_iter().flat_map(with_gap).skip(1)
}

/// First row to show: keeps the selected row in the middle, if the list is long enough.
pub(crate) fn first_shown(row: usize, rows: usize, height: usize) -> usize {
    let last_first = rows.saturating_sub(height);
    row.saturating_sub(height / 2).min(last_first)
}

/// Pads a text on the left to this width, or cuts it.
pub(crate) fn right_aligned(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    format!("{}{text}", " ".repeat(columns - width(&text)))
}

/// Maximum columns of the help.
const HELP_WIDTH: u16 = 76;

/// Draws the window of keys and their effects, of which `scrolled` lines are out of sight.
pub(crate) fn draw_help(
    frame: &mut Frame<'_>,
    area: Rect,
    help: &[(&str, &str)],
    scrolled: usize,
    theme: Theme,
) {
    let lines: Vec<_> = help
        .iter()
        .map(|(key, description)| {
            vec![
                Span::styled(format!("{key:<19} "), theme.heading()),
                Span::raw(*description),
            ]
        })
        .collect();
    let height = u16::try_from(lines.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let width = HELP_WIDTH.min(area.width);
    let area = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let lines = lines.into_iter().skip(scrolled).collect();
    draw_window(frame, area, " Keys (↑ ↓ scroll, others close this) ", lines);
}

/// Draws the window of messages, of which the newest `scrolled` are out of sight.
pub(crate) fn draw_messages(
    frame: &mut Frame<'_>,
    area: Rect,
    messages: &[Message],
    scrolled: usize,
    theme: Theme,
) {
    let (room, columns) = (area.height.saturating_sub(2), area.width.saturating_sub(2));
    let earlier = messages.iter().rev().skip(scrolled);
    // From the newest back, as many as fit.
    let mut lines = Vec::new();
    for message in earlier.take(room.into()) {
        let style = if message.is_warning {
            theme.doubtful()
        } else {
            Style::new()
        };
        let wrapped = wrap(&shown(message), columns.into());
        lines.extend(
            wrapped
                .into_iter()
                .rev()
                .map(|line| vec![Span::styled(line, style)]),
        );
    }
    lines.truncate(room.into());
    lines.reverse();
    draw_window(
        frame,
        area,
        " Messages (↑ earlier ones, other keys close this) ",
        lines,
    );
}

/// Lines of a text in a window over the whole screen, wrapped with a hanging indent.
pub(super) fn text_in(area: Rect, text: &[String]) -> Vec<String> {
    const DEEPER: usize = 2;
    let columns = usize::from(area.width.saturating_sub(2));
    let lines = text.iter().flat_map(|line| {
        let words = line.trim_start();
        let indent = (line.len() - words.len()).min(columns / 2);
        let room = columns.saturating_sub(indent + DEEPER).max(1);
        let wrapped = wrap(words, room).into_iter().enumerate();
        wrapped.map(move |(at, line)| {
            let hang = if at == 0 { indent } else { indent + DEEPER };
            format!("{}{}", " ".repeat(hang), line.trim_end())
        })
    });
    lines.collect()
}

/// Draws the window of a text, of which `scrolled` lines are out of sight.
pub(super) fn draw_text(frame: &mut Frame<'_>, area: Rect, text: &[String], scrolled: usize) {
    let lines = text_in(area, text).into_iter().skip(scrolled);
    let lines = lines.map(|line| vec![Span::raw(line)]).collect();
    draw_window(
        frame,
        area,
        " Why memory grows (↑ ↓ scroll, Esc closes this) ",
        lines,
    );
}

/// Text of a message without the program's name.
pub(crate) fn shown(message: &Message) -> String {
    let text = message.text.strip_prefix("memleak: ");
    printable(text.unwrap_or(&message.text))
}

fn draw_window(frame: &mut Frame<'_>, area: Rect, title: &'static str, lines: Vec<Vec<Span<'_>>>) {
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(Clear, area);
    frame.render_widget(block, area);
    for (line, row) in lines.into_iter().zip(inner.rows()) {
        draw_line(frame, row, line);
    }
}
