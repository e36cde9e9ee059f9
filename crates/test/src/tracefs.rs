//! Probes like those of another tool: the kernel's own, made through tracefs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSymbol};
use unwind_tables::ElfView;
use unwind_tables::addr::Svma;

const TRACEFS: &str = "/sys/kernel/tracing";

/// A return probe on every process that runs a file; removed when dropped.
pub struct ReturnProbe {
    name: String,
}

impl ReturnProbe {
    /// Places a return probe on the function `symbol` of the program at `path`. `test` is part of the probe's
    /// name and must be the test's own.
    #[track_caller]
    pub fn attach(test: &str, path: &Path, symbol: &str) -> Self {
        mount().expect("tracefs");
        let name = format!("memleak_{test}_{symbol}_{}", std::process::id());
        let offset = file_offset(path, symbol);
        control(
            "uprobe_events",
            &format!("r:memleak/{name} {}:{offset:#x}", path.display()),
        );
        let probe = Self { name };
        control(&format!("events/memleak/{}/enable", probe.name), "1");
        probe
    }

    /// Number of times that the probe was hit. The kernel lists probes by their number: while another test's
    /// is removed, it can leave out one that is listed behind it.
    #[track_caller]
    pub fn hits(&self) -> u64 {
        const READINGS: usize = 100;
        let mut profile = String::new();
        for _ in 0..READINGS {
            profile = fs::read_to_string(format!("{TRACEFS}/uprobe_profile")).expect("tracefs");
            let line = profile.lines().find(|line| line.contains(&self.name));
            if let Some(hits) = line.and_then(|line| line.split_whitespace().nth(2)?.parse().ok()) {
                return hits;
            }
        }
        panic!("no {} in {profile}", self.name)
    }
}

impl Drop for ReturnProbe {
    fn drop(&mut self) {
        let file = |path: &str| OpenOptions::new().append(true).open(format!("{TRACEFS}/{path}"));
        let write = |path: &str, text: &str| file(path).and_then(|mut file| file.write_all(text.as_bytes()));
        let _ = write(&format!("events/memleak/{}/enable", self.name), "0");
        let _ = write("uprobe_events", &format!("-:memleak/{}", self.name));
    }
}

/// Mounts tracefs, unless it is available already.
///
/// # Errors
///
/// If it is not available then, with the reason.
pub fn mount() -> Result<(), String> {
    let events = Path::new(TRACEFS).join("uprobe_events");
    if !events.exists() {
        let _ = Command::new("mount")
            .args(["-t", "tracefs", "tracefs", TRACEFS])
            .status();
    }
    match events.exists() {
        true => Ok(()),
        false => Err(format!("there is no {}", events.display())),
    }
}

#[track_caller]
fn control(file: &str, text: &str) {
    let path = format!("{TRACEFS}/{file}");
    let written = OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{text} > {path}: {error} (as root, with tracefs)"));
}

#[track_caller]
fn file_offset(path: &Path, symbol: &str) -> u64 {
    let bytes = fs::read(path).expect("the program was compiled");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let svma = file
        .symbols()
        .find(|candidate| candidate.name() == Ok(symbol))
        .unwrap_or_else(|| panic!("no {symbol} in {}", path.display()))
        .address();
    let elf = ElfView::parse(&bytes).expect("an ELF file");
    elf.offset_of(Svma::new(svma)).expect("code in the file").get()
}
