//! The terminal: saves and restores its state, reads keys, and draws the screen. This runs in its own thread,
//! so that reports and drawing do not wait for each other. Both lock the content that they share, but never
//! while they wait for anything else.

use std::io::{self, IsTerminal, Stdout};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use colorchoice::ColorChoice;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::execute;
use crossterm::style::ResetColor;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal};
use thiserror::Error;

use super::keys::{Action, Key, Move};
use super::messages::Messages;
use super::paint::Theme;
use super::shell::{Pressed, Shell};
use crate::base::characters::{in_a_column, is_ascii_wanted};
use crate::base::parallel::lock;
use crate::session::Signals;

/// Minimum time between two redraws, and between two checks for changes.
const FRAME: Duration = Duration::from_millis(100);
/// Maximum time to wait for a terminal that accepts no output.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum keys taken before the screen is updated.
const MAX_KEYS: usize = 64;
/// Name of the thread.
const THREAD: &str = "screen";

/// Reasons why the view cannot be drawn.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TerminalError {
    #[error(
        "--live needs a terminal, and {0} is not one: leave --live out, or run it where both standard input \
         and standard output are a terminal (ssh -t, docker exec -it)"
    )]
    NotATerminal(&'static str),
    #[error(
        "--live cannot draw on a terminal of type `{0}`: leave --live out, or set TERM to what the terminal is"
    )]
    Dumb(String),
    #[error("cannot draw on this terminal: {0}")]
    Refused(#[from] io::Error),
    /// The thread has panicked.
    #[error("the view failed with the panic message above: please report it")]
    Failed,
}

/// Content of a screen, which keys act on. Its methods never wait.
pub(crate) trait Content: Send + 'static {
    fn shell(&self) -> &Shell;
    fn shell_mut(&mut self) -> &mut Shell;
    /// Handles a key that the shell leaves to the view.
    fn press_normally(&mut self, key: Key) -> Option<Action>;
    /// Shows what another filter leaves.
    fn filtered(&mut self);
    /// Adapts to a key that was pressed, or to another size of the terminal.
    fn settle(&mut self) {}
    /// Shows what has changed with time; called several times a second.
    fn tick(&mut self) {}
    /// Sets the size of the terminal.
    fn resize(&mut self, area: Rect) {
        if self.shell_mut().resize(area) {
            self.settle();
        }
    }
    /// Handles a key.
    fn press(&mut self, key: Key) -> Option<Action> {
        let action = match self.shell_mut().press(key) {
            Pressed::Done => None,
            Pressed::Filtered => {
                self.filtered();
                None
            }
            Pressed::Action(action) => Some(action),
            Pressed::Key(key) => self.press_normally(key),
        };
        self.settle();
        action
    }
    /// Draws everything.
    fn draw(&self, frame: &mut Frame<'_>, theme: Theme);
}

/// The screen while the view is open.
pub(crate) struct Screen<C: Content> {
    shared: Arc<Shared<C>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread, the session and a panic hook share.
struct Shared<C> {
    content: Mutex<C>,
    /// Locked while something is written to the terminal.
    drawing: Mutex<()>,
    is_open: AtomicBool,
    /// Set when the terminal is restored.
    is_restored: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    mark: Arc<AtomicBool>,
    verdict: Arc<AtomicBool>,
    messages: Messages,
    theme: Theme,
}

impl<C: Content> Screen<C> {
    /// Takes over the terminal. `is_restored` is set when the terminal is restored, for whatever reason.
    pub(crate) fn open(
        content: C,
        signals: &Signals,
        is_restored: Arc<AtomicBool>,
        messages: Messages,
    ) -> Result<Self, TerminalError> {
        check()?;
        let shared = Arc::new(Shared {
            content: Mutex::new(content),
            drawing: Mutex::new(()),
            is_open: AtomicBool::new(true),
            is_restored,
            stop: Arc::clone(&signals.stop),
            mark: Arc::clone(&signals.mark),
            verdict: Arc::clone(&signals.verdict),
            messages,
            theme: Theme {
                colours: has_colours(),
            },
        });
        restore_on_panic(&shared);
        shared.messages.capture();
        let (sender, ended) = channel();
        // Dropping it, on an error, restores the terminal.
        let mut screen = Self {
            shared: Arc::clone(&shared),
            ended,
            thread: None,
        };
        enter()?;
        let thread = thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.spawn(move || {
            shared.run();
            drop(sender);
        });
        screen.thread = Some(thread?);
        Ok(screen)
    }

    /// Changes or reads the content.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut C) -> T) -> T {
        change(&mut lock(&self.shared.content))
    }

