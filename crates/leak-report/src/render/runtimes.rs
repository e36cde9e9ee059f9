//! Runtimes of other languages, in one table: ways to get names for their functions, and stacks through their
//! code.

/// A runtime.
#[derive(Debug)]
pub struct Runtime {
    /// Name for people.
    pub name: &'static str,
    /// File names of its executable; those that end in `*` are followed by a version or nothing.
    programs: &'static [&'static str],
    /// Beginning of the file name of its library.
    library: Option<&'static str>,
    /// First version that the entry is for, where file names contain a version.
    since: (u32, u32),
    /// Switch that its compiled code needs for stacks to pass it; `None` if they pass it anyway.
    pub frames: Option<Switch>,
    /// Switch that gives its functions names; `None` if nothing does. Python functions that memleak reads
    /// itself do not need it.
    pub names: Option<Switch>,
}

/// Something that the user can switch on.
#[derive(Debug)]
pub struct Switch {
    /// Instruction, as a sentence; `PID` stands for the process ID.
    advice: &'static str,
    /// Parts of a command line or environment that show that it is on.
    signs: &'static [&'static str],
}

impl Switch {
    /// Sentence for the process `pid`.
    pub fn advice(&self, pid: u32) -> String {
        self.advice.replace("PID", &pid.to_string())
    }

    /// Returns true if this command line or environment, joined by spaces, switches it on.
    pub fn is_on(&self, words: &str) -> bool {
        self.signs.iter().any(|sign| words.contains(sign))
    }
}

/// Runtimes of one language are neighbours, the newest first.
const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Java",
        programs: &["java"],
        library: Some("libjvm.so"),
        since: (0, 0),
        frames: Some(Switch {
            advice: "Start java with -XX:+PreserveFramePointer.",
            signs: &["-XX:+PreserveFramePointer"],
        }),
        names: Some(Switch {
            advice: "`jcmd PID Compiler.perfmap` (JDK 17 or newer) names the methods compiled so far.",
            signs: &[],
        }),
    },
    Runtime {
        name: "Node.js",
        programs: &["node", "nodejs"],
        library: Some("libnode.so"),
        since: (0, 0),
        frames: None,
        names: Some(Switch {
            advice: "Start node with --perf-basic-prof --interpreted-frames-native-stack.",
            signs: &["--perf-basic-prof", "--perf-prof"],
        }),
    },
    Runtime {
        name: "Python",
        programs: &["python3*"],
        library: Some("libpython3"),
        since: (3, 12),
        frames: None,
        names: Some(Switch {
            advice: "Start python with -X perf or PYTHONPERFSUPPORT=1, or let it call sys.activate_stack_trampoline('perf').",
            signs: &["-X perf", "-Xperf", "PYTHONPERFSUPPORT=1"],
        }),
    },
    Runtime {
        name: "Python before 3.12",
        programs: &["python*"],
        library: Some("libpython"),
        since: (0, 0),
        frames: None,
        names: None,
    },
    Runtime {
        name: "Ruby",
        programs: &["ruby*"],
        library: Some("libruby"),
        since: (3, 3),
        frames: Some(Switch {
            advice: "If it has YJIT on, start ruby with --yjit-perf=fp.",
            signs: &["--yjit-perf"],
        }),
        names: Some(Switch {
            advice: "If it has YJIT on, start ruby with --yjit-perf.",
            signs: &["--yjit-perf"],
        }),
    },
    Runtime {
        name: "Ruby before 3.3",
        programs: &["ruby*"],
        library: Some("libruby"),
        since: (0, 0),
        frames: None,
        names: None,
    },
    Runtime {
        name: "PHP",
        programs: &["php*", "php-fpm*", "php-cgi*"],
        library: Some("libphp"),
        since: (0, 0),
        frames: None,
        names: Some(Switch {
            advice: "If its JIT compiler is on, start php with -d opcache.jit_debug=16.",
            signs: &["opcache.jit_debug="],
        }),
    },
    Runtime {
        name: ".NET",
        programs: &["dotnet"],
        library: Some("libcoreclr.so"),
        since: (0, 0),
        frames: None,
        names: Some(Switch {
            advice: "Start it with DOTNET_PerfMapEnabled=1.",
            signs: &["DOTNET_PerfMapEnabled=", "COMPlus_PerfMapEnabled="],
        }),
    },
    Runtime {
        name: "Erlang",
        programs: &["beam.smp"],
        library: None,
        since: (0, 0),
        frames: None,
        names: Some(Switch {
            advice: "Start erl with +JPperf true.",
            signs: &["+JPperf"],
        }),
    },
];

