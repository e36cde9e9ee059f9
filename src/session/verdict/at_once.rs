//! A verdict on a process whose threads are stopped while its memory is copied: one pass over the copy is
//! enough.

use std::collections::HashSet;
use std::io;
use std::thread::sleep;
use std::time::Instant;

use super::subject::{Listed, Outside, Seen, Subject};
use crate::base::proc_fields::ProcFields;
use crate::bpf::Registers;
use crate::bpf::collect::Moment;
use crate::process::halt::{CannotHalt, Halt};
use crate::process::maps::MapsEntry;
use crate::process::maps_of;
use crate::reach::copy::{Copy, Room};
use crate::reach::heap::Block;
use crate::reach::reader::Reader;

/// Attempts to copy the memory while none of the threads that wait in the kernel begins to run.
const ATTEMPTS: u32 = 5;
/// Share of the available memory that a copy may take, in percent.
const MOST: u64 = 80;

/// Result of one attempt.
enum Attempt {
    /// Nothing ran.
    Complete,
    /// A thread that waited in the kernel began to run.
    Woken,
}

impl Subject {
    /// Makes a verdict from a copy. If that fails, passes are needed as if it had not been tried.
    ///
    /// `list` returns the outstanding blocks. Holders are looked for until `deadline`.
    pub(super) fn judge_at_once(
        &mut self,
        list: &mut dyn FnMut() -> io::Result<Listed>,
        mut registers: Option<&mut Registers<'_>>,
        deadline: Instant,
    ) {
        if !self.needs_more() || self.is_still() {
            return;
        }
        let mut attempts = 0..ATTEMPTS;
        let failure = loop {
            if attempts.next().is_none() {
                break "threads that waited began to run during each copy".to_owned();
            }
            match self.attempt(list, registers.as_deref_mut(), deadline) {
                Ok(Attempt::Complete) => return,
                Ok(Attempt::Woken) if self.needs_more() => {}
                Ok(Attempt::Woken) => return,
                Err(error) => break error.to_string(),
            }
        };
        tracing::warn!("process {} is judged without stopping it: {failure}", self.pid());
    }

    fn attempt(
        &mut self,
        list: &mut dyn FnMut() -> io::Result<Listed>,
        registers: Option<&mut Registers<'_>>,
        deadline: Instant,
    ) -> Result<Attempt, CannotHalt> {
        let pid = self.pid();
        let halt = Halt::prepare(pid)?;
        let room = self.make_room()?;
        let before = list()?.blocks;
        let halt = halt.stop()?;
        let copied = self.copy(room, registers);
        let is_complete = halt.is_complete();
        let words = halt.words().to_vec();
        let stopped = halt.end();
        self.was_stopped(stopped);
        match stopped {
            Some(time) => tracing::info!(
                "threads of process {pid} were stopped for {:.1} ms",
                time.as_secs_f64() * 1e3
            ),
            None => tracing::info!("no thread of process {pid} ran, none was stopped"),
        }
        let (copy, mappings, mut outside) = copied?;
        let in_copy = self.list_in_copy(&copy, &mappings);
        let is_of_copy = in_copy.is_some();
        // Listed again: every block that was in use in the copy is listed now, or was freed after this
        // verdict began. Only then do notes on freed memory hold for the copy, which is looked at once. The
        // pause lets a call end that was stopped midway, such as a realloc that had moved its block.
        sleep(Moment::PRECISION);
        let after = list()?;
        outside.vectors = words;
        let seen = Seen {
            memory: &copy,
            pages: copy.pages(),
            mappings: &mappings,
            outside: &outside,
            freed: self.freed(&after, &mappings),
        };
        self.look(in_copy.unwrap_or(before), &seen, is_complete, deadline);
        // Drop blocks that were freed between the listing and the stop.
        if !is_of_copy {
            let after: HashSet<_> = after.blocks.iter().map(Block::identity).collect();
            self.retain_lost(|block| after.contains(&block.identity()));
        }
        self.check()?;
        Ok(match is_complete {
            true => Attempt::Complete,
            false => Attempt::Woken,
        })
    }

    /// Copies all data that a verdict needs.
    fn copy(
        &mut self,
        room: Room,
        registers: Option<&mut Registers<'_>>,
    ) -> io::Result<(Copy, Vec<MapsEntry>, Outside)> {
        let mappings = maps_of(self.pid())?;
        let reader = Reader::new(self.pid(), self.pages(&mappings)?);
        let outside = Outside::read(self.pid(), registers)?;
        let (copy, unreadable) = Copy::of(reader, room);
        self.has_read(copy.pages().bytes(), unreadable);
        Ok((copy, mappings, outside))
    }

    /// Allocates room for a copy, and logs how long the copy will take.
    fn make_room(&self) -> io::Result<Room> {
        let pages = self.pages(&maps_of(self.pid())?)?;
        let memory = ProcFields::read("/proc/meminfo")?;
        let available = memory.number("MemAvailable").unwrap_or(0).saturating_mul(1024);
        let mut room = Room::new(&pages, available / 100 * MOST)?;
        let time = room.expected_time(&Reader::new(self.pid(), pages));
        tracing::info!(
            "stopping the running threads of process {} for some {:.0} ms",
            self.pid(),
            time.as_secs_f64() * 1e3
        );
        Ok(room)
    }
}
