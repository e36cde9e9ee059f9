//! A process that can be traced, identified by its pid and its start time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use unwind_tables::addr::Avma;

use super::census::huge::Effort;
use super::census::{Beside, Divided, Known};
use super::files::{MAX_THREADS, maps_of, read_maps, read_stat};
use super::hotspot;
use super::jvm_watch::JvmWatch;
use super::mappings::Mappings;
use super::modules::{ModuleId, Modules};
use super::process_memory::ProcessMemory;
use super::settled::{self, Settled};
use super::{confirm, foreign, maps, translator};
use memleak_base::pages;
use memleak_base::proc_fields::ProcFields;

/// A running process that was found fit to be traced.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    comm: String,
    exe: PathBuf,
    /// True if `comm` and `exe` are of one program.
    is_consistent: bool,
    start_time: u64,
    // Bound to the process, not to its pid: after its end reads fail, even if the pid is reused.
    stat: File,
}

/// Why a process cannot be traced, and what to do about it.
#[derive(Debug, Error)]
pub enum TargetError {
    #[error("no process with pid {pid}; `ps -e` lists what runs here (inside a container, pids differ)")]
    NoSuchProcess { pid: u32 },
    #[error("{tid} is a thread of process {pid}; use -p {pid}")]
    Thread { tid: u32, pid: u32 },
    #[error("{pid} ({comm}) is a kernel thread, which has no heap; give the pid of a program's process")]
    KernelThread { pid: u32, comm: String },
    #[error("{pid} ({comm}) has exited and only waits for its parent; trace one that runs")]
    Zombie { pid: u32, comm: String },
    #[error(
        "no permission to read process {pid} ({comm}): needs its user's rights and CAP_SYS_PTRACE; try sudo"
    )]
    NoPermission { pid: u32, comm: String },
    /// The mode of its executable does not permit reading it.
    #[error(
        "no permission to read the program of process {pid} ({comm}): needs its user's rights or \
         CAP_DAC_READ_SEARCH; try sudo"
    )]
    UnreadableProgram { pid: u32, comm: String },
    /// The program is on a FUSE mount that only its user may read, not even root, and its first bytes are not
    /// in the process's memory either.
    #[error(
        "the program of process {pid} ({comm}) is on its user's FUSE mount, which not even root may read: \
         mount it with -o allow_root or allow_other, or run memleak as that user"
    )]
    FuseProgram { pid: u32, comm: String },
    /// A 32-bit or x32 program.
    #[error(
        "{pid} ({comm}) is a 32-bit program; only 64-bit programs can be unwound, rebuild it as one (on x86-64, with -m64)"
    )]
    ThirtyTwoBit { pid: u32, comm: String },
    /// The translator would copy a breakpoint in the program's code as if it were one of its instructions.
    #[error(
        "{pid} ({comm}) runs under {by}, which executes translated copies of its code: a probe would kill \
         it; trace it without {by}"
    )]
    Translated {
        pid: u32,
        comm: String,
        by: &'static str,
    },
    #[error("cannot read /proc/{pid}/{file}: {error}; is /proc mounted?")]
    Proc {
        pid: u32,
        file: &'static str,
        error: io::Error,
    },
}

