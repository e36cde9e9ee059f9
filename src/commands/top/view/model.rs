//! State of the view and the effect of keys on it. No terminal, no clock.

use ratatui::Frame;
use ratatui::layout::Rect;

use super::draw;
use crate::commands::top::table::{Row, Table};
use crate::sinks::live::{Action, Content, Key, Message, Move, Overlay, Theme};

/// Lines that a page scrolls in help and messages.
const LINES: usize = 10;

/// Keys and their effects, for people.
pub(super) const HELP: [(&str, &str); 10] = [
    ("q  Esc  Ctrl-C", "quit; Esc first closes what is open"),
    ("Enter", "trace the selected process: as memleak live -p PID"),
    ("↑ ↓  j k", "select a process"),
    (
        "PgUp PgDn Home End",
        "the same, by pages, to the first, to the last",
    ),
    ("s  g  o", "order by the next: certain growth, anonymous memory"),
    (
        "/",
        "only processes with this text in pid, user or name; Esc ends it",
    ),
    ("p  Space", "pause the display; sampling goes on"),
    ("l", "messages"),
    ("Ctrl-L", "redraw the screen"),
    ("?  h", "this"),
];

/// Order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Growth,
    Size,
}

/// Process to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) comm: String,
}

/// State of the view.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Incremented with every change that can be seen.
    version: u64,
    area: Rect,
    now: Option<Table>,
    /// Shown instead of `now` while paused.
    paused: Option<Table>,
    messages: Vec<Message>,
    /// Text that is shown in place of the last message, until a key is pressed.
    said: Option<String>,
    order: Order,
    filter: String,
    /// True while the filter is being typed.
    is_filtering: bool,
    overlay: Overlay,
    /// Lines of help, or messages, that are scrolled out of sight.
    overlay_scrolled: usize,
    /// Indices in the table of the rows shown, in order.
    listed: Vec<usize>,
    /// Process that the user moved to, by pid and start time; without one, the first is selected.
    selected: Option<(u32, u64)>,
    /// Index of the selected process in the list.
    row: usize,
    chosen: Option<Chosen>,
}

impl Model {
    /// Shows another table.
    pub(super) fn take(&mut self, table: Table) {
        self.now = Some(table);
        if self.paused.is_none() {
            self.list();
        }
        self.version += 1;
    }

    /// Takes the process that Enter was pressed on.
    pub(super) fn take_chosen(&mut self) -> Option<Chosen> {
        self.chosen.take()
    }

    /// Shows a text until a key is pressed.
    pub(super) fn say(&mut self, text: String) {
        self.said = Some(text);
        self.version += 1;
    }

    /// Lists the rows anew, and finds the selected one among them.
    fn list(&mut self) {
        let rows = self.table().map_or(&[][..], |table| &table.rows);
        let filter = self.filter.to_lowercase();
        let has_text = |row: &Row| {
            let texts = [
                row.pid.to_string(),
                row.user_name().to_lowercase(),
                row.comm.to_lowercase(),
            ];
            texts.iter().any(|text| text.contains(&filter))
        };
        let mut listed: Vec<_> = (0..rows.len()).filter(|&at| has_text(&rows[at])).collect();
        if self.order == Order::Size {
            listed.sort_by_key(|&at| std::cmp::Reverse(rows[at].memory.bytes()));
        }
        let is_selected = |at: &usize| self.selected == Some((rows[*at].pid, rows[*at].start_time));
        self.row = match self.selected {
            None => 0,
            // If the process has ended, the selection stays at its index.
            Some(_) => listed.iter().position(is_selected).unwrap_or(self.row),
        };
        self.row = self.row.min(listed.len().saturating_sub(1));
        self.listed = listed;
    }

    fn select(&mut self, at: usize) {
        self.row = at.min(self.listed.len().saturating_sub(1));
        self.selected = self.selected_row().map(|row| (row.pid, row.start_time));
    }

