//! What a page keeps of the reports that it is made of: sites by number, each with its stack as a path in one tree of
//! callers, and what they had at each moment.
//!
//! A site is the same in two reports if its code is: the process, the allocator function, the frames by module and
//! address, and its end. What reports call these can change when more is known; the last word counts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use unwind_tables::walk::{End, FoundBy};

use super::data::Trace;
use super::health::Health;
use super::intern::Interned;
use super::rows::{Row, Rows};
use super::snapshot::{Resident, Snapshot, Snapshots};
use crate::model::Name;
use crate::model::leak::Suspicion;
use crate::model::{AGE_BOUNDS, Amount, NameStyle, RegionKind, Sampling, Symbolized};
use crate::model::{Frame, Location, ModuleFacts, Report, Stack, Suppression, TargetFacts};
use crate::report::estimates::whole;
use crate::report::owner::{Owner, owner};

/// The number of no module, and of the node above all roots.
pub(super) const NONE: u32 = u32::MAX;

/// Classes of ages.
pub(super) const AGES: usize = AGE_BOUNDS.len() + 1;

/// What tells frames apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FrameKey {
    pub(super) module: u32,
    /// In the module; in the process where there is none.
    pub(super) address: u64,
    /// The instance whose code it is, where that is in no module.
    owner: u32,
    pub(super) found_by: FoundBy,
}

/// A frame and where it was called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The number of the caller's; [`NONE`] at the root.
    pub(super) caller: u32,
    pub(super) frame: u32,
}

/// What tells sites apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SiteKey {
    pub(super) instance: u32,
    pub(super) allocator: u32,
    pub(super) kind: Option<RegionKind>,
    /// The innermost frame's; [`NONE`] without frames.
    pub(super) node: u32,
    pub(super) end: End,
    pub(super) end_module: u32,
    /// In the module; 0 where there is none.
    end_address: u64,
}

/// Where in a stack the responsible function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerAt {
    /// Its frame, from the innermost on.
    pub(super) frame: u32,
    /// 0 for the frame's own function, 1 for the innermost that is inlined there, and so on.
    pub(super) level: u32,
}

impl OwnerAt {
    /// That of a stack; the innermost frame where there is none.
    fn of(stack: &Stack) -> Self {
        let Some(Owner { frame, at, .. }) = owner(stack) else {
            return Self::default();
        };
        let (number_of_frame, inlined) = at;
        let is_own = inlined == frame.names.inlined.len();
        Self {
            frame: number(number_of_frame),
            level: if is_own { 0 } else { number(inlined + 1) },
        }
    }
}

/// What a site has that does not tell it apart, by the last report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SiteFacts {
    /// Where the walk ended: in the module, or in the process.
    pub(super) end_address: u64,
    /// Whether it can be a leak, as far as can be told, is not suppressed, and no block of it is counted elsewhere.
    pub(super) is_suspect: bool,
    /// The number of the rule that suppresses it.
    pub(super) suppressed_by: Option<u32>,
    /// Whose memory it is.
    pub(super) owner: OwnerAt,
    pub(super) lost: Amount,
    /// Live blocks by age, if that was looked at.
    pub(super) ages: Option<[Amount; AGES]>,
    /// How much it behaves like a leak, by the last report.
    pub(super) suspicion: Option<Suspicion>,
}

/// What a page is made of.
#[derive(Default)]
pub(super) struct Model {
    pub(super) modules: Vec<Arc<ModuleFacts>>,
    /// By path and build-id.
    module_numbers: HashMap<(std::path::PathBuf, Option<String>), u32>,
    pub(super) frames: Interned<FrameKey>,
    /// By frame.
    pub(super) names: Vec<Arc<Symbolized>>,
    pub(super) nodes: Interned<Node>,
    pub(super) allocators: Vec<Name>,
    pub(super) sites: Interned<SiteKey>,
    /// Rules of the user's that suppress any site.
    pub(super) rules: Vec<Arc<Suppression>>,
    /// By site.
    pub(super) facts: Vec<SiteFacts>,
    /// Instances by their numbers, as the last report that had them says.
    pub(super) processes: BTreeMap<u32, TargetFacts>,
    pub(super) snapshots: Snapshots,
    /// Whether any amount is an estimate.
    pub(super) are_estimates: bool,
    /// When the baseline was marked, as time since the attach.
    marked_at: Option<Duration>,
    /// How names are written, by the last report.
    pub(super) style: NameStyle,
    /// What was traced, by the last report.
    pub(super) trace: Trace,
    /// How far stacks and amounts can be trusted, by the last report.
    pub(super) health: Option<Health>,
}

