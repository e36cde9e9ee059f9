//! Stops the running threads of a process, for a moment. Threads that wait in the kernel are left alone: a
//! stop would make some of their calls, such as `epoll_wait`, fail with EINTR.
//!
//! A helper process traces them (`ptrace(2)`, `PTRACE_SEIZE` and `PTRACE_INTERRUPT`). If the helper or
//! memleak ends, in whatever way, the kernel resumes them. Nothing in the process is written.
#![allow(unsafe_code, reason = "a request of ptrace that no library knows")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use thiserror::Error;

use super::files::{MAX_THREADS, read_stat};
use memleak_base::helper::{self, close_gaps, gaps_between};
use memleak_base::proc_fields::ProcFields;

/// Maximum number of attempts to find no thread running. Each first stops those that run.
const ROUNDS: u32 = 32;
/// Time to wait for a thread to stop; one that waits for a disk cannot at once.
const STOP_TIME: Duration = Duration::from_millis(500);
/// Pause between two checks whether a thread has stopped.
const PAUSE: Duration = Duration::from_micros(20);
/// Maximum bytes of a thread's vector registers: those of AVX-512 and AMX have some 11 KiB.
const MAX_VECTORS: usize = 16 << 10;

/// A process whose running threads are stopped, until this is dropped.
#[derive(Debug)]
pub struct Halt {
    pid: u32,
    helper: Pid,
    /// Connection to the helper, which resumes the threads when it is closed.
    channel: Option<UnixStream>,
    /// Threads that were left alone, each with its number of context switches.
    waiting: BTreeMap<u32, u64>,
    /// Words of the stopped threads' vector registers, without zeros.
    words: Vec<u64>,
    /// Number of threads that are stopped.
    stopped: u64,
    since: Instant,
}

/// Reason why the threads of a process were not stopped. They continue to run.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CannotHalt {
    #[error("process {0} is already tracing it, as a debugger does")]
    Traced(u64),
    #[error("the kernel refuses: {0} (CAP_SYS_PTRACE is needed)")]
    Refused(Errno),
    #[error("in every attempt, some of its threads did not stop, or others began to run")]
    Restless,
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for CannotHalt {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Halt {
    /// Prepares to stop the threads of process `pid`. Memory that was allocated before this is slow to write
    /// to at first: the helper is a fork, which shares it.
    ///
    /// # Errors
    ///
    /// A [`CannotHalt`]; nothing was stopped.
    pub fn prepare(pid: u32) -> Result<Self, CannotHalt> {
        if let Some(tracer) = tracer(pid)? {
            return Err(CannotHalt::Traced(tracer));
        }
        let (ours, theirs) = UnixStream::pair()?;
        let gaps = gaps_between(vec![theirs.as_raw_fd()]);
        let helper = helper::start(|| {
            close_gaps(&gaps);
            hold_until_told(pid, &theirs);
        });
        drop(theirs);
        Ok(Self {
            pid,
            helper: helper.ok_or_else(|| CannotHalt::Failed("no process can be started".to_owned()))?,
            channel: Some(ours),
            waiting: BTreeMap::new(),
            words: Vec::new(),
            stopped: 0,
            since: Instant::now(),
        })
    }

    /// Stops the threads that run.
    ///
    /// # Errors
    ///
    /// A [`CannotHalt`]; threads that were stopped are resumed.
    pub fn stop(mut self) -> Result<Self, CannotHalt> {
        self.since = Instant::now();
        for _ in 0..ROUNDS {
            self.ask()?;
            if let Some(waiting) = waiting(self.pid)? {
                self.waiting = waiting;
                return Ok(self);
            }
        }
        Err(CannotHalt::Restless)
    }

    /// Makes the helper stop the threads that run now.
    fn ask(&mut self) -> Result<(), CannotHalt> {
        let Some(channel) = &mut self.channel else {
            return Err(CannotHalt::Restless);
        };
        channel.write_all(&[1])?;
        let mut word = || {
            let mut bytes = [0; 8];
            channel.read_exact(&mut bytes)?;
            Ok::<_, io::Error>(u64::from_ne_bytes(bytes))
        };
        match word()? {
            0 => {}
            ETIMEDOUT => return Err(CannotHalt::Restless),
            errno => {
                return Err(CannotHalt::Refused(Errno::from_raw(
                    errno.try_into().unwrap_or(0),
                )));
            }
        }
        self.stopped = word()?;
        for _ in 0..word()? {
            self.words.push(word()?);
        }
        Ok(())
    }

    /// Words of the stopped threads' vector registers, without zeros.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns true if no thread of the process has run since the stop: none of those that were left alone.
    pub fn is_complete(&self) -> bool {
        waiting(self.pid).is_ok_and(|now| now.as_ref() == Some(&self.waiting))
    }

    /// Resumes the threads. Returns an upper bound of the time that the first of them was stopped; `None` if
    /// none was.
    pub fn end(self) -> Option<Duration> {
        let (since, stopped) = (self.since, self.stopped);
        drop(self);
        (stopped > 0).then(|| since.elapsed())
    }
}

impl Drop for Halt {
    fn drop(&mut self) {
        drop(self.channel.take());
        // The pid cannot have been reused before this call.
        _ = waitpid(self.helper, None);
    }
}

const ETIMEDOUT: u64 = libc::ETIMEDOUT as u64;

/// Threads of process `pid` that still exist, each with its status.
fn threads(pid: u32) -> io::Result<impl Iterator<Item = (u32, ProcFields)>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?.take(MAX_THREADS);
    Ok(entries.filter_map(move |entry| {
        let entry = entry.ok()?;
        let tid = entry.file_name().to_str()?.parse().ok()?;
        let status = ProcFields::read(entry.path().join("status")).ok()?;
        Some((tid, status))
    }))
}

