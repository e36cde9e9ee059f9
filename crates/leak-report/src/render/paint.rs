//! Colours for reports on a terminal. They are applied to finished lines by how these begin, so that the code
//! that writes reports need not know of them, and without colours the output is the same to the byte.
//!
//! Colours are few, and none carries information that the text does not.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

const PLAIN: Style = Style::new();
const TITLE: Style = Style::new().bold();
const LABEL: Style = AnsiColor::Cyan.on_default();
const FAINT: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Writer that paints its output line by line.
pub struct Painted<W: Write> {
    inner: W,
    /// The current line, until it ends.
    line: Vec<u8>,
}

impl<W: Write> Painted<W> {
    /// A painting writer to `inner`.
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            line: Vec::new(),
        }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        match std::str::from_utf8(text) {
            Ok(text) => {
                for (style, part) in parts(text) {
                    write!(self.inner, "{style}{part}{style:#}")?;
                }
                self.inner.write_all(&line[text.len()..])
            }
            Err(_) => self.inner.write_all(&line),
        }
    }
}

impl<W: Write> Write for Painted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_line()?;
        self.inner.flush()
    }
}

/// Splits a line into styled parts, which together are the line.
fn parts(line: &str) -> Vec<(Style, &str)> {
    // Indentation tells lines apart: four blanks for a stack's, three for facts on a site, two for the
    // closing block.
    if let Some(frame) = line.strip_prefix("    ") {
        return frame_parts(line, frame);
    }
    if line.starts_with("   ") {
        return vec![(PLAIN, line)];
    }
    if let Some(rest) = line.strip_prefix("  ") {
        return labelled(line, rest);
    }
    // In differences and trends, growth and shrinkage.
    let style = match line.bytes().next() {
        Some(b'+') => BAD,
        Some(b'-') => GOOD,
        Some(b' ') => PLAIN,
        _ => TITLE,
    };
    vec![(style, line)]
}

/// Splits a line of a stack: the mark of the responsible frame, the addresses of `-v`, and the end of the
/// stack.
fn frame_parts<'a>(line: &'a str, frame: &'a str) -> Vec<(Style, &'a str)> {
    if let Some(end) = frame.strip_prefix("  end: ") {
        let style = if end == "complete" { GOOD } else { DOUBTFUL };
        return split(line, line.len() - end.len(), FAINT, style);
    }
    if frame.starts_with("> ") {
        return vec![(TITLE, line)];
    }
    match frame.strip_prefix("  0x").and_then(|address| address.find(' ')) {
        Some(length) => split(
            line,
            line.len() - frame.len() + "  0x".len() + length,
            FAINT,
            PLAIN,
        ),
        None if frame.trim_start().starts_with("ID ") => vec![(LABEL, line)],
        None => vec![(PLAIN, line)],
    }
}

/// Splits `  Label:   text` of the closing block, and `  level    text` of the diagnosis.
fn labelled<'a>(line: &'a str, rest: &'a str) -> Vec<(Style, &'a str)> {
    let word = rest.split(' ').next().unwrap_or_default();
    let end = line.len() - rest.len() + word.len();
    let text = line[end..].trim_start();
    let text_at = line.len() - text.len();
    match word {
        "lost:" => vec![(BAD, line)],
        "Lost:" if !text.starts_with("nothing") => split(line, text_at, LABEL, BAD),
        "ok" => split(line, end, GOOD, PLAIN),
        "note" => split(line, end, LABEL, PLAIN),
        "warning" => split(line, end, DOUBTFUL, PLAIN),
        "fatal" => split(line, end, BAD, PLAIN),
        _ if word.ends_with(':') => split(line, end, LABEL, PLAIN),
        _ => vec![(PLAIN, line)],
    }
}

fn split(line: &str, at: usize, first: Style, second: Style) -> Vec<(Style, &str)> {
    let (head, tail) = line.split_at(at);
    vec![(first, head), (second, tail)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn painted(text: &str) -> String {
        let mut bytes = Vec::new();
        let mut out = Painted::new(&mut bytes);
        out.write_all(text.as_bytes()).expect("memory");
        out.flush().expect("memory");
        String::from_utf8(bytes).expect("text")
    }

    /// Good, doubtful and bad are green, yellow and red; addresses are dimmed, names are not painted.
    #[test]
    fn lines() {
        for (line, expected) in [
            ("0f3a9 keep(): 34.7 KiB", "\x1b[1m0f3a9 keep(): 34.7 KiB\x1b[0m"),
            ("     ID SUSP", "\x1b[36m     ID SUSP\x1b[0m"),
            ("    > keep() [x]", "\x1b[1m    > keep() [x]\x1b[0m"),
            ("      main [x]", "      main [x]"),
            (
                "      0x00007faf operator new(unsigned long)+0x1c [x]",
                "\x1b[2m      0x00007faf\x1b[0m operator new(unsigned long)+0x1c [x]",
            ),
            (
                "      end: complete",
                "\x1b[2m      end: \x1b[0m\x1b[32mcomplete\x1b[0m",
            ),
            (
                "      end: no_cfi at x",
                "\x1b[2m      end: \x1b[0m\x1b[33mno_cfi at x\x1b[0m",
            ),
            ("  lost: 3 blocks", "\x1b[1m\x1b[31m  lost: 3 blocks\x1b[0m"),
            ("  Lost:      nothing", "\x1b[36m  Lost:\x1b[0m      nothing"),
            (
                "  Lost:      3 blocks",
                "\x1b[36m  Lost:      \x1b[0m\x1b[1m\x1b[31m3 blocks\x1b[0m",
            ),
            ("             more", "             more"),
            ("-5 B", "\x1b[32m-5 B\x1b[0m"),
            (
                "  fatal    kernel: too old",
                "\x1b[1m\x1b[31m  fatal\x1b[0m    kernel: too old",
            ),
            ("", ""),
        ] {
            assert_eq!(
                painted(&format!("{line}\n")).replace("\x1b[1m\x1b[0m", ""),
                format!("{expected}\n"),
                "{line:?}"
            );
        }
    }

    proptest! {
        /// Only colours are added, and nothing is removed, wherever a text is split between writes.
        #[test]
        fn colours_leave_the_text_unchanged(text in "([\t ]{0,7}(end: |0x|> |ID |Lost:|ok|[+-]|[a-zé:]{0,5})[^\x1b]{0,9}\n?){0,9}", at in 0_usize..40) {
            let at = text.char_indices().map(|(at, _)| at).take(at).last().unwrap_or(0);
            let mut bytes = Vec::new();
            let mut out = Painted::new(&mut bytes);
            for piece in [&text[..at], &text[at..]] {
                out.write_all(piece.as_bytes()).expect("memory");
            }
            out.flush().expect("memory");
            let plain: String = anstream::adapter::strip_str(std::str::from_utf8(&bytes).expect("text")).to_string();
            let controls = |text: &str| text.replace(|letter: char| letter.is_control() && letter != '\n' && letter != '\t', "");
            prop_assert_eq!(controls(&plain), controls(&text));
        }
    }
}
