//! Sites by the names of their functions: what two runs have in common, whatever addresses, builds and processes.
//!
//! Not `leak::Site`, whose stacks have the very same code. Here a name stands for all of a function, inlined or not; a
//! function that calls itself stands once; what the compiler appended to a name (`.part.0`) is left out, and so are the
//! outermost frames, of the C library and of `_start`, which differ with its version.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::model::Report;
use crate::model::{Estimate, FrameId, FrameRef, InstanceEnd, StackRef};
use crate::report::owner::{is_plumbing, plumbing};
use crate::report::printable;

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

/// A site: the allocator function, then functions from its caller outwards, each by its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(Box<[u32]>);

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    /// Those that were seen only as functions of an allocator, a runtime or a standard library.
    plumbing: HashSet<u32>,
}

impl Names {
    /// The key of a site whose names are known.
    pub(super) fn key<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Key {
        Key(names.map(|name| self.number(name)).collect())
    }

    /// The names of a site, the allocator function first.
    pub(super) fn of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a str> {
        let text = |&number: &u32| self.texts.get(number as usize).map_or("?", AsRef::as_ref);
        key.0.iter().map(text)
    }

    /// The callers of the allocator function, each with whether it is the user's own code.
    pub(super) fn callers<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a str, bool)> {
        let numbers = key.0.iter().skip(1);
        let callers = self.of(key).skip(1).zip(numbers);
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
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let (name, number): (Arc<str>, _) = (name.into(), self.texts.len());
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.texts.push(name.clone());
        self.numbers.insert(name, number);
        number
    }
}

/// The stacks of a report that are of one site, together.
#[derive(Clone, Debug)]
pub(super) struct Site<'a> {
    pub(super) key: Key,
    /// What they hold: what reports for people show.
    pub(super) held: Estimate,
    /// What of it processes hold that still run.
    pub(super) running: Estimate,
    /// The one that holds most.
    pub(super) stack: StackRef<'a>,
}

/// The stacks that count: those that can be leaks, but for what a program held when it executed another, which is nobody's.
pub(super) fn counted(report: &Report) -> impl Iterator<Item = StackRef<'_>> {
    let suspects = report.suspects();
    suspects.filter(|stack| stack.ended != Some(InstanceEnd::Execed))
}

/// The sites that hold something, in the order of their first stack.
pub(super) fn sites<'a>(report: &'a Report, names: &mut Names) -> Vec<Site<'a>> {
    let mut reader = KeyReader::new(names);
    let mut sites: Vec<Site<'a>> = Vec::new();
    let mut known: HashMap<Key, usize> = HashMap::new();
    for stack in counted(report) {
        let held = stack.shown_estimate();
        if held.amount.blocks == 0 {
            continue;
        }
        let running = match stack.ended {
            None => held,
            Some(_) => Estimate::default(),
        };
        let key = reader.key(stack);
        match known.get(&key).and_then(|&at| sites.get_mut(at)) {
            Some(site) => {
                site.held = site.held + held;
                site.running = site.running + running;
                if held.amount.bytes > site.stack.shown().bytes {
                    site.stack = stack;
                }
            }
            None => {
                known.insert(key.clone(), sites.len());
                sites.push(Site {
                    key,
                    held,
                    running,
                    stack,
                });
            }
        }
    }
    sites
}

/// Keys of the stacks of one report. The names of a frame are worked out once.
pub(super) struct KeyReader<'n> {
    names: &'n mut Names,
    of_frames: HashMap<FrameId, Box<[u32]>>,
}

impl<'n> KeyReader<'n> {
    pub(super) fn new(names: &'n mut Names) -> Self {
        Self {
            names,
            of_frames: HashMap::new(),
        }
    }

    pub(super) fn key(&mut self, stack: StackRef<'_>) -> Key {
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
        Key(numbers.into())
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
pub(super) fn plain(name: &str) -> String {
    // Not where a name begins: there it is all that the function is called.
    let cuts = SUFFIXES.iter().filter_map(|suffix| name.find(suffix));
    let end = cuts.filter(|&at| at > 0).min().unwrap_or(name.len());
    match name[..end].trim() {
        "" => "[unknown]".to_owned(),
        name => printable(name),
    }
}

/// Frames without those that every program begins with; all, if there are no others.
pub(super) fn without_start(stack: StackRef<'_>) -> impl Iterator<Item = FrameRef<'_>> {
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
