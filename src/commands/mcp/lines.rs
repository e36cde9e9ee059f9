//! Lines of limited length.

use std::io::{self, BufRead};

/// Maximum number of bytes of a request.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// More than [`MAX_BYTES`], which were skipped.
    TooLong,
    /// The input has ended.
    End,
}

/// Reads the next line.
///
/// # Errors
///
/// Fails if the input cannot be read.
pub(super) fn next(input: &mut dyn BufRead) -> io::Result<Line> {
    let mut line = Vec::new();
    let mut is_too_long = false;
    let mut has_begun = false;
    loop {
        let piece = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece?,
        };
        if piece.is_empty() {
            return Ok(match (has_begun, is_too_long) {
                (false, _) => Line::End,
                (true, true) => Line::TooLong,
                (true, false) => Line::Whole(line),
            });
        }
        has_begun = true;
        let end = memchr::memchr(b'\n', piece);
        let part = &piece[..end.unwrap_or(piece.len())];
        is_too_long |= line.len() + part.len() > MAX_BYTES;
        match is_too_long {
            true => line.clear(),
            false => line.extend(part),
        }
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(if is_too_long {
                Line::TooLong
            } else {
                Line::Whole(line)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are read whole up to the limit; a longer one is skipped to its end, however the input comes in
    /// pieces.
    #[test]
    fn limits() {
        let long = vec![b'x'; MAX_BYTES + 1];
        let text = [b"a\n\n".as_slice(), &long, b"\n", &long[1..], b"\nlast"].concat();
        for piece in [1 << 10, 4096, 1 << 22] {
            let mut input = io::BufReader::with_capacity(piece, &text[..]);
            let mut next = || next(&mut input).expect("memory can be read");
            assert_eq!(next(), Line::Whole(b"a".to_vec()));
            assert_eq!(next(), Line::Whole(Vec::new()));
            assert_eq!(next(), Line::TooLong);
            assert_eq!(next(), Line::Whole(long[1..].to_vec()));
            assert_eq!(next(), Line::Whole(b"last".to_vec()));
            assert_eq!(next(), Line::End);
        }
    }
}