impl Target {
    /// Reads 64 bits of its memory.
    pub fn read_word(&self, address: Avma) -> io::Result<u64> {
        let mut bytes = [0; 8];
        ProcessMemory::open(self.pid)?.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Finds process `pid` and checks that it can be traced.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        let stat_file =
            File::open(format!("/proc/{pid}/stat")).map_err(|error| missing(pid, "stat", error))?;
        let stat = read_stat(&stat_file).map_err(|error| missing(pid, "stat", error))?;
        check_leader(pid)?;
        let comm = stat.comm.clone();
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread { pid, comm });
        }
        // A zombie leader whose other threads still run has no maps of its own either.
        if stat.has_exited() || stat.state == b'Z' {
            return Err(TargetError::Zombie { pid, comm });
        }
        let exe = check_program(pid, &comm)?;
        if let Some(by) = translator::of_process(pid, &exe) {
            return Err(TargetError::Translated { pid, comm, by });
        }
        let is_consistent = read_stat(&stat_file).is_ok_and(|later| stat.is_same_program(&later));
        Ok(Self {
            pid,
            comm,
            exe,
            is_consistent,
            start_time: stat.start_time,
            stat: stat_file,
        })
    }

    /// Number of page faults since it began.
    pub fn page_faults(&self) -> io::Result<u64> {
        Ok(read_stat(&self.stat)?.faults)
    }

    /// Process ID in memleak's own pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Process ID in the process's own pid namespace.
    pub fn own_pid(&self) -> u32 {
        let status = ProcFields::status(self.pid).unwrap_or_default();
        let innermost = status.words("NSpid").next_back();
        innermost.and_then(|pid| pid.parse().ok()).unwrap_or(self.pid)
    }

    /// Filesystem user ID, which owns the files that the process creates.
    ///
    /// # Errors
    ///
    /// The process is gone, or its status has another form.
    pub fn user(&self) -> io::Result<u32> {
        let status = ProcFields::status(self.pid)?;
        // Real, effective, saved, and for file systems.
        let user = status.words("Uid").nth(3).and_then(|user| user.parse().ok());
        user.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown format"))
    }

    /// Command name when it was opened, at most 15 bytes.
    pub fn comm(&self) -> &str {
        &self.comm
    }

    /// True if [`Target::comm`] and [`Target::exe`] are of one program: no exec came between the two reads.
    pub fn is_consistent(&self) -> bool {
        self.is_consistent
    }

    /// Path of the executable when it was opened, as the target sees it.
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// Start time, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Bytes of resident memory that no file backs, or `None` if the process is gone.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid())).ok()?;
        let mut pages = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
        let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
        resident.saturating_sub(of_files).checked_mul(pages::bytes())
    }

    /// True if it has ended, or is a zombie. One small read; an `exec` is not an end.
    pub fn has_exited(&self) -> bool {
        match read_stat(&self.stat) {
            Ok(stat) => stat.has_exited(),
            Err(error) => error.kind() != io::ErrorKind::InvalidData,
        }
    }

    /// Reads the current executable mappings, and adds files not seen before to `modules`.
    ///
    /// Lines of the maps that cannot be parsed are counted.
    ///
    /// # Errors
    ///
    /// `NotFound` if the process has ended; else the system's error.
    pub fn read_mappings(&self, modules: &mut Modules) -> io::Result<Mappings> {
        let text = self.maps_text()?;
        let mappings = Mappings::resolve(self.pid, maps::parse(&text), modules);
        let settled = self.settled(&mappings, modules);
        Ok(mappings.with_settled(settled))
    }

    /// Reads all mappings, ascending. Lines that cannot be parsed are left out. Errors as for
    /// [`Target::read_mappings`].
    pub fn read_maps(&self) -> io::Result<Vec<maps::MapsEntry>> {
        let maps = maps_of(self.pid)?;
        self.check_runs()?;
        Ok(maps)
    }

    /// Reads the mappings by kind. `pointers` are stack pointers of its threads, ascending. Slow for
    /// processes of many gigabytes: the kernel visits every page. Errors as for [`Target::read_mappings`].
    pub fn read_divided(&self, pointers: &[Avma]) -> io::Result<Divided> {
        let known = Known {
            heaps: &[],
            stack_pointers: pointers,
        };
        let divided = Divided::read(self.pid, &known)?;
        self.check_runs()?;
        Ok(divided)
    }

    /// Reads memory that mappings do not show. Errors as for [`Target::read_mappings`].
    pub fn read_beside(&self, divided: &Divided) -> io::Result<Beside> {
        let beside = Beside::read(self.pid, divided, Effort::Report);
        self.check_runs()?;
        Ok(beside)
    }

    /// IDs of its threads, with the stack pointers of those that wait in the kernel.
    pub fn stack_pointers(&self) -> Vec<(u32, Option<Avma>)> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let ids = threads.into_iter().flatten().flatten().take(MAX_THREADS);
        let ids = ids.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        ids.map(|thread: u32| {
            let call = fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", self.pid));
            (thread, call.ok().and_then(|call| stack_pointer(&call)))
        })
        .collect()
    }

    /// Watches a JVM that starts up, whose library is among these mappings.
    ///
    /// # Errors
    ///
    /// `NotFound` if the process has ended; else the system's error.
    pub fn watch_jvm(&self, mappings: &Mappings, modules: &Modules) -> io::Result<JvmWatch> {
        let memory = ProcessMemory::open(self.pid)?;
        self.check_runs()?;
        JvmWatch::start(self.pid, hotspot::libraries(mappings, modules), memory)
    }

    fn maps_text(&self) -> io::Result<Vec<u8>> {
        let text = read_maps(self.pid)?;
        self.check_runs()?;
        Ok(text)
    }

    /// Fails if the process has ended. To be called after something was read by pid: success proves that it
    /// was read from this process and not from a successor.
    fn check_runs(&self) -> io::Result<()> {
        match self.has_exited() {
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("process {} has exited", self.pid),
            )),
            false => Ok(()),
        }
    }

    /// Finds the modules that cannot be unloaded, the loader, and a JVM's code. Leaves out modules whose
    /// memory differs from the file that was opened.
    fn settled(&self, mappings: &Mappings, modules: &Modules) -> Settled {
        let executable = fs::metadata(format!("/proc/{}/exe", self.pid))
            .ok()
            .and_then(|file| modules.of_file((file.dev(), file.ino())))
            .or_else(|| modules.in_memory(&self.exe));
        let mut settled = settled::settled(mappings, modules, executable);
        if settled.loader.is_none() {
            settled.loader = self.loader_by_path(modules, executable);
        }
        if let Ok(memory) = ProcessMemory::open(self.pid) {
            settled.different = confirm::different(mappings, modules, &memory);
            settled.jvm = hotspot::jvm_code(&hotspot::libraries(mappings, modules), &memory);
            settled
                .modules
                .retain(|module| !settled.different.contains(module));
        }
        settled
    }

    /// The loader, if it is mapped under another name than the program's `PT_INTERP`, as musl's is.
    fn loader_by_path(&self, modules: &Modules, executable: Option<ModuleId>) -> Option<ModuleId> {
        let path = modules.get(executable?)?.linking().interpreter.as_deref()?;
        let path = Some(Path::new(OsStr::from_bytes(path))).filter(|path| path.is_absolute())?;
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        modules.of_file(foreign::identity_in_root(&root, path).ok()?)
    }
}

