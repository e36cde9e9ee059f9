//! From chunks back to the very report that was recorded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unwind_tables::walk::Unwind;

use super::blocks;
use super::encode::{measure_word, unwind_word};
use super::schema::{self, List, MOST_BLOCKS, MOST_FRAMES, MOST_STACKS, Number, STACKS_IN_CHUNK, Word};
use super::tables::{Budget, Tables, Wrong, end_of, found_by_of};
use crate::model::leak::{Completeness, EndGroup, ModuleSteps, Order};
use crate::model::{
    AGE_BOUNDS, Ages, Estimate, InstanceEnd, Losses, NameStyle, Overhead, ProbeProgram, Sampling, Spent,
};
use crate::model::{
    Compared, KernelFacts, KindTotals, Measure, ModuleFacts, Quantity, Report, Stack, StackRecent,
    TargetFacts, Unit,
};

/// Bytes of texts in one report that are not among its stacks.
const MOST_TEXT_BYTES: usize = 64 << 20;

/// The stacks of a report, while they are read.
pub(super) struct Stacks<'a> {
    tables: &'a Tables,
    stacks: Vec<Stack>,
    frames: Budget,
    left: Budget,
    blocks: Budget,
}

impl<'a> Stacks<'a> {
    pub(super) fn new(tables: &'a Tables) -> Self {
        Self {
            tables,
            stacks: Vec::new(),
            frames: Budget::new(MOST_FRAMES, "frames"),
            left: Budget::new(MOST_STACKS, "stacks"),
            blocks: Budget::new(MOST_BLOCKS, "blocks"),
        }
    }

    /// Adds those of a chunk.
    pub(super) fn add(&mut self, List(amounts): List<schema::Amounts, STACKS_IN_CHUNK>) -> Result<(), Wrong> {
        self.left.take(amounts.len())?;
        for amounts in amounts {
            let stack = self.stack(amounts)?;
            self.stacks.push(stack);
        }
        Ok(())
    }

    /// Adds single blocks to those of which there are amounts.
    pub(super) fn add_blocks(
        &mut self,
        List(parts): List<schema::Blocks, STACKS_IN_CHUNK>,
    ) -> Result<(), Wrong> {
        for part in parts {
            self.blocks.take(part.listed.0.len())?;
            blocks::add(&mut self.stacks, part)?;
        }
        Ok(())
    }

    fn stack(&mut self, amounts: schema::Amounts) -> Result<Stack, Wrong> {
        let schema::Amounts {
            site,
            ended,
            outstanding,
            allocated,
            lost,
            young,
            ages,
            since_last,
            since_baseline,
            suspicion,
        } = amounts;
        let site = self.tables.site(site)?;
        Ok(Stack {
            pid: site.pid,
            instance: site.instance,
            ended: ended.as_deref().map(instance_end).transpose()?,
            allocator: site.allocator.clone(),
            kind: site.kind,
            outstanding: outstanding.into(),
            allocated: allocated.into(),
            recent: StackRecent {
                young: young.map(Into::into),
                ages: ages.map(ages_of).transpose()?,
                since_last: since_last.into(),
                since_baseline: since_baseline.into(),
                suspicion: suspicion.map(Into::into),
            },
            lost: lost.into(),
            end: site.end,
            end_at: site.end_at.clone(),
            blocks: None,
            suppressed_by: None,
            frames: self.tables.frames(site, &mut self.frames)?,
        })
    }
}

/// When totals were read.
pub(super) fn read_at(report: &schema::Report) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(report.unix_ns)
}

