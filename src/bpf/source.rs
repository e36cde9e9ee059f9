//! Source of the kernel side, as compiled, for `--ebpf`.

use std::io::{self, Write};

/// Name and text of every file, from the build script: the translation units first, then the headers in the
/// order of inclusion.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/bpf_files.rs"));

/// Writes all files, each below a line with its name.
pub fn write_source(out: &mut dyn Write) -> io::Result<()> {
    FILES
        .iter()
        .try_for_each(|(name, text)| writeln!(out, "/* ---- {name} ---- */\n{text}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Sources in `bpf/` and its direct subdirectories.
    fn files() -> BTreeSet<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let list = |directory: &Path| fs::read_dir(directory).expect("readable").flatten();
        let top: Vec<_> = list(&root.join("bpf")).map(|entry| entry.path()).collect();
        let inner = top.iter().filter(|path| path.is_dir());
        let inner: Vec<_> = inner
            .flat_map(|path| list(path))
            .map(|entry| entry.path())
            .collect();
        let all = top.iter().chain(&inner).filter(|path| {
            path.extension()
                .is_some_and(|ending| ending == "c" || ending == "h")
        });
        let names = all.map(|path| path.strip_prefix(root).expect("below it").display().to_string());
        names.collect()
    }

    /// Every file is included once.
    #[test]
    fn every_source_file_is_included_once() {
        let known: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        let units = [
            "bpf/memleak.bpf.c",
            "bpf/kernel_memory.bpf.c",
            "bpf/registers.bpf.c",
        ];
        assert_eq!(known[..3], units);
        assert_eq!(known.iter().cloned().collect::<BTreeSet<_>>(), files());
        let mut out = Vec::new();
        write_source(&mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("it is UTF-8");
        for name in known {
            let heading = format!("/* ---- {name} ---- */\n");
            assert_eq!(text.matches(&heading).count(), 1, "{name}");
        }
        assert!(text.contains("SEC(\"license\")"));
    }
}
