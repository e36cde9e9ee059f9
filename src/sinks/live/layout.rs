//! Layout of the screen. Geometry only.

use ratatui::layout::{Constraint, Layout, Rect};

/// Minimum columns and rows; below them, only a message is drawn.
pub(crate) const MIN: (u16, u16) = (40, 10);
/// Minimum rows for a line of messages.
const MESSAGE_HEIGHT: u16 = 14;
/// Minimum rows of both panes together, with their headings.
const TWO_PANES: u16 = 12;

/// Pane that keys act on. If there is room for only one pane, it is the one shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Focus {
    #[default]
    Sites,
    Stack,
}

/// Parts of the screen, from top to bottom. Empty ones are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Panes {
    pub(super) subject: Rect,
    pub(super) rates: Rect,
    pub(super) columns: Rect,
    pub(super) sites: Rect,
    pub(super) title: Rect,
    pub(super) stack: Rect,
    pub(super) health: Rect,
    pub(super) message: Rect,
    pub(super) keys: Rect,
}

impl Panes {
    /// Lays out `area`; `None` if it is smaller than [`MIN`].
    pub(super) fn of(area: Rect, focus: Focus) -> Option<Self> {
        if area.width < MIN.0 || area.height < MIN.1 {
            return None;
        }
        let message = u16::from(area.height >= MESSAGE_HEIGHT);
        let rest = area.height - 4 - message;
        // `above`: headings and sites; `below`: title and stack.
        let (above, below) = match (rest >= TWO_PANES, focus) {
            (true, _) => (rest * 9 / 20, rest - rest * 9 / 20),
            (false, Focus::Sites) => (rest, 0),
            (false, Focus::Stack) => (0, rest),
        };
        let heights = [
            1,
            1,
            above.min(1),
            above.saturating_sub(1),
            below.min(1),
            below.saturating_sub(1),
            1,
            message,
            1,
        ];
        let [
            subject,
            rates,
            columns,
            sites,
            title,
            stack,
            health,
            message,
            keys,
        ] = Layout::vertical(heights.map(Constraint::Length)).areas(area);
        Some(Self {
            subject,
            rates,
            columns,
            sites,
            title,
            stack,
            health,
            message,
            keys,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At every size, all lines are used once, and the focused pane is shown.
    #[test]
    fn all_sizes() {
        for height in 0..100 {
            for focus in [Focus::Sites, Focus::Stack] {
                let Some(panes) = Panes::of(Rect::new(0, 0, 80, height), focus) else {
                    assert!(height < MIN.1);
                    continue;
                };
                let Panes {
                    subject,
                    rates,
                    columns,
                    sites,
                    title,
                    stack,
                    health,
                    message,
                    keys,
                } = panes;
                let all = [
                    subject, rates, columns, sites, title, stack, health, message, keys,
                ];
                assert_eq!(all.iter().map(|part| part.height).sum::<u16>(), height);
                assert!(all.windows(2).all(|pair| pair[0].bottom() == pair[1].y));
                let focused = if focus == Focus::Sites { sites } else { stack };
                assert!(focused.height >= 4, "{height} {focus:?}");
            }
        }
        assert_eq!(Panes::of(Rect::new(0, 0, 39, 24), Focus::Sites), None);
    }

    /// Both panes have enough room on a usual terminal.
    #[test]
    fn usual_size() {
        let panes = Panes::of(Rect::new(0, 0, 80, 24), Focus::Sites).expect("there is room");
        assert_eq!((panes.sites.height, panes.stack.height), (7, 10));
    }
}
