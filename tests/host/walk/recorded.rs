//! Both walks over a recorded process find the same complete stacks: real objects, a signal frame, a
//! realigned frame, libc's callbacks. The process only has to be one's own: no tracing, no kernel side.

use std::process::Command;

use memleak::process::{MappedCode, Mappings, Modules};
use memleak_test::compile::host_walk;
use memleak_test::recorded::{BUILDS, Scene};
use unwind_tables::Architecture;
use unwind_tables::walk::{End, FoundBy, Stack, Tables, Unwind, walk};

/// Names of the frames' functions, from the module's own symbol table by an independent reader.
fn functions(stack: &Stack, mappings: &Mappings, modules: &Modules) -> Vec<String> {
    let name = |frame: &unwind_tables::walk::Frame| {
        let code = frame.pc.wrapping_sub(u64::from(!frame.exact));
        let MappedCode::Module { module, bias } = mappings.find(code).expect("a frame is mapped").code else {
            return "?".to_owned();
        };
        let path = &modules.get(module).expect("it is known").path;
        let output = Command::new("addr2line")
            .args(["-f", "-e"])
            .arg(path)
            .arg(format!("{:#x}", bias.to_svma(code)))
            .output()
            .expect("addr2line runs (apt-get install binutils)");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().unwrap_or("?").to_owned()
    };
    stack.frames.iter().map(name).collect()
}

/// The reference walker finds the whole stack, and the C walk finds the same, with a cold and a warm cache
/// and with each of its reads failing in turn.
#[test]
fn recorded_walks_are_equal_and_complete() {
    let mut host = host_walk(Architecture::X86_64);
    for flags in BUILDS {
        let Scene {
            program,
            modules,
            mappings,
            published,
            mut memory,
        } = Scene::of(flags);
        let tables = published.tables();

        let mut slots = Vec::new();
        let reference = walk(tables, program.start, |slot| {
            slots.push(slot);
            memory.word(slot)
        });
        assert_eq!(reference.end, End::Complete, "{flags:?}: {reference:x?}");
        assert_eq!(
            count(&reference, FoundBy::Fp),
            0,
            "{flags:?}: nothing here lacks CFI"
        );
        if flags != ["-static"] {
            check_functions(&functions(&reference, &mappings, &modules));
        }

        for unwind in [Unwind::Dwarf, Unwind::Fp] {
            let tables = Tables { unwind, ..tables };
            for fault in std::iter::once(None).chain(slots.iter().copied().map(Some)) {
                memory.fault_at = fault;
                let expected = walk(tables, program.start, |slot| memory.word(slot));
                host.clear_cache();
                for cache in ["cold", "warm"] {
                    let stack = host.walk(tables, program.start, &memory);
                    assert_eq!(stack, expected, "{flags:?}, {cache} cache, fault at {fault:?}");
                }
            }
            memory.fault_at = None;
        }
    }
}

fn count(stack: &Stack, found_by: FoundBy) -> usize {
    stack
        .frames
        .iter()
        .filter(|frame| frame.found_by == found_by)
        .count()
}

/// Checks that the frames are those of the program, in order; libc's inner functions, which have no public
/// symbols, may be between them.
fn check_functions(found: &[String]) {
    let mut expected = vec!["wait_here"];
    expected.extend(["recurse"; 21]);
    expected.extend(["large_frame", "handler", "realigned", "compare", "main", "_start"]);
    let mut rest = found.iter();
    for name in expected {
        assert!(
            rest.any(|function| function.starts_with(name)),
            "no {name} in its place in {found:?}"
        );
    }
}
