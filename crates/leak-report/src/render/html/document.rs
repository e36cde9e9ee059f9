//! The page as a file: markup, style, data and scripts in one, with a policy that lets the browser run and
//! load nothing else.
//!
//! The data are JSON in an element that is not a script. Its text ends at the first `</`, so `<` is escaped;
//! no other character in it has a meaning to a browser. The policy names the script and the style by their
//! hashes (<https://www.w3.org/TR/CSP3/>): even if some text became markup through a bug, none of it would
//! run, and nothing could be sent anywhere.

use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use super::data::Data;

const MARKUP: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");

/// The scripts in the order of their dependencies.
const SCRIPTS: [&str; 16] = [
    include_str!("page/format.js"),
    include_str!("page/model.js"),
    include_str!("page/tree.js"),
    include_str!("page/flame.js"),
    include_str!("page/colours.js"),
    include_str!("page/details.js"),
    include_str!("page/stack.js"),
    include_str!("page/sites.js"),
    include_str!("page/timeline.js"),
    include_str!("page/memory.js"),
    include_str!("page/health.js"),
    include_str!("page/holders.js"),
    include_str!("page/about.js"),
    include_str!("page/diagnosis.js"),
    include_str!("page/totals.js"),
    include_str!("page/main.js"),
];

/// Marks in the markup that are replaced by the generated parts.
const POLICY: &str = "@POLICY@";
const STYLE_AT: &str = "@STYLE@";
const DATA_AT: &str = "@DATA@";
const SCRIPT_AT: &str = "@SCRIPT@";

/// Writes the page.
pub(super) fn write(data: &Data, out: &mut dyn Write) -> io::Result<()> {
    let script = format!("\"use strict\";\n{{\n{}}}\n", SCRIPTS.concat());
    let mut rest = MARKUP;
    // Writes the markup up to the next mark: calls must be in the order of the marks in `page.html`.
    let mut before = |mark: &str, out: &mut dyn Write| {
        let (text, after) = rest.split_once(mark).unwrap_or((rest, ""));
        rest = after;
        out.write_all(text.as_bytes())
    };
    before(POLICY, out)?;
    out.write_all(policy(&script).as_bytes())?;
    before(STYLE_AT, out)?;
    out.write_all(STYLE.as_bytes())?;
    before(DATA_AT, out)?;
    serde_json::to_writer(WithoutMarkup(&mut *out), data)?;
    before(SCRIPT_AT, out)?;
    out.write_all(script.as_bytes())?;
    out.write_all(rest.as_bytes())
}

/// Content security policy: run this script, use this style, and show the icon that is embedded in the page.
fn policy(script: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(script),
        hash(STYLE)
    )
}

/// Writer that escapes `<` as `\u003c`; JSON has `<` only in strings, where this escape is valid.
struct WithoutMarkup<W>(W);

impl<W: Write> Write for WithoutMarkup<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut pieces = bytes.split(|&byte| byte == b'<');
        if let Some(first) = pieces.next() {
            self.0.write_all(first)?;
        }
        pieces.try_for_each(|piece| {
            self.0.write_all(b"\\u003c")?;
            self.0.write_all(piece)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