impl Model {
    /// Adds the next report; `most` moments are kept.
    pub(super) fn add(&mut self, report: &Report, most: usize) {
        let are_estimates = report.sampling != Sampling::All;
        self.are_estimates |= are_estimates;
        for target in &report.targets {
            let facts = TargetFacts {
                memory: None,
                ..target.clone()
            };
            self.processes.insert(target.instance, facts);
        }
        for facts in &mut self.facts {
            (facts.ages, facts.lost) = (None, Amount::default());
            facts.suspicion = None;
        }
        let sites = self.sites_of(report);
        let rows = |row: fn(&Stack) -> Row| {
            let of_sites = sites.iter().zip(&report.stacks);
            let rows = of_sites.map(|(&site, stack)| (site, row(stack))).collect();
            Rows::pack(rows, are_estimates)
        };
        if let Some((time, elapsed)) = self.new_mark(report) {
            let snapshot = Snapshot {
                time,
                elapsed,
                marked: true,
                rows: rows(row_at_baseline),
                ..Snapshot::default()
            };
            self.snapshots.add(snapshot, most);
        }
        let snapshot = Snapshot {
            time: report.time,
            read_at_ms: since_1970(report.read_at),
            elapsed: report.elapsed,
            marked: false,
            rows: rows(row_of),
            memory: residents(report),
        };
        self.snapshots.add(snapshot, most);
        self.style = report.names;
        self.trace = Trace::from(report);
        self.health = Some(Health::of(report));
    }

    /// Time and place of a baseline that no report has said of yet, and of whose moment there is none.
    fn new_mark(&mut self, report: &Report) -> Option<(crate::model::TimeOfDay, Duration)> {
        let time = report.compared.marked?;
        let elapsed = report.elapsed.saturating_sub(report.compared.since_baseline);
        let is_new = self.marked_at.replace(elapsed) != Some(elapsed);
        (is_new && !self.snapshots.mark(elapsed)).then_some((time, elapsed))
    }

    /// The numbers of the report's stacks.
    fn sites_of(&mut self, report: &Report) -> Vec<u32> {
        // One object for each module, for as long as the report lives.
        let mut known = HashMap::new();
        let mut allocators = HashMap::new();
        let sites = report.stacks.iter().map(|stack| {
            let allocator = *allocators
                .entry(stack.allocator.clone())
                .or_insert_with(|| self.allocator(&stack.allocator));
            let end_at = stack.end_at.as_ref();
            let (end_module, address) = end_at.map_or((NONE, 0), |at| self.place(at, &mut known));
            let node = self.node(stack, &mut known);
            let site = self.sites.number(SiteKey {
                instance: stack.instance,
                allocator,
                kind: stack.kind,
                node,
                end: stack.end,
                end_module,
                // An end outside all modules can be any garbage on the stack.
                end_address: if end_module == NONE { 0 } else { address },
            });
            self.note(site, stack, address, report.is_suspect(stack));
            site
        });
        sites.collect()
    }

