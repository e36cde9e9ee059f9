//! Speed of building an object's unwind table image from its ELF file, for which an attach waits, and the
//! size of the table.
//!
//! Prints, for each of [`OBJECTS`] that this machine has, rows of its table per second of one core's time
//! (the best of several builds), and bytes per row. Rows are counted after equal neighbours are merged, gaps
//! included. Bytes are all that lookups need: header, index, rows, rules, escapes, wide rules. Where an
//! object's rules start from a register that other frames save, its image is followed by a second one, which
//! says where they save it: its rows and bytes are printed behind, and building it is part of the time.
//!
//! `cargo bench --bench table_build` fails if an object of at least [`MIN_ROWS`] rows is slower than
//! [`MIN_SPEED`], or larger than [`MAX_BYTES`] though its rows are not sparse; `cargo test --bench
//! table_build` builds each table once and checks sizes alone.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use unwind_tables::image::{Image, header};

/// Minimum speed, in rows per second of one core.
const MIN_SPEED: f64 = 5e6;
/// Maximum size, in bytes per row.
const MAX_BYTES: f64 = 3.0;
/// Rows from which the limits apply: smaller tables are mostly header and index.
const MIN_ROWS: u64 = 5000;

/// Objects to measure; those that this machine lacks are left out.
const OBJECTS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
    "/usr/lib/llvm-14/lib/libclang-cpp.so.14",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
    "/usr/bin/python3",
    "/usr/bin/redis-check-rdb",
    "/usr/bin/perl",
    "/usr/bin/git",
    "/usr/bin/gdb",
    "/usr/bin/node",
];

fn main() -> ExitCode {
    let full = std::env::args().any(|argument| argument == "--bench");
    let builds = if full { 15 } else { 1 };
    let paths = OBJECTS.iter().map(Path::new).filter(|path| path.exists());
    let measured: Vec<_> = paths
        .map(|path| (path.to_owned(), measure(path, builds)))
        .collect();
    assert!(
        !measured.is_empty(),
        "none of the listed objects is on this machine"
    );
    let mut missed = Vec::new();
    for (path, build) in &measured {
        println!("{build}  {}", path.display());
        missed.extend(build.misses(full).map(|problem| (path.clone(), problem)));
    }
    for (path, problem) in &missed {
        println!("{}: {problem}", path.display());
    }
    match missed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The fastest of several builds of one object.
struct Build {
    seconds: f64,
    rows_read: u64,
    rules: Part,
    saves: Option<Part>,
}

/// Size of an image, or of the second one behind it.
struct Part {
    rows: u64,
    bytes: u64,
    /// Bytes of the index alone, which has a word for each 256 bytes of code.
    index_bytes: u64,
}

fn measure(path: &Path, builds: u32) -> Build {
    let elf = fs::read(path).expect("a file of this machine");
    let mut fastest = Duration::MAX;
    let mut compiled = None;
    for _ in 0..builds {
        let began = thread_time();
        let built = unwind_tables::compile(black_box(&elf)).expect("an ELF file");
        fastest = fastest.min(thread_time() - began);
        compiled = Some(built);
    }
    let compiled = compiled.expect("it was built");
    let image = compiled.image.expect("it has CFI");
    let (rules, saves) = parts(&image);
    Build {
        seconds: fastest.as_secs_f64(),
        rows_read: compiled.coverage.raw_rows,
        rules,
        saves,
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every Linux has it")
        .into()
}

fn parts(image: &Image) -> (Part, Option<Part>) {
    let words = image.words();
    let part = |words: &[u32]| Part {
        rows: words[header::ROW_COUNT].into(),
        bytes: size_of_val(words) as u64,
        index_bytes: 4 * u64::from(words[header::BLOCK_COUNT]),
    };
    match words[header::SAVES_AT] as usize {
        0 => (part(words), None),
        at => (part(&words[..at]), Some(part(&words[at..]))),
    }
}

impl Part {
    fn bytes_per_row(&self) -> f64 {
        self.bytes as f64 / self.rows as f64
    }

    /// True if the code has so few rows that the index has more than one byte for each: it is then most of
    /// what exceeds [`MAX_BYTES`].
    fn is_sparse(&self) -> bool {
        self.index_bytes > self.rows
    }
}

impl Build {
    /// Returns rows per second, those of both images together.
    fn speed(&self) -> f64 {
        let rows = self.rules.rows + self.saves.as_ref().map_or(0, |saves| saves.rows);
        rows as f64 / self.seconds
    }

    /// Lists the limits that it exceeds.
    fn misses(&self, timed: bool) -> impl Iterator<Item = String> {
        let large = self.rules.rows >= MIN_ROWS;
        let (bytes, speed) = (self.rules.bytes_per_row(), self.speed());
        let size = (large && !self.rules.is_sparse() && bytes > MAX_BYTES)
            .then(|| format!("{bytes:.3} bytes per row"));
        let slow = (large && timed && speed < MIN_SPEED).then(|| format!("{speed:.0} rows per second"));
        size.into_iter().chain(slow)
    }
}

impl std::fmt::Display for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            seconds,
            rows_read,
            rules,
            saves,
        } = self;
        let (milliseconds, speed) = (seconds * 1e3, self.speed() / 1e6);
        let (rows, bytes) = (rules.rows, rules.bytes_per_row());
        write!(
            f,
            "{rows_read:7} rows read, {rows:7} kept, {milliseconds:6.1} ms, {speed:5.1} M rows/s, {bytes:.3} bytes/row"
        )?;
        match saves {
            Some(saves) => write!(
                f,
                ", saves: {} rows, {:.3} bytes/row",
                saves.rows,
                saves.bytes_per_row()
            ),
            None => Ok(()),
        }
    }
}