/// The report with these stacks.
pub(super) fn report(stacks: Stacks<'_>, report: schema::Report) -> Result<Report, Wrong> {
    if report.stacks != stacks.stacks.len() as u64 {
        return Err(Wrong("stacks are missing".to_owned()));
    }
    let bounds = AGE_BOUNDS.iter().map(Duration::as_nanos);
    if !bounds.eq(report.age_bounds_ns.iter().copied()) {
        return Err(Wrong("ages are in other classes than this version's".to_owned()));
    }
    let read_at = read_at(&report);
    let mut texts = Texts {
        tables: stacks.tables,
        budget: Budget::new(MOST_TEXT_BYTES, "names of processes"),
    };
    Ok(Report {
        time: report.time.into(),
        read_at,
        elapsed: duration(report.elapsed_ns),
        unwind: unwind(&report.unwind)?,
        top: usize::try_from(report.top).unwrap_or(usize::MAX),
        names: NameStyle::default(),
        depth: report
            .depth
            .map(|depth| usize::try_from(depth).unwrap_or(usize::MAX)),
        order: report.order.as_deref().map(order).transpose()?,
        quantity: quantity(&report.quantity)?,
        targets: each(report.targets, |target| texts.target(target))?,
        compared: compared(report.compared),
        stacks: stacks.stacks,
        sampling: sampling(report.sampling)?,
        events: report.events.into(),
        losses: losses(report.losses),
        completeness: completeness(&report.completeness)?,
        ends: each(report.ends, |group| texts.end_group(group))?,
        steps: each(report.steps, |steps| texts.steps(&steps))?,
        overhead: report.overhead.map(overhead),
        kernel: report.kernel.map(|kernel| texts.kernel(kernel)).transpose()?,
        own: report.own.into(),
    })
}

fn each<T, U, const MOST: usize>(
    List(things): List<T, MOST>,
    read: impl FnMut(T) -> Result<U, Wrong>,
) -> Result<Vec<U>, Wrong> {
    things.into_iter().map(read).collect()
}

/// What refers to definitions, outside stacks.
struct Texts<'a> {
    tables: &'a Tables,
    budget: Budget,
}

impl Texts<'_> {
    fn text(&mut self, number: Number) -> Result<String, Wrong> {
        let text = self.tables.text(number)?;
        self.budget.take(text.len())?;
        Ok(text.to_string_lossy().into_owned())
    }

    fn module(&self, number: Option<Number>) -> Result<Option<Arc<ModuleFacts>>, Wrong> {
        number.map(|number| self.tables.module(number)).transpose()
    }

    fn target(&mut self, target: schema::Target) -> Result<TargetFacts, Wrong> {
        let exe = target.exe.map(|exe| self.tables.text(exe)).transpose()?;
        self.budget.take(exe.map_or(0, |exe| exe.len()))?;
        Ok(TargetFacts {
            pid: target.pid,
            instance: target.instance,
            parent: target.parent,
            comm: self.text(target.comm)?,
            exe: exe.map(Into::into),
            ended: target.ended.as_deref().map(instance_end).transpose()?,
            memory: target.memory.map(Into::into),
        })
    }

    fn end_group(&mut self, group: schema::EndGroup) -> Result<EndGroup<Arc<ModuleFacts>>, Wrong> {
        Ok(EndGroup {
            module: self.module(group.module)?,
            end: end_of(&group.end)?,
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses,
        })
    }

    fn steps(&mut self, steps: &schema::Steps) -> Result<ModuleSteps<Arc<ModuleFacts>>, Wrong> {
        Ok(ModuleSteps {
            module: self.module(steps.module)?,
            cfi: steps.cfi,
            fp: steps.fp,
        })
    }

    fn kernel(&mut self, kernel: schema::Kernel) -> Result<KernelFacts, Wrong> {
        Ok(KernelFacts {
            release: self.text(kernel.release)?,
            kinds: each(kernel.kinds, |kind| {
                Ok(KindTotals {
                    allocator: self.text(kind.allocator)?.into(),
                    outstanding: kind.outstanding.into(),
                    allocated: kind.allocated.into(),
                    holds_others: kind.holds_others,
                })
            })?,
        })
    }
}

/// The longest time there is, for one that is longer.
pub(super) fn duration(nanoseconds: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    match u64::try_from(nanoseconds / SECOND) {
        // Less than a second fits.
        Ok(seconds) => Duration::new(seconds, u32::try_from(nanoseconds % SECOND).unwrap_or_default()),
        Err(_) => Duration::MAX,
    }
}

fn ages_of(classes: Vec<schema::Estimate>) -> Result<Ages, Wrong> {
    let classes: Vec<Estimate> = classes.into_iter().map(Into::into).collect();
    let classes = classes.try_into();
    classes
        .map(Ages::of_classes)
        .map_err(|_| Wrong("an age class is missing".to_owned()))
}

