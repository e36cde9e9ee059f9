//! Draws the model. Decides only which parts fit on the screen.

mod sites;
#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::layout::{Focus, Panes};
use super::model::{Model, ShownReport};
use super::paint::{self, Theme, draw_line, draw_too_small, separated};
use super::sample::Site;
use super::stack::{Kind, StackText};
use super::text::{amount, clock, fit, skip, width};
use leak_report::render::{rate, short_size};

const KEYS: &str = "q quit  ? help  ↑↓ site  Tab stack  s order  / filter  m mark  v verdict  w why";
const STACK_KEYS: &str = "q quit  ? help  ↑↓←→ scroll  Tab sites  / filter  m mark  v verdict  w why";

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    let Some(panes) = Panes::of(area, model.focus()) else {
        return draw_too_small(frame, area);
    };
    draw_subject(frame, panes.subject, model, theme);
    draw_rates(frame, panes.rates, model, theme);
    sites::draw(frame, &panes, model, theme);
    draw_stack(frame, &panes, model, theme);
    draw_health(frame, panes.health, model, theme);
    draw_message(frame, panes.message, model, theme);
    draw_keys(frame, panes.keys, model);
    model.shell.draw_overlay(frame, theme);
}

/// Draws the subject of the trace, its duration, and any unusual state of the view.
fn draw_subject(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let shown = model.shown();
    let subject = shown.map_or("", |shown| &shown.sample.subject);
    let mut right = Vec::new();
    if model.is_paused() {
        right.push(Span::styled("PAUSED", theme.doubtful()));
    }
    if model.is_over() {
        right.push(Span::styled("ENDED", theme.doubtful()));
    }
    if let Some(ShownReport { sample, .. }) = shown {
        if let Some((time, _)) = sample.marked {
            right.push(Span::raw(format!("marked {time}")));
        }
        let every = sample.since_last.as_secs_f64();
        right.push(Span::raw(format!("{} every {every:.1} s", clock(sample.elapsed))));
    }
    let room = usize::from(area.width);
    let taken: usize = right.iter().map(|span| width(&span.content) + 2).sum();
    let left = fit(&format!("memleak  {subject}"), room.saturating_sub(taken));
    let gap = room.saturating_sub(width(&left) + taken);
    let right = right.into_iter().flat_map(|span| [Span::raw("  "), span]);
    let spans = [Span::styled(left, theme.heading()), Span::raw(" ".repeat(gap))];
    draw_line(frame, area, spans.into_iter().chain(right));
}

/// Draws current rates and totals.
fn draw_rates(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(shown) = model.shown() else {
        return;
    };
    let sample = &shown.sample;
    let mut parts = Vec::new();
    if sample.health.lost.is_some() {
        parts.push(Span::styled("LOST", theme.bad()));
    }
    // Calls that were not recorded are not counted: the rates are estimates from the recorded ones.
    let about = if sample.health.sampling.is_some() { "~" } else { "" };
    parts.push(Span::raw(format!("alloc {about}{}/s", rate(shown.allocations))));
    parts.push(Span::raw(format!("free {about}{}/s", rate(shown.frees))));
    let live = format!("live {}", amount(sample.live));
    parts.push(Span::styled(live, Theme::strong()));
    parts.extend(
        sample
            .health
            .overhead
            .as_ref()
            .map(|overhead| Span::raw(format!("overhead {overhead}"))),
    );
    // Last, so that it is the first part that a narrow terminal cuts off.
    let peak = sample.peak.as_ref();
    parts.extend(peak.map(|peak| Span::raw(format!("peak {}", short_size(peak.bytes)))));
    draw_line(frame, area, separated(parts));
}

