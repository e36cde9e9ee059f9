//! Which stacks of two reports are the same.
//!
//! A site is an allocator function and the code that called it. Processes are taken together: those of two runs have
//! other ids. Frames are the same if
//!
//! * they are at the same address of the same build of a module. Builds are the same if their build-ids are; without
//!   build-ids, if path and unwind table are; and of the kernel, if its version is.
//! * Else, if their functions have the same names: the function that holds the address and what was inlined there count as
//!   frames of their own, since another build may inline others. All calls in one function are one then.
//! * Code without a name, in a module of which there is another build, is the same if its address is and the module's
//!   file name; outside modules only within one trace.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::{Dictionary, FrameRef, ModuleRef, RegionKind, StackRef};

/// What names a site in all reports: a hash of 128 bits, for which no two sites have been seen to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SiteId(u64, u64);

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

    /// The site of a stack.
    pub(super) fn site(&self, stack: StackRef<'_>) -> SiteId {
        let kernel = stack.report().kernel_release();
        let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
        for (hasher, salt) in hashers.iter_mut().zip(0_u8..) {
            salt.hash(hasher);
            (stack.allocator(), stack.kind.map(RegionKind::name)).hash(hasher);
            for frame in stack.frames() {
                self.hash_frame(frame, kernel, hasher);
            }
        }
        let [one, other] = hashers;
        SiteId(one.finish(), other.finish())
    }

    fn hash_frame(&self, frame: FrameRef<'_>, kernel: Option<&str>, hasher: &mut DefaultHasher) {
        let place = frame.place();
        let build = place.and_then(|place| Some((self.common(place.module, kernel)?, place.svma.get())));
        if let Some(place) = build {
            return (Part::Place, place).hash(hasher);
        }
        for name in frame.inlined().filter_map(|inlined| inlined.symbol) {
            (Part::Name, name).hash(hasher);
        }
        match (frame.function(), place) {
            (Some(name), _) => (Part::Name, name).hash(hasher),
            (None, Some(place)) => (Part::Nameless, place.module.file_name(), place.svma.get()).hash(hasher),
            (None, None) if self.same_trace => (Part::Pc, frame.pc().get()).hash(hasher),
            (None, None) => Part::Unknown.hash(hasher),
        }
    }
}

/// What a frame is known by.
#[derive(Hash)]
enum Part {
    Place,
    Name,
    Nameless,
    Pc,
    Unknown,
}
