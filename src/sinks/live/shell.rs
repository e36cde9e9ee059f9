//! State that all views on the terminal share, and the keys that change it: windows over the panes, messages,
//! the filter.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::keys::{Action, Key};
use super::messages::Message;
use super::paint::{Theme, draw_help, draw_line, draw_messages, draw_text, text_in};
use super::text::{printable, skip, width};

/// Lines that a page scrolls in help and messages.
const LINES: usize = 10;

/// Window over the panes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overlay {
    #[default]
    None,
    Help,
    Messages,
    /// Text of the view's own.
    Text,
}

/// Effect of a key that was pressed.
pub(super) enum Pressed {
    /// None but on the shell.
    Done,
    /// The filter has changed.
    Filtered,
    Action(Action),
    /// The view decides.
    Key(Key),
}

/// State that all views share.
#[derive(Debug, Default)]
pub(crate) struct Shell {
    /// Keys and their effects, for people.
    help: &'static [(&'static str, &'static str)],
    /// Incremented with every change that can be seen.
    version: u64,
    area: Rect,
    messages: Vec<Message>,
    /// Text that is shown in place of the last message, until a key is pressed.
    said: Option<String>,
    filter: String,
    /// True while the filter is being typed.
    is_filtering: bool,
    overlay: Overlay,
    /// Lines of [`Overlay::Text`], printable.
    text: Vec<String>,
    /// Lines of help or text, or messages, that are scrolled out of sight.
    scrolled: usize,
}

impl Shell {
    pub(crate) fn new(help: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            help,
            ..Self::default()
        }
    }

    /// Notes a change that can be seen.
    pub(crate) fn changed(&mut self) {
        self.version += 1;
        let lines = match self.overlay {
            Overlay::None => 0,
            // The frame takes two lines.
            Overlay::Help => {
                let room = usize::from(self.area.height.saturating_sub(2));
                self.help.len().saturating_sub(room)
            }
            Overlay::Messages => self.messages.len().saturating_sub(1),
            Overlay::Text => {
                let room = usize::from(self.area.height.saturating_sub(2));
                text_in(self.area, &self.text).len().saturating_sub(room)
            }
        };
        self.scrolled = self.scrolled.min(lines);
    }

    pub(crate) fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.changed();
    }

    /// Shows a text until a key is pressed.
    pub(crate) fn say(&mut self, text: String) {
        self.said = Some(text);
        self.changed();
    }

    /// Opens the window of text, or shows other lines in it.
    pub(crate) fn show_text(&mut self, lines: Vec<String>) {
        if self.overlay != Overlay::Text || self.text != lines {
            (self.overlay, self.text) = (Overlay::Text, lines);
            self.changed();
        }
    }

    /// Returns whether the window of text is open.
    pub(crate) fn shows_text(&self) -> bool {
        self.overlay == Overlay::Text
    }

    /// Sets the size of the terminal; returns whether it was another.
    pub(crate) fn resize(&mut self, area: Rect) -> bool {
        let is_other = self.area != area;
        if is_other {
            self.area = area;
            self.changed();
        }
        is_other
    }

    /// Handles a key, if it is not the view's.
    pub(super) fn press(&mut self, key: Key) -> Pressed {
        self.said = None;
        let pressed = match (key, self.overlay, self.is_filtering) {
            (Key::Interrupt, ..) => Pressed::Action(Action::Quit),
            (Key::Redraw, ..) => Pressed::Action(Action::Redraw),
            (_, Overlay::Help | Overlay::Messages | Overlay::Text, _) => {
                self.press_over_overlay(key);
                Pressed::Done
            }
            (Key::Move(_), Overlay::None, _) => Pressed::Key(key),
            (_, Overlay::None, true) => {
                self.is_filtering = key.edit(&mut self.filter);
                Pressed::Filtered
            }
            (_, Overlay::None, false) => self.press_normally(key),
        };
        self.changed();
        pressed
    }

    fn press_normally(&mut self, key: Key) -> Pressed {
        let Key::Character(character) = key else {
            return Pressed::Key(key);
        };
        match character {
            'q' => return Pressed::Action(Action::Quit),
            '/' => self.is_filtering = true,
            'l' => self.overlay = Overlay::Messages,
            '?' | 'h' => self.overlay = Overlay::Help,
            _ => return Pressed::Key(key.movement().map_or(key, Key::Move)),
        }
        Pressed::Done
    }

    /// Scrolls the overlay; any other key closes it, but only Escape closes text, which may have taken long.
    fn press_over_overlay(&mut self, key: Key) {
        let Some(pressed) = key.movement() else {
            if self.overlay != Overlay::Text || key == Key::Escape {
                (self.scrolled, self.overlay) = (0, Overlay::None);
            }
            return;
        };
        let movement = match self.overlay {
            // The newest message is the last one and shown first: up goes back in time.
            Overlay::Messages => pressed.back(),
            Overlay::None | Overlay::Help | Overlay::Text => pressed,
        };
        self.scrolled = movement.from(self.scrolled, LINES);
    }

    /// Clears the filter; returns whether there was one.
    pub(crate) fn clear_filter(&mut self) -> bool {
        let was_set = !self.filter.is_empty();
        self.filter.clear();
        was_set
    }

    /// Draws the window over the panes, if one is open.
    pub(crate) fn draw_overlay(&self, frame: &mut Frame<'_>, theme: Theme) {
        let area = frame.area();
        match self.overlay {
            Overlay::None => {}
            Overlay::Help => draw_help(frame, area, self.help, self.scrolled, theme),
            Overlay::Messages => draw_messages(frame, area, &self.messages, self.scrolled, theme),
            Overlay::Text => draw_text(frame, area, &self.text, self.scrolled),
        }
    }

    /// Draws the filter while it is being typed, else `keys`.
    pub(crate) fn draw_keys(&self, frame: &mut Frame<'_>, area: Rect, keys: &str) {
        if !self.is_filtering {
            return draw_line(frame, area, [Span::styled(keys, Theme::quiet())]);
        }
        let filter = printable(&self.filter);
        // Shows the end of the filter, where it is being typed.
        let room = usize::from(area.width).saturating_sub(2);
        let filter = skip(&filter, width(&filter).saturating_sub(room));
        let hint = Span::styled("  Enter keeps it, Esc ends it", Theme::quiet());
        let cursor = Span::styled(" ", Theme::selected());
        draw_line(frame, area, [Span::raw("/"), Span::raw(filter), cursor, hint]);
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn area(&self) -> Rect {
        self.area
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(crate) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }
}

#[cfg(test)]
impl Shell {
    pub(crate) fn is_filtering(&self) -> bool {
        self.is_filtering
    }

    /// Lines in the window of text.
    pub(crate) fn text(&self) -> &[String] {
        &self.text
    }

    /// The window that is open, and how many of its lines are scrolled out of sight.
    pub(crate) fn overlay(&self) -> (Overlay, usize) {
        (self.overlay, self.scrolled)
    }
}
