//! Examines what a trace of one process would find. Only reads the process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::cost;
use super::finding::{Finding, Level};
use super::modules::{self, ModuleFinding};
use super::runtime;
use crate::allocator::{self, Catalog, ProbeSite, Problem, Reason, SiteCost, UsdtSite, usdt};
use crate::process::{MappedCode, Mappings, Module, ModuleId, Modules, Target, Unreadable, environment};
use leak_report::model::TableFacts;
use leak_report::render::{counted, percent, printable, size};

/// Findings about one process.
#[derive(Clone, Debug)]
pub struct ProcessFindings {
    pub pid: u32,
    /// Name of the process; `None` if it cannot be traced.
    pub comm: Option<String>,
    /// Path of the executable.
    pub exe: Option<PathBuf>,
    /// Findings that are not about a single module or probe.
    pub general: Vec<Finding>,
    /// All modules that it has mapped.
    pub modules: Vec<ModuleFinding>,
    /// Sites where probes would be placed.
    pub sites: Vec<ProbeSite>,
    /// USDT probes by which it announces its allocations.
    pub announcements: Vec<UsdtSite>,
    /// Reasons why something would not be probed.
    pub problems: Vec<Problem>,
}

impl ProcessFindings {
    fn of(pid: u32, general: Vec<Finding>) -> Self {
        Self {
            pid,
            comm: None,
            exe: None,
            general,
            modules: Vec::new(),
            sites: Vec::new(),
            announcements: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Traces the process briefly, unless a finding is fatal, and adds a finding with the cost of each way to
    /// trace it.
    pub(super) fn measure(&mut self) {
        if self.findings().all(|finding| finding.level < Level::Fatal) {
            self.general.extend(cost::findings(self.pid));
        }
    }

    /// Returns everything as findings.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        let modules = self.modules.iter().map(ModuleFinding::finding);
        let sites = self.sites.iter().map(|site| self.site_finding(site));
        let problems = self.problems.iter().map(problem_finding);
        let general = self.general.iter().cloned();
        let announced = self.announced_finding();
        general
            .chain(modules)
            .chain(announced)
            .chain(sites)
            .chain(problems)
    }

    /// Finding that the process announces its allocations, which are then the default source.
    fn announced_finding(&self) -> Option<Finding> {
        let paths: BTreeSet<_> = self
            .announcements
            .iter()
            .map(|site| self.path(site.module))
            .collect();
        (!paths.is_empty()).then(|| {
            let paths = paths.into_iter().collect::<Vec<_>>().join(" and ");
            let text = format!(
                "{} and {} in {paths}: it samples and announces its allocations, which costs next to \
                 nothing; memleak uses these announcements by default",
                usdt::ALLOCATION,
                usdt::FREE
            );
            Finding::fine("announced", text).with_remedy("--source uprobe traces every call")
        })
    }

    /// Path of a module, printable; `?` if unknown.
    pub(super) fn path(&self, id: ModuleId) -> String {
        let module = self.modules.iter().find(|module| module.id == id);
        module.map_or_else(
            || "?".to_owned(),
            |module| printable(&module.path.to_string_lossy()),
        )
    }

    fn site_finding(&self, site: &ProbeSite) -> Finding {
        let text = |method| format!("{} in {}, {method}", site.place(), self.path(site.module));
        match (&site.rets, site.cost) {
            (Some(_), _) => Finding::note("probe", text("with a slow probe at each `ret`: it can throw")),
            (None, SiteCost::Emulated) => Finding::fine("probe", text("emulated")),
            (None, SiteCost::SingleStepped) => Finding::note("probe", text("single-stepped: slow")),
        }
    }
}

fn problem_finding(problem: &Problem) -> Finding {
    let text = problem.to_string();
    match problem.reason.is_warning() {
        // The reason names the remedy.
        true => Finding::warning("not_probed", text),
        false => Finding::note("not_probed", text),
    }
}

pub(super) fn examine(pid: u32) -> ProcessFindings {
    let target = match Target::open(pid) {
        Ok(target) => target,
        Err(error) => return ProcessFindings::of(pid, vec![Finding::fatal("process", error.to_string())]),
    };
    let mut modules = Modules::new();
    let mut findings = match target.read_mappings(&mut modules) {
        Ok(mappings) => examine_code(&target, &mappings, &modules),
        Err(error) => {
            let text = format!("cannot read its mappings: {error}");
            ProcessFindings::of(pid, vec![Finding::fatal("mappings", text)])
        }
    };
    findings.comm = Some(target.comm().to_owned());
    findings.exe = Some(target.exe().to_owned());
    findings
}

fn examine_code(target: &Target, mappings: &Mappings, modules: &Modules) -> ProcessFindings {
    let mut general = mapping_findings(mappings);
    let known: Vec<&Module> = modules.iter().collect();
    let mut discovery = allocator::discover(known.iter().copied(), &mut Catalog::default());
    let is_idle = |problem: &&mut Problem| problem.reason == Reason::PythonWithLock;
    for problem in discovery.problems.iter_mut().filter(is_idle) {
        if environment::has_python_use_mimalloc(target.pid()) {
            problem.reason = Reason::PythonByMimalloc;
        }
    }
    if discovery.sites.is_empty() && discovery.usdt.is_empty() {
        let reasons: Vec<_> = discovery.problems.iter().map(ToString::to_string).collect();
        general.push(Finding::fatal(
            "allocators",
            format!("nothing to probe: {}", reasons.join("; ")),
        ));
    }
    general.extend(runtime::finding(target, &known, mappings));
    let roots = [format!("/proc/{}/root", target.pid()), "/".to_owned()].map(PathBuf::from);
    let tables = modules::examine(&known, &roots);
    general.push(coverage_finding(&tables));
    ProcessFindings {
        modules: tables,
        sites: discovery.sites,
        announcements: discovery.usdt,
        problems: discovery.problems,
        ..ProcessFindings::of(target.pid(), general)
    }
}

/// Findings about code that belongs to no module, and about unreadable maps.
fn mapping_findings(mappings: &Mappings) -> Vec<Finding> {
    let mut anonymous = (0_u64, 0_u64);
    let mut trampoline = false;
    let mut unreadable: BTreeMap<String, u64> = BTreeMap::new();
    for entry in mappings.entries() {
        match &entry.code {
            MappedCode::Module { .. } => {}
            MappedCode::Generated { .. } => {
                anonymous.0 += 1;
                anonymous.1 += entry.range.end.offset_from(entry.range.start);
            }
            MappedCode::Trampoline => trampoline = true,
            MappedCode::Unreadable {
                why: Unreadable::KernelPage,
                ..
            } => {}
            MappedCode::Unreadable { why, .. } => *unreadable.entry(why.to_string()).or_default() += 1,
        }
    }
    let mut findings = vec![anonymous_finding(anonymous, mappings.jvm().keeps_frame_pointers)];
    findings.extend(unreadable.into_iter().map(|(why, count)| {
        let text = format!("{count} executable mappings have no ELF file that can be read: {why}");
        Finding::warning("unreadable", text).with_remedy("stacks end there")
    }));
    if trampoline {
        let text = "return probes are, or were, in use: by another tool or an earlier trace";
        let finding = Finding::note("return_probes", text);
        findings.push(
            finding.with_remedy("end other tools that trace it: stacks that meet their probes may end there"),
        );
    }
    if mappings.malformed_lines() > 0 {
        let text = format!("{} lines of its maps cannot be read", mappings.malformed_lines());
        findings.push(Finding::warning("mappings", text).with_remedy("stacks end in that code"));
    }
    findings
}

/// Sums up the CFI and the tables of all modules.
fn coverage_finding(modules: &[ModuleFinding]) -> Finding {
    let tables = || modules.iter().filter_map(|module| module.table.as_ref().ok());
    let sum = |part: fn(TableFacts) -> u64| {
        tables()
            .map(|table| part(table.facts))
            .fold(0, u64::saturating_add)
    };
    let code = sum(|facts| facts.code_bytes);
    let text = format!(
        "CFI for {} of {} of code in {}; tables take {}",
        percent(sum(|facts| facts.covered_bytes), code),
        size(code),
        counted(modules.len() as u64, "module"),
        size(sum(|facts| facts.table_bytes)),
    );
    Finding::fine("coverage", text)
}

fn anonymous_finding((mappings, bytes): (u64, u64), keeps_fp: bool) -> Finding {
    let all = || {
        format!(
            "{}, {}: code generated at run time",
            counted(mappings, "mapping"),
            size(bytes)
        )
    };
    match (mappings, keeps_fp) {
        (0, _) => Finding::fine("anonymous_code", "none: no code is generated at run time"),
        (_, true) => {
            let text = format!("{}, by a JVM that keeps frame pointers", all());
            Finding::fine("anonymous_code", text)
        }
        (_, false) => Finding::note("anonymous_code", all())
            .with_remedy("stacks can be unwound through it if the JIT compiler keeps frame pointers"),
    }
}
