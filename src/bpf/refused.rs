//! Programs that the kernel refused: which one and why, from libbpf's messages while it loads an object.
//! libbpf passes these only to a callback, on the thread that loads.
//!
//! Programs are verified with [`STATISTICS`] as their log level: the verifier then writes why it refuses one,
//! but not each step that led there. So one attempt gives the reason; without a level, libbpf repeats the
//! attempt to get it.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use libbpf_rs::PrintLevel;
use nix::errno::Errno;

use super::load_error::LoadError;

/// Level at which the verifier writes errors and its statistics (`BPF_LOG_STATS` of the kernel's
/// `include/linux/bpf_verifier.h`): a few lines, and no time.
pub(super) const STATISTICS: u32 = 4;
/// Level at which it writes each instruction that it follows, megabytes of them.
pub(super) const EVERYTHING: u32 = 1;

/// Maximum number of lines and bytes of a log that are kept, the last ones.
const MAX_LINES: usize = 200;
const MAX_BYTES: usize = 64 << 10;
/// Maximum number of characters of a reason.
const MAX_REASON: usize = 160;

const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// A program that the kernel refused to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedProgram {
    pub name: String,
    /// Error of the system call.
    pub errno: Errno,
    /// Last lines of the verifier's log; empty if it has not looked at the program.
    pub log: Vec<String>,
    /// Time that loading took, programs before this one included.
    pub took: Duration,
}

/// Beginning of the verifier's complaint about a call to a kernel function that libbpf has not found
/// (`POISON_CALL_KFUNC_PFX` of its `libbpf.c`).
const NO_FUNCTION: &str = "invalid func unknown#2002";

impl RefusedProgram {
    /// The refused program of an error, if it is the cause.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        match error.downcast_ref()? {
            LoadError::Program(program) => Some(program),
            LoadError::Capacity { .. }
            | LoadError::Map { .. }
            | LoadError::LargeArray { .. }
            | LoadError::OpenFiles
            | LoadError::Memory
            | LoadError::Refused(_) => None,
        }
    }

    /// Returns whether the verifier refused the program, and for another reason than a function that the
    /// kernel does not have: if so, it refuses the same code in another object, too.
    pub fn is_by_verifier(&self) -> bool {
        self.last_line().is_some_and(|line| !is_about_function(line))
    }

    /// The kernel's reason, shortened, with the error's name.
    pub fn reason(&self) -> String {
        let errno = format!("{:?}", self.errno);
        match self.last_line() {
            Some(line) if is_about_function(line) => {
                format!("it calls a function that this kernel does not have ({errno})")
            }
            Some(line) => format!("{} (verifier, {errno})", shortened(line)),
            None => format!("{} ({errno})", self.errno.desc()),
        }
    }

    /// The last line that is a complaint, and neither statistics nor a state.
    fn last_line(&self) -> Option<&str> {
        let mut lines = self.log.iter().rev().map(|line| line.trim());
        lines.find(|line| !line.is_empty() && !is_detail(line))
    }
}

impl fmt::Display for RefusedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        write!(
            f,
            "the kernel (Linux {}) refused the program {name}: {}",
            release(),
            self.reason()
        )
    }
}

fn is_about_function(line: &str) -> bool {
    line.starts_with(NO_FUNCTION) || line.ends_with("is referenced but wasn't resolved")
}

/// Returns whether a line is of the verifier's statistics (`print_verification_stats`), a state, an
/// instruction or a line of source.
fn is_detail(line: &str) -> bool {
    const BEGINNINGS: [&str; 8] = [
        "processed ",
        "verification time ",
        "stack depth ",
        // One for each function.
        "subprog ",
        "cur state:",
        "old state:",
        "from ",
        "; ",
    ];
    let number = line.split_once(": ").map_or("x", |(number, _)| number);
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
        || number.bytes().all(|byte| byte.is_ascii_digit())
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line.to_owned(),
    }
}

/// Release of the running kernel; `?` if it cannot be read.
pub fn release() -> String {
    let text = fs::read_to_string(RELEASE).unwrap_or_default();
    match text.trim() {
        "" => "?".to_owned(),
        release => release.to_owned(),
    }
}

/// Version of the running kernel: two numbers, 0 where they cannot be read.
pub(super) fn version() -> (u32, u32) {
    let release = release();
    let mut numbers = release
        .split(['.', '-', '+'])
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Messages of libbpf while it loaded an object.
#[derive(Debug, Default)]
struct Heard {
    /// Program that libbpf complained about last.
    program: Option<String>,
    /// Map that could not be created.
    map: Option<String>,
    /// Verifier's log of that program.
    log: Vec<String>,
}

thread_local! {
    static HEARD: RefCell<Option<Heard>> = const { RefCell::new(None) };
}

/// Receives libbpf's messages from now on, and passes them on to the log of memleak.
pub fn listen() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, hear)));
}

fn hear(level: PrintLevel, message: String) {
    tracing::trace!("{}", message.trim_end());
    if level == PrintLevel::Warn {
        HEARD.with_borrow_mut(|heard| {
            if let Some(heard) = heard {
                heard.note(&message);
            }
        });
    }
}

impl Heard {
    fn note(&mut self, message: &str) {
        let message = message.strip_prefix("libbpf: ").unwrap_or(message);
        if let Some((program, text)) = named(message, "prog '") {
            if self.program.as_deref() != Some(program) {
                self.program = Some(program.to_owned());
                self.log.clear();
            }
            const BEGIN: &str = "-- BEGIN PROG LOAD LOG --\n";
            if let Some(log) = text.strip_prefix(BEGIN) {
                self.log = last_lines(log.split("-- END PROG LOAD LOG --").next().unwrap_or_default());
            }
        } else if let Some((map, text)) = named(message, "map '")
            && text.starts_with("failed to create")
        {
            self.map = Some(map.to_owned());
        }
    }
}

