//! From a snapshot of kernel mode to a report: cuts the allocators' own frames off, groups, names.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::SystemTime;

use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{End, FoundBy, Frame as WalkFrame, Unwind};

use super::View;
use super::calls::Caller;
use super::describe::{Recently, recent, time_of_day};
use crate::bpf::collect::own_memory;
use crate::symbolize::{Kallsyms, readable};
use leak_report::model::leak::age::Holder;
use leak_report::model::leak::growth::Changes;
use leak_report::model::leak::kernel_frames::{KernelAllocator, Kind, cut, is_root};
use leak_report::model::leak::{Completeness, Resolver, Site, SiteFrame, by_module, group, innermost};
use leak_report::model::{
    Amount, Dictionary, EndGroup, Estimate, Frame, FrameId, Gap, KernelFacts, KindTotals, Location, Module,
    ModuleId, Name, PathId, Place, Report, Snapshot, Stack, StackTotals, Symbol, Symbolized, TargetFacts,
    TextKind,
};
use leak_report::render::frame_name;

/// The bits of a kernel's address that a stored frame has no room for. All are set in every address of kernel code.
const HIGH_BITS: u64 = 0xff << 56;

/// What does not change from report to report.
pub(super) struct Facts {
    /// The kernel's version.
    pub(super) release: String,
    /// Whether the per-CPU allocator is traced.
    pub(super) percpu: bool,
    /// Stacks to show.
    pub(super) top: usize,
    /// What they are ranked by, and which blocks are hidden.
    pub(super) view: View,
}

/// The report of `snapshot`.
pub(super) fn report(
    mut snapshot: Snapshot,
    recently: &Recently<'_>,
    symbols: &Kallsyms,
    facts: &Facts,
) -> Report {
    for stack in &mut snapshot.stacks {
        from_the_caller_on(stack, symbols, facts.percpu);
    }
    let resolver = Listed(symbols);
    let changes = &recently.changes;
    let sites_of = |snapshot: &Snapshot| {
        group(
            snapshot,
            |_| &resolver,
            |stack| changes.of(stack, recently.blocks.map(|blocks| blocks.of(stack.record))),
        )
    };
    let sites = sites_of(&snapshot);
    let completeness = Completeness::of(&sites);
    let mut entries = Entries::new(symbols);
    let ends = by_module::ends(&sites).into_iter();
    let ends = ends
        .map(|ended| EndGroup {
            module: ended.module.and_then(|module| entries.module(module)),
            end: ended.end,
            stacks: ended.stacks,
            allocations: ended.allocations,
            addresses: ended.addresses,
        })
        .collect();
    let kinds = kind_totals(&sites);
    let sites = match facts.view.depth {
        None => sites,
        Some(depth) => sites_of(&innermost(&snapshot, depth.get())),
    };
    let stacks = sites
        .into_iter()
        .map(|site| Stack {
            blocks: recently.listed(&site),
            ..stack(site, &mut entries, &facts.view, changes)
        })
        .collect();
    let mut report = Report {
        time: time_of_day(),
        read_at: SystemTime::now(),
        elapsed: snapshot.elapsed,
        unwind: Unwind::Dwarf,
        top: facts.top,
        names: facts.view.names,
        quantity: facts.view.quantity,
        depth: facts.view.depth.map(NonZeroUsize::get),
        compared: recently.compared(&facts.view),
        targets: vec![kernel_as_target()],
        order: None,
        dictionary: Arc::new(entries.dictionary),
        stacks,
        sampling: snapshot.sampling,
        events: snapshot.events,
        losses: snapshot.losses,
        completeness,
        ends,
        steps: Vec::new(),
        overhead: None,
        kernel: Some(KernelFacts {
            release: facts.release.clone(),
            kinds,
        }),
        own: own_memory(),
    };
    report.sort(facts.view.sort);
    report
}

