//! Identity of a site by its function names, which two runs can share in spite of different addresses, builds
//! and processes.
//!
//! Unlike a [`SiteId`](super::SiteId), a name stands for the whole function, inlined or not; direct recursion
//! counts as one call; suffixes that the compiler appended (`.part.0`) are removed, and so are the outermost
//! frames, of the C library and `_start`, which differ with its version.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;

use super::owner::{Interpreters, Served, is_plumbing, plumbing, served, with_file};
use super::printable::printable;
use super::{FrameId, FrameRef, StackRef};

/// Suffixes that compilers append to the names of a function's parts and copies.
const SUFFIXES: [&str; 7] = [
    " [clone ",
    ".part.",
    ".constprop.",
    ".isra.",
    ".cold",
    ".lto_priv.",
    ".llvm.",
];
/// Prefixes of modules whose outermost frames are the same for every program.
const START_MODULES: [&str; 5] = ["libc.so", "libc-2.", "libpthread", "ld-linux", "ld-musl"];
/// Functions of static programs that correspond to the outermost frames in [`START_MODULES`].
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

/// Ids in [`SiteNames`] of the allocator function, then of the functions from its caller outwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SiteName(Box<[u32]>);

/// Function names of sites, each stored once.
#[derive(Debug, Default)]
pub struct SiteNames {
    texts: IndexSet<String>,
    /// Functions seen only as part of an allocator, a runtime or a standard library.
    plumbing: HashSet<u32>,
}

impl SiteNames {
    /// Adds a site with these functions, the allocator function first.
    pub fn site<'a>(&mut self, functions: impl Iterator<Item = &'a str>) -> SiteName {
        SiteName(functions.map(|name| self.number(name)).collect())
    }

    /// Functions of a site, the allocator function first.
    pub fn functions<'a>(&'a self, site: &'a SiteName) -> impl Iterator<Item = &'a str> {
        let text = |&number: &u32| self.texts.get_index(number as usize).map_or("?", String::as_str);
        site.0.iter().map(text)
    }

    /// Callers of the allocator function; the flag is true for the user's own code.
    pub fn callers<'a>(&'a self, site: &'a SiteName) -> impl Iterator<Item = (&'a str, bool)> {
        let numbers = site.0.iter().skip(1);
        let callers = self.functions(site).skip(1).zip(numbers);
        callers.map(|(name, number)| (name, !self.plumbing.contains(number) && !is_plumbing(name)))
    }

    /// Id of a frame's function. It is plumbing as long as no function of the user has its name.
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
        // All names are in memory, so that there are fewer than 2³².
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

/// Names the sites of one report; computes the names of each frame once.
#[derive(Debug)]
pub struct SiteNamer<'n> {
    names: &'n mut SiteNames,
    /// Functions by frame, by whether that is a Python interpreter's, and by the part of it that is
    /// [`served`].
    of_frames: HashMap<(FrameId, bool, Served), Box<[u32]>>,
}

impl<'n> SiteNamer<'n> {
    /// Creates a namer for a report; frame ids of different reports must not be mixed.
    pub fn new(names: &'n mut SiteNames) -> Self {
        Self {
            names,
            of_frames: HashMap::new(),
        }
    }

    /// Names the site of a stack.
    pub fn site(&mut self, stack: StackRef<'_>) -> SiteName {
        let mut numbers = vec![self.names.number(&printable(stack.allocator()))];
        let interpreters = Interpreters::of(stack);
        for (frame, served) in without_start(stack).zip(served(stack)) {
            let is_interpreter = interpreters.contain(frame);
            let known = self.of_frames.entry((frame.id(), is_interpreter, served));
            let of_frame = known.or_insert_with(|| {
                let names = names_of(frame, served).into_iter();
                names
                    .map(|(name, is_plumbing)| self.names.number_of(&name, is_plumbing || is_interpreter))
                    .collect()
            });
            numbers.extend_from_slice(of_frame);
        }
        // `at` is 1 where the allocator function meets its caller, which stays even if both have the same
        // name.
        let mut at = 0;
        numbers.dedup_by(|next, last| {
            at += 1;
            at > 1 && next == last
        });
        SiteName(numbers.into())
    }
}

/// Names of a frame's functions, inlined ones first; the flag is true for plumbing. A frame without a name
/// gets its module in brackets.
fn names_of(frame: FrameRef<'_>, served: Served) -> Vec<(String, bool)> {
    let plumbing = plumbing(frame, served);
    let inlined = frame.inlined().zip(&plumbing);
    let inlined = inlined.filter_map(|(inlined, &is_plumbing)| Some((inlined.symbol?, is_plumbing)));
    let mut names: Vec<_> = inlined
        .map(|(name, is_plumbing)| (plain(name), is_plumbing))
        .collect();
    let own = match frame.function() {
        Some(name) if frame.is_python() => printable(&with_file(name, frame.file())),
        Some(name) => plain(name),
        None => match frame.module() {
            Some(module) => printable(&format!("[{}]", module.file_name())),
            None => "[unknown]".to_owned(),
        },
    };
    names.push((own, plumbing.last().copied().unwrap_or_default()));
    names
}

/// Removes the suffixes that compilers append.
pub fn plain(name: &str) -> String {
    // A suffix at the beginning is the whole name and stays.
    let cuts = SUFFIXES.iter().filter_map(|suffix| name.find(suffix));
    let end = cuts.filter(|&at| at > 0).min().unwrap_or(name.len());
    match name[..end].trim() {
        "" => "[unknown]".to_owned(),
        name => printable(name),
    }
}

/// Removes the outermost frames that every program begins with; keeps all if there are no others.
pub fn without_start(stack: StackRef<'_>) -> impl Iterator<Item = FrameRef<'_>> {
    let all = stack.frames().len();
    // The caller of `__libc_start_main` is `_start`, which may have no name.
    let called = all.checked_sub(2).and_then(|called| stack.frames().nth(called));
    let is_last_start =
        called.is_some_and(|frame| is_function(frame, |name| name.starts_with("__libc_start_main")));
    let max = all - usize::from(is_last_start);
    let frames = stack.frames().take(max).zip(1..);
    let own = frames.filter(|&(frame, _)| !is_start(frame)).last();
    stack.frames().take(own.map_or(max, |(_, number)| number))
}

fn is_function(frame: FrameRef<'_>, is: impl Fn(&str) -> bool) -> bool {
    frame.function().is_some_and(is)
}

fn is_start(frame: FrameRef<'_>) -> bool {
    if frame.is_python() {
        // Python functions can have any name.
        return false;
    }
    let module = frame.module().map(|module| module.file_name());
    let is_start_module =
        module.is_some_and(|name| START_MODULES.iter().any(|start| name.starts_with(start)));
    is_start_module || is_function(frame, |name| START_FUNCTIONS.contains(&name))
}
