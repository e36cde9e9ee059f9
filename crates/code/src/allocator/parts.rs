//! Parts of a function that the compiler has put elsewhere, with code that it considers unlikely (gcc's
//! `NAME.cold`). Stripped files do not name them. But each part has its own unwind information, and the
//! function jumps into the middle of it, as no code does to another function.
//!
//! Pure: ELF bytes in.

use std::ops::Range;

use unwind_tables::addr::Svma;
use unwind_tables::elf::ElfView;

use super::linkage::{Linkage, code_from};
use super::machine::{self, Flow, Target};

/// Maximum number of bytes of a function that are searched, and of bytes of a part. CPython's interpreter has
/// 64 KiB, and 80 KiB elsewhere.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of parts: compilers make one.
const MAX_PARTS: usize = 4;

/// Returns the parts of a function that are elsewhere, ascending. A part that is entered only at its start
/// cannot be told from another function.
pub fn parts_elsewhere(elf: &[u8], function: &Range<Svma>) -> Vec<Range<Svma>> {
    let Ok(view) = ElfView::parse_any(elf) else {
        return Vec::new();
    };
    let mut starts = view.function_starts();
    starts.sort_unstable();
    let code = code_from(elf, &view, function.start).unwrap_or_default();
    let bytes = function
        .end
        .get()
        .saturating_sub(function.start.get())
        .min(MAX_BYTES);
    let code = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| code.get(..bytes))
        .unwrap_or(code);
    let linkage = Linkage::of(elf);
    let is_stub = |target| {
        let code = code_from(elf, &view, target).unwrap_or_default();
        linkage.bound_behind(view.architecture(), code, target).is_some()
    };
    let mut parts: Vec<Range<Svma>> = Vec::new();
    for instruction in machine::instructions(view.architecture(), code, function.start) {
        let (Flow::Branch(target) | Flow::Jump(Target::Code(target))) = instruction.flow else {
            continue;
        };
        let is_known = parts.iter().any(|part| part.contains(&target));
        if is_known || function.contains(&target) || parts.len() == MAX_PARTS {
            continue;
        }
        // All stubs for calls of other objects' functions share one piece of unwind information, so that a
        // stub can look like a part.
        parts.extend(part_with(elf, &view, &starts, target).filter(|_| !is_stub(target)));
    }
    parts.sort_unstable_by_key(|part| part.start);
    parts
}

/// Returns the code that contains `target`, but not at its start, up to the next code with unwind
/// information; `None` if it is too long.
fn part_with(elf: &[u8], view: &ElfView<'_>, starts: &[Svma], target: Svma) -> Option<Range<Svma>> {
    let after = starts.partition_point(|&start| start <= target);
    let start = *starts.get(after.checked_sub(1)?)?;
    let rest = code_from(elf, view, start)?.len() as u64;
    let end = start.checked_add(rest)?;
    let end = starts.get(after).map_or(end, |&next| next.min(end));
    let is_within = start < target && target < end && end.offset_from(start) <= MAX_BYTES;
    is_within.then_some(start..end)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use object::{Object, ObjectSymbol};

    use super::*;

    /// A function with two unlikely paths, and one that jumps to another object's function.
    const SOURCE: &str = "
        void likely(int);
        void unlikely(int) __attribute__((cold));
        int divided(int n) {
            if (n == 3) { unlikely(n); unlikely(n + 1); }
            likely(n);
            if (n == 9) unlikely(7);
            likely(n + 1);
            return n;
        }
        void whole(int n) { likely(n + 1); likely(n); }";

    fn compiled() -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a directory");
        let [source, object] = ["f.c", "f.so"].map(|name| directory.path().join(name));
        std::fs::write(&source, SOURCE).expect("written");
        let made = Command::new("gcc")
            .args(["-O2", "-fPIC", "-shared", "-o"])
            .args([&object, &source])
            .status();
        assert!(made.expect("gcc").success());
        std::fs::read(object).expect("an object")
    }

    fn range_of(elf: &[u8], name: &str) -> Range<Svma> {
        let file = object::File::parse(elf).expect("an ELF file");
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let symbol = symbol.unwrap_or_else(|| panic!("a symbol {name}"));
        Svma::new(symbol.address())..Svma::new(symbol.address() + symbol.size())
    }

    /// The part that gcc has put elsewhere is found, and nothing for a function that is whole; wherever the
    /// file is cut.
    #[test]
    fn unlikely_code_is_found() {
        let elf = compiled();
        let divided = range_of(&elf, "divided");
        let cold = range_of(&elf, "divided.cold");
        let [part] = &parts_elsewhere(&elf, &divided)[..] else {
            panic!("one part");
        };
        assert_eq!(part.start, cold.start);
        // Code of the C library without unwind information follows, and then a function that has some.
        assert!(
            cold.end <= part.end && part.end <= divided.start,
            "{part:?} {cold:?}"
        );
        assert_eq!(parts_elsewhere(&elf, &range_of(&elf, "whole")), []);
        for length in (0..elf.len()).step_by(97) {
            let found = parts_elsewhere(&elf[..length], &divided);
            assert!(found.len() < 2, "{length}: {found:?}");
        }
    }

    /// A range without code, or without an end, has no parts.
    #[test]
    fn impossible_ranges() {
        let elf = compiled();
        for (start, end) in [
            (0, 0),
            (9, 3),
            (0, u64::MAX),
            (u64::MAX - 1, u64::MAX),
            (1 << 40, 1 << 41),
        ] {
            assert_eq!(
                parts_elsewhere(&elf, &(Svma::new(start)..Svma::new(end))),
                [],
                "{start:#x}"
            );
        }
        assert_eq!(parts_elsewhere(b"", &range_of(&elf, "divided")), []);
    }

    /// In CPython's function that runs frames, the part elsewhere contains no exported function.
    #[test]
    fn the_interpreter_of_python() {
        use memleak_process::python::PythonBuild;
        let elf = std::fs::read("/usr/bin/python3").expect("an interpreter");
        let build = PythonBuild::find(&elf)
            .expect("a known version")
            .expect("CPython");
        let [part] = &parts_elsewhere(&elf, &build.evaluator)[..] else {
            panic!("one part");
        };
        let bytes = part.end.offset_from(part.start);
        assert!((1000..200_000).contains(&bytes), "{part:?}");
        let file = object::File::parse(&elf[..]).expect("an ELF file");
        let within = file
            .dynamic_symbols()
            .find(|symbol| part.contains(&Svma::new(symbol.address())));
        assert!(within.is_none(), "{within:?} in {part:?}");
    }
}
