//! `memleak table`: describes the unwind tables of ELF files. Touches no process and no kernel.

mod files;
mod verify;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use unwind_tables::Compiled;
use unwind_tables::coverage::{Coverage, RuleKind};
use unwind_tables::rule::Reason;

pub use verify::verify;

use crate::symbolize::compile_with_debug_file;

/// Writes a paragraph for each of `files` to `out`.
///
/// # Errors
///
/// Fails at the first file that cannot be read, or is no ELF file that can be unwound here.
pub fn tables(files: &[impl AsRef<Path>], out: &mut dyn Write) -> anyhow::Result<()> {
    for path in files.iter().map(AsRef::as_ref) {
        let bytes = files::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let roots = [PathBuf::from("/")];
        let found_at = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let compiled = compile_with_debug_file(&bytes, &found_at, &roots)
            .with_context(|| format!("no unwind table for {}", path.display()))?;
        describe(path, &compiled, out)?;
    }
    Ok(())
}

fn describe(path: &Path, compiled: &Compiled, out: &mut dyn Write) -> io::Result<()> {
    let Compiled { image, coverage } = compiled;
    writeln!(out, "{}", path.display())?;
    let Some(image) = image else {
        return writeln!(
            out,
            "  no call frame information: stacks are unwound by frame pointer"
        );
    };
    let bytes = image.byte_len();
    let rows = coverage.rows.max(1);
    let per_row = bytes as f64 / rows as f64;
    writeln!(
        out,
        "  table      {bytes} bytes, {rows} rows, {per_row:.2} bytes per row"
    )?;
    writeln!(
        out,
        "  from       {:?}, {} functions, {} raw rows",
        coverage.source, coverage.fdes, coverage.raw_rows
    )?;
    writeln!(
        out,
        "  code       {} bytes, {} of them without CFI",
        coverage.code_bytes, coverage.gap_bytes
    )?;
    for kind in RuleKind::ALL {
        let count = coverage.of_kind(kind);
        if count.rows > 0 {
            let name = format!("{kind:?}");
            writeln!(
                out,
                "  {name:<14} {:>9} rows {:>12} bytes of code",
                count.rows, count.bytes
            )?;
        }
    }
    describe_trouble(coverage, out)
}

fn describe_trouble(coverage: &Coverage, out: &mut dyn Write) -> io::Result<()> {
    for reason in Reason::ALL {
        let count = coverage.unsupported(reason);
        if count.rows > 0 {
            writeln!(
                out,
                "  unsupported: {reason}, {} rows, {} bytes of code",
                count.rows, count.bytes
            )?;
        }
    }
    for (label, number) in [
        ("malformed functions", coverage.malformed_fdes),
        ("functions outside code", coverage.outside_fdes),
    ] {
        if number > 0 {
            writeln!(out, "  {label}: {number}")?;
        }
    }
    Ok(())
}