/// The process that traces a thread of process `pid`.
fn tracer(pid: u32) -> io::Result<Option<u64>> {
    let mut tracers = threads(pid)?.filter_map(|(_, status)| status.number("TracerPid"));
    Ok(tracers.find(|&tracer| tracer != 0))
}

/// Threads that are not traced, each with its number of context switches; `None` if one of them runs.
///
/// If a thread waits when its state is read, and its number of switches is the same before and after that,
/// and the same at another such moment, the thread has not run between the two moments.
fn waiting(pid: u32) -> io::Result<Option<BTreeMap<u32, u64>>> {
    let switches = |status: &ProcFields| {
        let voluntary = status.number("voluntary_ctxt_switches")?;
        Some(voluntary + status.number("nonvoluntary_ctxt_switches")?)
    };
    let mut waiting = BTreeMap::new();
    for (tid, before) in threads(pid)? {
        match state(pid, tid) {
            Some(b'R') => return Ok(None),
            Some(b't' | b'Z' | b'X') | None => {}
            Some(_) => {
                let after = ProcFields::read(format!("/proc/{pid}/task/{tid}/status"))?;
                let both = (switches(&before), switches(&after));
                let (Some(before), Some(after)) = both else {
                    return Ok(None);
                };
                if before != after {
                    return Ok(None);
                }
                waiting.insert(tid, after);
            }
        }
    }
    Ok(Some(waiting))
}

