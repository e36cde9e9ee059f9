//! ELF file to unwind table image: how long attaching waits for one object.
//!
//! Prints rows per second and bytes per row once per object; criterion's own numbers are in code bytes.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]
#![allow(missing_docs, reason = "criterion's macros define a public function")]

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// The C library, the C++ library, and something large.
fn objects() -> Vec<PathBuf> {
    let library = |name: &str| Path::new(LIBRARIES).join(name);
    let large = library("libLLVM-14.so.1");
    let large = if large.exists() {
        Some(large)
    } else {
        largest_library()
    };
    let named = ["libc.so.6", "libstdc++.so.6"].map(library);
    named
        .into_iter()
        .chain(large)
        .filter(|path| path.exists())
        .collect()
}

fn largest_library() -> Option<PathBuf> {
    let entries = fs::read_dir(LIBRARIES).ok()?.filter_map(Result::ok);
    let sized = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let is_library = entry.file_name().to_string_lossy().contains(".so");
        (is_library && metadata.is_file()).then(|| (metadata.len(), entry.path()))
    });
    sized.max().map(|(_, path)| path)
}

/// One build, timed by itself, for the numbers that criterion does not give.
fn print_summary(path: &Path, elf: &[u8]) {
    let start = Instant::now();
    let compiled = unwind_tables::compile(elf).expect("a library of this machine");
    let seconds = start.elapsed().as_secs_f64();
    let bytes = compiled.image.map_or(0, |image| image.byte_len());
    let (raw, rows) = (compiled.coverage.raw_rows, compiled.coverage.rows);
    println!(
        "{}: {raw} rows read, {rows} kept; {:.1} M rows read/s; image {bytes} bytes, {:.2} bytes/row",
        path.display(),
        raw as f64 / seconds / 1e6,
        bytes as f64 / rows as f64,
    );
}

fn table_build(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table_build");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for path in objects() {
        let elf = fs::read(&path).expect("a library of this machine");
        print_summary(&path, &elf);
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        group.throughput(Throughput::Bytes(elf.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), &elf, |bencher, elf| {
            bencher.iter(|| unwind_tables::compile(black_box(elf)));
        });
    }
    group.finish();
}

criterion_group!(benches, table_build);
criterion_main!(benches);
