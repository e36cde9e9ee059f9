//! Examines how a process's language runtime was started: whether its functions will have names, and whether
//! stacks can be unwound through its code.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use crate::process::python::{PythonBuild, PythonVersion, ThreadPlaces, Unsupported};
use crate::process::{Mappings, Module, Target};
use crate::symbolize::PerfMap;
use leak_report::render::runtimes::{Runtime, Switch, runtime};

/// Maximum bytes that are read of a command line, and of an environment.
const MAX_BYTES: u64 = 1 << 20;

/// Finding about the runtime of a process, if it has one.
pub(super) fn finding(target: &Target, modules: &[&Module], mappings: &Mappings) -> Option<Finding> {
    let words = [words(target.pid(), "cmdline"), words(target.pid(), "environ")].join(" ");
    let mut pythons = modules.iter().map(|module| PythonBuild::find(module.bytes()));
    if let Some(found) = pythons.find_map(Result::transpose) {
        let loader = modules.iter().find(|module| Some(module.id) == mappings.loader());
        let threads = ThreadPlaces::of(loader.copied(), modules.iter().copied());
        let found = Python::of(found, threads.err().map(str::to_owned));
        let off = found.switch().filter(|switch| !switch.is_on(&words));
        let advice = off.filter(|_| !writes_names(target));
        return Some(found.finding(advice.map(|switch| switch.advice(target.pid()))));
    }
    let names: Vec<&str> = modules.iter().map(|module| file_name(&module.path)).collect();
    let runtime = runtime(file_name(target.exe()), names.iter().copied())?;
    let frames = off(&runtime.frames, &words).filter(|_| !mappings.jvm().keeps_frame_pointers);
    let names = off(&runtime.names, &words).filter(|_| !writes_names(target));
    let advice = [frames, names].map(|switch| Some(switch?.advice(target.pid())));
    Some(finding_about(runtime, advice))
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// Zero-terminated words of a file below `/proc/PID`, joined by spaces; empty if it cannot be read.
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

/// Returns the switch, if there is one that is not known to be on.
fn off<'a>(switch: &'a Option<Switch>, words: &str) -> Option<&'a Switch> {
    switch.as_ref().filter(|switch| !switch.is_on(words))
}

/// Finding about stacks through the runtime's code and about names, with advice where a switch is off.
fn finding_about(runtime: &Runtime, [frames, names]: [Option<String>; 2]) -> Finding {
    let ends = match frames {
        Some(_) => "stacks may end in its compiled code",
        None => "stacks can be unwound through its code",
    };
    let named = match (&runtime.names, &names) {
        (None, _) => "only C functions have names, not its own",
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

/// CPython in a process.
#[derive(Debug)]
struct Python {
    /// `None` before 3.9.
    version: Option<PythonVersion>,
    /// Reason why its frames are not read; `None` if they are.
    obstacle: Option<String>,
}

impl Python {
    fn of(found: Result<PythonBuild, Unsupported>, obstacle: Option<String>) -> Self {
        match found {
            Ok(build) => Self {
                version: Some(build.version),
                obstacle,
            },
            Err(reason) => Self {
                version: reason.version(),
                obstacle: Some(reason.to_string()),
            },
        }
    }

    /// Switch that makes Python write the names of its functions itself; `None` if this version has none.
    fn switch(&self) -> Option<&'static Switch> {
        let PythonVersion { major, minor, .. } = self.version?;
        let runtime = runtime(&format!("python{major}.{minor}"), [])?;
        runtime.names.as_ref()
    }

    /// Finding about Python. `advice` is given if it could write names, and does not.
    fn finding(&self, advice: Option<String>) -> Finding {
        let Some(version) = self.version else {
            let text = "Python before 3.9: stacks can be unwound through its code; only C functions have \
                        names, not its own";
            return Finding::fine("runtime", text);
        };
        let text = format!(
            "Python {}.{}: stacks can be unwound through its code",
            version.major, version.minor
        );
        let is_named = self.obstacle.is_none() || (self.switch().is_some() && advice.is_none());
        let reason = self.obstacle.as_deref().filter(|_| !is_named);
        let Some(reason) = reason else {
            return Finding::fine("runtime", format!("{text}; its functions have names"));
        };
        let finding = Finding::note(
            "runtime",
            format!("{text}; its functions have no names: {reason}"),
        );
        match advice {
            Some(advice) => finding.with_remedy(advice),
            None => finding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Level;

    fn version(minor: u8) -> PythonVersion {
        PythonVersion {
            major: 3,
            minor,
            micro: Some(1),
        }
    }

    /// Frames that are read have names. For others, the finding gives the reason, and a remedy if there is
    /// one.
    #[test]
    fn pythons() {
        let glibc = || Some("its frames are read only if the C library is glibc".to_owned());
        let readable = |minor, obstacle| Python {
            version: Some(version(minor)),
            obstacle,
        };
        let refused = |reason| Python::of(Err(reason), None);
        let named = (Level::Fine, "its functions have names");
        for (python, is_on, (level, end)) in [
            (readable(11, None), false, named),
            (readable(13, None), false, named),
            (readable(13, None), true, named),
            (
                readable(11, glibc()),
                false,
                (Level::Note, "only if the C library is glibc"),
            ),
            (
                readable(12, glibc()),
                false,
                (Level::Note, "only if the C library is glibc"),
            ),
            (readable(12, glibc()), true, named),
            (
                refused(Unsupported::Version(version(16))),
                false,
                (Level::Note, "reads frames of 3.9 to 3.15"),
            ),
            (refused(Unsupported::Version(version(16))), true, named),
            (
                refused(Unsupported::Prerelease(version(15))),
                false,
                (
                    Level::Note,
                    "reads frames of releases and release candidates only",
                ),
            ),
            (
                refused(Unsupported::Older),
                false,
                (Level::Fine, "only C functions have names, not its own"),
            ),
        ] {
            let advice = python.switch().filter(|_| !is_on);
            let can_be_told = python.version.is_some_and(|version| version.minor >= 12);
            assert_eq!(python.switch().is_some(), can_be_told, "{python:?}");
            let finding = python.finding(advice.map(|switch| switch.advice(1)));
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.text.ends_with(end), "{finding:?}");
            let advises = finding.remedy.is_some_and(|remedy| remedy.contains("-X perf"));
            let is_nameless = level == Level::Note;
            assert_eq!(advises, is_nameless && can_be_told, "{python:?}");
        }
    }
}
