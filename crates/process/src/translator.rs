//! Programs that execute another program's code in translated copies: valgrind, rr, qemu-user and others. A
//! probe is a breakpoint in the original code. The translator copies it as if it were one of the process's
//! instructions, and SIGTRAP ends the process there.

use std::ffi::OsString;
use std::path::Path;

use super::files::maps_of;
use super::maps::MapsName;
use super::select::candidate::Candidate;

/// A running process under a translator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    pub pid: u32,
    pub comm: String,
    /// Name of the translator.
    pub by: &'static str,
}

/// Libraries of translators, in processes that keep their own executable: prefix of the file name, and the
/// translator.
const LIBRARIES: [(&str, &str); 7] = [
    ("vgpreload_", "valgrind"),
    ("librrpreload", "rr"),
    ("librrpage", "rr"),
    ("libdynamorio.so", "DynamoRIO"),
    ("libdyninstAPI_RT", "Dyninst"),
    ("pinbin", "Pin"),
    ("frida-agent", "Frida"),
];

/// Translators that are the process's executable: file name, and the translator.
const PROGRAMS: [(&str, &str); 7] = [
    ("box64", "box64"),
    ("box86", "box86"),
    ("FEXInterpreter", "FEX"),
    ("FEXLoader", "FEX"),
    ("FEX", "FEX"),
    ("rosetta", "Rosetta"),
    ("blink", "blink"),
];

/// Programs that start a translator, and are not translated themselves: file name, and the translator.
const STARTERS: [(&str, &str); 3] = [
    ("valgrind", "valgrind"),
    ("valgrind.bin", "valgrind"),
    ("drrun", "DynamoRIO"),
];

/// QEMU's programs that do not emulate a process, by the part of their names after `qemu-`.
const OTHERS_OF_QEMU: [&str; 9] = [
    "system", "img", "nbd", "io", "ga", "pr", "storage", "bridge", "edid",
];

/// Prefixes of the command names of programs that may translate code, or start a translator: at most 8 bytes.
/// A whole name ends in a zero.
pub const COMMAND_NAMES: [&[u8]; 4] = [b"valgrind", b"qemu-", b"drrun\0", b"rr\0"];

/// Returns true if a program with the command name `comm` may translate code, or start a translator.
/// `bpf/process/translated.h` stops a traced process that executes such a program.
pub fn may_translate(comm: &str) -> bool {
    let name = [comm.as_bytes(), b"\0"].concat();
    COMMAND_NAMES.iter().any(|known| name.starts_with(known))
}

/// Program of a command, and the name of the translator that it is or starts; `None` if there is none.
pub fn of_command(words: &[OsString]) -> Option<(String, &'static str)> {
    let path = Path::new(words.first()?);
    let name = path.file_name()?.to_str()?;
    // Other programs can have that name.
    let rr = || (name == "rr" && words.get(1)? == "record").then_some("rr");
    let by = started_by(name).or_else(rr).or_else(|| of_program(path))?;
    Some((name.to_owned(), by))
}

/// Name of the translator that a program with the command name `comm` starts; `None` if it starts none. The
/// program to translate is not executed yet: knowing the translator now leaves time before a probe would end
/// that program.
pub fn started_by(comm: &str) -> Option<&'static str> {
    STARTERS
        .iter()
        .find(|(known, _)| *known == comm)
        .map(|&(_, by)| by)
}

/// Name of a process's translator, by its executable and the files that it maps; `None` if it has none.
fn of<P: AsRef<Path>>(exe: &Path, mapped: impl IntoIterator<Item = P>) -> Option<&'static str> {
    of_program(exe).or_else(|| mapped.into_iter().find_map(|path| of_library(path.as_ref())))
}

fn of_program(exe: &Path) -> Option<&'static str> {
    let name = exe.file_name()?.to_str()?;
    // As in /usr/libexec/valgrind/memcheck-amd64-linux.
    let directory = exe.parent().and_then(Path::file_name);
    if directory.is_some_and(|directory| directory == "valgrind") && name.ends_with("-linux") {
        return Some("valgrind");
    }
    if let Some(machine) = name.strip_prefix("qemu-") {
        let is_other = OTHERS_OF_QEMU.iter().any(|other| {
            machine
                .strip_prefix(other)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        });
        return (!is_other).then_some("qemu-user");
    }
    PROGRAMS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, by)| by)
}

