//! `memleak table --verify`: compares the tables of ELF files with gimli's evaluation of their CFI, on all
//! cores, and counts the calls that stacks could not be unwound from.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use unwind_tables::addr::Svma;
use unwind_tables::rule::{Reason, Saved, UnwindRule};
use unwind_tables::verify::{self, Verified};
use unwind_tables::{ElfView, Image, compile};

use super::files::{self, ElfFile};
use crate::allocator::calls;
use crate::base::parallel;
use leak_report::render::{counted, printable};

/// Interval between progress messages.
const PROGRESS: Duration = Duration::from_secs(5);

enum Outcome {
    Verified(Box<FileResult>),
    /// Reason for skipping it: its kind is not unwound, or it cannot be read.
    Skipped(String),
}

struct FileResult {
    verified: Verified,
    calls: u64,
    /// Calls that the table cannot unwind from, by reason.
    unsupported_calls: BTreeMap<Reason, u64>,
}

/// Sums over all files.
#[derive(Default)]
struct Sums {
    files: u64,
    rows: u64,
    addresses: u64,
    wrong: u64,
    calls: u64,
    unsupported_places: u64,
    unsupported_calls: u64,
    skipped: BTreeMap<String, u64>,
}

/// Verifies every ELF file at or below `paths`. Returns true if no rule is wrong.
pub fn verify(paths: &[impl AsRef<Path>], out: &mut dyn Write) -> anyhow::Result<bool> {
    let found = files::find(paths)?;
    for (path, error) in &found.unreadable {
        tracing::warn!("cannot read {}: {error}", path.display());
    }
    let mut sums = Sums::default();
    for (path, outcome) in verify_all(&found.files) {
        match outcome {
            Outcome::Skipped(why) => *sums.skipped.entry(why).or_default() += 1,
            Outcome::Verified(result) => {
                describe(&path, &result, out)?;
                sums.add(&result);
            }
        }
    }
    sums.write(out)?;
    Ok(sums.wrong == 0)
}

/// Verifies files on all cores, the largest first. The results are in the order of the files.
fn verify_all(files: &[ElfFile]) -> Vec<(PathBuf, Outcome)> {
    let mut order: Vec<&ElfFile> = files.iter().collect();
    order.sort_by_key(|file| file.bytes);
    let progress = Mutex::new((0, Instant::now()));
    let mut results = parallel::for_each(order, |file| {
        let outcome = verify_file(&file.path);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, last_shown) = &mut *progress;
        *done += 1;
        if last_shown.elapsed() >= PROGRESS {
            tracing::info!("{done} of {} files", files.len());
            *last_shown = Instant::now();
        }
        (file.path.clone(), outcome)
    });
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    results
}

fn verify_file(path: &Path) -> Outcome {
    let bytes = match files::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Outcome::Skipped(format!("cannot be read: {error}")),
    };
    let verified = compile(&bytes).and_then(|compiled| {
        let verified = verify::verify(&bytes, compiled.image.as_ref())?;
        let view = ElfView::parse_any(&bytes)?;
        Ok((compiled.image, verified, view))
    });
    match verified {
        Ok((image, verified, view)) => {
            let (calls, unsupported_calls) = count_calls(&bytes, &view, image.as_ref(), &verified);
            let functions = Vec::new();
            Outcome::Verified(Box::new(FileResult {
                verified: Verified {
                    // Dropped: a file can have a hundred thousand functions, and the results of all files are
                    // kept.
                    functions,
                    ..verified
                },
                calls,
                unsupported_calls,
            }))
        }
        Err(error) => Outcome::Skipped(error.to_string()),
    }
}

/// Counts the calls in all functions, and by reason those that the table cannot unwind from.
fn count_calls(
    bytes: &[u8],
    view: &ElfView<'_>,
    image: Option<&Image>,
    verified: &Verified,
) -> (u64, BTreeMap<Reason, u64>) {
    let mut unsupported: BTreeMap<Reason, u64> = BTreeMap::new();
    let mut total = 0;
    let rule_at = |svma: Svma| image.map_or(UnwindRule::Gap, |image| image.rule_at(svma));
    for range in &verified.functions {
        let code = calls::code_at(bytes, view.segments(), range);
        for return_address in calls::return_addresses(view.architecture(), code, range.start) {
            total += 1;
            let reason = match rule_at(return_address.wrapping_sub(1)) {
                UnwindRule::Unsupported(reason) => reason,
                // The call has overwritten the link register.
                UnwindRule::Frame(frame) if frame.ra == Saved::Same => Reason::RaRegister,
                UnwindRule::Frame(_) | UnwindRule::Program(_) | UnwindRule::EndOfStack | UnwindRule::Gap => {
                    continue;
                }
            };
            *unsupported.entry(reason).or_default() += 1;
        }
    }
    (total, unsupported)
}

/// Writes the mismatches of a file and the unsupported rules of its table, if there are any.
fn describe(path: &Path, result: &FileResult, out: &mut dyn Write) -> io::Result<()> {
    let Verified {
        wrong,
        examples,
        unsupported,
        malformed,
        ..
    } = &result.verified;
    let path = printable(&path.to_string_lossy());
    for example in examples {
        let verify::Mismatch { at, image, cfi } = example;
        writeln!(out, "{path}: WRONG at {at:#x}: table {image}; CFI {cfi}")?;
    }
    let more = wrong.saturating_sub(examples.len() as u64);
    if more > 0 {
        writeln!(out, "{path}: {more} more wrong")?;
    }
    for (reason, verify::Unsupported { places, first }) in unsupported {
        let calls = result.unsupported_calls.get(reason).copied().unwrap_or(0);
        let (places, calls) = (counted(*places, "place"), counted(calls, "call"));
        writeln!(
            out,
            "{path}: unsupported: {reason}: {places}, the first at {first:#x}, {calls}"
        )?;
    }
    if *malformed > 0 {
        writeln!(
            out,
            "{path}: malformed CFI: {malformed} entries; its gaps are not compared"
        )?;
    }
    Ok(())
}

impl Sums {
    fn add(&mut self, result: &FileResult) {
        let unsupported = &result.verified.unsupported;
        self.files += 1;
        self.rows += result.verified.rows;
        self.addresses += result.verified.addresses;
        self.wrong += result.verified.wrong;
        self.calls += result.calls;
        self.unsupported_places += unsupported.values().map(|found| found.places).sum::<u64>();
        self.unsupported_calls += result.unsupported_calls.values().sum::<u64>();
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: {} rows compared at all of their {} addresses",
            counted(self.files, "ELF file"),
            self.rows,
            self.addresses
        )?;
        writeln!(out, "wrong: {}", self.wrong)?;
        let per_million = self.unsupported_calls as f64 * 1e6 / self.calls.max(1) as f64;
        writeln!(
            out,
            "unsupported: {} places; {} of {} calls, {per_million:.2} per million",
            self.unsupported_places, self.unsupported_calls, self.calls
        )?;
        for (why, files) in &self.skipped {
            writeln!(out, "skipped: {}: {why}", counted(*files, "file"))?;
        }
        Ok(())
    }
}
