//! Table of the tools that users would trace with, and their requirements.

use std::path::{Path, PathBuf};

use crate::subject::{Work, find, library};

/// Way in which a tool observes the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolKind {
    /// No tool.
    Untraced,
    /// `memleak` with these flags, attached while it runs (or starting it, if it runs but once).
    Memleak(&'static [&'static str]),
    /// The program is started with libmemleak.so; then `memleak` with these flags, if any, is attached while
    /// it runs (or starts it, if it runs but once).
    Preloaded(Option<&'static [&'static str]>),
    /// `perf record` on uprobes, attached or starting it.
    Perf,
    /// bpftrace with a script on the allocator's file, in which `LIB` stands for the file.
    Bpftrace(&'static str),
    /// bcc's memleak, attached.
    Bcc,
    /// heaptrack, injected while it runs.
    HeaptrackInjected,
    /// heaptrack, from the start.
    Heaptrack,
    /// gperftools' allocator and heap profiler instead of the program's allocator.
    Gperftools,
    /// jemalloc with its sampling profiler instead of the program's allocator.
    Jemalloc,
    /// The program runs on a simulated CPU.
    Valgrind,
}

impl ToolKind {
    /// Returns whether it is memleak that traces.
    pub(crate) fn is_memleak(self) -> bool {
        matches!(self, Self::Memleak(_) | Self::Preloaded(Some(_)))
    }
}

pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) kind: ToolKind,
    /// Executable of PATH, or library, that must be installed.
    needs: &'static str,
    package: &'static str,
    /// Divisor for the units of work: some tools take a hundred times as long.
    pub(crate) slowness: u32,
    /// True if the tool sees frees, and so can tell what is outstanding.
    pub(crate) sees_frees: bool,
    /// True if the tool records only one of many allocations, or none.
    pub(crate) samples: bool,
    /// The only kind of program that it is measured with; `None` for all but `faults`.
    only: Option<&'static str>,
}

/// Script for bpftrace that counts allocations by stack, as its manual shows it.
const COUNT_STACKS: &str = "BEGIN { printf(\"ready\\n\"); }
uprobe:LIB:malloc, uprobe:LIB:calloc, uprobe:LIB:realloc { @[ustack] = count(); }";

/// Script for bpftrace that does the work of bcc's memleak: the kernel's frame-pointer walk at each return, a
/// table of blocks.
const LEAKS: &str = "BEGIN { printf(\"ready\\n\"); }
uprobe:LIB:malloc { @size[tid] = arg0; }
uprobe:LIB:calloc { @size[tid] = arg0 * arg1; }
uprobe:LIB:realloc { @size[tid] = arg1; delete(@stack[arg0]); delete(@bytes[arg0]); }
uretprobe:LIB:malloc, uretprobe:LIB:calloc, uretprobe:LIB:realloc /@size[tid]/ {
	@stack[retval] = ustack; @bytes[retval] = @size[tid]; delete(@size[tid]); @allocations = count();
}
uprobe:LIB:free { delete(@stack[arg0]); delete(@bytes[arg0]); }
END { clear(@stack); clear(@bytes); clear(@size); }";

const OWN: Tool = Tool {
    name: "",
    kind: ToolKind::Untraced,
    needs: "sh",
    package: "",
    slowness: 1,
    sees_frees: true,
    samples: false,
    only: None,
};

pub(crate) const UNTRACED: usize = 0;

/// Programs that grow, for tools that count pages instead of calls.
pub(crate) const FAULTS: &str = "faults";

