//! Finishes walks in user space that met code whose table was not in the kernel yet.
//!
//! The kernel side sends everything that such a walk depends on, with a copy of the stack. Here the walk is
//! repeated from its beginning, by the reference walker and with the mappings of that moment, which the
//! kernel's log of code mappings tells: an object may have come and gone meanwhile. The first frames must be
//! those that were found in the kernel; if not, the stack stays as it was found there.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;
use unwind_tables::architecture::Architecture;
use unwind_tables::mapping::{Identity, Mapping};
use unwind_tables::walk::{End, Frame, LeftOut, ReturnProbes, Stack, Tables, walk_linked};

use super::code_over_time::{Known, LastList};
use super::live::Live;
use super::process::Process;
use crate::bpf::collect::DeferredWalk;
use crate::bpf::{FinishedStack, monotonic_nanoseconds};
use crate::process::{GeneratedCode, MappedCode, Mappings, Modules, Target};

/// Time for which walks are finished before other work has its turn.
const AT_ONCE: Duration = Duration::from_millis(3);
/// Extra time that a report gives to walks that arrive while it is made.
const FOR_LATER: Duration = Duration::from_millis(500);
/// Minimum pause between two searches for stand-ins that can be reused.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of attempts at a walk that needs saves which are not loaded yet.
const MAX_TRIES: usize = 4;
/// Returns whether this memory for generated code is among the mappings.
fn has_generated(mappings: &Mappings, range: &Range<Avma>) -> bool {
    let entry = mappings.find(range.start);
    entry.is_some_and(|entry| entry.code.is_generated() && range.end <= entry.range.end)
}

