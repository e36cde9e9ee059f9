//! Programs to trace: how each is started, where its allocator is, and the unit of its work.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::common::{compile, own_libc, run_directory};
use crate::tool::FAULTS;

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Pairs of malloc and free in one process that answers commands; `command` lacks the number of pairs.
    Pairs {
        source: &'static str,
        command: &'static str,
    },
    /// redis-server under redis-benchmark, with `pipeline` requests under way on each connection.
    Redis { pipeline: u32 },
    /// One C++ file compiled in one process.
    Clang,
}

/// A workload with its title, and the part of the command line that selects it.
pub(crate) struct Subject {
    pub(crate) part: &'static str,
    pub(crate) title: &'static str,
    pub(crate) work: Work,
    /// Frames of each stack, where the program says so.
    pub(crate) depth: Option<u32>,
    /// True if `cargo test` runs it too.
    pub(crate) in_smoke: bool,
}

pub(crate) const SUBJECTS: [Subject; 8] = [
    Subject {
        part: "malloc",
        title: "pairs of malloc and free, depth 10, no frame pointers",
        work: Work::Pairs {
            source: "probe_cost/target.c",
            command: "hot 10",
        },
        depth: Some(10),
        in_smoke: true,
    },
    Subject {
        part: "malloc",
        title: "pairs of malloc and free, depth 40, no frame pointers",
        work: Work::Pairs {
            source: "probe_cost/target.c",
            command: "hot 40",
        },
        depth: Some(40),
        in_smoke: false,
    },
    Subject {
        part: "malloc",
        title: "mixed: 100 stacks, 1000 blocks of 16 to 4096 bytes live, each fourth pair a realloc",
        work: Work::Pairs {
            source: "scaling/target.c",
            command: "mixed 100 1000",
        },
        depth: None,
        in_smoke: false,
    },
    Subject {
        part: "redis",
        title: "redis-server, SET and GET of 16 B, 512 B and 4 KiB, LPUSH; 8 connections, no pipeline",
        work: Work::Redis { pipeline: 1 },
        depth: None,
        in_smoke: false,
    },
    Subject {
        part: "redis",
        title: "redis-server, the same with a pipeline of 16",
        work: Work::Redis { pipeline: 16 },
        depth: None,
        in_smoke: false,
    },
    Subject {
        part: FAULTS,
        title: "redis-server, the same without a pipeline, by page faults",
        work: Work::Redis { pipeline: 1 },
        depth: None,
        in_smoke: false,
    },
    Subject {
        part: FAULTS,
        title: "redis-server, the same with a pipeline of 16, by page faults",
        work: Work::Redis { pipeline: 16 },
        depth: None,
        in_smoke: false,
    },
    Subject {
        part: "clang",
        title: "clang++ -O1 of a C++ file full of templates, one process",
        work: Work::Clang,
        depth: None,
        in_smoke: false,
    },
];

impl Work {
    /// The unit that costs are given for.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Pairs { .. } => "pair",
            Self::Redis { .. } => "request",
            Self::Clang => "compile",
        }
    }

    /// Returns the programs that it needs, and the package that has all of them.
    pub(crate) fn needs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Pairs { .. } => (&["gcc"], "gcc"),
            Self::Redis { .. } => (
                &["redis-server", "redis-benchmark", "redis-cli"],
                "redis-server redis-tools",
            ),
            Self::Clang => (&["clang++", "g++"], "clang g++"),
        }
    }

    /// Copies the library with its allocator. Only this program uses the copy: other processes run into no
    /// probe.
    pub(crate) fn allocator(self) -> anyhow::Result<PathBuf> {
        let directory = own_libc("tools")?;
        if !matches!(self, Self::Redis { .. }) {
            return Ok(directory.join("libc.so.6"));
        }
        let copy = directory.join("libjemalloc.so.2");
        if copy.exists() {
            return Ok(copy);
        }
        std::fs::copy(library("libjemalloc.so.2"), &copy)
            .context("redis-server's allocator (libjemalloc2)")?;
        Ok(copy)
    }

    /// Returns the program and its arguments; a server listens on `port`.
    pub(crate) fn words(self, port: u16) -> anyhow::Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        match self {
            Self::Pairs { source, .. } => {
                let name = format!("tools-{}", source.replace(['/', '.'], "-"));
                words.push(compile(source, &name)?.into());
                // `probe_cost/target.c` answers in nanoseconds then; `scaling/target.c` takes no arguments.
                words.push("plain".into());
            }
            Self::Redis { .. } => {
                words.push(find("redis-server").context("redis-server")?.into());
                let port = port.to_string();
                let options = [
                    "--port",
                    &port,
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                ];
                words.extend(options.map(OsString::from));
                words.push(run_directory("redis")?.into());
            }
            Self::Clang => {
                words.push(find("clang++").context("clang++")?.into());
                let options = ["-fintegrated-cc1", "-std=c++17", "-O1", "-c", "-o", "/dev/null"];
                words.extend(options.map(OsString::from));
                words.push(own_source("templates.cpp").into());
            }
        }
        Ok(words)
    }
}

pub(crate) fn own_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("benches/tools")
        .join(name)
}

pub(crate) fn library(name: &str) -> PathBuf {
    Path::new("/usr/lib/x86_64-linux-gnu").join(name)
}

/// Finds an executable in PATH or in `/usr/sbin`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.push("/usr/sbin".into());
    directories
        .into_iter()
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Builds the library that reports the CPU time of a program.
pub(crate) fn cpu_time_library() -> anyhow::Result<PathBuf> {
    let object = run_directory("programs")?.join("cpu_time.so");
    if object.exists() {
        return Ok(object);
    }
    let status = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o"])
        .arg(&object)
        .arg(own_source("cpu_time.c"))
        .status()
        .context("cannot run gcc (apt-get install gcc)")?;
    ensure!(status.success(), "gcc could not compile cpu_time.c");
    Ok(object)
}
