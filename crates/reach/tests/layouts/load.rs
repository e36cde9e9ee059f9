//! Heaps of many blocks are read in seconds, and in memory that is little beside theirs.

use std::time::{Duration, Instant};

use memleak_reach::fragmentation::measure;
use memleak_test::program::{LIBRARIES, cpu_seconds, load, stock};

use super::{Subject, compiled};

/// Bytes that this process has taken at most, since [`forget_peak`].
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("own status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .expect("a line")
        .trim()
        .parse::<u64>()
        .expect("a number")
        * 1024
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("own memory");
}

/// Checks that ten million blocks of 1 GiB take seconds, and less than an eighth of their memory; or a
/// million, if tests are not to be heavy.
#[track_caller]
fn check_many_blocks(compiler: &str, name: &str, environment: &[(&str, &str)]) {
    let count: u64 = load(1_000_000, 10_000_000);
    let path = compiled(compiler, name, &["-pthread", "-O1"]);
    let subject = Subject::start(&path, &["many", &count.to_string()], environment);
    forget_peak();
    let before = peak();
    let (began, at_first) = (Instant::now(), cpu_seconds(std::process::id()));
    let reading = subject.read();
    let (read, of_cpu) = (began.elapsed(), cpu_seconds(std::process::id()) - at_first);
    let mut blocks = 0;
    let pages = reading.reader.pages().runs();
    let layout = reading.layouts.last().expect("an allocator");
    let began = Instant::now();
    let found = measure(layout, pages, &mut |block| {
        blocks += 1;
        std::hint::black_box(block);
    });
    let measured = began.elapsed();
    let taken = peak() - before;
    let total = found.total();
    note!(
        "{name}, {blocks} blocks: read in {read:?} ({of_cpu:.1} s of a CPU), measured in {measured:?}, {taken} \
         bytes taken: {total:?}"
    );
    assert!(blocks >= count / 3 * 2 && total.free() + total.cached > count / 3 * 80);
    assert!(taken < total.held / 8, "{taken} of {}", total.held);
    assert!(read + measured < Duration::from_secs(60));
}

/// glibc, with millions of chunks in lists of small ones, and as many free ones between blocks.
#[test]
fn many_blocks_of_glibc() {
    let _alone = memleak_test::exclusion::alone();
    check_many_blocks("gcc", "load-glibc", &[]);
}

/// jemalloc, whose slabs have hundreds of blocks each.
#[test]
fn many_blocks_of_jemalloc() {
    let _alone = memleak_test::exclusion::alone();
    let library = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    let library = library.to_str().expect("a plain path");
    check_many_blocks("gcc", "load-jemalloc", &[("LD_PRELOAD", library)]);
}

/// musl, whose groups have up to 32 blocks each.
#[test]
fn many_blocks_of_musl() {
    let _alone = memleak_test::exclusion::alone();
    check_many_blocks("musl-gcc", "load-musl", &[]);
}
