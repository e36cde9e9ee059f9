//! The identity of a site by the names of its functions: what two runs have in common, whatever addresses, builds and
//! processes.
//!
//! Unlike a [`SiteId`](super::SiteId), a name stands for all of a function, inlined or not; a function that calls itself
//! stands once; what the compiler appended to a name (`.part.0`) is left out, and so are the outermost frames, of the C
//! library and of `_start`, which differ with its version.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;

use super::owner::{is_plumbing, plumbing};
use super::printable::printable;
use super::{FrameId, FrameRef, StackRef};

/// What compilers append to the names of a function's parts and copies.
const SUFFIXES: [&str; 7] = [
    " [clone ",
    ".part.",
    ".constprop.",
    ".isra.",
    ".cold",
    ".lto_priv.",
    ".llvm.",
];
/// Modules whose outermost frames are the same for every program.
const START_MODULES: [&str; 5] = ["libc.so", "libc-2.", "libpthread", "ld-linux", "ld-musl"];
/// The functions of static programs that do what these modules do for others.
const START_FUNCTIONS: [&str; 11] = [
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_start_main_impl",
    "__libc_start_main_stage2",
    "start_thread",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
];

/// A site: the allocator function, then functions from its caller outwards, each by its number in [`SiteNames`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SiteName(Box<[u32]>);

/// The names of functions that sites have.
#[derive(Debug, Default)]
pub struct SiteNames {
    texts: IndexSet<String>,
    /// Those that were seen only as functions of an allocator, a runtime or a standard library.
    plumbing: HashSet<u32>,
}

impl SiteNames {
    /// The site with these functions, the allocator function first.
    pub fn site<'a>(&mut self, functions: impl Iterator<Item = &'a str>) -> SiteName {
        SiteName(functions.map(|name| self.number(name)).collect())
    }

    /// The functions of a site, the allocator function first.
    pub fn functions<'a>(&'a self, site: &'a SiteName) -> impl Iterator<Item = &'a str> {
        let text = |&number: &u32| self.texts.get_index(number as usize).map_or("?", String::as_str);
        site.0.iter().map(text)
    }

    /// The callers of the allocator function, each with whether it is the user's own code.
    pub fn callers<'a>(&'a self, site: &'a SiteName) -> impl Iterator<Item = (&'a str, bool)> {
        let numbers = site.0.iter().skip(1);
        let callers = self.functions(site).skip(1).zip(numbers);
        callers.map(|(name, number)| (name, !self.plumbing.contains(number) && !is_plumbing(name)))
    }

    /// The number of a frame's function, which is plumbing as long as no user's function has its name.
    fn number_of(&mut self, name: &str, is_plumbing: bool) -> u32 {
        let known = self.texts.len();
        let number = self.number(name);
        match is_plumbing {
            true if number as usize == known => _ = self.plumbing.insert(number),
            true => {}
            false => _ = self.plumbing.remove(&number),
        }
        number
    }

    fn number(&mut self, name: &str) -> u32 {
        let known = self.texts.get_index_of(name);
        let number = known.unwrap_or_else(|| self.texts.insert_full(name.to_owned()).0);
        // There are fewer than 2³²: all are in memory.
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

/// Names the sites of one report. The names of a frame are worked out once.
#[derive(Debug)]
pub struct SiteNamer<'n> {
    names: &'n mut SiteNames,
    of_frames: HashMap<FrameId, Box<[u32]>>,
}

impl<'n> SiteNamer<'n> {
    /// For a report of which no site was named before.
    pub fn new(names: &'n mut SiteNames) -> Self {
        Self {
            names,
            of_frames: HashMap::new(),
        }
    }

    /// The site of a stack.
    pub fn site(&mut self, stack: StackRef<'_>) -> SiteName {
        let mut numbers = vec![self.names.number(&printable(stack.allocator()))];
        for frame in without_start(stack) {
            let known = self.of_frames.entry(frame.id());
            let of_frame = known.or_insert_with(|| {
                let names = names_of(frame).into_iter();
                names
                    .map(|(name, is_plumbing)| self.names.number_of(&name, is_plumbing))
                    .collect()
            });
            numbers.extend_from_slice(of_frame);
        }
        // The allocator function is no caller of itself.
        let mut at = 0;
        numbers.dedup_by(|next, last| {
            at += 1;
            at > 1 && next == last
        });
        SiteName(numbers.into())
    }
}

/// The names of a frame's functions, inlined ones first, each with whether it passes allocations on; the module in brackets
/// where there is no name.
fn names_of(frame: FrameRef<'_>) -> Vec<(String, bool)> {
    let plumbing = plumbing(frame);
    let inlined = frame.inlined().zip(&plumbing);
    let inlined = inlined.filter_map(|(inlined, &is_plumbing)| Some((inlined.symbol?, is_plumbing)));
    let mut names: Vec<_> = inlined
        .map(|(name, is_plumbing)| (plain(name), is_plumbing))
        .collect();
    let own = match frame.function() {
        Some(name) => plain(name),
        None => match frame.module() {
            Some(module) => printable(&format!("[{}]", module.file_name())),
            None => "[unknown]".to_owned(),
        },
    };
    names.push((own, plumbing.last().copied().unwrap_or_default()));
    names
}

/// A function's name without what compilers append to it.
pub fn plain(name: &str) -> String {
    // Not where a name begins: there it is all that the function is called.
    let cuts = SUFFIXES.iter().filter_map(|suffix| name.find(suffix));
    let end = cuts.filter(|&at| at > 0).min().unwrap_or(name.len());
    match name[..end].trim() {
        "" => "[unknown]".to_owned(),
        name => printable(name),
    }
}

/// Frames without those that every program begins with; all, if there are no others.
pub fn without_start(stack: StackRef<'_>) -> impl Iterator<Item = FrameRef<'_>> {
    let all = stack.frames().len();
    // The caller of `__libc_start_main` is `_start`, with or without its name.
    let called = all.checked_sub(2).and_then(|called| stack.frames().nth(called));
    let is_last_start =
        called.is_some_and(|frame| is_function(frame, |name| name.starts_with("__libc_start_main")));
    let most = all - usize::from(is_last_start);
    let frames = stack.frames().take(most).zip(1..);
    let own = frames.filter(|&(frame, _)| !is_start(frame)).last();
    stack.frames().take(own.map_or(most, |(_, number)| number))
}

fn is_function(frame: FrameRef<'_>, is: impl Fn(&str) -> bool) -> bool {
    frame.function().is_some_and(is)
}

fn is_start(frame: FrameRef<'_>) -> bool {
    let module = frame.module().map(|module| module.file_name());
    let is_start_module =
        module.is_some_and(|name| START_MODULES.iter().any(|start| name.starts_with(start)));
    is_start_module || is_function(frame, |name| START_FUNCTIONS.contains(&name))
}