    fn note(&mut self, site: u32, stack: &Stack, end_address: u64, is_suspect: bool) {
        let suppressed_by = stack.suppressed_by.as_ref().map(|rule| self.rule(rule));
        let at = site as usize;
        if self.facts.len() <= at {
            self.facts.resize(at + 1, SiteFacts::default());
        }
        let facts = &mut self.facts[at];
        facts.end_address = end_address;
        facts.is_suspect = is_suspect;
        facts.suppressed_by = suppressed_by;
        facts.owner = OwnerAt::of(stack);
        facts.lost = facts.lost + stack.lost;
        // Of stacks that are one site here, the most suspicious counts.
        let suspicion = stack.recent.suspicion.filter(Suspicion::is_known);
        let rank = |suspicion: Option<Suspicion>| suspicion.unwrap_or_default().rank();
        if rank(suspicion) > rank(facts.suspicion) {
            facts.suspicion = suspicion;
        }
        if let Some(ages) = stack.recent.ages {
            let known = facts.ages.get_or_insert_default();
            for (known, (_, class)) in known.iter_mut().zip(ages.classes()) {
                *known = *known + class.amount;
            }
        }
    }

    fn rule(&mut self, rule: &Arc<Suppression>) -> u32 {
        let known = self.rules.iter().position(|known| known == rule);
        let at = known.unwrap_or_else(|| {
            self.rules.push(Arc::clone(rule));
            self.rules.len() - 1
        });
        number(at)
    }

    fn allocator(&mut self, name: &Name) -> u32 {
        let known = self.allocators.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.allocators.push(name.clone());
            self.allocators.len() - 1
        });
        number(at)
    }

    /// The innermost frame's node.
    fn node(&mut self, stack: &Stack, known: &mut HashMap<*const ModuleFacts, u32>) -> u32 {
        stack.frames.iter().rev().fold(NONE, |caller, frame| {
            let frame = self.frame(frame, stack.instance, known);
            self.nodes.number(Node { caller, frame })
        })
    }

    fn frame(&mut self, frame: &Frame, instance: u32, known: &mut HashMap<*const ModuleFacts, u32>) -> u32 {
        let (module, address) = self.place(&frame.at, known);
        let number = self.frames.number(FrameKey {
            module,
            address,
            owner: if module == NONE { instance } else { NONE },
            found_by: frame.found_by,
        });
        match self.names.get_mut(number as usize) {
            Some(names) => *names = Arc::clone(&frame.names),
            None => self.names.push(Arc::clone(&frame.names)),
        }
        number
    }

    /// Module and address.
    fn place(&mut self, at: &Location, known: &mut HashMap<*const ModuleFacts, u32>) -> (u32, u64) {
        let Some((module, svma)) = &at.place else {
            return (NONE, at.pc.get());
        };
        let number = *known
            .entry(Arc::as_ptr(module))
            .or_insert_with(|| self.module(module));
        (number, svma.get())
    }

    fn module(&mut self, module: &Arc<ModuleFacts>) -> u32 {
        let key = (module.path.clone(), module.build_id.clone());
        *self.module_numbers.entry(key).or_insert_with(|| {
            self.modules.push(Arc::clone(module));
            number(self.modules.len() - 1)
        })
    }
}

/// Numbers are of what is in memory: there are fewer than 2³².
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NONE)
}

fn since_1970(time: SystemTime) -> u64 {
    let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn row_of(stack: &Stack) -> Row {
    Row {
        outstanding: stack.outstanding,
        allocated: stack.allocated,
        young: stack.recent.young.unwrap_or_default().amount,
    }
}

/// What the stack had at the baseline: what it has, less what has changed since.
fn row_at_baseline(stack: &Stack) -> Row {
    let change = &stack.recent.since_baseline;
    let freed = stack.allocated.less(stack.outstanding).less(change.freed);
    let allocated = stack.allocated.less(change.allocated);
    Row {
        outstanding: allocated.less(freed),
        allocated,
        young: Amount::default(),
    }
}

fn residents(report: &Report) -> Vec<Resident> {
    let running = report.targets.iter().filter_map(|target| {
        let error = report.tracked_error(target.instance);
        Some(Resident {
            instance: target.instance,
            parts: target.memory?,
            error: error.map_or(0, whole),
        })
    });
    running.collect()
}
