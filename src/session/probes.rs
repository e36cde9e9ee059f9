//! From the probe sites that discovery chose to the probes that the kernel side attaches.

use std::collections::{HashMap, HashSet};

use crate::allocator::{self, Discovery, FUNCTIONS, ProbeSite, ResultAt, Role, Shape, SiteCost, SizeAt};
use crate::bpf::{Cookie, Probe, ProbeRole};
use crate::target::{Module, ModuleId, Modules};

/// The probes of every module that was looked at; most have none.
#[derive(Debug, Default)]
pub(super) struct AllocatorProbes {
    by_module: HashMap<ModuleId, Vec<Probe>>,
}

impl AllocatorProbes {
    /// The probes of `wanted`, some of which may not have been looked at before.
    pub(super) fn of(&mut self, wanted: &[ModuleId], modules: &Modules) -> Vec<Probe> {
        let new: HashSet<_> = wanted
            .iter()
            .filter(|module| !self.by_module.contains_key(module))
            .collect();
        if !new.is_empty() {
            self.look_at(new.into_iter().filter_map(|&module| modules.get(module)), modules);
        }
        let known = wanted.iter().filter_map(|module| self.by_module.get(module));
        known.flatten().cloned().collect()
    }

    /// Looks at `new` modules. What is wrong with them is returned as text.
    pub(super) fn look_at<'a>(
        &mut self,
        new: impl Iterator<Item = &'a Module>,
        modules: &Modules,
    ) -> Vec<String> {
        let new: Vec<_> = new.collect();
        let discovery = allocator::discover(new.iter().copied());
        for module in new {
            self.by_module.insert(module.id, Vec::new());
        }
        for site in &discovery.sites {
            let probes = self.by_module.entry(site.module).or_default();
            probes.extend(probe(site, modules));
        }
        say(&discovery);
        discovery.problems.iter().map(ToString::to_string).collect()
    }

    /// Whether there is anything to probe in some of `modules`.
    pub(super) fn any(&self, modules: impl Iterator<Item = ModuleId>) -> bool {
        modules
            .filter_map(|module| self.by_module.get(&module))
            .any(|probes| !probes.is_empty())
    }

    /// Probes in all modules together.
    pub(super) fn count(&self) -> usize {
        self.by_module.values().map(Vec::len).sum()
    }
}

/// Says where each probe sits, and which of them the kernel has to single-step.
fn say(discovery: &Discovery) {
    // That something is in none of these modules means nothing: it can be in those that were looked at before.
    for problem in discovery
        .problems
        .iter()
        .filter(|problem| problem.module.is_some())
    {
        tracing::debug!("{problem}");
    }
    let place = |site: &ProbeSite| format!("{}+{:#x}", site.symbol, site.svma.offset_from(site.entry));
    let list = |cost| {
        let sites = discovery.sites.iter().filter(|site| site.cost == cost);
        sites.map(place).collect::<Vec<_>>().join(", ")
    };
    let [emulated, slow] = [SiteCost::Emulated, SiteCost::SingleStepped].map(list);
    if !emulated.is_empty() {
        tracing::info!("probes at {emulated}");
    }
    if !slow.is_empty() {
        tracing::info!("slow probes, whose instruction the kernel must single-step, at {slow}");
    }
}

/// The probe at `site`; `None` when its module has no file to probe.
fn probe(site: &ProbeSite, modules: &Modules) -> Option<Probe> {
    let function = FUNCTIONS.get(site.function)?;
    let module = modules.get(site.module)?;
    let number = u8::try_from(site.function).ok()?;
    let cookie = cookie(number, function.role, function.shape, function.name == "malloc");
    Some(Probe {
        path: module.probe_path()?,
        file: match &module.build_id {
            Some(build_id) => format!("{} (build {build_id})", module.path.display()),
            None => module.path.display().to_string(),
        },
        offset: site.offset,
        cookie,
        frees: function.role == Role::Free,
        name: site.symbol.clone(),
    })
}

fn cookie(function: u8, role: Role, shape: Shape, leaf: bool) -> Cookie {
    let (size, count) = match shape.size {
        SizeAt::Nowhere => (None, None),
        SizeAt::Argument(size) => (Some(size), None),
        SizeAt::Product(size, count) => (Some(size), Some(count)),
    };
    let result = match shape.result {
        ResultAt::Nowhere | ResultAt::Returned => None,
        ResultAt::StoredThrough(argument) => Some(argument),
    };
    let role = match role {
        Role::Allocate => ProbeRole::Allocate,
        Role::Resize => ProbeRole::Resize,
        Role::Free => ProbeRole::Free,
    };
    Cookie {
        function,
        role,
        size,
        count,
        block: shape.block,
        result,
        leaf,
    }
}
