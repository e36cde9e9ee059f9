//! Examines how the runtime of a process was started: whether its functions would have names, and stacks pass its code.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::process::{Mappings, Module, Target};
use crate::symbolize::PerfMap;
use leak_report::render::runtimes::{Runtime, Switch, runtime};

/// Maximum bytes that are read of a command line, and of an environment.
const MAX_BYTES: u64 = 1 << 20;

/// Finding about the runtime of a process, if it has one.
pub(super) fn finding(target: &Target, modules: &[&Module], mappings: &Mappings) -> Option<Finding> {
    let names: Vec<&str> = modules.iter().map(|module| file_name(&module.path)).collect();
    let runtime = runtime(file_name(target.exe()), names.iter().copied())?;
    let words = [words(target.pid(), "cmdline"), words(target.pid(), "environ")].join(" ");
    let frames = off(&runtime.frames, &words).filter(|_| !mappings.keeps_frame_pointers());
    let names = off(&runtime.names, &words).filter(|_| !writes_names(target));
    let advice = [frames, names].map(|switch| Some(switch?.advice(target.pid())));
    Some(finding_about(runtime, advice))
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// A file of words that end in zeros, joined by spaces; empty if it cannot be read.
fn words(pid: u32, name: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/{name}")) {
        _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn writes_names(target: &Target) -> bool {
    let root = PathBuf::from(format!("/proc/{}/root", target.pid()));
    let user = target.user();
    user.is_ok_and(|user| PerfMap::read(&root, target.own_pid(), user).is_ok())
}

/// A switch that is there, and not known to be on.
fn off<'a>(switch: &'a Option<Switch>, words: &str) -> Option<&'a Switch> {
    switch.as_ref().filter(|switch| !switch.is_on(words))
}

/// Finding with advice for stacks through its code, and for names, where there is something to switch on.
fn finding_about(runtime: &Runtime, [frames, names]: [Option<String>; 2]) -> Finding {
    let ends = match frames {
        Some(_) => "stacks may end in its compiled code",
        None => "stacks pass its code",
    };
    let named = match (&runtime.names, &names) {
        (None, _) => "its functions are not named, only those of C",
        (Some(_), Some(_)) => "its functions have no names",
        (Some(_), None) => "its functions have names",
    };
    let text = format!("{}: {ends}; {named}", runtime.name);
    let advice: Vec<String> = frames.into_iter().chain(names).collect();
    match &advice[..] {
        [] => Finding::fine("runtime", text),
        _ => Finding::note("runtime", text).with_remedy(advice.join(" ")),
    }
}
