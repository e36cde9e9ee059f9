//! State of the view and the effect of keys on it. No terminal, no clock.

use ratatui::Frame;

use super::draw;
use crate::commands::top::table::{Row, Table};
use crate::sinks::live::{Action, Content, Key, Move, Shell, Theme};

/// Keys and their effects, for people.
const HELP: [(&str, &str); 10] = [
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
#[derive(Debug)]
pub(super) struct Model {
    shell: Shell,
    now: Option<Table>,
    /// Shown instead of `now` while paused.
    paused: Option<Table>,
    order: Order,
    /// Indices in the table of the rows shown, in order.
    listed: Vec<usize>,
    /// Process that the user moved to, by pid and start time; without one, the first is selected.
    selected: Option<(u32, u64)>,
    /// Index of the selected process in the list.
    row: usize,
    chosen: Option<Chosen>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            shell: Shell::new(&HELP),
            now: None,
            paused: None,
            order: Order::default(),
            listed: Vec::new(),
            selected: None,
            row: 0,
            chosen: None,
        }
    }

    /// Shows another table.
    pub(super) fn take(&mut self, table: Table) {
        self.now = Some(table);
        if self.paused.is_none() {
            self.list();
        }
        self.shell.changed();
    }

    /// Takes the process that Enter was pressed on.
    pub(super) fn take_chosen(&mut self) -> Option<Chosen> {
        self.chosen.take()
    }

    /// Lists the rows anew, and finds the selected one among them.
    fn list(&mut self) {
        let rows = self.table().map_or(&[][..], |table| &table.rows);
        let filter = self.shell.filter().to_lowercase();
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
            _ => return,
        }
        self.list();
    }

    fn apply_move(&mut self, movement: Move) {
        let page = usize::from(draw::rows_at(self.shell.area()))
            .saturating_sub(1)
            .max(1);
        self.select(movement.from(self.row, page));
    }
}

impl Content for Model {
    fn shell(&self) -> &Shell {
        &self.shell
    }

    fn shell_mut(&mut self) -> &mut Shell {
        &mut self.shell
    }

    fn press_normally(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Escape if !self.shell.clear_filter() => return Some(Action::Quit),
            Key::Escape => self.list(),
            Key::Enter => {
                let chosen = self.selected_row().map(|row| Chosen {
                    pid: row.pid,
                    start_time: row.start_time,
                    comm: row.comm.clone(),
                });
                self.chosen = chosen;
            }
            Key::Move(movement) => self.apply_move(movement),
            Key::Character(character) => self.press_letter(character),
            Key::Left | Key::Right | Key::Backspace | Key::Clear | Key::Interrupt | Key::Redraw => {}
        }
        None
    }
    fn filtered(&mut self) {
        self.list();
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

    pub(super) fn order(&self) -> Order {
        self.order
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;

    use super::*;
    use crate::commands::top::table::tests::row;
    use crate::sinks::live::Overlay;

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
        let mut model = Model::new();
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
        // All of the help fits, unless the terminal is small.
        press(&mut model, "?↓");
        assert_eq!(model.shell.overlay(), (Overlay::Help, 0));
        model.resize(Rect::new(0, 0, 80, 10));
        press(&mut model, "↓");
        assert_eq!(model.shell.overlay(), (Overlay::Help, 1));
        press(&mut model, "q");
        assert_eq!(model.shell.overlay(), (Overlay::None, 0));
        model.shell.say("no".to_owned());
        assert_eq!(model.shell.said(), Some("no"));
        assert_eq!(press(&mut model, "\u{1b}"), Some(Action::Quit));
        assert_eq!(model.shell.said(), None);
        assert_eq!(model.press(Key::Interrupt), Some(Action::Quit));
    }
}