fn of_library(path: &Path) -> Option<&'static str> {
    // An anonymous file is /memfd:NAME.
    let name = path.file_name()?.to_str()?;
    let name = name.strip_prefix("memfd:").unwrap_or(name);
    LIBRARIES
        .iter()
        .find(|(beginning, _)| name.starts_with(beginning))
        .map(|&(_, by)| by)
}

/// Name of the translator of process `pid`, whose executable is `exe`.
pub(super) fn of_process(pid: u32, exe: &Path) -> Option<&'static str> {
    let mappings = maps_of(pid).unwrap_or_default();
    let files = mappings.into_iter().filter_map(|entry| match entry.name {
        MapsName::File { path, .. } => Some(path),
        MapsName::Anonymous | MapsName::Special(_) => None,
    });
    of(exe, files)
}

/// All translated processes that run here and can be inspected.
pub fn running() -> Vec<Translated> {
    let processes = Candidate::all(Path::new("/proc"), std::process::id()).unwrap_or_default();
    let found = processes.into_iter().filter_map(|process| {
        let by = of_process(process.pid, &process.exe()?)?;
        Some(Translated {
            pid: process.pid,
            comm: process.stat.comm,
            by,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are compared by prefix, of which the kernel side reads 8 bytes, or as a whole.
    #[test]
    fn command_names_of_translators() {
        assert!(COMMAND_NAMES.iter().all(|name| name.len() <= 8));
        for (comm, expected) in [
            ("valgrind", true),
            ("valgrind.bin", true),
            ("qemu-x86_64", true),
            ("drrun", true),
            ("rr", true),
            ("rrd", false),
            ("drrunner", false),
            ("qemu", false),
            ("valgrin", false),
            ("", false),
        ] {
            assert_eq!(may_translate(comm), expected, "{comm}");
        }
    }

    /// Each translator is recognized by its executable or by one of its libraries; a name that only contains
    /// such a name is not.
    #[test]
    fn translators() {
        let by = |exe: &str, mapped: &[&str]| of(Path::new(exe), mapped.iter().map(Path::new));
        for (exe, mapped, expected) in [
            ("/usr/libexec/valgrind/memcheck-amd64-linux", &[][..], "valgrind"),
            ("/opt/vg/lib/valgrind/none-arm64-linux", &[], "valgrind"),
            ("/usr/bin/qemu-aarch64-static", &[], "qemu-user"),
            ("/usr/bin/qemu-x86_64", &[], "qemu-user"),
            ("/usr/local/bin/box64", &[], "box64"),
            ("/mnt/rosetta", &[], "Rosetta"),
            (
                "/home/x/app",
                &["/opt/dr/lib64/release/libdynamorio.so.11.0"],
                "DynamoRIO",
            ),
            ("/home/x/app", &["/usr/lib/rr/librrpreload.so"], "rr"),
            ("/home/x/app", &["/memfd:frida-agent-64.so"], "Frida"),
        ] {
            assert_eq!(by(exe, mapped), Some(expected), "{exe} {mapped:?}");
        }
        for (exe, mapped) in [
            ("/usr/bin/valgrind.bin", &[][..]),
            ("/home/x/valgrind/server", &["/usr/lib/libc.so.6"]),
            ("/usr/bin/qemu-system-x86_64", &[]),
            ("/usr/bin/qemu-img", &[]),
            ("/usr/bin/python3", &["/usr/lib/my-libdynamorio.so"]),
        ] {
            assert_eq!(by(exe, mapped), None, "{exe} {mapped:?}");
        }
    }

    /// A command is known by its program's name, not by its arguments.
    #[test]
    fn commands() {
        let by = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            of_command(&words).map(|(_, by)| by)
        };
        for (words, expected) in [
            (&["valgrind", "--tool=none", "./server"][..], Some("valgrind")),
            (&["/usr/bin/valgrind.bin"], Some("valgrind")),
            (&["rr", "record", "./server"], Some("rr")),
            (&["qemu-aarch64", "./server"], Some("qemu-user")),
            (&["qemu-system-x86_64", "-m", "1G"], None),
            (&["./server", "valgrind"], None),
            (&["./rr", "--verbose"], None),
            (&["./valgrind-log"], None),
            (&[], None),
        ] {
            assert_eq!(by(words), expected, "{words:?}");
        }
    }
}
