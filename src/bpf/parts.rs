//! Optional programs, each with the part of a trace that needs it. Loading continues without those that the
//! kernel refuses.

use std::time::Duration;

use leak_report::model::{Missing, TracePart};

use super::call_hooks::CallHooks;
use super::exceptions::Exceptions;
use super::load_error::LoadError;
use super::refused::RefusedProgram;
use super::settings::{AttachPath, Settings};

/// Programs of one part; if any of them is missing, the others are of no use.
struct Row {
    part: TracePart,
    programs: &'static [&'static str],
}

const fn row(part: TracePart, programs: &'static [&'static str]) -> Row {
    Row { part, programs }
}

/// Optional programs. All others are essential: those that see allocations and frees in the way that is used;
/// those that end and begin the instances of a process (`process_exec`, `process_rename`, `process_exit`),
/// without which blocks and tables of one program would count as another's; and those for the kernel's slab
/// caches.
const OPTIONAL: &[Row] = &[
    row(TracePart::Python, &["python_code_end"]),
    row(TracePart::LoaderHook, &["loader_hook"]),
    row(TracePart::Children, &["process_fork"]),
    row(TracePart::Cgroups, &["cgroup_attach"]),
    row(TracePart::ProgramEnd, &["exit_hook"]),
    row(TracePart::EndedBlocks, &["forget_blocks"]),
    row(
        TracePart::TrapCost,
        &["calibration_session", "calibration_entry", "calibration_return"],
    ),
    row(
        TracePart::KernelBulk,
        &["kernel_bulk_alloc", "kernel_bulk_free", "kernel_sheaf_free"],
    ),
    row(
        TracePart::KernelPages,
        &[
            "kernel_page_alloc",
            "kernel_page_alloc_nested",
            "kernel_page_free",
            "kernel_page_free_nested",
        ],
    ),
    row(
        TracePart::KernelPercpu,
        &[
            "kernel_percpu_alloc",
            "kernel_percpu_alloc_nested",
            "kernel_percpu_free",
            "kernel_percpu_free_nested",
        ],
    ),
];

fn optional(program: &str) -> Option<&'static Row> {
    OPTIONAL.iter().find(|row| row.programs.contains(&program))
}

impl AttachPath {
    /// Description for messages.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Session => "session probes",
            Self::Multi => "multi-probe links",
            Self::Perf => "a perf event per probe",
        }
    }

    /// Returns whether a program can be loaded for this way to attach.
    pub fn loads(self, program: &str) -> bool {
        match program {
            "allocation_session" | "calibration_session" => self == Self::Session,
            "allocation_return" | "calibration_return" => self != Self::Session,
            _ => true,
        }
    }
}

impl CallHooks {
    /// Hooks that a program for mapping calls is attached to; `None` for other programs.
    pub fn of_program(program: &str) -> Option<Self> {
        const CALLS: [&str; 5] = ["mmap", "munmap", "mremap", "brk", "madvise"];
        let name = program.strip_suffix("_nested").unwrap_or(program);
        let (call, moment) = name.split_once('_')?;
        match moment {
            _ if !CALLS.contains(&call) => None,
            "entry" | "exit" => Some(Self::Functions),
            "begins" | "ends" => Some(Self::Tracepoints),
            _ => None,
        }
    }
}

/// Retries loading without the optional parts that the kernel refused, until it accepts the object. These
/// parts stay left out of later objects.
#[derive(Debug, Default)]
pub struct Tolerance {
    /// Names of programs that are broken, for tests.
    broken: Vec<String>,
    missing: Vec<Missing>,
    /// Time spent on loading objects that were refused.
    spent: Duration,
}

impl Tolerance {
    /// Breaks programs, for tests.
    pub fn breaking(broken: &[String]) -> Self {
        Self {
            broken: broken.to_vec(),
            ..Self::default()
        }
    }

    /// Parts that are left out.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Counts time spent on loading refused objects.
    #[cfg(test)]
    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// Leaves out a part.
    pub fn leave_out(&mut self, part: TracePart, program: &str, reason: String) {
        if !self.lacks(part) {
            let program = program.to_owned();
            self.missing.push(Missing {
                part,
                program,
                reason,
            });
        }
    }

    pub fn lacks(&self, part: TracePart) -> bool {
        self.missing.iter().any(|missing| missing.part == part)
    }

    /// Settings without the parts that are left out.
    pub(super) fn adapted(&self, settings: &Settings) -> Settings {
        let of = |part| !self.lacks(part);
        Settings {
            python: settings.python && of(TracePart::Python),
            follow_fork: settings.follow_fork && of(TracePart::Children),
            holds_end: settings.holds_end && of(TracePart::ProgramEnd),
            // A child that shares its parent's memory frees in it, too, and must be followed.
            frees: settings
                .frees
                .filter(|_| of(TracePart::FreeNotes) && of(TracePart::Children)),
            ..*settings
        }
    }

