//! Turns the probe sites that discovery chose into the probes that the kernel side attaches.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use unwind_tables::addr::{FileOffset, Svma};

use crate::allocator::usdt::{Argument, DEFAULT_DISTANCE};
use crate::allocator::{
    self, AllocFunction, Catalog, Discovery, Family, ProbeSite, Problem, Reason, ResultAt, Returns, Role,
    Selection, not_announced_counter, unseen,
};
use crate::allocator::{SiteCost, SizeAt, UsdtSite};
use crate::bpf::overhead::SlowShares;
use crate::bpf::{CallEnd, Cookie, Probe, ProbeRole, UsdtProbe};
use crate::process::{Mappings, Module, ModuleId, Modules, environment};

/// Probes in the functions of allocators, or USDT probes by which processes announce blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    pub(super) functions: Vec<Probe>,
    pub(super) usdt: Vec<UsdtProbe>,
}

/// Message for a process that announces nothing: what it lacks, with the remedy.
pub(super) const NO_ANNOUNCEMENT: &str = "no file that it has mapped has the USDT probes otel_memory:alloc and otel_memory:free; \
     --source uprobe traces the calls of its allocator";

/// Probes of each module that was examined; most have none.
#[derive(Debug, Default)]
pub(super) struct AllocatorProbes {
    by_module: HashMap<ModuleId, Probes>,
    /// Modules that are `libmemleak.so`, with the address of the counter of blocks that it could not
    /// announce.
    samplers: HashMap<ModuleId, Option<Svma>>,
    /// Files of CPython with a mimalloc in them that no process's environment has selected yet.
    pythons_with_lock: HashMap<ModuleId, PathBuf>,
    /// True if USDT probes are used instead of those in functions.
    are_announced: bool,
    /// Distance of the USDT probes in use, for providers that offer a choice.
    distance: u64,
    /// Places of the arguments of USDT probes, by number.
    places: Vec<Vec<Argument>>,
    catalog: Catalog,
    /// True if probes go to first instructions instead of the chosen sites.
    first_instructions: bool,
    slow: SlowSites,
    /// Set once a module has a function that is not probed.
    misses_some: bool,
}

/// Numbers of chosen sites that the kernel has to single-step.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowSites {
    /// Slow sites and all sites of each function that does not free, by function number.
    by_function: HashMap<usize, (u32, u32)>,
    /// Slow sites and all sites of the functions that free.
    frees: (u32, u32),
    /// True if there is a slow site, or a probe at a `ret`.
    pub(super) any: bool,
}

impl SlowSites {
    fn add(&mut self, site: &ProbeSite) {
        let is_slow = site.cost == SiteCost::SingleStepped;
        self.any |= is_slow || site.rets.is_some();
        let (slow, all) = match site.function.role {
            Role::Free => &mut self.frees,
            Role::Allocate | Role::Resize | Role::ResizeOrFree | Role::ResizeInPlace => {
                self.by_function.entry(site.number).or_default()
            }
        };
        *slow += u32::from(is_slow);
        *all += 1;
    }

    /// Shares of hits that are at slow sites, given the blocks recorded per function. Frees are not counted
    /// by function: each site has the same weight.
    pub(super) fn shares(&self, recorded: &[u64]) -> SlowShares {
        let share = |(slow, all): (u32, u32)| f64::from(slow) / f64::from(all.max(1));
        let (mut slow, mut sum) = (0.0, 0.0);
        for (&function, &sites) in &self.by_function {
            let blocks = recorded.get(function).map_or(0.0, |&blocks| blocks as f64);
            slow += share(sites) * blocks;
            sum += blocks;
        }
        SlowShares {
            allocations: if sum > 0.0 { slow / sum } else { 0.0 },
            frees: share(self.frees),
        }
    }
}

impl AllocatorProbes {
    pub(super) fn new(selection: Selection, first_instructions: bool) -> Self {
        Self {
            by_module: HashMap::new(),
            samplers: HashMap::new(),
            pythons_with_lock: HashMap::new(),
            are_announced: false,
            distance: DEFAULT_DISTANCE,
            places: Vec::new(),
            catalog: Catalog::new(selection),
            first_instructions,
            slow: SlowSites::default(),
            misses_some: false,
        }
    }

    /// Returns whether some functions that allocate are known not to be probed, or to be called past their
    /// probes.
    pub(super) fn misses_some(&self) -> bool {
        self.misses_some
    }

    /// Uses USDT probes instead of those in functions; of providers that offer a choice, those of `distance`.
    pub(super) fn use_announcements(&mut self, distance: u64) {
        self.are_announced = true;
        self.distance = distance;
        self.slow = SlowSites::default();
    }