/// The runtime of a process, by the file names of its executable and libraries; `None` if no known runtime
/// matches.
pub fn runtime<'a>(
    exe: &'a str,
    libraries: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<&'static Runtime> {
    let libraries = || libraries.clone().into_iter();
    let is_used =
        |runtime: &&Runtime| runtime.has_program(exe) || libraries().any(|name| runtime.has_library(name));
    let newest = RUNTIMES.iter().find(is_used)?;
    let named = version(exe).filter(|_| newest.has_program(exe));
    let library = || {
        libraries()
            .filter(|name| newest.has_library(name))
            .find_map(version)
    };
    let Some(version) = named.or_else(library) else {
        return Some(newest);
    };
    RUNTIMES
        .iter()
        .filter(is_used)
        .find(|runtime| runtime.since <= version)
}

impl Runtime {
    fn has_program(&self, exe: &str) -> bool {
        self.programs
            .iter()
            .any(|program| match program.strip_suffix('*') {
                Some(beginning) => exe.strip_prefix(beginning).is_some_and(is_version),
                None => exe == *program,
            })
    }

    fn has_library(&self, name: &str) -> bool {
        self.library.is_some_and(|library| name.starts_with(library))
    }
}

fn is_version(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The first two numbers in a file name.
fn version(file_name: &str) -> Option<(u32, u32)> {
    let start = file_name.find(|character: char| character.is_ascii_digit())?;
    let mut numbers = file_name[start..].split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runtimes are known by their program, else by their library, and told apart by version.
    #[test]
    fn runtimes_are_known() {
        for (exe, library, expected) in [
            ("java", None, Some("Java")),
            ("java-wrapper", None, None),
            ("eclipse", Some("libjvm.so"), Some("Java")),
            ("node", None, Some("Node.js")),
            ("python3.13", None, Some("Python")),
            ("python3.11", None, Some("Python before 3.12")),
            ("python2.7", None, Some("Python before 3.12")),
            ("python3-config", None, None),
            ("gdb", Some("libpython3.11.so.1.0"), Some("Python before 3.12")),
            ("uwsgi", Some("libpython3.12.so.1.0"), Some("Python")),
            ("ruby3.1", None, Some("Ruby before 3.3")),
            ("ruby", Some("libruby-3.3.so.3.3.8"), Some("Ruby")),
            ("ruby", Some("libruby-3.1.so.3.1.2"), Some("Ruby before 3.3")),
            ("ruby", None, Some("Ruby")),
            ("puma", Some("libruby-3.3.so.3.3.8"), Some("Ruby")),
            ("php-fpm8.2", None, Some("PHP")),
            ("server", Some("libcoreclr.so"), Some(".NET")),
            ("server", Some("libc.so.6"), None),
        ] {
            let found = runtime(exe, library).map(|runtime| runtime.name);
            assert_eq!(found, expected, "{exe} {library:?}");
        }
    }

    /// Switches are seen in command lines and environments.
    #[test]
    fn switches_are_seen() {
        let java = runtime("java", []).expect("it is known");
        let frames = java.frames.as_ref().expect("it has a switch");
        assert!(frames.is_on("java -jar a.jar JAVA_TOOL_OPTIONS=-Xint -XX:+PreserveFramePointer"));
        assert!(!frames.is_on("java -XX:-PreserveFramePointer"));
        let names = java.names.as_ref().expect("it has a switch");
        assert!(names.advice(7).contains("`jcmd 7 ") && !names.is_on("java"));
    }
}