    /// Waits until the user has left, or the end is requested.
    pub(crate) fn wait(&self) {
        let is_wanted = || self.shared.stop.load(Ordering::Relaxed);
        // Nothing is ever sent: the channel is disconnected when the thread has ended. The thread may be
        // waiting for the terminal.
        while !is_wanted() && self.ended.recv_timeout(FRAME) == Err(RecvTimeoutError::Timeout) {}
    }

    /// Restores the terminal.
    ///
    /// # Errors
    ///
    /// Fails if the thread has panicked.
    pub(crate) fn close(&mut self) -> Result<(), TerminalError> {
        self.shared.restore();
        // Waits no longer: a thread that waits for a terminal that accepts no output is left behind.
        if self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        joined.map_err(|_| TerminalError::Failed)
    }
}

impl<C: Content> Drop for Screen<C> {
    fn drop(&mut self) {
        self.shared.restore();
    }
}

/// Returns whether there is a terminal to draw on.
pub(crate) fn is_usable() -> bool {
    check().is_ok()
}

fn check() -> Result<(), TerminalError> {
    for (is_terminal, name) in [
        (io::stdin().is_terminal(), "standard input"),
        (io::stdout().is_terminal(), "standard output"),
    ] {
        if !is_terminal {
            return Err(TerminalError::NotATerminal(name));
        }
    }
    match std::env::var("TERM") {
        Ok(name) if name == "dumb" => Err(TerminalError::Dumb(name)),
        _ => Ok(()),
    }
}

/// Follows `--color`; without it <https://no-color.org>: colours unless NO_COLOR is set and not empty.
fn has_colours() -> bool {
    match ColorChoice::global() {
        ColorChoice::Always | ColorChoice::AlwaysAnsi => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    // A read never waits, so that an incomplete key sequence does not block the thread.
    let mut modes = tcgetattr(io::stdin())?;
    modes.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
    modes.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    tcsetattr(io::stdin(), SetArg::TCSANOW, &modes)?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal before a panic message is printed, and ends the trace.
fn restore_on_panic<C: Content>(shared: &Arc<Shared<C>>) {
    let shared = Arc::downgrade(shared);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(shared) = shared.upgrade() {
            shared.stop.store(true, Ordering::Relaxed);
            shared.restore();
        }
        before(info);
    }));
}

/// State of the screen.
#[derive(Default)]
struct Drawn {
    /// Time of the last redraw; `None` if the content of the screen is unknown.
    at: Option<Instant>,
    version: u64,
}

impl Drawn {
    /// Time until this version must be drawn; `None` if it is on the screen.
    fn due(&self, version: u64) -> Option<Duration> {
        match self.at {
            None => Some(Duration::ZERO),
            Some(_) if self.version == version => None,
            Some(at) => Some(FRAME.saturating_sub(at.elapsed())),
        }
    }
}

