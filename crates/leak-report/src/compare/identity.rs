//! Matches the sites of two reports.
//!
//! All processes are taken together, since their ids differ between runs. A site is identified by its exact
//! code ([`SiteId`]) if all of it is in builds that the reports have in common, or if the reports are of one
//! trace; otherwise by the names of its functions ([`SiteName`]), which merges all calls in one function,
//! because another build may inline other functions.
//!
//! Two builds are equal if their build-ids are; without build-ids, if path and unwind table are equal; for
//! the kernel, if the release is.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::site_name::{SiteName, SiteNamer, SiteNames};
use crate::model::{Dictionary, FrameRef, ModuleRef, RegionKind, Report, SiteId, StackRef};

/// Key of a site in all compared reports.
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

/// Identity of a module's build: a hash of what is known about it.
type Build = u64;

/// Modules of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// Dictionary that contains the modules.
    pub dictionary: &'a Dictionary,
    /// Kernel release, if the kernel was traced.
    pub kernel: Option<&'a str>,
}

/// Builds that all compared reports have in common.
#[derive(Clone, Debug, Default)]
pub struct Builds {
    common: HashSet<Build>,
    /// True if paths and addresses mean the same in all reports.
    same_trace: bool,
}

/// Identifies the build of a module; `None` if nothing distinguishes it from other builds at its path.
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
    /// Builds of reports of one trace, which have all builds in common.
    pub fn of_one_trace() -> Self {
        Self {
            common: HashSet::new(),
            same_trace: true,
        }
    }

    /// Intersects the builds of several traces.
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

    /// Returns whether the reports are of one trace.
    pub(super) fn same_trace(&self) -> bool {
        self.same_trace
    }

    /// Returns the build of a module if all reports have it.
    fn common(&self, module: ModuleRef<'_>, kernel: Option<&str>) -> Option<Build> {
        if self.same_trace {
            // Within one trace, path and build-id identify a build.
            let mut hasher = DefaultHasher::new();
            (module.path(), module.build_id()).hash(&mut hasher);
            return Some(hasher.finish());
        }
        build(module, kernel).filter(|build| self.common.contains(build))
    }

    /// Paths of modules that are in all of these traces, but not in the same build.
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

    /// Suspects of a report with their keys; adds function names to `names`.
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
