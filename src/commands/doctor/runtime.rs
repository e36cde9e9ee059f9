//! Examines how the runtime of a process was started: whether its functions would have names, and stacks pass its code.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::process::{Module, Target};
use crate::symbolize::PerfMap;
use leak_report::render::runtimes::{Runtime, Switch, runtime};

/// Maximum bytes that are read of a command line, and of an environment.
const MAX_BYTES: u64 = 1 << 20;

/// Finding about the runtime of a process, if it has one.
pub(super) fn finding(target: &Target, modules: &[&Module]) -> Option<Finding> {
    let names: Vec<&str> = modules.iter().map(|module| file_name(&module.path)).collect();
    let runtime = runtime(file_name(target.exe()), names.iter().copied())?;
    let words = [words(target.pid(), "cmdline"), words(target.pid(), "environ")].join(" ");
    Some(finding_about(runtime, target.pid(), &words, writes_names(target)))
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

fn finding_about(runtime: &Runtime, pid: u32, words: &str, writes_names: bool) -> Finding {
    let off = |switch: &Option<Switch>| {
        let switch = switch.as_ref().filter(|switch| !switch.is_on(words));
        switch.map(|switch| switch.advice(pid))
    };
    let frames = off(&runtime.frames);
    let names = off(&runtime.names).filter(|_| !writes_names);
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
    match (frames, names) {
        (None, None) => Finding::fine("runtime", text),
        (frames, names) => {
            let advice: Vec<String> = frames.into_iter().chain(names).collect();
            Finding::note("runtime", text).with_remedy(advice.join(" "))
        }
    }
}