/// Who made the calls of a stack.
pub(super) fn caller(stack: Option<StackTotals>, symbols: &Kallsyms, percpu: bool) -> Caller {
    let Some(mut stack) = stack else {
        return Caller {
            allocator: Name::Borrowed("?"),
            at: None,
        };
    };
    from_the_caller_on(&mut stack, symbols, percpu);
    let frame = stack.frames.first().map(|frame| {
        let place = Listed(symbols).resolve_at(0, frame.pc.wrapping_sub(1));
        let place = place.map(|(module, svma)| Place { module, svma });
        let at = Location { pc: frame.pc, place };
        let frame = SiteFrame {
            at,
            found_by: frame.found_by,
            exact: frame.exact,
        };
        let mut entries = Entries::new(symbols);
        let frame = entries.frame(&frame);
        frame_name(entries.dictionary.frame(frame)).into()
    });
    Caller {
        allocator: Kind::from_number(stack.function).map_or("?", Kind::name).into(),
        at: frame,
    }
}

fn kernel_as_target() -> TargetFacts {
    TargetFacts {
        pid: 0,
        instance: 0,
        parent: None,
        comm: "kernel".to_owned(),
        exe: None,
        ended: None,
        memory: None,
    }
}

/// Restores the addresses, and leaves of the frames those from the caller on.
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

/// What the kernel's symbols say of an address.
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

/// The dictionary of a report in the making.
struct Entries<'a> {
    symbols: &'a Kallsyms,
    dictionary: Dictionary,
}

impl<'a> Entries<'a> {
    fn new(symbols: &'a Kallsyms) -> Self {
        Self {
            symbols,
            dictionary: Dictionary::default(),
        }
    }

    fn module(&mut self, number: usize) -> Option<ModuleId> {
        let (name, _) = self.symbols.module_at(number)?;
        Some(self.dictionary.add_module(&Module {
            path: name.into(),
            build_id: None,
            code: Vec::new(),
            table: None,
        }))
    }

    fn location(&mut self, at: Location<usize>) -> Location<ModuleId> {
        let place = at.place.and_then(|Place { module, svma }| {
            let module = self.module(module)?;
            Some(Place { module, svma })
        });
        Location { pc: at.pc, place }
    }

    fn frame(&mut self, frame: &SiteFrame<usize>) -> FrameId {
        let names = names(self.symbols, frame.at.pc);
        let frame = Frame {
            at: self.location(frame.at),
            exact: frame.exact,
            found_by: frame.found_by,
            names: self.dictionary.add_names(&names),
        };
        self.dictionary.add_frame(frame)
    }

    fn path(&mut self, frames: &[SiteFrame<usize>]) -> Option<PathId> {
        let frames: Vec<_> = frames.iter().map(|frame| self.frame(frame)).collect();
        self.dictionary.add_stack(frames.into_iter())
    }
}

fn stack(site: Site<usize>, entries: &mut Entries<'_>, view: &View, changes: &Changes<'_>) -> Stack {
    let kind = Kind::from_number(site.function).map_or("?", Kind::name);
    Stack {
        kind: None,
        recent: recent(&site, Holder::Running, view, changes),
        pid: 0,
        instance: 0,
        ended: None,
        allocator: entries.dictionary.add_text(TextKind::Allocator, kind),
        outstanding: site.outstanding(),
        allocated: site.allocated,
        lost: site.lost,
        end: site.end,
        end_at: site.end_at.map(|at| entries.location(at)),
        path: entries.path(&site.frames),
        blocks: None,
        suppressed_by: None,
    }
}

/// The function that a return address leads into.
fn names(symbols: &Kallsyms, pc: Avma) -> Symbolized {
    let symbol = symbols.find(pc.wrapping_sub(1)).map(|symbol| Symbol {
        name: readable(symbol.name).into(),
        offset: Some(pc.offset_from(symbol.start)),
    });
    Symbolized {
        gap: symbol.is_none().then_some(Gap::NoModule),
        symbol,
        ..Symbolized::default()
    }
}

/// What there is of each kind.
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
