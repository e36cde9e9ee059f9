//! Registers of all threads of a process, read by a BPF task iterator: nothing is stopped, and nothing is
//! attached to the process. The object also has the iterators of `kept.rs`.

use std::io::{self, Read};
use std::mem::offset_of;
use std::ops::Range;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Iter, Link, Object};
use thiserror::Error;
use unwind_tables::addr::Avma;

use super::exceptions::Exceptions;
use super::kernel::Storage;
use super::load::pid_namespace;
use super::load_error::LoadError;
use super::refused::explained;
use super::registers_skeleton::types::thread_state;
use super::registers_skeleton::{RegistersSkel, RegistersSkelBuilder};

/// Maximum number of threads that are read: 26 MiB.
const MAX_THREADS: usize = 1 << 16;
/// Bytes of a thread's record.
const RECORD: usize = size_of::<thread_state>();

/// A thread and its state in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// ID in memleak's own pid namespace.
    pub tid: u32,
    /// True if it ran on a CPU while it was read: its registers are then those of its last entry into the
    /// kernel, and its current ones are not in memory.
    pub is_running: bool,
    /// Stack pointer.
    pub sp: Avma,
    /// Thread pointer: base of its thread-local storage.
    pub tp: Avma,
    /// Stack that signal handlers run on, if it has set one.
    pub alternate_stack: Option<Range<Avma>>,
    /// Words that can be pointers, without zeros: general registers, bases of thread-local storage, and
    /// addresses that the kernel keeps (alternate stack, list of robust futexes, places of the thread's id).
    /// Vector registers are not among them.
    pub words: Vec<u64>,
}

/// Reason why registers cannot be read, with the remedy.
#[derive(Debug, Error)]
pub enum RegistersError {
    #[error(
        "cannot load the iterator that reads registers: {0}; it takes the kernel's type information (BTF), CAP_BPF and CAP_PERFMON: \
         try sudo, or memleak doctor, which says what is missing"
    )]
    Load(#[source] LoadError),
    #[error("cannot read the registers of process {pid}: {error}; try again, or check that it still runs")]
    Read { pid: u32, error: io::Error },
    #[error("cannot read the registers of process {pid}: it has more than {MAX_THREADS} threads")]
    TooManyThreads { pid: u32 },
}

/// The loaded iterator, for any number of reads.
pub struct Registers<'obj> {
    skeleton: RegistersSkel<'obj>,
    link: Link,
    /// Iterators over what the kernel keeps for a process.
    kept: [Link; 2],
}

impl<'obj> Registers<'obj> {
    /// Loads the iterator.
    ///
    /// # Errors
    ///
    /// [`RegistersError::Load`]; nothing stays loaded.
    pub fn open(storage: &'obj mut Storage) -> Result<Self, RegistersError> {
        Self::load_but(storage, &Exceptions::default()).map_err(RegistersError::Load)
    }

    /// Loads the iterator with `exceptions`.
    pub(super) fn load_but(storage: &'obj mut Storage, exceptions: &Exceptions) -> Result<Self, LoadError> {
        let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
        let mut object = RegistersSkelBuilder::default().open(storage)?;
        let knobs = object.maps.rodata_data.as_deref_mut().ok_or_else(missing)?;
        knobs.pid_namespace = pid_namespace();
        exceptions.apply(object.open_object_mut())?;
        let skeleton = explained(|| object.load())?;
        let progs = &skeleton.progs;
        let link = progs.thread_registers.attach()?;
        let kept = [progs.kept_by_tasks.attach()?, progs.kept_by_files.attach()?];
        Ok(Self { skeleton, link, kept })
    }

    pub(super) fn kept_links(&self) -> &[Link] {
        &self.kept
    }

    /// Makes iterators that are read from now on report process `pid`.
    pub(super) fn ask_for(&mut self, pid: u32) -> io::Result<()> {
        let room = self.skeleton.maps.bss_data.as_deref_mut();
        room.ok_or(io::ErrorKind::NotFound)?.wanted_process = pid;
        Ok(())
    }

    /// The loaded object.
    pub(super) fn object(&self) -> &Object {
        self.skeleton.object()
    }

    /// Reads the threads of process `pid`, an id in memleak's own pid namespace. Threads that began meanwhile
    /// can be missing; on AArch64, threads of 32-bit code always are. Empty if the process is gone.
    ///
    /// # Errors
    ///
    /// Errors of the kernel, or too many threads.
    pub fn read(&mut self, pid: u32) -> Result<Vec<ThreadState>, RegistersError> {
        let failed = |error| RegistersError::Read { pid, error };
        self.ask_for(pid).map_err(failed)?;
        let iterator = Iter::new(&self.link).map_err(|error| failed(io::Error::other(error)))?;
        let bytes = read_up_to(iterator, MAX_THREADS * RECORD).map_err(failed)?;
        if bytes.len() > MAX_THREADS * RECORD {
            return Err(RegistersError::TooManyThreads { pid });
        }
        Ok(bytes.chunks_exact(RECORD).map(parse).collect())
    }
}

/// Reads to the end, or until it is more than `most` bytes.
pub(super) fn read_up_to(mut iterator: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 1 << 16];
    while bytes.len() <= most {
        match iterator.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => bytes.extend(piece.iter().take(length)),
            // The kernel passed over a million tasks of other processes: the next read continues from there.
            Err(error) if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock].contains(&error.kind()) => {
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// The word at an offset of a record; 0 if that is outside.
pub(super) fn word_at(record: &[u8], offset: usize) -> u64 {
    let bytes = record.get(offset..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(bytes.copied().unwrap_or_default())
}

/// The half word at an offset of a record; 0 if that is outside.
pub(super) fn half_at(record: &[u8], offset: usize) -> u32 {
    let bytes = record.get(offset..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(bytes.copied().unwrap_or_default())
}

/// Parses a `struct thread_state`.
fn parse(record: &[u8]) -> ThreadState {
    let word = |offset| word_at(record, offset);
    let half = |offset| half_at(record, offset);
    let stack = word(offset_of!(thread_state, alternate_stack));
    let stack_end = stack.saturating_add(word(offset_of!(thread_state, alternate_stack_bytes)));
    let registers = (offset_of!(thread_state, registers)..RECORD).step_by(8).map(word);
    ThreadState {
        tid: half(offset_of!(thread_state, tid)),
        is_running: half(offset_of!(thread_state, is_running)) != 0,
        sp: Avma::new(word(offset_of!(thread_state, sp))),
        tp: Avma::new(word(offset_of!(thread_state, thread_pointers))),
        alternate_stack: (stack_end > stack).then(|| Avma::new(stack)..Avma::new(stack_end)),
        words: [stack]
            .into_iter()
            .chain(registers)
            .filter(|&word| word != 0)
            .collect(),
    }
}
