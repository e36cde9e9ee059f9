//! Call frame information for debuggers only: `.debug_frame` of an object's debug file.
//!
//! Compilers write it if they are told to leave out `.eh_frame`, which programs carry with them.
//! Distributions with musl are built like that, and native images of GraalVM.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object, ObjectSection};
use unwind_tables::coverage::CfiSource;
use unwind_tables::elf::MAX_CFI_BYTES;
use unwind_tables::{Compiled, Coverage, ElfView, Saves, TableError, compile, compile_view};

use super::debug_file::DebugLinks;
use super::debug_files::DebugFiles;
use super::elf::{parse_copied, parse_mapped};

/// Maximum number of bytes that one byte of the file becomes when it is decompressed.
const MAX_EXPANSION: u64 = 64;

/// Compiles the CFI of the object at `path` with the content `bytes`. If that has many gaps, the CFI of its
/// debug file is compiled, too. The file is found as for names, by build-id or debug link, under each of
/// `roots` in turn. No server is asked.
///
/// # Errors
///
/// The errors of [`compile`].
pub fn compile_with_debug_file(bytes: &[u8], path: &Path, roots: &[PathBuf]) -> Result<Compiled, TableError> {
    let compiled = compile(bytes)?;
    let Some(separate) = separate_cfi(&compiled.coverage, bytes, path, roots) else {
        return Ok(compiled);
    };
    let view = ElfView::parse_any(bytes)?.with_debug_frame(&separate);
    compile_view(&view, Saves::IfNeeded)
}

/// Reads `.debug_frame` of an object's debug file. `coverage` is that of the object's own CFI. `None` if that
/// is enough, if there is no debug file, or if the section is damaged or implausibly large.
pub fn separate_cfi(coverage: &Coverage, bytes: &[u8], path: &Path, roots: &[PathBuf]) -> Option<Vec<u8>> {
    let has_own = matches!(coverage.source, CfiSource::DebugFrame | CfiSource::Both);
    if has_own || !coverage.has_many_gaps() {
        return None;
    }
    let links = DebugLinks::of(&parse_mapped(bytes)?);
    let found = DebugFiles::new(roots.to_vec()).debug_file(&links, path)?;
    read(&found.file)
}

fn read(file: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    let elf = parse_copied(&cache)?;
    let section = elf.section_by_name(".debug_frame")?;
    let range = section.compressed_file_range().ok()?;
    let longest = range
        .compressed_size
        .saturating_mul(MAX_EXPANSION)
        .min(MAX_CFI_BYTES);
    if range.uncompressed_size > longest {
        return None;
    }
    let bytes = range.data(&cache).ok()?.decompress().ok()?;
    (!bytes.is_empty()).then(|| bytes.into_owned())
}
