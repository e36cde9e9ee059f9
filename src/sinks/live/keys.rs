//! Keys, and what they ask for.

/// Requests of the user that the view cannot fulfil itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    /// Sets the mark: growth is counted from now on.
    Mark,
    /// Turns verdicts in further reports on or off.
    Verdict,
    /// Redraws everything: something else wrote to the terminal.
    Redraw,
}

/// Keys that have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Move(Move),
    Left,
    Right,
    /// Enter or Tab.
    Enter,
    Escape,
    Backspace,
    /// Control-C.
    Interrupt,
    /// Control-L.
    Redraw,
    /// Control-U.
    Clear,
    Character(char),
}

/// Maximum characters of a filter.
const LONGEST_FILTER: usize = 100;

impl Key {
    /// Movement that it asks for where no text is typed.
    pub(crate) fn movement(self) -> Option<Move> {
        if let Self::Move(movement) = self {
            return Some(movement);
        }
        let letters = [('j', Move::Down), ('k', Move::Up)];
        let pressed = letters
            .into_iter()
            .find(|&(letter, _)| self == Self::Character(letter));
        pressed.map(|(_, movement)| movement)
    }

    /// Edits the text of a filter. Returns whether it is still edited.
    pub(crate) fn edit(self, filter: &mut String) -> bool {
        match self {
            Self::Enter => return false,
            Self::Escape => {
                filter.clear();
                return false;
            }
            Self::Backspace => _ = filter.pop(),
            Self::Clear => filter.clear(),
            Self::Character(character) if filter.chars().count() < LONGEST_FILTER => filter.push(character),
            Self::Character(_)
            | Self::Move(_)
            | Self::Left
            | Self::Right
            | Self::Interrupt
            | Self::Redraw => {}
        }
        true
    }
}

/// Movement in a list or text that is longer than its pane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Move {
    /// Opposite direction.
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::PageUp => Self::PageDown,
            Self::PageDown => Self::PageUp,
            Self::First => Self::Last,
            Self::Last => Self::First,
        }
    }

    /// Line that this leads to from line `at`, with pages of `page` lines. The caller limits it to the last
    /// line.
    pub(crate) fn from(self, at: usize, page: usize) -> usize {
        match self {
            Self::Up => at.saturating_sub(1),
            Self::Down => at.saturating_add(1),
            Self::PageUp => at.saturating_sub(page),
            Self::PageDown => at.saturating_add(page),
            Self::First => 0,
            Self::Last => usize::MAX,
        }
    }
}
