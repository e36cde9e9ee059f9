//! From a snapshot to a report: groups, resolves and names what the kernel recorded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::Timelike;
use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::Unwind;

use super::process::Process;
use super::tables::ModuleTables;
use crate::allocator::{Catalog, Name};
use crate::collect::Snapshot;
use crate::leak::{Completeness, EndGroup, Meaning, ModuleSteps, Place, Site, SiteFrame, by_module, group};
use crate::report::{Frame, Location, ModuleFacts, Report, Stack, TargetFacts, TimeOfDay};
use crate::symbolize::{CodeObject, PerfMap, Symbolized, Symbolizer, outside_modules};
use crate::target::{History, ModuleId, Modules};

/// What names are found with.
pub(super) struct Describer<'a> {
    /// By instance.
    pub(super) processes: &'a BTreeMap<u32, Process>,
    pub(super) modules: &'a Modules,
    pub(super) tables: &'a ModuleTables,
    pub(super) allocators: &'a Catalog,
    pub(super) symbolizer: &'a mut Symbolizer,
    pub(super) facts: &'a mut HashMap<ModuleId, Arc<ModuleFacts>>,
    /// What programs call the code that they generated, by instance.
    pub(super) perf_maps: &'a HashMap<u32, PerfMap>,
}

/// The report of `snapshot`.
pub(super) fn report(mut names: Describer<'_>, snapshot: Snapshot, unwind: Unwind, top: usize) -> Report {
    let (processes, unknown) = (names.processes, History::default());
    let history = |instance| {
        processes
            .get(&instance)
            .map_or(&unknown, |process| &process.history)
    };
    let sites = group(&snapshot, history);
    let completeness = Completeness::of(&sites);
    let ends = names.ends(&sites);
    let steps = names.steps(&sites);
    let mut stacks: Vec<_> = sites.into_iter().map(|site| names.stack(site)).collect();
    // What ended programs held is no longer anybody's to free: it comes last. The order is kept otherwise.
    stacks.sort_by_key(|stack| stack.ended.is_some());
    Report {
        time: time_of_day(),
        elapsed: snapshot.elapsed,
        unwind,
        top,
        targets: processes.values().map(|process| process.facts.clone()).collect(),
        stacks,
        sampling: snapshot.sampling,
        events: snapshot.events,
        losses: snapshot.losses,
        completeness,
        ends,
        steps,
    }
}

impl Meaning<ModuleId> for History {
    fn in_epoch(&self, epoch: u32, address: Avma) -> Option<(ModuleId, Svma)> {
        self.resolve(epoch, address)
    }

    fn since(&self, epoch: u32, address: Avma) -> Option<Option<(ModuleId, Svma)>> {
        self.resolve_since(epoch, address)
    }
}

fn time_of_day() -> TimeOfDay {
    let now = chrono::Local::now();
    let part = |value: u32| u8::try_from(value).unwrap_or_default();
    TimeOfDay {
        hour: part(now.hour()),
        minute: part(now.minute()),
        second: part(now.second()),
    }
}

impl Describer<'_> {
    /// The process that a stack belongs to. One that stands for all belongs to the only one, if there is no other.
    fn process(&self, instance: u32) -> Option<&TargetFacts> {
        let all = self.processes;
        let process = match all.len() {
            1 => all.values().next(),
            _ => all.get(&instance),
        };
        process.map(|process| &process.facts)
    }

    fn stack(&mut self, site: Site<ModuleId>) -> Stack {
        let process = self.process(site.instance);
        Stack {
            pid: process.map_or(0, |process| process.pid),
            instance: process.map_or(0, |process| process.instance),
            ended: process.and_then(|process| process.ended),
            allocator: self
                .allocators
                .get(usize::from(site.function))
                .map_or(Name::Borrowed("?"), |function| function.name.clone()),
            outstanding: site.outstanding(),
            allocated: site.allocated,
            lost: site.lost,
            outstanding_spread: site.outstanding_spread(),
            allocated_spread: site.allocated_spread,
            end: site.end,
            end_at: site.end_at.map(|end_at| self.location(end_at.pc, end_at.place)),
            frames: site
                .frames
                .iter()
                .map(|frame| Frame {
                    at: self.location(frame.pc, frame.place),
                    found_by: frame.found_by,
                    names: self.names(site.instance, frame),
                })
                .collect(),
        }
    }

    fn ends(&mut self, sites: &[Site<ModuleId>]) -> Vec<EndGroup<Arc<ModuleFacts>>> {
        let named = |group: EndGroup<ModuleId>| EndGroup {
            module: group.module.and_then(|module| self.module(module)),
            end: group.end,
            stacks: group.stacks,
            allocations: group.allocations,
            addresses: group.addresses,
        };
        by_module::ends(sites).into_iter().map(named).collect()
    }

    fn steps(&mut self, sites: &[Site<ModuleId>]) -> Vec<ModuleSteps<Arc<ModuleFacts>>> {
        let named = |steps: ModuleSteps<ModuleId>| ModuleSteps {
            module: steps.module.and_then(|module| self.module(module)),
            cfi: steps.cfi,
            fp: steps.fp,
        };
        by_module::steps(sites).into_iter().map(named).collect()
    }

    fn location(&mut self, pc: Avma, place: Option<Place<ModuleId>>) -> Location {
        Location {
            pc,
            place: place.and_then(|place| Some((self.module(place.module)?, place.svma))),
        }
    }

    fn module(&mut self, id: ModuleId) -> Option<Arc<ModuleFacts>> {
        if let Some(facts) = self.facts.get(&id) {
            return Some(Arc::clone(facts));
        }
        let module = self.modules.get(id)?;
        let build_id = module.build_id.as_ref().map(ToString::to_string);
        let facts = Arc::new(ModuleFacts {
            path: module.path.clone(),
            build_id,
            table: self.tables.facts(id),
        });
        self.facts.insert(id, Arc::clone(&facts));
        Some(facts)
    }

    fn names(&mut self, instance: u32, frame: &SiteFrame<ModuleId>) -> Arc<Symbolized> {
        let place = frame.place;
        let module = place.and_then(|Place { module, svma }| Some((self.modules.get(module)?, svma)));
        let Some((module, svma)) = module else {
            return outside_modules(self.perf_maps.get(&instance), frame.pc, frame.exact);
        };
        let object = CodeObject {
            key: module.id.index(),
            path: &module.path,
            bytes: module.bytes(),
        };
        self.symbolizer.symbolize(object, svma, frame.exact)
    }
}
