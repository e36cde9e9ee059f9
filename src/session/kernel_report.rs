//! Makes a report of a kernel-mode snapshot: cuts off the allocators' own frames, groups and names.

use std::sync::Arc;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Frame as WalkFrame, Unwind};

use super::View;
use super::describe::{self, Caller, Describer, Origin, RecentFacts, Shown};
use crate::symbolize::{Kallsyms, readable};
use leak_report::model::leak::age::SiteProcesses;
use leak_report::model::leak::kernel_frames::{KernelAllocator, Kind, cut, is_root};
use leak_report::model::leak::{Resolver, Site, SiteFrame};
use leak_report::model::{
    Amount, Estimate, Gap, KernelFacts, KindTotals, Missing, Module, Name, Report, Snapshot, StackTotals,
    Symbol, Symbolized, TargetFacts,
};

/// Upper bits of a kernel address, which a stored frame has no room for. All are set in every address of
/// kernel code.
const HIGH_BITS: u64 = 0xff << 56;

/// Facts that are the same in every report.
#[derive(Clone)]
pub(super) struct Facts {
    pub(super) release: String,
    /// True if the per-CPU allocator is traced.
    pub(super) percpu: bool,
    /// Maximum number of stacks to show.
    pub(super) top: usize,
    /// Ranking of the stacks, and the age below which blocks are hidden.
    pub(super) view: View,
    /// Parts that the trace goes without.
    pub(super) missing: Vec<Missing>,
}

pub(super) fn report(
    mut snapshot: Snapshot,
    recently: &RecentFacts<'_>,
    symbols: &Kallsyms,
    facts: &Facts,
) -> Report {
    for stack in &mut snapshot.stacks {
        from_the_caller_on(stack, symbols, facts.percpu);
    }
    let mut kinds = Vec::new();
    let shown = Shown {
        view: &facts.view,
        top: facts.top,
        unwind: Unwind::Dwarf,
        walked: None,
        holdings: &[],
        pinned: None,
    };
    let inspect = |sites: &[_]| kinds = kind_totals(sites);
    let report = describe::report(Listed(symbols), &snapshot, recently, shown, inspect);
    Report {
        targets: vec![kernel_as_target()],
        // The kernel's own unwinder walked the stacks, so there are no steps of ours to count.
        steps: Vec::new(),
        kernel: Some(KernelFacts {
            release: facts.release.clone(),
            kinds,
        }),
        missing: facts.missing.clone(),
        ..report
    }
}

/// Caller of an allocator function, given the stack of the call.
pub(super) fn caller(stack: Option<StackTotals>, symbols: &Kallsyms, percpu: bool) -> Caller {
    let stack = stack.map(|mut stack| {
        from_the_caller_on(&mut stack, symbols, percpu);
        stack
    });
    Describer::new(Listed(symbols)).caller(stack)
}

fn kernel_as_target() -> TargetFacts {
    TargetFacts {
        pid: 0,
        instance: 0,
        parent: None,
        comm: "kernel".to_owned(),
        exe: None,
        ended: None,
        lack: None,
        fragmentation: None,
        memory: None,
    }
}

/// Restores the upper bits of the addresses, and keeps only the frames from the caller on.
fn from_the_caller_on(stack: &mut StackTotals, symbols: &Kallsyms, percpu: bool) {
    for frame in &mut stack.frames {
        frame.pc = Avma::new(frame.pc.get() | HIGH_BITS);
    }
    let allocator = KernelAllocator::from_number(stack.function).unwrap_or(KernelAllocator::Kmalloc);
    let name = |frame: &WalkFrame| symbols.find(frame.pc.wrapping_sub(1)).map(|symbol| symbol.name);
    let (own, kind) = cut(allocator, stack.frames.iter().map(name), percpu);
    let outermost = stack.frames.last().and_then(name);
    if stack.end == End::KernelUnwinder && outermost.is_some_and(is_root) {
        stack.end = End::Complete;
    }
    stack.end_pc = stack.frames.last().map_or(Avma::new(0), |frame| frame.pc);
    stack.frames.drain(..own);
    if let Some(first) = stack.frames.first_mut() {
        first.found_by = FoundBy::Kernel;
    }
    stack.function = kind.number();
}

/// Resolves addresses by the kernel's symbols.
struct Listed<'a>(&'a Kallsyms);

impl Resolver<usize> for Listed<'_> {
    fn resolve_at(&self, _: u32, address: Avma) -> Option<(usize, Svma)> {
        let symbol = self.0.find(address)?;
        let (_, start) = self.0.module_at(symbol.module)?;
        Some((symbol.module, Svma::new(address.offset_from(start))))
    }

    fn resolve_after(&self, epoch: u32, address: Avma) -> Option<Option<(usize, Svma)>> {
        self.resolve_at(epoch, address).map(Some)
    }
}

impl Origin for Listed<'_> {
    type Module = usize;
    type Addresses = Self;
    const LEARNS: bool = false;

    fn addresses(&self, _: u32) -> &Self {
        self
    }

    fn process(&self, _: u32) -> Option<&TargetFacts> {
        None
    }

    fn site_processes(&self, _: u32) -> SiteProcesses {
        SiteProcesses::Running
    }

    fn allocator(&self, site: &Site<usize>) -> Name {
        Kind::from_number(site.function).map_or("?", Kind::name).into()
    }

    fn module(&mut self, number: usize) -> Option<Module> {
        let (name, _) = self.0.module_at(number)?;
        Some(Module {
            path: name.into(),
            build_id: None,
            code: Vec::new(),
            table: None,
        })
    }

    /// Names the function of the instruction before a return address.
    fn names(&mut self, _: u32, frame: &SiteFrame<usize>) -> Arc<Symbolized> {
        let pc = frame.at.pc;
        let symbol = self.0.find(pc.wrapping_sub(1)).map(|symbol| Symbol {
            name: readable(symbol.name).into(),
            offset: Some(pc.offset_from(symbol.start)),
        });
        Arc::new(Symbolized {
            gap: symbol.is_none().then_some(Gap::NoModule),
            symbol,
            ..Symbolized::default()
        })
    }
}

/// Totals of each kind of kernel allocation that was seen.
fn kind_totals(sites: &[Site<usize>]) -> Vec<KindTotals> {
    let sum = |kind: Kind, amount: fn(&Site<usize>) -> Estimate| -> Amount {
        let of_kind = sites.iter().filter(|site| site.function == kind.number());
        of_kind.map(|site| amount(site).amount).sum()
    };
    let totals = Kind::ALL.into_iter().map(|kind| KindTotals {
        allocator: kind.name().into(),
        outstanding: sum(kind, Site::outstanding),
        allocated: sum(kind, |site| site.allocated),
        holds_others: kind.holds_others(),
    });
    totals.filter(|totals| totals.allocated.blocks > 0).collect()
}