    fn press_normally(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Escape if self.filter.is_empty() => return Some(Action::Quit),
            Key::Escape => {
                self.filter.clear();
                self.list();
            }
            Key::Character('q') => return Some(Action::Quit),
            Key::Enter => {
                let chosen = self.selected_row().map(|row| Chosen {
                    pid: row.pid,
                    start_time: row.start_time,
                    comm: row.comm.clone(),
                });
                self.chosen = chosen;
            }
            Key::Move(movement) => self.apply_move(movement),
            Key::Character('j') => self.apply_move(Move::Down),
            Key::Character('k') => self.apply_move(Move::Up),
            Key::Character(character) => self.press_letter(character),
            Key::Left | Key::Right | Key::Backspace | Key::Clear | Key::Interrupt | Key::Redraw => {}
        }
        None
    }

    fn press_letter(&mut self, character: char) {
        match character {
            's' => {
                self.order = match self.order {
                    Order::Growth => Order::Size,
                    Order::Size => Order::Growth,
                };
            }
            'g' => self.order = Order::Growth,
            'o' => self.order = Order::Size,
            'p' | ' ' => {
                self.paused = match self.paused {
                    None => self.now.clone(),
                    Some(_) => None,
                };
            }
            '/' => self.is_filtering = true,
            'l' => self.overlay = Overlay::Messages,
            '?' | 'h' => self.overlay = Overlay::Help,
            _ => return,
        }
        self.list();
    }

    fn press_filtering(&mut self, key: Key) {
        if let Key::Move(movement) = key {
            return self.apply_move(movement);
        }
        self.is_filtering = key.edit(&mut self.filter);
        self.list();
    }

    /// Scrolls the overlay; any other key closes it.
    fn press_over_overlay(&mut self, key: Key) {
        let (movement, lines) = match (key, self.overlay) {
            // The newest message is the last one and shown first: up goes back in time.
            (Key::Move(movement), Overlay::Messages) => (movement.back(), self.messages.len()),
            (Key::Move(movement), Overlay::Help | Overlay::None) => (movement, HELP.len()),
            (
                Key::Character(_)
                | Key::Left
                | Key::Right
                | Key::Enter
                | Key::Escape
                | Key::Backspace
                | Key::Clear
                | Key::Interrupt
                | Key::Redraw,
                _,
            ) => {
                (self.overlay, self.overlay_scrolled) = (Overlay::None, 0);
                return;
            }
        };
        let to = movement.from(self.overlay_scrolled, LINES);
        self.overlay_scrolled = to.min(lines.saturating_sub(1));
    }

    fn apply_move(&mut self, movement: Move) {
        let page = usize::from(draw::rows_at(self.area)).saturating_sub(1).max(1);
        self.select(movement.from(self.row, page));
    }
}

impl Content for Model {
    fn version(&self) -> u64 {
        self.version
    }

    fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.version += 1;
    }

    fn resize(&mut self, area: Rect) {
        if self.area != area {
            self.area = area;
            self.version += 1;
        }
    }

    fn press(&mut self, key: Key) -> Option<Action> {
        self.version += 1;
        self.said = None;
        match (key, self.overlay, self.is_filtering) {
            (Key::Interrupt, ..) => return Some(Action::Quit),
            (Key::Redraw, ..) => return Some(Action::Redraw),
            (_, Overlay::Help | Overlay::Messages, _) => self.press_over_overlay(key),
            (_, Overlay::None, true) => self.press_filtering(key),
            (_, Overlay::None, false) => return self.press_normally(key),
        }
        None
    }

    fn draw(&self, frame: &mut Frame<'_>, theme: Theme) {
        draw::draw(frame, self, theme);
    }
}

/// Accessors for drawing.
impl Model {
    /// The table that is shown; `None` before the first.
    pub(super) fn table(&self) -> Option<&Table> {
        self.paused.as_ref().or(self.now.as_ref())
    }

