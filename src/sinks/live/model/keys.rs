//! Effect of each key. The help shows the table of them.

use ratatui::layout::Rect;

use super::{Action, Key, Model, Move, Overlay};
use crate::sinks::live::layout::{Focus, Panes};
use crate::sinks::live::sample::Order;
use leak_report::model::Unit;

/// Columns that the stack scrolls at once.
const COLUMNS: usize = 8;
/// Lines that a page scrolls in help and messages.
const LINES: usize = 10;

/// Keys and their effects, for people.
pub(in crate::sinks::live) const HELP: [(&str, &str); 19] = [
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
    ("p  Space", "pause the display; the trace goes on"),
    ("l", "messages"),
    ("Ctrl-L", "redraw the screen"),
    ("?  h", "this"),
];

impl Model {
    /// Handles a key.
    pub(super) fn act(&mut self, key: Key) -> Option<Action> {
        let action = match (key, self.overlay, self.is_filtering) {
            (Key::Interrupt, ..) => Some(Action::Quit),
            (Key::Redraw, ..) => Some(Action::Redraw),
            (_, Overlay::None, true) => {
                self.press_filtering(key);
                None
            }
            (_, Overlay::None, false) => self.press_normally(key),
            (_, Overlay::Help | Overlay::Messages, _) => {
                self.press_over_overlay(key);
                None
            }
        };
        self.changed();
        action
    }

    fn press_normally(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Escape => return self.step_back(),
            Key::Enter => {
                self.focus = match self.focus {
                    Focus::Sites => Focus::Stack,
                    Focus::Stack => Focus::Sites,
                };
            }
            Key::Character('q') => return Some(Action::Quit),
            Key::Character('m') => return Some(Action::Mark),
            Key::Character('v') => return Some(Action::Verdict),
            Key::Character('j') => self.apply_move(Move::Down),
            Key::Character('k') => self.apply_move(Move::Up),
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
            'p' | ' ' => {
                self.paused = match self.paused {
                    None => self.now.clone(),
                    Some(_) => None,
                };
                self.list();
            }
            '/' => self.is_filtering = true,
            'l' => self.overlay = Overlay::Messages,
            '?' | 'h' => self.overlay = Overlay::Help,
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
        if self.filter.is_empty() {
            return Some(Action::Quit);
        }
        self.filter.clear();
        self.list();
        None
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
        let movement = match key {
            Key::Move(movement) => Some(movement),
            Key::Character('j') => Some(Move::Down),
            Key::Character('k') => Some(Move::Up),
            Key::Character(_) | Key::Left | Key::Right | Key::Enter | Key::Escape => None,
            Key::Backspace | Key::Clear | Key::Interrupt | Key::Redraw => None,
        };
        let Some(movement) = movement else {
            (self.overlay_scrolled, self.overlay) = (0, Overlay::None);
            return;
        };
        let movement = match self.overlay {
            // The newest message is the last one and shown first: up goes back in time.
            Overlay::Messages => movement.back(),
            Overlay::None | Overlay::Help => movement,
        };
        self.overlay_scrolled = movement.from(self.overlay_scrolled, LINES);
    }

    /// Moves in the pane that has the focus.
    fn apply_move(&mut self, movement: Move) {
        let panes = Panes::of(self.area, self.focus).unwrap_or_default();
        let page = |pane: Rect| usize::from(pane.height).saturating_sub(1).max(1);
        match self.focus {
            Focus::Sites => self.select(movement.from(self.row, page(panes.sites))),
            Focus::Stack => self.scrolled.0 = movement.from(self.scrolled.0, page(panes.stack)),
        }
    }
}
