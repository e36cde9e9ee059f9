//! A few thousand mutations of each seed: the same ones in every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Number of mutated inputs for each claim.
const CHANGED: usize = 3000;
/// Environment variable that reduces their number, for `make quick`.
const SHORT_LOAD: &str = "MEMLEAK_SHORT_LOAD";
/// Maximum size of an input in bytes.
const MAX_BYTES: usize = 64 << 10;

/// Reproducible random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a usize")
    }
}

/// Makes one mutation: changes a byte, writes an interesting number, or removes, copies or cuts off bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    const INTERESTING: [u64; 10] = [
        0,
        1,
        0x7f,
        0x80,
        0xff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        i64::MAX.cast_unsigned(),
        u64::MAX,
    ];
    let at = random.below(bytes.len() + 1);
    let length = 1 + random.below(16);
    let end = (at + length).min(bytes.len());
    match random.below(7) {
        0 | 1 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
        2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3 => {
            let value = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            for (place, byte) in bytes[at..].iter_mut().zip(&value[..width]) {
                *place = *byte;
            }
        }
        4 => drop(bytes.drain(at..end)),
        5 => {
            let copied = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copied);
        }
        _ => bytes.truncate(at.max(bytes.len() / 2)),
    }
}

/// Files of a directory, in the order of their names.
fn inputs(directory: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// Inputs in the repository, and small objects that are compiled here.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/seeds")
        .join(name);
    let mut seeds = inputs(&kept);
    if matches!(name, "elf" | "symbols" | "allocators" | "python_builds") {
        seeds.extend(objects());
    }
    if name == "image" {
        let images = objects()
            .into_iter()
            .filter_map(|elf| unwind_tables::compile(&elf).ok()?.image);
        seeds.extend(images.map(|image| image.words().iter().flat_map(|word| word.to_le_bytes()).collect()));
    }
    seeds
}

/// Small objects: with `.eh_frame`, with `.debug_frame` and DWARF, compressed, stripped; and with those parts
/// of an allocator and of CPython that are searched for.
fn objects() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a directory");
    let made = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/objects.sh"))
        .arg(directory.path())
        .status()
        .expect("a shell");
    assert!(made.success(), "tests/fuzz/objects.sh makes objects");
    inputs(directory.path())
}

/// An input, which is saved if its claim panics.
struct SavedInput<'a>(&'a str, &'a [u8]);

impl Drop for SavedInput<'_> {
    #[allow(clippy::print_stderr, reason = "test code: the harness shows it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("memleak-breaks-{}", self.0));
            match fs::write(&path, self.1) {
                Ok(()) => eprintln!("the input is in {}", path.display()),
                Err(error) => eprintln!("the input cannot be kept: {error}"),
            }
        }
    }
}

fn check_kept(name: &str, bytes: &[u8]) {
    let kept = SavedInput(name, bytes);
    check(name, kept.1);
}

/// Tries a claim with its seeds, unchanged and mutated. An input that breaks it is saved.
fn try_claim(name: &str) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "{name} has seeds");
    for seed in &seeds {
        check_kept(name, seed);
    }
    let small: Vec<_> = seeds.iter().filter(|seed| seed.len() <= MAX_BYTES).collect();
    let mut random = Random(0xf022);
    let is_short = std::env::var_os(SHORT_LOAD).is_some();
    for number in 0..if is_short { CHANGED / 8 } else { CHANGED } {
        let mut bytes = small[number % small.len()].clone();
        for _ in 0..=random.below(4) {
            change(&mut bytes, &mut random);
        }
        check_kept(name, &bytes);
    }
}

macro_rules! claims {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                try_claim(stringify!($name));
            }
        )*

        /// Every claim is tried.
        #[test]
        fn every_claim_is_tried() {
            let tried = [$(stringify!($name)),*];
            assert_eq!(tried, TARGETS.map(|target| target.name));
            let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/fuzz_targets");
            for name in tried {
                assert!(targets.join(format!("{name}.rs")).exists(), "{name} has a fuzz target");
            }
        }
    };
}

claims! { elf image symbols allocators demangle perf_map jit_dump python_builds python_lines maps events regions recording settings }

/// There is a seed with those parts of CPython that are searched for.
#[test]
fn seeds_have_a_python() {
    let found = objects().iter().filter(|object| python::is_build(object)).count();
    assert_eq!(found, 1);
}

/// For each architecture there is a seed with an allocator.
#[test]
fn seeds_have_allocators() {
    let counts: Vec<_> = objects()
        .iter()
        .map(|object| allocators::check_functions(object))
        .collect();
    assert_eq!(
        counts.iter().filter(|&&functions| functions == 7).count(),
        2,
        "{counts:?}"
    );
}
