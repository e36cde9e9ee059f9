//! Status line on standard error, drawn while nothing else is written; only on a terminal that nothing else
//! writes to, and only while memleak is in its foreground.
//!
//! There is no thread: the session polls several times a second, between reports, and every other writer
//! clears the line first. Numbers are read twice a second.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, tcgetpgrp};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::base::characters::is_ascii_wanted;
use leak_report::model::Report;
use leak_report::model::Vitals;
use leak_report::render::{self, Call, ReportSink, Stage};

/// Minimum time between two redraws.
const PICTURE: Duration = Duration::from_millis(100);
/// Minimum time between two readings of numbers; rates are over this time.
const READING: Duration = Duration::from_millis(500);

const WHEEL: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const ASCII_WHEEL: [char; 4] = ['|', '/', '-', '\\'];

/// Clears the line: moves to its start, and erases from there.
const CLEAR: &str = "\r\x1b[K";

/// The status line. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StatusLine(Arc<Mutex<Drawn>>);

#[derive(Debug, Default)]
struct Drawn {
    /// True if it is enabled and the terminal can show it.
    is_wanted: bool,
    /// True if it is on the terminal now.
    is_drawn: bool,
}

impl StatusLine {
    /// Enables the line, if standard error is a terminal that can show it.
    pub fn begin(&self) {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        self.lock().is_wanted = io::stderr().is_terminal() && !is_dumb;
    }

    /// Clears and disables the line.
    pub fn end(&self) {
        self.clear();
        self.lock().is_wanted = false;
    }

    /// Clears the line, so that something else can be written.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    /// Draws the line; ignores errors, since nothing can be reported if standard error is gone.
    fn draw(&self, text: &str) {
        let mut drawn = self.lock();
        let is_ours = tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp());
        if !drawn.is_wanted || !is_ours {
            return;
        }
        // A line as wide as the terminal would wrap.
        let width =
            terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let short: String = text.chars().take(width.saturating_sub(1)).collect();
        _ = io::stderr().write_all(format!("{CLEAR}{short}").as_bytes());
        drawn.is_drawn = true;
    }

    fn lock(&self) -> MutexGuard<'_, Drawn> {
        // Poison is ignored: no panic leaves a change incomplete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drawn {
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            _ = io::stderr().write_all(CLEAR.as_bytes());
        }
    }
}

/// Makes writers that clear the line before they write.
#[derive(Clone, Debug)]
pub struct ClearingWriters<M> {
    line: StatusLine,
    inner: M,
}

impl<M> ClearingWriters<M> {
    /// Wraps the writers of `inner`.
    pub fn new(line: StatusLine, inner: M) -> Self {
        Self { line, inner }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for ClearingWriters<M> {
    type Writer = ClearingWriter<'a, M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        ClearingWriter {
            line: &self.line,
            inner: self.inner.make_writer(),
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        ClearingWriter {
            line: &self.line,
            inner: self.inner.make_writer_for(metadata),
        }
    }
}

/// Writer that clears the line first. It locks the line, so that it is not redrawn until the write is done.
#[derive(Debug)]
pub struct ClearingWriter<'a, W> {
    line: &'a StatusLine,
    inner: W,
}

impl<W: Write> Write for ClearingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut drawn = self.line.lock();
        drawn.clear();
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Draws the line between the output of other sinks.
pub struct Progress {
    line: StatusLine,
    pictures: usize,
    drawn: Option<Instant>,
    /// Time of the last reading, its numbers, and calls per second up to it.
    reading: Option<(Instant, Vitals, f64)>,
}

impl Progress {
    pub fn new(line: &StatusLine) -> Self {
        Self {
            line: line.clone(),
            pictures: 0,
            drawn: None,
            reading: None,
        }
    }

    fn draw(&mut self, text: &str) {
        self.pictures = self.pictures.wrapping_add(1);
        let wheel = if is_ascii_wanted() {
            &ASCII_WHEEL[..]
        } else {
            &WHEEL
        };
        self.line
            .draw(&format!("{} {text}", wheel[self.pictures % wheel.len()]));
    }

