//! Claims about all parsers of untrusted input, which hold for any bytes. Compiled for tests and for fuzzers
//! only.
//!
//! A claim is a function of bytes that panics if it does not hold. `tests` tries each with seeds and a few
//! thousand mutations of them, in every test run; `tests/fuzz` with millions, guided by coverage, under a
//! sanitizer and with limits of time and memory. Inputs that broke a claim have become seeds.

mod allocators;
mod choices;
mod names;
mod objects;
mod process;
mod python;
mod recordings;
mod settings;
#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the fuzz target and of its directory of seeds.
    pub name: &'static str,
    /// Panics if the claim does not hold for these bytes.
    pub check: fn(&[u8]),
}

/// All claims except the walk's, which needs the kernel side's code compiled for the host.
pub const TARGETS: [Target; 14] = [
    Target {
        name: "elf",
        check: objects::elf,
    },
    Target {
        name: "image",
        check: objects::image,
    },
    Target {
        name: "symbols",
        check: names::symbols,
    },
    Target {
        name: "allocators",
        check: allocators::allocators,
    },
    Target {
        name: "demangle",
        check: names::demangled,
    },
    Target {
        name: "perf_map",
        check: names::perf_map,
    },
    Target {
        name: "jit_dump",
        check: names::jit_dump,
    },
    Target {
        name: "python_builds",
        check: python::builds,
    },
    Target {
        name: "python_lines",
        check: python::lines,
    },
    Target {
        name: "maps",
        check: process::maps,
    },
    Target {
        name: "events",
        check: process::events,
    },
    Target {
        name: "regions",
        check: process::regions,
    },
    Target {
        name: "recording",
        check: recordings::recording,
    },
    Target {
        name: "settings",
        check: settings::settings,
    },
];

/// Checks the claim of this name.
///
/// # Panics
///
/// The claim does not hold or does not exist.
pub fn check(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("no claim is called {name}"));
    (target.check)(bytes);
}
