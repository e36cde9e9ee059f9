//! From a report to the chunks that hold it. `decode` is the way back.
//!
//! Everything that is taken apart is taken apart whole: a field that is new in a report and not recorded does not
//! compile.

use std::collections::BTreeMap;
use std::sync::Arc;

use unwind_tables::walk::Unwind;

use super::blocks;
use super::chunk::{self, Kind, TooLarge};
use super::define::Definer;
use super::schema::{self, List, MOST_FRAMES, MOST_STACKS, STACKS_IN_CHUNK, Word};
use crate::model::leak::{Completeness, EndGroup, ModuleSteps};
use crate::model::{AGE_BOUNDS, InstanceEnd, Losses, Overhead, ProbeProgram, Sampling, Spent};
use crate::model::{
    Compared, KernelFacts, KindTotals, Measure, ModuleFacts, Quantity, Report, Stack, StackRecent,
    TargetFacts, unix_nanoseconds,
};

/// A report in chunks.
pub(super) struct Encoded {
    /// What this report and later ones refer to; must be written whether the report is or not.
    pub(super) definitions: Vec<u8>,
    /// The report.
    pub(super) report: Vec<u8>,
}

/// Encodes one report after another.
#[derive(Default)]
pub(super) struct Encoder {
    definer: Definer,
}

impl Encoder {
    pub(super) fn encode(&mut self, number: u64, report: &Report) -> Result<Encoded, TooLarge> {
        let frames: usize = report.stacks.iter().map(|stack| stack.frames.len()).sum();
        if report.stacks.len() > MOST_STACKS || frames > MOST_FRAMES {
            return Err(TooLarge);
        }
        self.definer.begin_report();
        let mut chunks = Vec::new();
        for part in report.stacks.chunks(STACKS_IN_CHUNK) {
            let amounts: List<_, STACKS_IN_CHUNK> = part.iter().map(|stack| self.amounts(stack)).collect();
            chunks.extend(chunk::encode(Kind::Amounts, &amounts)?);
        }
        for part in blocks::parts(&report.stacks)? {
            chunks.extend(chunk::encode(Kind::Blocks, &part)?);
        }
        chunks.extend(chunk::encode(Kind::Report, &self.report(number, report))?);
        let mut definitions = Vec::new();
        for piece in self.definer.take_new()? {
            definitions.extend(chunk::encode(Kind::Definitions, &piece)?);
        }
        Ok(Encoded {
            definitions,
            report: chunks,
        })
    }

    fn amounts(&mut self, stack: &Stack) -> schema::Amounts {
        let Stack {
            // These are the site's.
            pid: _,
            instance: _,
            allocator: _,
            kind: _,
            end: _,
            end_at: _,
            frames: _,
            // These are in chunks of their own.
            blocks: _,
            // The reader's.
            suppressed_by: _,
            ended,
            outstanding,
            allocated,
            recent,
            lost,
        } = stack;
        let StackRecent {
            young,
            ages,
            since_last,
            since_baseline,
            suspicion,
        } = recent;
        schema::Amounts {
            site: self.definer.site(stack),
            ended: ended.map(end_word),
            outstanding: (*outstanding).into(),
            allocated: (*allocated).into(),
            lost: (*lost).into(),
            young: young.map(Into::into),
            ages: ages.map(|ages| ages.classes().map(|(_, class)| class.into()).collect()),
            since_last: (*since_last).into(),
            since_baseline: (*since_baseline).into(),
            suspicion: suspicion.map(Into::into),
        }
    }

    fn report(&mut self, number: u64, report: &Report) -> schema::Report {
        let Report {
            time,
            read_at,
            elapsed,
            unwind,
            top,
            depth,
            order,
            quantity,
            targets,
            compared,
            stacks,
            sampling,
            events,
            losses,
            completeness,
            ends,
            steps,
            overhead,
            kernel,
            own,
            // Recordings have the exact names, and whoever reads them a flag.
            names: _,
        } = report;
        schema::Report {
            number,
            unix_ns: unix_nanoseconds(*read_at),
            time: (*time).into(),
            elapsed_ns: elapsed.as_nanos(),
            unwind: unwind_word(*unwind).into(),
            top: *top as u64,
            depth: depth.map(|depth| depth as u64),
            order: order.map(|order| order.name().into()),
            quantity: quantity_entry(*quantity),
            compared: compared_entry(compared),
            targets: targets.iter().map(|target| self.target(target)).collect(),
            sampling: sampling_entry(*sampling),
            events: (*events).into(),
            losses: losses_entry(losses),
            completeness: completeness_entry(completeness),
            ends: ends.iter().map(|group| self.end_group(group)).collect(),
            steps: steps.iter().map(|steps| self.steps(steps)).collect(),
            overhead: overhead.as_ref().map(overhead_entry),
            kernel: kernel.as_ref().map(|kernel| self.kernel(kernel)),
            own: (*own).into(),
            stacks: stacks.len() as u64,
            age_bounds_ns: AGE_BOUNDS.iter().map(|bound| bound.as_nanos()).collect(),
        }
    }