    /// Reads numbers if the last ones are at least [`READING`] old.
    fn read(&mut self, read_vitals: &mut dyn FnMut() -> anyhow::Result<Vitals>) -> anyhow::Result<()> {
        let now = Instant::now();
        let since = self.reading.as_ref().map(|(at, ..)| now.duration_since(*at));
        if since.is_some_and(|since| since < READING) {
            return Ok(());
        }
        let vitals = read_vitals()?;
        let rate = match (&self.reading, since) {
            (Some((_, last, _)), Some(since)) => per_second(vitals.calls.saturating_sub(last.calls), since),
            _ => per_second(vitals.calls, vitals.elapsed),
        };
        self.reading = Some((now, vitals, rate));
        Ok(())
    }
}

impl ReportSink for Progress {
    fn report(&mut self, _: &Arc<Report>) -> anyhow::Result<()> {
        self.line.clear();
        Ok(())
    }

    fn stage(&mut self, _: &Stage<'_>) -> anyhow::Result<()> {
        self.line.clear();
        Ok(())
    }

    fn calls(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        if !calls.is_empty() {
            self.line.clear();
        }
        Ok(())
    }

    fn poll(&mut self, read_vitals: &mut dyn FnMut() -> anyhow::Result<Vitals>) -> anyhow::Result<()> {
        if !self.line.is_wanted() || self.drawn.is_some_and(|drawn| drawn.elapsed() < PICTURE) {
            return Ok(());
        }
        self.read(read_vitals)?;
        self.drawn = Some(Instant::now());
        if let Some((_, vitals, rate)) = self.reading {
            self.draw(&text(&vitals, rate));
        }
        Ok(())
    }

    fn waiting(&mut self, text: &str) {
        self.draw(text);
    }

    fn report_pending(&mut self, is_last: bool) {
        self.draw(match is_last {
            true => "making the last report; Ctrl-C again exits without it",
            false => "making a report",
        });
    }
}

/// Text of the line.
fn text(vitals: &Vitals, rate: f64) -> String {
    let seconds = vitals.elapsed.as_secs();
    let time = match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    };
    let lost = match vitals.lost {
        0 => "nothing lost".to_owned(),
        lost => format!("LOST {}", render::counted(lost, "block")),
    };
    format!(
        "{time} | {} events/s | {} live in {} | {} | {lost}",
        render::rate(rate),
        render::short_size(vitals.live.bytes),
        render::counted(vitals.live.blocks, "block"),
        render::counted(vitals.stacks, "stack"),
    )
}

fn per_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::Amount;

    /// Numbers are short and have units; a loss is visible.
    #[test]
    fn texts() {
        let vitals = |seconds, lost| Vitals {
            elapsed: Duration::from_secs(seconds),
            calls: 0,
            live: Amount {
                bytes: 5 << 20,
                blocks: 1,
            },
            stacks: 12,
            lost,
        };
        assert_eq!(
            text(&vitals(59, 0), 0.0),
            format!(
                "59 s | {} events/s | 5.0 MiB live in 1 block | 12 stacks | nothing lost",
                render::rate(0.0)
            )
        );
        assert!(text(&vitals(61, 3), 1e6).starts_with("1 min 1 s | "));
        assert!(text(&vitals(7261, 3), 1e6).ends_with(" | LOST 3 blocks"));
        assert!(text(&vitals(7261, 3), 1e6).starts_with("2 h 1 min | "));
    }

    /// Numbers are read at most once per [`READING`] however often the session polls, and not at all without
    /// a line.
    #[test]
    fn vitals_are_read_at_most_once_per_interval() {
        let mut readings = 0;
        let line = StatusLine::default();
        let mut progress = Progress::new(&line);
        let mut read_vitals = || {
            readings += 1;
            Ok(Vitals::default())
        };
        progress.poll(&mut read_vitals).expect("nothing fails");
        for _ in 0..1000 {
            progress.read(&mut read_vitals).expect("nothing fails");
        }
        assert_eq!(readings, 1);
    }
}
