//! The source of the kernel side, as it was compiled: for who wants to read what is loaded (`--ebpf`).

use std::io::{self, Write};

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../bpf/", $name)))),*]
    };
}

/// Every file, the translation unit first, the others in the order in which it includes them.
const FILES: &[(&str, &str)] = files! {
    "memleak.bpf.c"
    "kernel.bpf.h"
    "shared.h"
    "seam.h"
    "rules.h"
    "config.bpf.h"
    "trail.bpf.h"
    "maps.bpf.h"
    "counters.bpf.h"
    "regs.bpf.h"
    "mappings.bpf.h"
    "pids.bpf.h"
    "processes.bpf.h"
    "tables.bpf.h"
    "return_probes.bpf.h"
    "unwind.bpf.h"
    "window.bpf.h"
    "call.bpf.h"
    "registers.bpf.h"
    "link.bpf.h"
    "program.bpf.h"
    "aarch64.bpf.h"
    "return_address.bpf.h"
    "sampling.bpf.h"
    "state.bpf.h"
    "changes.bpf.h"
    "call_events.bpf.h"
    "memo.bpf.h"
    "stacks.bpf.h"
    "block_table.bpf.h"
    "young.bpf.h"
    "blocks.bpf.h"
    "nesting.bpf.h"
    "calls.bpf.h"
    "lifecycle.bpf.h"
    "regions.bpf.h"
    "kernel_memory.bpf.h"
};

/// Writes all of it, each file below a line with its name.
///
/// # Errors
///
/// `out` takes no more.
pub fn write_source(out: &mut dyn Write) -> io::Result<()> {
    FILES
        .iter()
        .try_for_each(|(name, text)| writeln!(out, "/* ---- bpf/{name} ---- */\n{text}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// No file is left out.
    #[test]
    fn every_file_is_there() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
        let entries = fs::read_dir(directory).expect("the sources are there").flatten();
        let names: BTreeSet<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".c") || name.ends_with(".h"))
            .collect();
        let known: BTreeSet<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known, names);
        let mut out = Vec::new();
        write_source(&mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("it is UTF-8");
        for name in names {
            assert_eq!(
                text.matches(&format!("/* ---- bpf/{name} ---- */\n")).count(),
                1,
                "{name}"
            );
        }
        assert!(text.contains("SEC(\"license\")"));
    }
}