    fn target(&mut self, target: &TargetFacts) -> schema::Target {
        let TargetFacts {
            pid,
            instance,
            parent,
            comm,
            exe,
            ended,
            memory,
        } = target;
        schema::Target {
            pid: *pid,
            instance: *instance,
            parent: *parent,
            comm: self.definer.text(comm),
            exe: exe.as_ref().map(|exe| self.definer.text(exe)),
            ended: ended.map(end_word),
            memory: memory.map(Into::into),
        }
    }

    fn end_group(&mut self, group: &EndGroup<Arc<ModuleFacts>>) -> schema::EndGroup {
        let EndGroup {
            module,
            end,
            stacks,
            allocations,
            addresses,
        } = group;
        schema::EndGroup {
            module: module.as_ref().map(|module| self.definer.module(module)),
            end: end.name().into(),
            stacks: *stacks,
            allocations: *allocations,
            addresses: addresses.clone(),
        }
    }

    fn steps(&mut self, steps: &ModuleSteps<Arc<ModuleFacts>>) -> schema::Steps {
        let ModuleSteps { module, cfi, fp } = steps;
        schema::Steps {
            module: module.as_ref().map(|module| self.definer.module(module)),
            cfi: *cfi,
            fp: *fp,
        }
    }

    fn kernel(&mut self, kernel: &KernelFacts) -> schema::Kernel {
        let KernelFacts { release, kinds } = kernel;
        let kind = |kind: &KindTotals| {
            let KindTotals {
                allocator,
                outstanding,
                allocated,
                holds_others,
            } = kind;
            schema::Kind {
                allocator: self.definer.text(allocator.as_ref()),
                outstanding: (*outstanding).into(),
                allocated: (*allocated).into(),
                holds_others: *holds_others,
            }
        };
        schema::Kernel {
            kinds: kinds.iter().map(kind).collect(),
            release: self.definer.text(release),
        }
    }
}

fn end_word(end: InstanceEnd) -> Word {
    end.name().into()
}

/// The words for ways to walk, as in JSON.
pub(super) const fn unwind_word(unwind: Unwind) -> &'static str {
    match unwind {
        Unwind::Dwarf => "dwarf",
        Unwind::Fp => "fp",
    }
}

/// The words for measures.
pub(super) const fn measure_word(measure: Measure) -> &'static str {
    match measure {
        Measure::Outstanding => "outstanding",
        Measure::Allocated => "allocated",
        Measure::Growth => "growth",
    }
}

fn quantity_entry(quantity: Quantity) -> schema::Quantity {
    let Quantity { measure, unit } = quantity;
    schema::Quantity {
        measure: measure_word(measure).into(),
        unit: unit.name().into(),
    }
}

fn compared_entry(compared: &Compared) -> schema::Compared {
    let Compared {
        older,
        first,
        since_last,
        since_baseline,
        marked,
    } = compared;
    schema::Compared {
        older_ns: older.map(|older| older.as_nanos()),
        first: *first,
        since_last_ns: since_last.as_nanos(),
        since_baseline_ns: since_baseline.as_nanos(),
        marked: marked.map(Into::into),
    }
}

fn sampling_entry(sampling: Sampling) -> Option<schema::Sampling> {
    let (method, interval) = match sampling {
        Sampling::All => return None,
        Sampling::Calls(calls) => ("calls", calls),
        Sampling::Bytes(bytes) => ("bytes", bytes),
        Sampling::Governed(bytes) => ("governed", bytes),
    };
    Some(schema::Sampling {
        method: method.into(),
        interval,
    })
}

fn losses_entry(losses: &Losses) -> schema::Losses {
    let Losses {
        blocks,
        bytes,
        frees,
        processes,
        calls,
        events,
        causes,
    } = losses;
    schema::Losses {
        blocks: *blocks,
        bytes: *bytes,
        frees: *frees,
        processes: *processes,
        calls: *calls,
        events: *events,
        causes: causes
            .iter()
            .map(|(cause, &blocks)| (cause.to_string(), blocks))
            .collect(),
    }
}

fn completeness_entry(completeness: &Completeness) -> schema::Completeness {
    fn named<K: Copy>(counts: &BTreeMap<K, u64>, name: fn(K) -> &'static str) -> BTreeMap<Word, u64> {
        let counts = counts.iter();
        counts.map(|(&key, &count)| (name(key).into(), count)).collect()
    }
    let Completeness {
        stacks,
        allocations,
        frames,
    } = completeness;
    schema::Completeness {
        stacks: named(stacks, |end| end.name()),
        allocations: named(allocations, |end| end.name()),
        frames: named(frames, |found_by| found_by.name()),
    }
}

fn overhead_entry(overhead: &Overhead) -> schema::Overhead {
    let Overhead {
        spent,
        lately,
        traps: each_trap,
        measured,
        governed,
    } = overhead;
    let Spent {
        seconds,
        entries,
        programs,
        traps,
        trap_nanoseconds,
        unmeasured,
    } = spent;
    let programs = ProbeProgram::ALL.into_iter().zip(*programs);
    schema::Overhead {
        seconds: *seconds,
        entries: *entries,
        programs: programs
            .map(|(program, time)| (program.name().into(), time.into()))
            .collect(),
        traps: *traps,
        trap_nanoseconds: *trap_nanoseconds,
        unmeasured: *unmeasured,
        lately: *lately,
        each_trap: (*each_trap).into(),
        measured: *measured,
        governed: governed.map(Into::into),
    }
}
