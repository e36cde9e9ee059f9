//! Effect of each key. The help shows the table of them.

use ratatui::layout::Rect;

use super::Model;
use crate::sinks::live::keys::{Action, Key, Move};
use crate::sinks::live::layout::{Focus, Panes};
use crate::sinks::live::sample::Order;
use leak_report::model::Unit;

/// Columns that the stack scrolls at once.
const COLUMNS: usize = 8;

/// Keys and their effects, for people.
pub(super) const HELP: [(&str, &str); 20] = [
    ("q  Esc  Ctrl-C", "quit; Esc first closes what is open"),
    ("↑ ↓  j k", "select a site, or scroll the stack"),
    (
        "PgUp PgDn Home End",
        "the same, by pages, to the first, to the last",
    ),
    ("Enter  Tab", "switch between sites and stack"),
    ("← →", "scroll a stack with long lines sideways"),
    ("s", "order by the next of these five:"),
    ("x", "suspicion: how much a site behaves like a leak"),
    ("o", "what is outstanding"),
    ("g", "growth"),
    ("a", "what was allocated in all"),
    ("b", "the number of blocks"),
    ("u", "growth and trend in blocks, or in bytes"),
    ("/", "only sites with this text in a frame; Esc ends it"),
    ("m", "mark: count growth from now on"),
    ("v", "verdict on lost blocks in each report; again: off"),
    ("w", "why the memory grows of the process that is shown"),
    ("p  Space", "pause the display; the trace goes on"),
    ("l", "messages"),
    ("Ctrl-L", "redraw the screen"),
    ("?  h", "this"),
];

impl Model {
    /// Handles a key that is not one of all views.
    pub(in crate::sinks::live) fn act(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Escape => return self.step_back(),
            Key::Enter => {
                self.focus = match self.focus {
                    Focus::Sites => Focus::Stack,
                    Focus::Stack => Focus::Sites,
                };
            }
            Key::Character('m') => return Some(Action::Mark),
            Key::Character('v') => return Some(Action::Verdict),
            Key::Character(character) => self.press_letter(character),
            Key::Left => self.scrolled.1 = self.scrolled.1.saturating_sub(COLUMNS),
            Key::Right => self.scrolled.1 += COLUMNS,
            Key::Move(movement) => self.apply_move(movement),
            Key::Backspace | Key::Clear | Key::Interrupt | Key::Redraw => {}
        }
        None
    }

    fn press_letter(&mut self, character: char) {
        match character {
            's' => self.order_by(self.order.order.next()),
            'x' => self.order_by(Order::Suspicion),
            'o' => self.order_by(Order::Outstanding),
            'g' => self.order_by(Order::Growth),
            'a' => self.order_by(Order::Allocated),
            'b' => self.order_by(Order::Blocks),
            'u' => {
                self.order.unit = match self.order.unit {
                    Unit::Bytes => Unit::Blocks,
                    Unit::Blocks => Unit::Bytes,
                };
                self.list();
            }
            'w' => self.start_diagnosis(),
            'p' | ' ' => {
                self.paused = match self.paused {
                    None => self.now.clone(),
                    Some(_) => None,
                };
                self.list();
            }
            _ => {}
        }
    }

    fn order_by(&mut self, order: Order) {
        self.order.order = order;
        self.list();
    }

    /// Moves the focus back from the stack, or else clears the filter; quits if there is neither.
    fn step_back(&mut self) -> Option<Action> {
        if self.focus == Focus::Stack {
            self.focus = Focus::Sites;
            return None;
        }
        if !self.shell.clear_filter() {
            return Some(Action::Quit);
        }
        self.list();
        None
    }

    /// Moves in the pane that has the focus.
    fn apply_move(&mut self, movement: Move) {
        let panes = Panes::of(self.shell.area(), self.focus).unwrap_or_default();
        let page = |pane: Rect| usize::from(pane.height).saturating_sub(1).max(1);
        match self.focus {
            Focus::Sites => self.select(movement.from(self.row, page(panes.sites))),
            Focus::Stack => self.scrolled.0 = movement.from(self.scrolled.0, page(panes.stack)),
        }
    }
}