impl Live<'_> {
    /// Finishes received walks for some milliseconds. If there are more, returns the time until the next
    /// call: reloads of mappings that are due come first, since they keep walks from being sent.
    pub(super) fn finish_some_walks(&mut self) -> anyhow::Result<Option<Duration>> {
        self.finish_walks(Some(Instant::now() + AT_ONCE))?;
        Ok((!self.over_time.waiting.is_empty()).then_some(Duration::ZERO))
    }

    /// Finishes walks that were received, until a deadline if there is one. Returns when the first of them
    /// was sent, if there were any.
    fn finish_walks(&mut self, deadline: Option<Instant>) -> anyhow::Result<Option<u64>> {
        let received = self.walks.take().context("cannot receive walks")?;
        // Mappings that a walk has met were logged before it was sent.
        let lost = self
            .over_time
            .note_changes(self.code.modules_mut(), self.asked.follows_children);
        if lost {
            tracing::debug!("changes of code were not logged");
        }
        let generated = self.over_time.that_generate(Instant::now());
        for process in self.roster.running_mut() {
            let pid = process.facts.pid;
            let mut own = generated.iter().filter(|(of, _)| *of == pid);
            if lost || own.any(|(_, range)| !has_generated(&process.mappings, range)) {
                process.reloads.demand();
            }
        }
        self.over_time.waiting.extend(received);
        self.over_time
            .waiting
            .sort_unstable_by_key(|walk| Reverse(walk.at));
        self.over_time.note_watched();
        self.read_jvms()?;
        let first = self.over_time.waiting.last().map(|walk| walk.at);
        while deadline.is_none_or(|deadline| Instant::now() < deadline)
            && let Some(walk) = self.over_time.waiting.pop()
        {
            let found = self.found_stack(&walk)?;
            let has_tables = |stack: &FinishedStack| stack.end != End::TableNotLoaded;
            let is_finished = found.as_ref().is_some_and(has_tables);
            let stack = found.unwrap_or_else(|| as_found_in_the_kernel(&walk));
            self.kernel.recorded.note_found(walk.stand_in, stack, is_finished);
        }
        if self.over_time.waiting.is_empty() {
            let live = self.roster.running();
            let pids: Vec<u32> = live.map(|process| process.facts.pid).collect();
            self.over_time.forget(|pid| pids.contains(&pid));
        }
        Ok(first)
    }

    /// Reads the code of each JVM that starts up, if walks were sent since it was last read: the JVM
    /// describes code before running it.
    fn read_jvms(&mut self) -> anyhow::Result<()> {
        let is_due = |number, process: &Process| {
            let known = self.over_time.timelines.get(&process.facts.pid);
            let read_at = known.map_or(0, |known| known.read_at);
            let mut of_it = self
                .over_time
                .waiting
                .iter()
                .filter(|walk| walk.instance == number);
            process.begins_jvm && of_it.any(|walk| walk.at > read_at)
        };
        for number in self.roster.running_that(is_due) {
            self.reload_and_attach(number)?;
        }
        Ok(())
    }

    /// Finishes all walks that were sent by now and, for up to [`FOR_LATER`], those that are sent meanwhile:
    /// a program that keeps mapping code must not hold up a report.
    pub(super) fn finish_all_walks(&mut self) -> anyhow::Result<()> {
        let (now, deadline) = (monotonic_nanoseconds(), Instant::now() + FOR_LATER);
        self.observe()?;
        while let Some(first) = self.finish_walks(None)? {
            if first > now {
                if Instant::now() >= deadline {
                    break;
                }
                // As long as the code that they meet is not published, all walks through it are sent.
                self.reload_all()?;
            }
        }
        Ok(())
    }

    /// Repeats a walk; `None` if that is impossible, or if it does not find the kernel's frames.
    fn found_stack(&mut self, walk: &DeferredWalk) -> anyhow::Result<Option<FinishedStack>> {
        if !self.roster.contains(walk.instance) {
            self.observe()?;
        }
        let Some(process) = self.roster.get(walk.instance) else {
            return Ok(None);
        };
        let known = self.over_time.timelines.get_mut(&process.facts.pid);
        let Some(mappings) = known.and_then(|known| known.timeline.at(walk.at)) else {
            return Ok(None);
        };
        let mut stack = self.walk_again(walk, &mappings)?;
        for _ in 1..MAX_TRIES {
            let Some(address) = stack.saves_wanted else {
                break;
            };
            if !self.provide_saves_in(&mappings, address)? {
                break;
            }
            stack = self.walk_again(walk, &mappings)?;
        }
        let known = walk.frames.len();
        if stack.frames.get(..known) != Some(&walk.frames[..]) || stack.depth() < walk.frame_count {
            tracing::debug!("a walk in user space differs from the kernel's: {stack:?}, {walk:?}");
            return Ok(None);
        }
        let Some(process) = self.roster.get_mut(walk.instance) else {
            return Ok(None);
        };
        let looked_up = |frame: &Frame| frame.pc.wrapping_sub(u64::from(!frame.exact));
        let addresses: Vec<Avma> = stack.frames.iter().map(looked_up).collect();
        let epoch = process.history.epoch_with(&mappings, &addresses);
        let epoch = epoch.unwrap_or_else(|| {
            process.history.add(&mappings);
            process.history.current()
        });
        Ok(Some(FinishedStack {
            instance: walk.instance,
            epoch,
            function: walk.function,
            python: walk.python,
            frames: stack.frames,
            left_out: stack.left_out,
            end: stack.end,
            end_pc: stack.end_pc,
        }))
    }

    /// Code of a walk's process over time.
    fn known_of(&self, walk: &DeferredWalk) -> Option<&Known> {
        let process = self.roster.get(walk.instance)?;
        self.over_time.timelines.get(&process.facts.pid)
    }

    /// Repeats a walk with the mappings of its moment and the present tables.
    fn walk_again(&mut self, walk: &DeferredWalk, mappings: &Arc<Mappings>) -> anyhow::Result<Stack> {
        let stored = self.kernel.tables.stored();
        let jvm = self.known_of(walk).map(|known| &known.jvm);
        let jvm = jvm
            .filter(|jvm| jvm.keeps_frame_pointers)
            .unwrap_or(mappings.jvm())
            .clone();
        let is_last = |last: &LastList| {
            Arc::ptr_eq(&last.mappings, mappings) && last.jvm == jvm && last.stored == stored
        };
        if !self.over_time.last.as_ref().is_some_and(is_last) {
            self.code
                .provide_tables(mappings, &self.roster, &mut self.kernel)?;
            let list = self.code.kernel_mappings(mappings, &jvm);
            // No need to verify them: they are known to have been there.
            let list = list.into_iter().map(|mapping| Mapping {
                identity: Identity::SETTLED,
                ..mapping
            });
            self.over_time.last = Some(LastList {
                mappings: Arc::clone(mappings),
                list: list.collect(),
                jvm,
                stored: self.kernel.tables.stored(),
            });
        }
        let list = self.over_time.last.as_ref().map_or(&[][..], |last| &last.list);
        let tables = Tables {
            architecture: Architecture::HOST,
            words: self.kernel.tables.words(),
            mappings: list,
            unwind: self.code.unwind(),
            changing: false,
            return_probes: ReturnProbes {
                trampoline: walk.trampoline,
                replaced: &walk.replaced,
            },
        };
        let process = self.roster.get(walk.instance);
        let written = Written {
            target: process.and_then(|process| process.target.as_ref()),
            copy: self.known_of(walk).map(|known| &known.generated),
        };
        let mut is_beyond = false;
        let stack = walk_linked(tables, walk.start, walk.link, |at| {
            let word = walk.stack.word(at);
            let word = word.or_else(|| code_word(mappings, self.code.modules(), &written, at));
            is_beyond = word.is_none() && at >= walk.stack.end();
            word
        });
        Ok(match is_beyond && stack.end != End::Complete {
            true => Stack {
                end: End::BeyondCopy,
                ..stack
            },
            false => stack,
        })
    }

    /// Provides the saves of an object at an address. Returns whether there are some.
    fn provide_saves_in(&mut self, mappings: &Mappings, address: Avma) -> anyhow::Result<bool> {
        let Some(&MappedCode::Module { module, .. }) = mappings.find(address).map(|entry| &entry.code) else {
            return Ok(false);
        };
        let more = Some(mappings);
        self.code
            .provide_saves(module, more, &self.roster, &mut self.kernel)
    }

    /// Calls [`Live::give_back_stand_ins`], unless the pause since the last call is not over.
    pub(super) fn give_back_when_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let not_before = self.over_time.give_back_not_before;
        if not_before.is_none_or(|not_before| not_before <= now) {
            self.give_back_stand_ins()?;
            self.over_time.give_back_not_before = Some(now + PAUSE);
        }
        Ok(())
    }

    /// Gives back stand-ins whose blocks were freed or forgotten; not to be called while blocks are read.
    /// Does nothing if stand-ins may be referred to later: by traced calls, mappings or pages.
    pub(super) fn give_back_stand_ins(&self) -> anyhow::Result<()> {
        if !self.accounting.probes_allocators() || self.asked.traces_calls {
            return Ok(());
        }
        let is_forgotten = |instance| self.lifecycle.forgotten.contains(&instance);
        let given = self
            .kernel
            .recorded
            .give_back(&self.kernel.stand_ins, is_forgotten);
        given.context("cannot reuse stack records")
    }
}