impl<C: Content> Shared<C> {
    fn run(&self) {
        let outcome = self.follow();
        if self.is_open() {
            // A view that has ended, for whatever reason, ends the trace.
            self.stop.store(true, Ordering::Relaxed);
        }
        self.restore();
        if let Err(error) = outcome {
            tracing::warn!("the view has ended: {error}");
        }
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Draws and takes keys until the end.
    fn follow(&self) -> io::Result<()> {
        // Not dropped: that would show the cursor, which `restore` does, and panic if the terminal is gone.
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let mut terminal = ManuallyDrop::new(terminal);
        let (mut drawn, mut messages) = (Drawn::default(), 0);
        while self.is_open() && !self.stop.load(Ordering::Relaxed) {
            if is_hung_up()? {
                return Err(io::Error::other("the terminal is gone"));
            }
            let size = terminal.size()?;
            let version = self.update(&mut messages, size);
            let due = drawn.due(version);
            if due == Some(Duration::ZERO) {
                self.draw(&mut terminal)?;
                let at = Some(Instant::now());
                drawn = Drawn { at, version };
            }
            let pause = due.filter(|due| !due.is_zero()).unwrap_or(FRAME);
            if self.take_keys(pause)? == Some(Action::Redraw) {
                let _drawing = lock(&self.drawing);
                terminal.clear()?;
                drawn.at = None;
            }
        }
        Ok(())
    }

    /// Updates the content with messages and the size of the terminal. Returns its version.
    fn update(&self, messages: &mut u64, size: Size) -> u64 {
        let count = self.messages.count();
        let mut content = lock(&self.content);
        if count != *messages {
            *messages = count;
            content.shell_mut().set_messages(self.messages.kept());
        }
        content.resize(Rect::new(0, 0, size.width, size.height));
        content.tick();
        content.shell().version()
    }

    fn draw(&self, terminal: &mut Terminal<CrosstermBackend<Stdout>>) -> io::Result<()> {
        let _drawing = lock(&self.drawing);
        if self.is_open() {
            terminal.draw(|frame| {
                lock(&self.content).draw(frame, self.theme);
                to_characters_of_locale(frame.buffer_mut());
            })?;
        }
        Ok(())
    }

    /// Waits up to `pause` for a key, and handles it and those queued behind it, up to the first that is an
    /// action.
    fn take_keys(&self, mut pause: Duration) -> io::Result<Option<Action>> {
        for _ in 0..MAX_KEYS {
            // With a timeout of 0, crossterm would not poll at all.
            if !event::poll(pause.max(Duration::from_millis(1)))? {
                break;
            }
            pause = Duration::ZERO;
            let Event::Key(event) = event::read()? else {
                continue;
            };
            let action = key_of(event).and_then(|key| lock(&self.content).press(key));
            match action {
                None => continue,
                Some(Action::Quit) => self.stop.store(true, Ordering::Relaxed),
                Some(Action::Mark) => self.mark.store(true, Ordering::Relaxed),
                Some(Action::Verdict) => _ = self.verdict.fetch_xor(true, Ordering::Relaxed),
                Some(Action::Redraw) => {}
            }
            return Ok(action);
        }
        Ok(None)
    }

    /// Restores the terminal, once.
    fn restore(&self) {
        if !self.is_open.swap(false, Ordering::SeqCst) {
            return;
        }
        let drawing = self.await_drawing();
        // Modes first: setting them never waits for output that the terminal has not taken.
        _ = disable_raw_mode();
        if drawing.is_some() || is_own_thread() {
            _ = execute!(io::stdout(), ResetColor, LeaveAlternateScreen, Show);
        }
        drop(drawing);
        self.is_restored.store(true, Ordering::SeqCst);
        self.messages.release();
    }

    /// Waits until nothing is being drawn; `None` if that takes too long, or if this thread itself draws and
    /// panics.
    fn await_drawing(&self) -> Option<MutexGuard<'_, ()>> {
        let began = Instant::now();
        loop {
            match self.drawing.try_lock() {
                Ok(drawing) => return Some(drawing),
                Err(TryLockError::Poisoned(drawing)) => return Some(drawing.into_inner()),
                Err(TryLockError::WouldBlock) if is_own_thread() || began.elapsed() > PATIENCE => {
                    return None;
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

fn is_own_thread() -> bool {
    thread::current().name() == Some(THREAD)
}

/// Returns whether the terminal is gone.
fn is_hung_up() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) | Err(Errno::EINTR) => Ok(fds[0].revents().is_some_and(|events| events.intersects(gone))),
        Err(error) => Err(error.into()),
    }
}

/// Keys with one meaning, whatever the modifiers are.
const KEYS: [(KeyCode, Key); 14] = [
    (KeyCode::Up, Key::Move(Move::Up)),
    (KeyCode::Down, Key::Move(Move::Down)),
    (KeyCode::PageUp, Key::Move(Move::PageUp)),
    (KeyCode::PageDown, Key::Move(Move::PageDown)),
    (KeyCode::Home, Key::Move(Move::First)),
    (KeyCode::End, Key::Move(Move::Last)),
    (KeyCode::Left, Key::Left),
    (KeyCode::Right, Key::Right),
    (KeyCode::Enter, Key::Enter),
    (KeyCode::Tab, Key::Enter),
    (KeyCode::BackTab, Key::Enter),
    (KeyCode::Esc, Key::Escape),
    (KeyCode::Backspace, Key::Backspace),
    (KeyCode::Delete, Key::Backspace),
];

fn key_of(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let KeyCode::Char(character) = event.code else {
        let mut keys = KEYS.iter();
        return keys.find(|(code, _)| *code == event.code).map(|(_, key)| *key);
    };
    let modifiers = event.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT);
    match (modifiers, character) {
        (KeyModifiers::NONE, character) => Some(Key::Character(character)),
        (KeyModifiers::CONTROL, 'c') => Some(Key::Interrupt),
        (KeyModifiers::CONTROL, 'l') => Some(Key::Redraw),
        (KeyModifiers::CONTROL, 'u') => Some(Key::Clear),
        _ => None,
    }
}
/// Replaces characters that the user's locale cannot show, each by one of the same width.
fn to_characters_of_locale(buffer: &mut Buffer) {
    if !is_ascii_wanted() {
        return;
    }
    for cell in &mut buffer.content {
        if let Some(substitute) = in_a_column(cell.symbol()) {
            cell.set_symbol(substitute);
        }
    }
}