    pub(super) fn exceptions(&self) -> Exceptions {
        let parts = OPTIONAL.iter().filter(|row| self.lacks(row.part));
        let programs = parts.flat_map(|row| row.programs);
        Exceptions {
            omitted: programs.map(|&program| program.to_owned()).collect(),
            broken: self.broken.clone(),
            ..Exceptions::default()
        }
    }

    /// Calls `load`, which gets the parts to leave out, until it succeeds, or fails for another reason than
    /// the refusal of an optional program. `load` fails once no storage is left for another attempt.
    pub(super) fn load<T>(
        &mut self,
        mut load: impl FnMut(&Self) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        loop {
            let error = match load(self) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let LoadError::Program(refused) = &error else {
                return Err(error);
            };
            self.spent += refused.took;
            tracing::debug!("{refused} in {:.1?}", refused.took);
            if !self.go_without(refused) {
                return Err(error);
            }
        }
    }

    /// Leaves out the part that needs a refused program. Returns false if that is impossible, or was done
    /// before.
    fn go_without(&mut self, refused: &RefusedProgram) -> bool {
        match optional(&refused.name) {
            Some(row) if !self.lacks(row.part) => {
                self.leave_out(row.part, &refused.name, refused.reason());
                true
            }
            Some(_) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use nix::errno::Errno;

    use super::*;
    use crate::bpf::Storage;
    use crate::bpf::kernel_skeleton::KernelMemorySkelBuilder;
    use crate::bpf::skeleton::MemleakSkelBuilder;

    /// Names of all programs.
    fn programs() -> BTreeSet<String> {
        let (mut first, mut second) = (Storage::uninit(), Storage::uninit());
        let of_processes = MemleakSkelBuilder::default()
            .open(&mut first)
            .expect("it was built");
        let of_kernel = KernelMemorySkelBuilder::default()
            .open(&mut second)
            .expect("it was built");
        let all = [of_processes.open_object(), of_kernel.open_object()];
        let all = all.into_iter().flat_map(|object| object.progs());
        all.map(|program| program.name().to_string_lossy().into_owned())
            .collect()
    }

    /// Every program that is named here exists, and is in one part; programs for mapping calls have their
    /// hooks.
    #[test]
    fn programs_exist() {
        let programs = programs();
        let optional: Vec<_> = OPTIONAL
            .iter()
            .flat_map(|row| row.programs.iter().copied())
            .collect();
        let distinct: BTreeSet<_> = optional.iter().copied().collect();
        assert_eq!(distinct.len(), optional.len());
        let of_paths = ["allocation_session", "allocation_return"];
        for name in optional.iter().chain(&of_paths) {
            assert!(programs.contains(*name), "{name}: {programs:#?}");
        }
        let of = |hooks| {
            programs
                .iter()
                .filter(|name| CallHooks::of_program(name) == Some(hooks))
                .count()
        };
        assert_eq!(of(CallHooks::Functions), 5 * 2 * 2, "{programs:#?}");
        assert_eq!(of(CallHooks::Tracepoints), 5 * 2);
        assert_eq!(CallHooks::of_program("free_entry"), None);
    }

    fn refused(name: &str) -> LoadError {
        LoadError::Program(RefusedProgram {
            name: name.to_owned(),
            errno: Errno::EINVAL,
            log: vec!["loop".to_owned()],
            took: Duration::from_secs(1),
        })
    }

    /// A refused optional program is left out, once, with all programs of its part; a refused essential
    /// program is an error.
    #[test]
    fn what_is_not_essential_is_left_out() {
        let mut tolerance = Tolerance::default();
        let mut refusals = ["calibration_entry", "exit_hook"].into_iter();
        let omitted = tolerance.load(|tolerance| match refusals.next() {
            Some(name) => Err(refused(name)),
            None => Ok(tolerance.exceptions().omitted),
        });
        let expected = [
            "exit_hook",
            "calibration_session",
            "calibration_entry",
            "calibration_return",
        ];
        assert_eq!(omitted.expect("the third is accepted"), expected);
        assert_eq!(tolerance.spent(), Duration::from_secs(2));
        let missing: Vec<_> = tolerance.missing().iter().map(|missing| missing.part).collect();
        assert_eq!(missing, [TracePart::TrapCost, TracePart::ProgramEnd]);
        for essential in ["free_entry", "exit_hook"] {
            let mut attempts = 0;
            let failed = tolerance.load(|_| {
                attempts += 1;
                Err::<(), _>(refused(essential))
            });
            assert!(failed.is_err_and(|error| error.to_string().contains(essential)));
            assert_eq!(attempts, 1, "{essential}");
        }
    }
}
