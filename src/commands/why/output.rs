//! The diagnosis as text, or as one JSON object on one line, schema version 1.

use std::io::{self, Write};

use serde::Serialize;

use crate::commands::Format;
use leak_report::model::diagnosis::Diagnosis;
use leak_report::render::{DiagnosisJson, DiagnosisText, write_json};

const SCHEMA_VERSION: u32 = 1;

/// Writes the diagnosis, and passes it on to the reader.
pub(super) fn write(diagnosis: &Diagnosis, format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Text => {
            let lines = DiagnosisText::from(diagnosis).lines();
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        Format::Json => {
            let document = Document {
                schema_version: SCHEMA_VERSION,
                memleak: env!("CARGO_PKG_VERSION"),
                diagnosis: diagnosis.into(),
            };
            write_json(&document, out)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

/// Fields are only ever added.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    memleak: &'static str,
    #[serde(flatten)]
    diagnosis: DiagnosisJson<'a>,
}
