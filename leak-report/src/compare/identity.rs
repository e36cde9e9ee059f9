//! Matches the sites of two reports.
//!
//! Processes are taken together: those of two runs have other ids. A site is known by its very code ([`SiteId`]) where all of
//! that is in builds that the reports have in common, or where they are of one trace; else by the names of its functions
//! ([`SiteName`]): all calls in one function are one then, and another build may inline others.
//!
//! Builds are the same if their build-ids are; without build-ids, if path and unwind table are; and of the kernel, if its
//! version is.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::site_name::{SiteName, SiteNamer, SiteNames};
use crate::model::{Dictionary, FrameRef, ModuleRef, RegionKind, Report, SiteId, StackRef};

/// A site in all reports that are compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatchedSite {
    kind: Option<RegionKind>,
    code: Code,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Code {
    Exact(SiteId),
    Named(SiteName),
}

/// What tells builds of modules apart: a hash of what is known of one.
type Build = u64;

/// What is known of a trace's modules.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// What has the modules.
    pub dictionary: &'a Dictionary,
    /// The kernel's version, if it was traced.
    pub kernel: Option<&'a str>,
}

/// The builds that all reports to be compared have in common.
#[derive(Clone, Debug, Default)]
pub struct Builds {
    common: HashSet<Build>,
    /// Paths and addresses mean the same in all reports.
    same_trace: bool,
}

/// `None` if nothing tells it from others of its path.
fn build(module: ModuleRef<'_>, kernel: Option<&str>) -> Option<Build> {
    let mut hasher = DefaultHasher::new();
    match (module.build_id(), kernel, module.table) {
        (Some(id), _, _) => (0_u8, id).hash(&mut hasher),
        (None, Some(release), _) => (1_u8, release, module.path()).hash(&mut hasher),
        (None, None, Some(table)) => (2_u8, module.path(), table).hash(&mut hasher),
        (None, None, None) => return None,
    }
    Some(hasher.finish())
}

impl Builds {
    /// Those of reports of one trace.
    pub fn of_one_trace() -> Self {
        Self {
            common: HashSet::new(),
            same_trace: true,
        }
    }

    /// Those that all of these have.
    pub fn of_traces<'a>(traces: impl IntoIterator<Item = Trace<'a>>) -> Self {
        let of_trace = |trace: Trace<'_>| -> HashSet<Build> {
            let builds = trace.dictionary.modules();
            builds.filter_map(|module| build(module, trace.kernel)).collect()
        };
        let sets = traces.into_iter().map(of_trace);
        let common = sets.reduce(|common, other| &common & &other);
        Self {
            common: common.unwrap_or_default(),
            same_trace: false,
        }
    }

    /// Whether the reports are of one trace.
    pub(super) fn same_trace(&self) -> bool {
        self.same_trace
    }

    /// The build of a module that all have, if it is one.
    fn common(&self, module: ModuleRef<'_>, kernel: Option<&str>) -> Option<Build> {
        if self.same_trace {
            // A path is one build.
            let mut hasher = DefaultHasher::new();
            (module.path(), module.build_id()).hash(&mut hasher);
            return Some(hasher.finish());
        }
        build(module, kernel).filter(|build| self.common.contains(build))
    }

    /// Paths of modules of which these traces have different builds.
    pub fn rebuilt<'a>(&self, traces: &[Trace<'a>]) -> Vec<&'a str> {
        let Some((first, others)) = traces.split_first() else {
            return Vec::new();
        };
        let in_all = |path: &str| {
            let mut others = others.iter();
            others.all(|trace| trace.dictionary.modules().any(|module| module.path() == path))
        };
        let modules = first.dictionary.modules();
        let mut rebuilt: Vec<_> = modules
            .filter(|&module| self.common(module, first.kernel).is_none())
            .map(ModuleRef::path)
            .filter(|path| in_all(path))
            .collect();
        rebuilt.sort_unstable();
        rebuilt.dedup();
        rebuilt
    }

    /// The sites of a report's stacks, by names that `names` knows.
    pub(super) fn sites<'a, 'n>(
        &'n self,
        report: &'a Report,
        names: &'n mut SiteNames,
    ) -> impl Iterator<Item = (StackRef<'a>, MatchedSite)> {
        let kernel = report.kernel_release();
        let is_common = |module| self.common(module, kernel).is_some();
        let common: Vec<bool> = report.dictionary.modules().map(is_common).collect();
        let is_exact = move |frame: FrameRef<'_>| match frame.at.place {
            Some(place) => common.get(place.module.index()).copied().unwrap_or(false),
            None => self.same_trace,
        };
        let mut namer = SiteNamer::new(names);
        report.suspects().map(move |stack| {
            let code = match stack.frames().all(&is_exact) {
                true => Code::Exact(stack.site()),
                false => Code::Named(namer.site(stack)),
            };
            let kind = stack.kind;
            (stack, MatchedSite { kind, code })
        })
    }
}