    /// Rows shown, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let rows = self.table().map_or(&[][..], |table| &table.rows);
        self.listed.iter().filter_map(|&at| rows.get(at)).collect()
    }

    pub(super) fn selected_row(&self) -> Option<&Row> {
        self.table()?.rows.get(*self.listed.get(self.row)?)
    }

    /// Index of the selected process in the list.
    pub(super) fn row(&self) -> usize {
        self.row
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn is_filtering(&self) -> bool {
        self.is_filtering
    }

    pub(super) fn overlay(&self) -> Overlay {
        self.overlay
    }

    pub(super) fn overlay_scrolled(&self) -> usize {
        self.overlay_scrolled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::table::tests::row;

    fn press(model: &mut Model, keys: &str) -> Option<Action> {
        let keys = keys.chars().map(|key| match key {
            '\r' => Key::Enter,
            '\u{1b}' => Key::Escape,
            '↓' => Key::Move(Move::Down),
            '⇟' => Key::Move(Move::Last),
            other => Key::Character(other),
        });
        keys.map(|key| model.press(key)).last().flatten()
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.resize(Rect::new(0, 0, 80, 24));
        model.take(Table {
            rows: vec![row(7, 10, 5.0, 6.0), row(8, 90, -1.0, 1.0), row(9, 50, -1.0, 1.0)],
            ..Table::default()
        });
        model
    }

    fn pids(model: &Model) -> Vec<u32> {
        model.rows().iter().map(|row| row.pid).collect()
    }

    /// The selection stays with its process, and Enter chooses that process once.
    #[test]
    fn selection_and_choice() {
        let mut model = model();
        press(&mut model, "↓");
        let mut table = model.table().expect("a table").clone();
        table.rows.rotate_right(1);
        model.take(table.clone());
        assert_eq!(
            (model.row(), model.selected_row().map(|row| row.pid)),
            (2, Some(8))
        );
        assert_eq!(model.take_chosen(), None);
        press(&mut model, "\r");
        assert_eq!(
            model.take_chosen().map(|chosen| (chosen.pid, chosen.start_time)),
            Some((8, 1))
        );
        assert_eq!(model.take_chosen(), None);
        // A new process with the same pid is another one: the selection stays at its index.
        table.rows[2].start_time = 2;
        table.rows.truncate(3);
        model.take(table);
        assert_eq!(
            model.selected_row().map(|row| (row.pid, row.start_time)),
            Some((8, 2))
        );
        model.take(Table::default());
        press(&mut model, "\r↓⇟");
        assert_eq!((model.take_chosen(), model.row()), (None, 0));
    }

    /// Rows are ordered and filtered, a pause keeps the old table, and Escape undoes one step at a time.
    #[test]
    fn keys() {
        let mut model = model();
        for (keys, expected) in [
            ("", &[7, 8, 9][..]),
            ("o", &[8, 9, 7]),
            ("s", &[7, 8, 9]),
            ("s", &[8, 9, 7]),
            ("g", &[7, 8, 9]),
            ("/SS9", &[9]),
            ("\u{1b}", &[7, 8, 9]),
            ("/root\r", &[7, 8, 9]),
            ("/x", &[]),
            ("\r", &[]),
        ] {
            assert_eq!(press(&mut model, keys), None);
            assert_eq!(pids(&model), expected, "{keys:?}");
        }
        assert_eq!(press(&mut model, "\u{1b}"), None);
        press(&mut model, "p");
        model.take(Table::default());
        assert_eq!(pids(&model), [7, 8, 9]);
        press(&mut model, "p");
        assert_eq!(pids(&model), [0_u32; 0]);
        press(&mut model, "?↓");
        assert_eq!((model.overlay(), model.overlay_scrolled()), (Overlay::Help, 1));
        press(&mut model, "q");
        assert_eq!((model.overlay(), model.overlay_scrolled()), (Overlay::None, 0));
        model.say("no".to_owned());
        assert_eq!(model.said(), Some("no"));
        assert_eq!(press(&mut model, "\u{1b}"), Some(Action::Quit));
        assert_eq!(model.said(), None);
        assert_eq!(model.press(Key::Interrupt), Some(Action::Quit));
    }
}