/// Parses the stack pointer in `/proc/PID/task/TID/syscall`: the last word but one. A thread that runs has
/// none there.
fn stack_pointer(text: &str) -> Option<Avma> {
    let pointer = text.split_ascii_whitespace().rev().nth(1)?;
    let pointer = u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()?;
    Some(Avma::new(pointer))
}

/// Rejects threads: `/proc/TID` exists for every thread though it is not listed, and only a leader is a
/// process.
pub(super) fn check_leader(pid: u32) -> Result<(), TargetError> {
    let status = ProcFields::status(pid).map_err(|error| missing(pid, "status", error))?;
    let group = status.words("Tgid").next();
    match group.and_then(|leader| leader.parse().ok()) {
        Some(leader) if leader != pid => Err(TargetError::Thread {
            tid: pid,
            pid: leader,
        }),
        _ => Ok(()),
    }
}

/// Error for an executable that cannot be read, of a process that may be inspected.
fn unreadable(pid: u32, comm: &str, error: io::Error) -> TargetError {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return missing(pid, "exe", error);
    }
    let comm = comm.to_owned();
    match foreign::is_on_fuse(Path::new(&format!("/proc/{pid}/exe"))) {
        true => TargetError::FuseProgram { pid, comm },
        false => TargetError::UnreadableProgram { pid, comm },
    }
}

/// Checks that the executable can be read and is a 64-bit program.
fn check_program(pid: u32, comm: &str) -> Result<PathBuf, TargetError> {
    let denied = |file, error: io::Error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            TargetError::NoPermission {
                pid,
                comm: comm.to_owned(),
            }
        } else {
            missing(pid, file, error)
        }
    };
    let exe = fs::read_link(format!("/proc/{pid}/exe")).map_err(|error| denied("exe", error))?;
    File::open(format!("/proc/{pid}/maps")).map_err(|error| denied("maps", error))?;
    let header = program_header(pid, &exe).map_err(|error| unreadable(pid, comm, error))?;
    if is_64_bit(&header) {
        Ok(exe)
    } else {
        Err(TargetError::ThirtyTwoBit {
            pid,
            comm: comm.to_owned(),
        })
    }
}

/// Reads the start of a process's executable: from the file, or from memory if root cannot open the file.
fn program_header(pid: u32, exe: &Path) -> io::Result<[u8; 20]> {
    let mut header = [0; 20];
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let read = File::open(&link).and_then(|file| file.read_exact_at(&mut header, 0));
    match read {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && foreign::is_on_fuse(&link) => {
            let maps = maps_of(pid)?;
            let is_start = |entry: &&maps::MapsEntry| {
                let is_exe = matches!(&entry.name, maps::MapsName::File { path, .. } if path == exe);
                is_exe && entry.offset.get() == 0
            };
            let start = maps.iter().find(is_start).ok_or(error)?.range.start;
            ProcessMemory::open(pid)?.read_exact_at(&mut header, start)?;
        }
        read => read?,
    }
    Ok(header)
}

/// Checks `EI_CLASS` of an ELF header; x32 programs are of the 32-bit class too.
fn is_64_bit(header: &[u8]) -> bool {
    const CLASS_64: u8 = 2;
    header.starts_with(b"\x7fELF") && header.get(4) == Some(&CLASS_64)
}

fn missing(pid: u32, file: &'static str, error: io::Error) -> TargetError {
    let gone = error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
    if gone {
        TargetError::NoSuchProcess { pid }
    } else {
        TargetError::Proc { pid, file, error }
    }
}

#[cfg(test)]
mod tests;
