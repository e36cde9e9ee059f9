//! The source of the kernel side, as it was compiled: for who wants to read what is loaded (`--ebpf`).

use std::io::{self, Write};

/// The name and text of every file, by the build script: the translation unit first, the others as they are included.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/bpf_files.rs"));

/// Writes all of it, each file below a line with its name.
///
/// # Errors
///
/// `out` takes no more.
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

    /// Sources below `bpf/`, and below the directories in it.
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

    /// No file is left out, and none is there twice.
    #[test]
    fn every_file_is_there() {
        let known: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known[0], "bpf/memleak.bpf.c");
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
