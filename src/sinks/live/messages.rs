//! Log messages. While the view is open they would garble the screen, so they are kept and shown in the view,
//! and warnings are printed when it is closed.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of messages kept.
const KEPT: usize = 200;

/// One logged line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// True for a warning or an error.
    pub(crate) is_warning: bool,
    /// Line as it would have been printed.
    pub(crate) text: String,
}

/// Destination of log messages: standard error, or the view while it is open. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Messages(Arc<Mutex<KeptMessages>>);

#[derive(Debug, Default)]
struct KeptMessages {
    /// True while a view is open.
    is_capturing: bool,
    /// Kept messages, newest last.
    messages: VecDeque<Message>,
    /// Total number of messages that were kept.
    count: u64,
    /// Number of warnings dropped to make room for later messages.
    forgotten_warnings: u64,
    /// Warnings printed when the view was closed. They are not printed again if the last report repeats them.
    printed: Vec<String>,
}

impl Messages {
    /// Keeps messages from now on.
    pub(super) fn capture(&self) {
        self.lock().is_capturing = true;
    }

    /// Prints messages from now on, and the kept warnings now.
    pub(super) fn release(&self) {
        let kept = mem::take(&mut *self.lock());
        // If standard error is not a terminal, they were written to it at once.
        if !io::stderr().is_terminal() {
            return;
        }
        let warnings = kept.messages.into_iter().filter(|message| message.is_warning);
        let printed: Vec<_> = warnings.map(|warning| format!("{}\n", warning.text)).collect();
        self.lock().printed.clone_from(&printed);
        if kept.forgotten_warnings > 0 {
            print(&format!(
                "memleak: {} earlier warnings are not kept\n",
                kept.forgotten_warnings
            ));
        }
        printed.iter().for_each(|warning| print(warning));
    }

    /// Total number of messages that were kept since the view was opened.
    pub(super) fn count(&self) -> u64 {
        self.lock().count
    }

    /// Kept messages, newest last.
    pub(super) fn kept(&self) -> Vec<Message> {
        self.lock().messages.iter().cloned().collect()
    }

    fn take(&self, is_warning: bool, text: &str) {
        let is_done = {
            let mut kept = self.lock();
            if kept.is_capturing {
                text.lines().for_each(|line| kept.keep(is_warning, line));
            }
            kept.is_capturing && io::stderr().is_terminal()
                || kept.printed.iter().any(|printed| printed == text)
        };
        if !is_done {
            print(text);
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptMessages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptMessages {
    fn keep(&mut self, is_warning: bool, line: &str) {
        // A message that is repeated with each report is kept once.
        self.messages.retain(|message| message.text != line);
        if self.messages.len() == KEPT {
            let oldest = self.messages.pop_front();
            self.forgotten_warnings += u64::from(oldest.is_some_and(|message| message.is_warning));
        }
        self.count += 1;
        self.messages.push_back(Message {
            is_warning,
            text: line.to_owned(),
        });
    }
}

/// Prints; ignores errors, since nothing can be reported if standard error is gone.
fn print(text: &str) {
    _ = io::stderr().write_all(text.as_bytes());
}

/// Writer of one message.
#[derive(Debug)]
pub struct Sink<'a> {
    messages: &'a Messages,
    is_warning: bool,
}

impl<'a> MakeWriter<'a> for Messages {
    type Writer = Sink<'a>;

    fn make_writer(&'a self) -> Sink<'a> {
        Sink {
            messages: self,
            is_warning: false,
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Sink<'a> {
        Sink {
            messages: self,
            is_warning: *metadata.level() <= Level::WARN,
        }
    }
}

impl Write for Sink<'_> {
    /// Takes a whole message: the subscriber writes each by one call. Never fails, as the subscriber would
    /// print the error to standard error, and end the program if that is gone.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.messages
            .take(self.is_warning, &String::from_utf8_lossy(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a view is open, the last messages are kept, by lines, and warnings are marked.
    #[test]
    fn messages_are_kept_while_captured() {
        let messages = Messages::default();
        messages.capture();
        messages.take(true, "two\n");
        messages.take(true, "one\ntwo\n");
        let message = |is_warning, text: &str| Message {
            is_warning,
            text: text.to_owned(),
        };
        assert_eq!(messages.kept(), [message(true, "one"), message(true, "two")]);
        for number in 0..300 {
            messages.take(false, &format!("{number}\n"));
        }
        assert_eq!((messages.kept().len(), messages.count()), (KEPT, 303));
        assert_eq!(messages.kept().last(), Some(&message(false, "299")));
        assert_eq!(messages.lock().forgotten_warnings, 2);
        messages.release();
        assert!(!messages.lock().is_capturing && messages.kept().is_empty());
    }

    /// The level of the event decides what is a warning.
    #[test]
    fn levels() {
        let messages = Messages::default();
        messages.capture();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(messages.clone())
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("progress");
            tracing::warn!("doubt");
            tracing::error!("harm");
        });
        let warnings: Vec<_> = messages.kept().iter().map(|message| message.is_warning).collect();
        assert_eq!(warnings, [false, true, true]);
    }
}