/// Name and text of a message about a program or a map: `prog 'NAME': TEXT`.
fn named<'a>(message: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(kind)?.split_once("': ")
}

/// The last lines of a log, within [`MAX_LINES`] and [`MAX_BYTES`].
pub(super) fn last_lines(log: &str) -> Vec<String> {
    let mut room = MAX_BYTES;
    let fits = |line: &&str| match room.checked_sub(line.len() + 1) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    let mut lines: Vec<_> = log.lines().rev().take(MAX_LINES).take_while(fits).collect();
    lines.reverse();
    lines.into_iter().map(str::to_owned).collect()
}

/// Runs `load`, and explains its error by libbpf's messages meanwhile.
pub(super) fn explained<T>(load: impl FnOnce() -> Result<T, libbpf_rs::Error>) -> Result<T, LoadError> {
    // A user of this crate may have set another callback: then it is not known which program was refused.
    HEARD.set(Some(Heard::default()));
    let began = Instant::now();
    let loaded = load();
    let heard = HEARD.take().unwrap_or_default();
    loaded.map_err(|error| {
        let errno = errno_of(&error);
        match (heard.program, heard.map, errno) {
            (_, _, Some(Errno::EMFILE)) => LoadError::OpenFiles,
            (_, _, Some(Errno::ENOMEM)) => LoadError::Memory,
            (Some(name), _, Some(errno)) => LoadError::Program(RefusedProgram {
                name,
                errno,
                log: heard.log,
                took: began.elapsed(),
            }),
            (None, Some(name), Some(errno)) => LoadError::Map { name, errno },
            _ => error.into(),
        }
    })
}

/// Error number of a refusal, which libbpf-rs has in its text only; libbpf's own errors have none.
pub(super) fn errno_of(error: &libbpf_rs::Error) -> Option<Errno> {
    let text = format!("{error:#}");
    let (_, number) = text.rsplit_once("(os error ")?;
    number.strip_suffix(')')?.parse().ok().map(Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno, log: &str) -> RefusedProgram {
        RefusedProgram {
            name: "allocation_session".to_owned(),
            errno,
            log: last_lines(log),
            took: Duration::ZERO,
        }
    }

    /// The reason is the verifier's last line before its statistics, or the error if it has written none.
    #[test]
    fn reasons() {
        let statistics = "verification time 31 usec\nstack depth 0\nprocessed 7 insns (limit 1000000) max_states_per_insn 0\n";
        for (log, errno, reason, is_by_verifier) in [
            (
                "map_value pointer offset -1000000000 is not allowed\n",
                Errno::EINVAL,
                "map_value pointer offset -1000000000 is not allowed (verifier, EINVAL)",
                true,
            ),
            (
                "infinite loop detected at insn 5\ncur state: R0=1 R10=fp0\nold state: R0=1 R10=fp0\n",
                Errno::EINVAL,
                "infinite loop detected at insn 5 (verifier, EINVAL)",
                true,
            ),
            (
                "0: R1=ctx()\nBPF program is too large. Processed 1000001 insn\n",
                Errno::E2BIG,
                "BPF program is too large. Processed 1000001 insn (verifier, E2BIG)",
                true,
            ),
            (
                "invalid func unknown#2002000000\n",
                Errno::EINVAL,
                "it calls a function that this kernel does not have (EINVAL)",
                false,
            ),
            ("", Errno::EPERM, "Operation not permitted (EPERM)", false),
        ] {
            for log in [log.to_owned(), [log, statistics].concat()] {
                let refused = refused(errno, &log);
                assert_eq!(refused.reason(), reason, "{log}");
                assert_eq!(refused.is_by_verifier(), is_by_verifier, "{log}");
            }
        }
        let long = refused(Errno::EINVAL, &"ä".repeat(400)).reason();
        assert_eq!(long, format!("{}… (verifier, EINVAL)", "ä".repeat(MAX_REASON)));
    }

    /// A log is cut to its last lines, however long it is.
    #[test]
    fn logs_are_bounded() {
        let many: Vec<_> = (0..10_000).map(|number| format!("line {number}")).collect();
        let kept = last_lines(&many.join("\n"));
        assert_eq!(kept.len(), MAX_LINES);
        assert_eq!(kept.last(), many.last());
        let wide = vec!["x".repeat(MAX_BYTES / 3); 9].join("\n");
        assert_eq!(last_lines(&wide).len(), 2);
    }

    /// The last program that libbpf complains of is the one that was refused.
    #[test]
    fn messages() {
        let mut heard = Heard::default();
        for message in [
            "libbpf: prog 'page_fault': -- BEGIN PROG LOAD LOG --\nold\n-- END PROG LOAD LOG --\n",
            "libbpf: prog 'free_entry': BPF program load failed: -EINVAL\n",
            "libbpf: prog 'free_entry': -- BEGIN PROG LOAD LOG --\na\nb\n-- END PROG LOAD LOG --\n",
            "libbpf: prog 'free_entry': failed to load: -EINVAL\n",
            "libbpf: failed to load object 'memleak_bpf'\n",
        ] {
            heard.note(message);
        }
        assert_eq!(heard.program.as_deref(), Some("free_entry"));
        assert_eq!(heard.log, ["a", "b"]);
        heard.note("libbpf: map 'threads': failed to create: -EINVAL\n");
        assert_eq!(heard.map.as_deref(), Some("threads"));
    }
}