/// Draws the stack of the selected site, below the title of that site.
fn draw_stack(frame: &mut Frame<'_>, panes: &Panes, model: &Model, theme: Theme) {
    let text = model.selected().map(|site| {
        let sample = model.shown().map(|shown| &shown.sample);
        StackText::of(site, sample)
    });
    draw_title(frame, panes, model, text.as_ref(), theme);
    let Some(text) = text else {
        return;
    };
    let (down, right) = model.scrolled();
    for ((kind, line), row) in text.lines.iter().skip(down).zip(panes.stack.rows()) {
        let style = match kind {
            Kind::Facts => Theme::quiet(),
            Kind::Inlined => theme.coloured(Color::Blue, Modifier::ITALIC),
            Kind::Frame => Style::new(),
            Kind::Complete => theme.good(),
            Kind::Incomplete => theme.doubtful(),
        };
        draw_line(frame, row, [Span::styled(skip(line, right), style)]);
    }
}

fn draw_title(frame: &mut Frame<'_>, panes: &Panes, model: &Model, text: Option<&StackText>, theme: Theme) {
    let area = panes.title;
    let style = match model.focus() {
        Focus::Stack => theme.heading().add_modifier(Modifier::BOLD),
        Focus::Sites => Style::new(),
    };
    let title = model
        .selected()
        .map(|site| title(site, model))
        .unwrap_or_default();
    let lines = text.map_or(0, |text| text.lines.len());
    let (first, height) = (model.scrolled().0, usize::from(panes.stack.height));
    let position = match lines > height {
        true => format!(" lines {}-{} of {lines} ─", first + 1, lines.min(first + height)),
        false => String::new(),
    };
    let room = usize::from(area.width).saturating_sub(width(&position));
    let title = fit(&format!("─{title}"), room);
    let rule = "─".repeat(room.saturating_sub(width(&title)));
    draw_line(
        frame,
        area,
        [Span::styled(format!("{title}{rule}{position}"), style)],
    );
}

fn title(site: &Site, model: &Model) -> String {
    let count = model.sites().len();
    let pid = match model.shown().is_some_and(|shown| shown.sample.is_of_several) {
        true => format!(" in process {}", site.pid),
        false => String::new(),
    };
    let shown_amount = amount(site.shown);
    format!(
        " {} of {count}: {shown_amount} via {}{pid} ",
        model.row() + 1,
        site.allocator
    )
}

/// Draws losses, completeness and sampling: how far the numbers can be trusted.
fn draw_health(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(ShownReport { sample, .. }) = model.shown() else {
        return;
    };
    let mut parts = Vec::new();
    parts.push(match &sample.health.lost {
        Some(lost) => Span::styled(format!("lost: {lost}"), theme.bad()),
        None if sample.health.verdict.is_some() => Span::styled("all recorded", theme.good()),
        None => Span::styled("nothing lost", theme.good()),
    });
    let style = if sample.health.has_false_verdict {
        theme.bad()
    } else {
        Theme::strong()
    };
    parts.extend(
        sample
            .health
            .verdict
            .as_deref()
            .map(|verdict| Span::styled(format!("verdict: {verdict}"), style)),
    );
    let style = if sample.health.is_complete {
        theme.good()
    } else {
        theme.doubtful()
    };
    parts.push(Span::styled(sample.health.completeness.as_str(), style));
    let sampling = sample.health.sampling.as_deref();
    parts.extend(sampling.map(|sampling| Span::styled(sampling, theme.doubtful())));
    draw_line(frame, area, separated(parts));
}

/// Draws the last message.
fn draw_message(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    if model.is_over() {
        let all = model.shown().is_some_and(|shown| shown.sample.has_ended);
        let reason = if all {
            "All processes have ended"
        } else {
            "The trace has ended"
        };
        let text = format!("{reason}: this is the last report. q leaves.");
        return draw_line(frame, area, [Span::styled(text, theme.doubtful())]);
    }
    let Some(message) = model.shell.messages().last() else {
        return;
    };
    let style = if message.is_warning {
        theme.doubtful()
    } else {
        Theme::quiet()
    };
    draw_line(frame, area, [Span::styled(paint::shown(message), style)]);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let keys = match model.focus() {
        Focus::Sites => KEYS,
        Focus::Stack => STACK_KEYS,
    };
    model.shell.draw_keys(frame, area, keys);
}
