//! Layouts of allocators, and their fragmentation, are what the allocators of real programs say themselves,
//! and what their calls give back to the kernel.

/// Prints figures beside the test's result. A closed standard error is no failure.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod busy;
mod glibc;
mod jemalloc;
mod load;
mod musl;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_process::maps;
use memleak_process::touched::ResidentPages;
use memleak_reach::fragmentation::{Fragmentation, Pinning, measure};
use memleak_reach::free::layouts;
use memleak_reach::layout::{Layout, Piece, Usage};
use memleak_reach::pages::Pages;
use memleak_reach::reader::Reader;
use memleak_test::program::{Program, compile_with, directory};

/// Compiles the program of this suite by `compiler`.
#[track_caller]
fn compiled(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = "../../crates/reach/tests/programs/fragmented.c";
    compile_with(compiler, &directory(name).join("fragmented"), source, flags)
}

/// A running program, and its allocator's own figures.
struct Subject {
    program: Program,
    told: BTreeMap<String, u64>,
    /// All that it has said.
    lines: Vec<String>,
}

impl Subject {
    #[track_caller]
    fn start(path: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(path);
        Self::spawn(command.args(arguments).envs(environment.iter().copied()))
    }

    #[track_caller]
    fn spawn(command: &mut Command) -> Self {
        let program = Program::spawn(command);
        let lines = program.lines_before("ready");
        let numbers = lines.iter().filter_map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        });
        Self {
            told: numbers.collect(),
            lines,
            program,
        }
    }

    #[track_caller]
    fn told(&self, name: &str) -> u64 {
        *self
            .told
            .get(name)
            .unwrap_or_else(|| panic!("{name}: {:?}", self.told))
    }

    #[track_caller]
    fn read(&self) -> Reading {
        let pid = self.program.pid();
        let maps = std::fs::read(format!("/proc/{pid}/maps")).expect("it runs");
        let maps: Vec<_> = maps::parse(&maps).filter_map(Result::ok).collect();
        let resident = ResidentPages::open(pid).expect("it runs");
        let pages = Pages::read(&resident, &maps).expect("it runs");
        let reader = Reader::new(pid, pages);
        let layouts = layouts(&reader, &maps);
        Reading { reader, layouts }
    }

    /// Bytes of resident memory without a file, as the kernel counts them page by page.
    #[track_caller]
    fn anonymous(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.program.pid());
        let text = std::fs::read_to_string(path).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kilobytes: u64 = kilobytes.expect("a line").trim().parse().expect("a number");
        kilobytes * 1024
    }

    /// Has the allocator give memory back. Returns the bytes that the process no longer holds.
    #[track_caller]
    fn given_back(&mut self) -> u64 {
        let before = self.anonymous();
        self.program.step("trimmed");
        before.saturating_sub(self.anonymous())
    }
}

/// Layouts of a program, and the pages that it held.
struct Reading {
    reader: Reader,
    layouts: Vec<Layout>,
}

impl Reading {
    fn measure(&self, layout: &Layout) -> (Fragmentation, Vec<Pinning>) {
        let mut blocks = Vec::new();
        let pages = self.reader.pages().runs();
        let found = measure(layout, pages, &mut |block| blocks.push(*block));
        (found, blocks)
    }
}

/// Bytes of address space of the pieces in arenas, by usage; and of those in none.
#[derive(Debug, Default)]
struct Bytes {
    blocks: u64,
    cached: u64,
    unjoined: u64,
    free: u64,
    top: u64,
    own: u64,
    unknown: u64,
    separate: u64,
}

/// Sums up pieces, and checks that they ascend.
#[track_caller]
fn bytes_of(layout: &Layout) -> Bytes {
    let mut sums = Bytes::default();
    let mut last: Option<Piece> = None;
    layout.pieces.visit(&mut |piece| {
        if let Some(last) = last.replace(piece.clone()) {
            let key = |piece: &Piece| (piece.arena.is_none(), piece.arena);
            let is_next = key(&last) < key(piece) || last.range.end <= piece.range.start;
            assert!(is_next && key(&last) <= key(piece), "{last:x?} {piece:x?}");
        }
        let sum = match piece.usage {
            _ if piece.arena.is_none() => &mut sums.separate,
            Usage::Block { .. } => &mut sums.blocks,
            Usage::Cached => &mut sums.cached,
            Usage::Unjoined => &mut sums.unjoined,
            Usage::Free => &mut sums.free,
            Usage::Top => &mut sums.top,
            Usage::Own => &mut sums.own,
            Usage::Unknown => &mut sums.unknown,
        };
        *sum += piece.range.end - piece.range.start;
    });
    sums
}

/// Checks that two numbers differ by at most so many thousandths of the second, and prints them.
#[track_caller]
fn check_near(name: &str, ours: u64, own: u64, thousandths: u64) {
    use std::io::Write;
    let _ = writeln!(
        std::io::stderr(),
        "{name}: {ours} by us, {own} by its own account"
    );
    let difference = ours.abs_diff(own);
    assert!(
        difference * 1000 <= own * thousandths,
        "{name}: {ours} by us, {own} by its own account"
    );
}