pub(crate) const TOOLS: [Tool; 18] = [
    Tool {
        name: "untraced",
        ..OWN
    },
    Tool {
        name: "memleak --unwind dwarf",
        kind: ToolKind::Memleak(&["--unwind", "dwarf"]),
        ..OWN
    },
    Tool {
        name: "memleak --unwind fp",
        kind: ToolKind::Memleak(&["--unwind", "fp"]),
        ..OWN
    },
    Tool {
        name: "memleak --sample-bytes 512K",
        kind: ToolKind::Memleak(&["--sample-bytes", "512K"]),
        samples: true,
        ..OWN
    },
    Tool {
        name: "libmemleak.so, not traced",
        kind: ToolKind::Preloaded(None),
        ..OWN
    },
    Tool {
        name: "memleak by libmemleak.so, 512K",
        kind: ToolKind::Preloaded(Some(&["--source", "usdt"])),
        samples: true,
        ..OWN
    },
    Tool {
        name: "memleak by libmemleak.so, 64K",
        kind: ToolKind::Preloaded(Some(&["--source", "usdt", "--sample-bytes", "64K"])),
        samples: true,
        ..OWN
    },
    Tool {
        name: "memleak --faults",
        kind: ToolKind::Memleak(&["--faults"]),
        samples: true,
        only: Some(FAULTS),
        ..OWN
    },
    Tool {
        name: "memleak --faults -s 16",
        kind: ToolKind::Memleak(&["--faults", "-s", "16"]),
        samples: true,
        only: Some(FAULTS),
        ..OWN
    },
    Tool {
        name: "bcc memleak",
        kind: ToolKind::Bcc,
        needs: "memleak-bpfcc",
        package: "bpfcc-tools linux-headers-$(uname -r)",
        ..OWN
    },
    Tool {
        name: "bpftrace, as bcc memleak",
        kind: ToolKind::Bpftrace(LEAKS),
        needs: "bpftrace",
        package: "bpftrace",
        slowness: 8,
        sees_frees: true,
        samples: false,
        only: None,
    },
    Tool {
        name: "bpftrace @[ustack]",
        kind: ToolKind::Bpftrace(COUNT_STACKS),
        needs: "bpftrace",
        package: "bpftrace",
        slowness: 4,
        sees_frees: false,
        samples: false,
        only: None,
    },
    Tool {
        name: "perf --call-graph dwarf",
        kind: ToolKind::Perf,
        needs: "perf",
        package: "linux-perf",
        slowness: 8,
        sees_frees: false,
        samples: false,
        only: None,
    },
    Tool {
        name: "heaptrack",
        kind: ToolKind::Heaptrack,
        needs: "heaptrack",
        package: "heaptrack",
        ..OWN
    },
    Tool {
        name: "heaptrack -p",
        kind: ToolKind::HeaptrackInjected,
        needs: "heaptrack",
        package: "heaptrack gdb",
        ..OWN
    },
    Tool {
        name: "gperftools HEAPPROFILE",
        kind: ToolKind::Gperftools,
        needs: "libtcmalloc.so.4",
        package: "libgoogle-perftools4",
        slowness: 4,
        ..OWN
    },
    Tool {
        name: "jemalloc prof:true, 512K",
        kind: ToolKind::Jemalloc,
        needs: "libjemalloc.so.2",
        package: "libjemalloc2",
        samples: true,
        ..OWN
    },
    Tool {
        name: "valgrind --leak-check=full",
        kind: ToolKind::Valgrind,
        needs: "valgrind",
        package: "valgrind",
        slowness: 4,
        sees_frees: true,
        samples: false,
        only: None,
    },
];

impl Tool {
    /// Returns whether it is measured with this kind of programs.
    pub(crate) fn is_for(&self, part: &str) -> bool {
        match self.only {
            Some(only) => part == only,
            None => part != FAULTS || self.kind == ToolKind::Untraced,
        }
    }

    /// Returns the reason why the tool cannot be used for such work, and a remedy.
    pub(crate) fn obstacle(&self, work: Work) -> Option<String> {
        let is_installed = match self.needs.contains(".so") {
            true => library(self.needs).exists(),
            false => find(self.needs).is_some(),
        };
        if !is_installed {
            return Some(format!("not installed: apt-get install {}", self.package));
        }
        let once = work == Work::Clang;
        match self.kind {
            ToolKind::Bcc | ToolKind::HeaptrackInjected if once => {
                Some("attaches only to what runs already".to_owned())
            }
            ToolKind::Bcc if !kernel_headers().exists() => Some(format!(
                "compiles its programs with the running kernel's headers, and there is no {} (Debian's kernels: \
                 apt-get install {})",
                kernel_headers().display(),
                self.package
            )),
            ToolKind::Jemalloc if !jemalloc_can_profile() => {
                Some("this jemalloc is built without its profiler (./configure --enable-prof)".to_owned())
            }
            ToolKind::Untraced
            | ToolKind::Memleak(_)
            | ToolKind::Preloaded(_)
            | ToolKind::Perf
            | ToolKind::Bpftrace(_)
            | ToolKind::Bcc
            | ToolKind::HeaptrackInjected
            | ToolKind::Heaptrack
            | ToolKind::Gperftools
            | ToolKind::Jemalloc
            | ToolKind::Valgrind => None,
        }
    }

    /// Returns whether the tool is attached before the program begins, and so sees allocations ahead of the
    /// work.
    pub(crate) fn starts_before_program(&self) -> bool {
        !matches!(
            self.kind,
            ToolKind::Untraced
                | ToolKind::Memleak(_)
                | ToolKind::Preloaded(_)
                | ToolKind::Perf
                | ToolKind::Bcc
                | ToolKind::HeaptrackInjected
        )
    }

    pub(crate) fn is_memleak(&self) -> bool {
        self.kind.is_memleak()
    }
}

fn kernel_headers() -> PathBuf {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Path::new("/lib/modules").join(release.trim()).join("build")
}

/// Returns true if the installed jemalloc can profile: it then writes a profile at the end of a program that
/// asks for one.
fn jemalloc_can_profile() -> bool {
    let directory = std::env::temp_dir().join(format!("memleak-jemalloc-{}", std::process::id()));
    let settings = format!("prof:true,prof_final:true,prof_prefix:{}", directory.display());
    let run = std::process::Command::new("true")
        .env("LD_PRELOAD", library("libjemalloc.so.2"))
        .env("MALLOC_CONF", settings)
        .output();
    let prefix = directory
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let files = std::fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten();
    let written: Vec<_> = files
        .filter(|file| file.file_name().to_string_lossy().starts_with(&prefix))
        .collect();
    for file in &written {
        _ = std::fs::remove_file(file.path());
    }
    run.is_ok() && !written.is_empty()
}