    /// Changes the distance of the USDT probes that are used.
    pub(super) fn use_distance(&mut self, distance: u64) {
        self.distance = distance;
    }

    /// Distance of the USDT probes in use, for providers that offer a choice.
    pub(super) fn distance(&self) -> u64 {
        self.distance
    }

    pub(super) fn are_announced(&self) -> bool {
        self.are_announced
    }

    pub(super) fn slow_sites(&self) -> &SlowSites {
        &self.slow
    }

    /// Functions by the numbers in the probes' cookies.
    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Names of the probed functions, each once, in catalog order.
    pub(super) fn names(&self) -> Vec<&str> {
        let probes = self.by_module.values();
        let numbers: BTreeSet<usize> = match self.are_announced {
            true => probes
                .flat_map(|probes| &probes.usdt)
                .map(|probe| probe.function.into())
                .collect(),
            false => probes
                .flat_map(|probes| &probes.functions)
                .map(|probe| probe.cookie.function.into())
                .collect(),
        };
        let functions = numbers.into_iter().filter_map(|number| self.catalog.get(number));
        functions.map(|function| &*function.name).collect()
    }

    /// Probes of the modules in `wanted`; examines those that are new.
    pub(super) fn of(&mut self, wanted: &[ModuleId], modules: &Modules) -> Probes {
        let new: HashSet<_> = wanted
            .iter()
            .filter(|module| !self.by_module.contains_key(module))
            .collect();
        if !new.is_empty() {
            let found = self.examine(new.into_iter().filter_map(|&module| modules.get(module)), modules);
            if !self.are_announced {
                log_discovery(&found);
            }
        }
        let mut all = Probes::default();
        for probes in wanted.iter().filter_map(|module| self.by_module.get(module)) {
            match self.are_announced {
                true => all.usdt.extend(self.chosen(probes).cloned()),
                false => all.functions.extend_from_slice(&probes.functions),
            }
        }
        all
    }

