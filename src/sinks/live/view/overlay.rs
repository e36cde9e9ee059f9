//! Windows over everything else: help and messages.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;
use ratatui::widgets::{Block, Clear};

use super::{Theme, draw_line};
use crate::sinks::live::messages::Message;
use crate::sinks::live::model::{HELP, Model};
use crate::sinks::live::text::{printable, wrap};

/// Maximum columns of the help.
const HELP_WIDTH: u16 = 76;

pub(super) fn draw_help(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let lines: Vec<_> = HELP
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
    let lines = lines.into_iter().skip(model.overlay_scrolled()).collect();
    draw(frame, area, " Keys (↑ ↓ scroll, others close this) ", lines);
}

pub(super) fn draw_messages(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let (room, columns) = (area.height.saturating_sub(2), area.width.saturating_sub(2));
    let earlier = model.messages().iter().rev().skip(model.overlay_scrolled());
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
    draw(
        frame,
        area,
        " Messages (↑ earlier ones, other keys close this) ",
        lines,
    );
}

/// Text of a message without the program's name.
pub(super) fn shown(message: &Message) -> String {
    let text = message.text.strip_prefix("memleak: ");
    printable(text.unwrap_or(&message.text))
}

fn draw(frame: &mut Frame<'_>, area: Rect, title: &'static str, lines: Vec<Vec<Span<'_>>>) {
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(Clear, area);
    frame.render_widget(block, area);
    for (line, row) in lines.into_iter().zip(inner.rows()) {
        draw_line(frame, row, line);
    }
}
