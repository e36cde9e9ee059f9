//! The model on the terminal: keys change it, and the view draws it.

use ratatui::Frame;

use super::keys::{Action, Key};
use super::model::Model;
use super::paint::Theme;
use super::shell::Shell;
use super::terminal::Content;
use super::view;

impl Content for Model {
    fn shell(&self) -> &Shell {
        &self.shell
    }

    fn shell_mut(&mut self) -> &mut Shell {
        &mut self.shell
    }

    fn press_normally(&mut self, key: Key) -> Option<Action> {
        self.act(key)
    }

    fn filtered(&mut self) {
        self.list();
    }

    fn settle(&mut self) {
        self.close_diagnosis();
        self.limit_scrolling();
    }

    fn tick(&mut self) {
        self.show_diagnosis();
    }

    fn draw(&self, frame: &mut Frame<'_>, theme: Theme) {
        view::draw(frame, self, theme);
    }
}