    /// USDT probes of a module that are used.
    fn chosen<'a>(&self, probes: &'a Probes) -> impl Iterator<Item = &'a UsdtProbe> + use<'a> {
        let wanted = self.distance;
        let usdt = probes.usdt.iter();
        usdt.filter(move |probe| probe.distance.is_none_or(|distance| distance == wanted))
    }

    /// Examines `new` modules. Returns what was found in them.
    pub(super) fn examine<'a>(
        &mut self,
        new: impl Iterator<Item = &'a Module>,
        modules: &Modules,
    ) -> Discovery {
        let new: Vec<_> = new.collect();
        let discovery = allocator::discover(new.iter().copied(), &mut self.catalog);
        for module in &new {
            self.by_module.insert(module.id, Probes::default());
            if allocator::is_sampler(module) {
                self.samplers
                    .insert(module.id, not_announced_counter(module.bytes()));
            }
        }
        for site in &discovery.sites {
            let probes = self.by_module.entry(site.module).or_default();
            let offset = match self.first_instructions {
                true => site.offset.wrapping_sub(site.svma.offset_from(site.entry)),
                false => site.offset,
            };
            probes.functions.extend(probe(site, offset, modules));
            if !self.are_announced {
                self.slow.add(site);
            }
        }
        self.note_unseen(&new, &discovery);
        for problem in &discovery.problems {
            if let (Reason::PythonWithLock, Some(path)) = (&problem.reason, &problem.module) {
                let module = new.iter().find(|module| module.path == *path);
                self.pythons_with_lock
                    .extend(module.map(|module| (module.id, path.clone())));
            }
        }
        for site in &discovery.usdt {
            if let Some(places) = self.number_of(&site.arguments) {
                let probes = self.by_module.entry(site.module).or_default();
                probes.usdt.extend(usdt_probe(site, places, modules));
            }
        }
        discovery
    }

    /// Warns, once for each file, of a CPython that uses the mimalloc in it because this process's
    /// environment says so.
    pub(super) fn warn_of_environment(&mut self, pid: u32, mappings: &Mappings) {
        let modules = mappings.module_ids();
        let pythons: Vec<_> = { modules }
            .filter(|module| self.pythons_with_lock.contains_key(module))
            .collect();
        if pythons.is_empty() || !environment::has_python_use_mimalloc(pid) {
            return;
        }
        for module in pythons
            .into_iter()
            .filter_map(|module| self.pythons_with_lock.remove(&module))
        {
            let reason = Reason::PythonByMimalloc;
            tracing::warn!(
                "{}",
                Problem {
                    module: Some(module),
                    reason
                }
            );
        }
    }

    /// Notes whether some functions of the `new` modules allocate unseen.
    fn note_unseen(&mut self, new: &[&Module], discovery: &Discovery) {
        let is_of = |module: &Module, family: Option<Family>| {
            let mut sites = discovery.sites.iter().filter(|site| site.module == module.id);
            sites.any(|site| family.is_none_or(|family| site.function.family == family))
        };
        let all = self.by_module.values().flat_map(|probes| &probes.functions);
        let has_mimalloc = all.map(|probe| &probe.name).any(|name| name.starts_with("mi_"));
        self.misses_some |= discovery
            .problems
            .iter()
            .any(|problem| problem.reason.hides_blocks_of_others())
            || new.iter().any(|module| {
                let bytes = module.bytes();
                is_of(module, None) && !unseen::is_all_known(bytes, &self.catalog)
                    || has_mimalloc
                        && !is_of(module, Some(Family::Mimalloc))
                        && unseen::names_unknown_mimalloc(bytes, &self.catalog)
            });
    }

    /// Number by which the kernel side knows these places of arguments; `None` if there are too many.
    fn number_of(&mut self, arguments: &[Argument]) -> Option<u32> {
        let known = self.places.iter().position(|places| places == arguments);
        let number = known.unwrap_or(self.places.len());
        let number = u32::try_from(number)
            .ok()
            .filter(|&number| number < UsdtProbe::MAX_SITES);
        if known.is_none() && number.is_some() {
            self.places.push(arguments.to_vec());
        }
        number
    }

    /// Returns whether any of `probes` is in a function that allocates by itself, not by one of another file.
    pub(super) fn allocate(&self, probes: &[Probe]) -> bool {
        let mut functions = probes
            .iter()
            .filter_map(|probe| self.catalog.get(probe.cookie.function.into()));
        functions.any(|function| function.role.allocates() && !function.family.often_forwards())
    }

    /// Returns whether any of `modules` has something to probe.
    pub(super) fn any(&self, modules: impl Iterator<Item = ModuleId>) -> bool {
        modules
            .filter_map(|module| self.by_module.get(&module))
            .any(|probes| !probes.functions.is_empty())
    }

    /// Returns whether any of `modules` announces blocks.
    pub(super) fn any_announced(&self, mut modules: impl Iterator<Item = ModuleId>) -> bool {
        modules.any(|module| self.announces(module))
    }

    /// Returns whether a program calls an allocator in its own file, `program`, past the library that would
    /// announce blocks.
    pub(super) fn is_passed_by(
        &self,
        program: Option<ModuleId>,
        modules: impl Iterator<Item = ModuleId>,
    ) -> bool {
        let mut providers = modules.filter(|module| self.announces(*module)).peekable();
        let own = program.and_then(|program| self.by_module.get(&program));
        let has_malloc = own.is_some_and(|own| own.functions.iter().any(|probe| probe.name == "malloc"));
        has_malloc
            && providers.peek().is_some()
            && providers.all(|module| self.samplers.contains_key(&module))
    }

    /// Address of the counter of blocks that a `libmemleak.so` could not announce; `None` for other modules.
    pub(super) fn not_announced_counter(&self, module: ModuleId) -> Option<Svma> {
        self.samplers.get(&module).copied().flatten()
    }

    fn announces(&self, module: ModuleId) -> bool {
        self.by_module
            .get(&module)
            .is_some_and(|probes| !probes.usdt.is_empty())
    }

    /// Returns whether all providers in `modules` offer a choice of distances; `None` if there is no
    /// provider.
    pub(super) fn offers_distances(&self, modules: impl Iterator<Item = ModuleId>) -> Option<bool> {
        let providers = modules.filter_map(|module| self.by_module.get(&module));
        let mut providers = providers.filter(|probes| !probes.usdt.is_empty()).peekable();
        providers.peek()?;
        Some(providers.all(|probes| probes.usdt.iter().any(|probe| probe.distance.is_some())))
    }

    /// Number of probes that are used in all modules.
    pub(super) fn count(&self) -> usize {
        let count = |probes: &Probes| match self.are_announced {
            true => self.chosen(probes).count(),
            false => probes.functions.len(),
        };
        self.by_module.values().map(count).sum()
    }
}

/// Logs where the probes of functions are, which sites the kernel has to single-step, and what cannot be
/// probed.
pub(super) fn log_discovery(discovery: &Discovery) {
    // Problems without a module are skipped: what these modules lack may be in one that was examined before.
    for problem in discovery
        .problems
        .iter()
        .filter(|problem| problem.module.is_some())
    {
        match problem.reason.is_warning() {
            true => tracing::warn!("{problem}"),
            false if problem.reason == Reason::NeverFrees => tracing::info!("{problem}"),
            false => tracing::debug!("{problem}"),
        }
    }
    let list = |wanted: fn(&ProbeSite) -> bool| {
        let sites = discovery.sites.iter().filter(|site| wanted(site));
        sites.map(ProbeSite::place).collect::<Vec<_>>().join(", ")
    };
    let emulated = list(|site| site.cost == SiteCost::Emulated);
    let slow = list(|site| site.cost == SiteCost::SingleStepped);
    let by_ret = list(|site| site.rets.is_some());
    if !emulated.is_empty() {
        tracing::info!("probes at {emulated}");
    }
    if !slow.is_empty() {
        tracing::info!("slow probes, whose instruction the kernel must single-step, at {slow}");
    }
    if !by_ret.is_empty() {
        tracing::info!(
            "functions that can throw, or are given by --alloc, need a slow probe at each `ret`, some 15 µs \
             a call: {by_ret}"
        );
    }
}