fn state(pid: u32, tid: u32) -> Option<u8> {
    let stat = File::open(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    Some(read_stat(&stat).ok()?.state)
}

/// Runs in the helper: for each byte, stops the threads that run and answers; when the channel is closed,
/// resumes all.
fn hold_until_told(pid: u32, mut channel: &UnixStream) {
    let mut stopped = Vec::new();
    let mut tried = BTreeSet::new();
    let mut byte = [0];
    while channel.read_exact(&mut byte).is_ok() {
        let before = stopped.len();
        let answer = stop_running(pid, &mut stopped, &mut tried);
        let errno = answer.err().map_or(0, |error| error as u64);
        let new = stopped.iter().skip(before);
        let words: Vec<_> = new.flat_map(|&(tid, _)| vectors(tid)).collect();
        let counts = [errno, stopped.len() as u64, words.len() as u64];
        let message = counts.into_iter().chain(words);
        let message = message.take(if errno == 0 { usize::MAX } else { 1 });
        let bytes: Vec<u8> = message.flat_map(u64::to_ne_bytes).collect();
        if channel.write_all(&bytes).is_err() {
            break;
        }
    }
    for (tid, signal) in stopped {
        _ = ptrace::detach(tid, signal);
    }
}

/// Stops each thread that runs, and adds it to `stopped` with the signal that it was about to take. `tried`
/// are the threads that were asked to stop.
fn stop_running(
    pid: u32,
    stopped: &mut Vec<(Pid, Option<Signal>)>,
    tried: &mut BTreeSet<u32>,
) -> nix::Result<()> {
    for _ in 0..ROUNDS {
        let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Errno::ESRCH)?;
        let tids = entries
            .take(MAX_THREADS)
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let runs = |tid: &u32| !tried.contains(tid) && state(pid, *tid) == Some(b'R');
        let running: Vec<u32> = tids.filter(runs).collect();
        if running.is_empty() {
            return Ok(());
        }
        let mut told = Vec::new();
        for tid in running {
            let thread = Pid::from_raw(tid.try_into().unwrap_or(-1));
            let asked =
                ptrace::seize(thread, ptrace::Options::empty()).and_then(|()| ptrace::interrupt(thread));
            match asked {
                Ok(()) => {
                    tried.insert(tid);
                    told.push(thread);
                }
                // It has ended.
                Err(Errno::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        // All threads are asked to stop before the first is waited for.
        let until = Instant::now() + STOP_TIME;
        for thread in told {
            stopped.extend(wait_for_stop(thread, until)?);
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// Waits until a thread has stopped; `None` if it ended. It may have stopped for a signal, which it takes
/// when it is resumed.
fn wait_for_stop(thread: Pid, until: Instant) -> nix::Result<Option<(Pid, Option<Signal>)>> {
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < until => sleep(PAUSE),
            Ok(WaitStatus::StillAlive) => return Err(Errno::ETIMEDOUT),
            Ok(WaitStatus::Stopped(_, signal)) => return Ok(Some((thread, Some(signal)))),
            Ok(WaitStatus::PtraceEvent(..) | WaitStatus::PtraceSyscall(_) | WaitStatus::Continued(_)) => {
                return Ok(Some((thread, None)));
            }
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Register sets that hold a thread's vector registers (`NT_X86_XSTATE`; `NT_PRFPREG`, `NT_ARM_SVE` of the
/// kernel's `include/uapi/linux/elf.h`).
#[cfg(target_arch = "x86_64")]
const VECTOR_SETS: &[i32] = &[0x202];
#[cfg(not(target_arch = "x86_64"))]
const VECTOR_SETS: &[i32] = &[2, 0x405];

/// Words of a stopped thread's vector registers, without zeros. A block can move through them while its old
/// place is overwritten.
fn vectors(thread: Pid) -> Vec<u64> {
    let mut words = Vec::new();
    for &set in VECTOR_SETS {
        let mut bytes = vec![0_u8; MAX_VECTORS];
        let mut vector = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel writes at most `iov_len` bytes, and sets `iov_len` to the number written.
        let read = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, thread.as_raw(), set, &raw mut vector) };
        if read == 0 {
            let (chunks, _) = bytes[..vector.iov_len.min(MAX_VECTORS)].as_chunks();
            words.extend(chunks.iter().map(|word| u64::from_ne_bytes(*word)));
        }
    }
    words.retain(|&word| word != 0);
    words
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program that loops or waits; ended when dropped.
    struct Program(Child);

    impl Program {
        fn start(script: &str) -> Self {
            // Once it prints a line, it has been loaded.
            let script = format!("$| = 1; print qq(\\n); {script}");
            let mut command = Command::new("perl");
            command.args(["-e", &script]).stdout(Stdio::piped());
            let mut child = command.spawn().expect("perl is there");
            let line = child.stdout.as_mut().expect("it was piped").read_exact(&mut [0]);
            line.expect("it says a line");
            Self(child)
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }

        fn state(&self) -> u8 {
            state(self.pid(), self.pid()).expect("it runs")
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            _ = self.0.kill();
            _ = self.0.wait();
        }
    }

    fn halted(pid: u32) -> Result<Halt, CannotHalt> {
        Halt::prepare(pid)?.stop()
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < until, "it does not come to this");
            sleep(Duration::from_millis(1));
        }
    }

    /// A running thread is stopped, and continues afterwards; while it is stopped, a second halt is refused.
    #[test]
    fn a_running_thread() {
        let program = Program::start("1 while 1");
        wait_until(|| program.state() == b'R');
        let halt = halted(program.pid()).expect("ours");
        assert_eq!(program.state(), b't');
        assert!(halt.is_complete() && halt.waiting.is_empty());
        let refused = halted(program.pid()).expect_err("it is traced");
        assert!(matches!(refused, CannotHalt::Traced(_)), "{refused}");
        assert!(halt.end().is_some());
        wait_until(|| program.state() == b'R');
    }

    /// A waiting thread is left alone, and it is noticed if it runs.
    #[test]
    fn a_waiting_thread() {
        let program = Program::start("$SIG{USR1} = sub {}; sleep 1000 while 1");
        wait_until(|| program.state() == b'S');
        let halt = halted(program.pid()).expect("ours");
        assert_eq!(program.state(), b'S');
        assert!(halt.is_complete() && halt.waiting.len() == 1 && halt.words().is_empty());
        let pid = Pid::from_raw(program.pid().try_into().expect("small"));
        nix::sys::signal::kill(pid, Signal::SIGUSR1).expect("ours");
        wait_until(|| !halt.is_complete());
        assert_eq!(halt.end(), None);
    }

    /// A thread continues if the helper that stopped it is killed.
    #[test]
    fn the_helper_is_killed() {
        let program = Program::start("1 while 1");
        wait_until(|| program.state() == b'R');
        let halt = halted(program.pid()).expect("ours");
        nix::sys::signal::kill(halt.helper, Signal::SIGKILL).expect("ours");
        wait_until(|| program.state() == b'R');
        assert!(!halt.is_complete());
    }

    /// A process that is gone is an error.
    #[test]
    fn gone() {
        assert!(matches!(halted(1 << 30), Err(CannotHalt::Failed(_))));
    }
}