/// Result for a walk that cannot be finished: the first of the frames found in the kernel, and the end there.
fn as_found_in_the_kernel(walk: &DeferredWalk) -> FinishedStack {
    let number = |frames: usize| u32::try_from(frames).unwrap_or(u32::MAX);
    let sent = walk.frames.len();
    let left_out = (walk.frame_count > sent).then(|| LeftOut {
        after: number(sent),
        frames: number(walk.frame_count - sent),
    });
    FinishedStack {
        instance: walk.instance,
        epoch: walk.epoch,
        function: walk.function,
        python: walk.python,
        frames: walk.frames.clone(),
        left_out,
        end: walk.end,
        end_pc: walk.end_pc,
    }
}

/// Sources of code that a program has generated: its memory, and the copy of it.
struct Written<'a> {
    target: Option<&'a Target>,
    copy: Option<&'a GeneratedCode>,
}

impl Written<'_> {
    fn word(&self, at: Avma) -> Option<u64> {
        let word = self.target.and_then(|target| target.read_word(at).ok());
        word.or_else(|| self.copy?.word(at))
    }
}

/// Reads the 8 bytes of code at an address: of an object from its file, as it may no longer be mapped; of
/// generated code from the program's memory, or from a copy once the program has ended.
fn code_word(mappings: &Mappings, modules: &Modules, written: &Written<'_>, at: Avma) -> Option<u64> {
    match mappings.find(at)?.code {
        MappedCode::Module { module, bias } => {
            let (svma, module) = (bias.to_svma(at), modules.get(module)?);
            let segment = module.code().find(|segment| segment.svma.contains(&svma))?;
            let offset = segment
                .offset
                .start
                .wrapping_add(svma.offset_from(segment.svma.start));
            let code = module.bytes().get(usize::try_from(offset.get()).ok()?..)?;
            Some(u64::from_ne_bytes(*code.first_chunk()?))
        }
        MappedCode::Generated { .. } => written.word(at),
        MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    }
}