/// Makes the probe of `site`, at `offset` in its file; `None` if its module has no file to probe.
fn probe(site: &ProbeSite, offset: FileOffset, modules: &Modules) -> Option<Probe> {
    let function = &site.function;
    let module = modules.get(site.module)?;
    let number = u8::try_from(site.number).ok()?;
    let cookie = cookie(number, site);
    Some(Probe {
        path: module.probe_path()?,
        file: file_name(module),
        offset,
        cookie,
        end: match &site.rets {
            Some(rets) => CallEnd::Rets(rets.clone()),
            None if function.role == Role::Free => CallEnd::Unseen,
            None => CallEnd::ReturnProbe,
        },
        name: function.name.to_string(),
    })
}

/// Makes the probe of a USDT `site` whose arguments have the number `places`; `None` if its module has no
/// file to probe.
fn usdt_probe(site: &UsdtSite, places: u32, modules: &Modules) -> Option<UsdtProbe> {
    let module = modules.get(site.module)?;
    Some(UsdtProbe {
        path: module.probe_path()?,
        file: file_name(module),
        offset: site.offset,
        nop10: site.nop10,
        semaphore: site.semaphore,
        function: u8::try_from(site.number).ok()?,
        frees: site.function.role == Role::Free,
        site: places,
        arguments: site.arguments.clone(),
        distance: site.distance,
        name: site.function.name.to_string(),
    })
}

/// Name of a module's file for messages.
fn file_name(module: &Module) -> String {
    match &module.build_id {
        Some(build_id) => format!("{} (build {build_id})", module.path.display()),
        None => module.path.display().to_string(),
    }
}

/// Message about something that the user requested and that is missing, with the remedy; `None` if nothing is
/// missing.
pub(super) fn missing_by_request<'a>(
    selection: &Selection,
    problems: &[Problem],
    modules: impl Iterator<Item = &'a Module>,
) -> Option<String> {
    let paths: Vec<_> = modules.map(|module| module.path.as_path()).collect();
    let names = || {
        let names = paths.iter().map(|path| path.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    for object in &selection.objects {
        let only = Selection {
            objects: vec![object.clone()],
            ..Selection::default()
        };
        if !paths.iter().any(|path| only.admits(path)) {
            return Some(format!(
                "no mapped object is called `{object}` (-O): there are {}",
                names()
            ));
        }
    }
    let is_given = |name: &str| selection.functions.iter().any(|function| function.name == name);
    problems.iter().find_map(|problem| {
        let Reason::NotFound(name) = &problem.reason else {
            return None;
        };
        let advice = || {
            format!(
                "no object that may be probed defines `{name}` (--alloc): give the symbol as `nm` shows it, without \
                 version; a stripped object has only its dynamic symbols (nm -D)"
            )
        };
        is_given(name).then(advice)
    })
}

fn cookie(function: u8, site: &ProbeSite) -> Cookie {
    let AllocFunction { role, shape, .. } = site.function;
    let (size, count) = match shape.size {
        SizeAt::Nowhere => (None, None),
        SizeAt::Argument(size) => (Some(size), None),
        SizeAt::Product(size, count) => (Some(size), Some(count)),
        SizeAt::Copied { string, length } => (Some(string), length),
    };
    let result = match shape.result {
        ResultAt::Nowhere | ResultAt::Returned => None,
        ResultAt::StoredThrough(argument) => Some(argument),
    };
    let role = match role {
        Role::Allocate => ProbeRole::Allocate,
        Role::Resize => ProbeRole::Resize,
        Role::ResizeOrFree => ProbeRole::ResizeOrFree,
        Role::ResizeInPlace => ProbeRole::ResizeInPlace,
        Role::Free => ProbeRole::Free,
    };
    Cookie {
        function,
        module: site.module.index(),
        role,
        size,
        copies_string: matches!(shape.size, SizeAt::Copied { .. }),
        count,
        block: shape.block,
        result,
        leaf: site.leaf,
        moves: site.function.returns == Returns::Anywhere,
        for_records: site.function.for_records,
    }
}