fn instance_end(word: &str) -> Result<InstanceEnd, Wrong> {
    let ends = [InstanceEnd::Exited, InstanceEnd::Execed];
    let end = ends.into_iter().find(|end| end.name() == word);
    end.ok_or_else(|| Wrong(format!("`{word}` is no end of a process that this version knows")))
}

fn unwind(word: &str) -> Result<Unwind, Wrong> {
    let ways = [Unwind::Dwarf, Unwind::Fp];
    let way = ways.into_iter().find(|&way| unwind_word(way) == word);
    way.ok_or_else(|| Wrong(format!("`{word}` is no way to walk that this version knows")))
}

fn order(word: &str) -> Result<Order, Wrong> {
    let order = Order::ALL.into_iter().find(|order| order.name() == word);
    order.ok_or_else(|| Wrong(format!("`{word}` is no order that this version knows")))
}

fn quantity(quantity: &schema::Quantity) -> Result<Quantity, Wrong> {
    let measures = [Measure::Outstanding, Measure::Allocated, Measure::Growth];
    let units = [Unit::Bytes, Unit::Blocks];
    let measure = measures
        .into_iter()
        .find(|&measure| measure_word(measure) == quantity.measure);
    let unit = units.into_iter().find(|unit| unit.name() == quantity.unit);
    let found = measure
        .zip(unit)
        .map(|(measure, unit)| Quantity { measure, unit });
    let unknown = || {
        Wrong(format!(
            "`{} {}` is no quantity that this version knows",
            quantity.measure, quantity.unit
        ))
    };
    found.ok_or_else(unknown)
}

fn sampling(sampling: Option<schema::Sampling>) -> Result<Sampling, Wrong> {
    let Some(schema::Sampling { method, interval }) = sampling else {
        return Ok(Sampling::All);
    };
    match method.as_ref() {
        "calls" => Ok(Sampling::Calls(interval)),
        "bytes" => Ok(Sampling::Bytes(interval)),
        "governed" => Ok(Sampling::Governed(interval)),
        word => Err(Wrong(format!(
            "`{word}` is no way to sample that this version knows"
        ))),
    }
}

fn compared(compared: schema::Compared) -> Compared {
    Compared {
        older: compared.older_ns.map(duration),
        first: compared.first,
        since_last: duration(compared.since_last_ns),
        since_baseline: duration(compared.since_baseline_ns),
        marked: compared.marked.map(Into::into),
    }
}

fn losses(losses: schema::Losses) -> Losses {
    let causes = losses.causes.into_iter();
    Losses {
        blocks: losses.blocks,
        bytes: losses.bytes,
        frees: losses.frees,
        processes: losses.processes,
        calls: losses.calls,
        events: losses.events,
        causes: causes
            .map(|(cause, blocks)| (Cow::Owned(cause), blocks))
            .collect(),
    }
}

fn completeness(completeness: &schema::Completeness) -> Result<Completeness, Wrong> {
    fn read<K: Ord>(
        counts: &BTreeMap<Word, u64>,
        key: fn(&str) -> Result<K, Wrong>,
    ) -> Result<BTreeMap<K, u64>, Wrong> {
        counts
            .iter()
            .map(|(word, &count)| Ok((key(word)?, count)))
            .collect()
    }
    Ok(Completeness {
        stacks: read(&completeness.stacks, end_of)?,
        allocations: read(&completeness.allocations, end_of)?,
        frames: read(&completeness.frames, found_by_of)?,
    })
}

/// Times of programs that this version does not know are in no sum.
fn overhead(overhead: schema::Overhead) -> Overhead {
    let program = |program: ProbeProgram| {
        let time = overhead.programs.get(program.name()).cloned();
        time.unwrap_or_default().into()
    };
    Overhead {
        spent: Spent {
            seconds: overhead.seconds,
            entries: overhead.entries,
            programs: ProbeProgram::ALL.map(program),
            traps: overhead.traps,
            trap_nanoseconds: overhead.trap_nanoseconds,
            unmeasured: overhead.unmeasured,
        },
        lately: overhead.lately,
        traps: overhead.each_trap.into(),
        measured: overhead.measured,
        governed: overhead.governed.map(Into::into),
    }
}
