//! The page's tables of texts, modules, frames and stacks: the dictionary entries that a site needs, each
//! once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;

use super::data::FrameRow;
use super::visible::visible;
use crate::model::owner::with_file;
use crate::model::{Dictionary, FrameRef, ModuleRef, NameStyle, PathId};

/// The tables while they are built.
pub(super) struct Tables<'a> {
    dictionary: &'a Dictionary,
    style: NameStyle,
    exact_pairs: HashSet<(u32, u32)>,
    frame_numbers: HashMap<crate::model::FrameId, u32>,
    node_numbers: HashMap<PathId, u32>,
    /// The first entry stands for no text.
    pub(super) texts: IndexSet<String>,
    /// Numbers of an abbreviated name and of its exact name.
    pub(super) exact: Vec<(u32, u32)>,
    /// Path and build-id; the first entry stands for no module.
    pub(super) modules: IndexSet<(u32, String)>,
    pub(super) frames: Vec<FrameRow>,
    /// Node of the caller, and in `node_frames` the frame, by node; the first node is above all roots.
    pub(super) callers: Vec<u32>,
    pub(super) node_frames: Vec<u32>,
}

impl<'a> Tables<'a> {
    /// Empty tables.
    pub(super) fn new(dictionary: &'a Dictionary, style: NameStyle) -> Self {
        Self {
            dictionary,
            style,
            exact_pairs: HashSet::new(),
            frame_numbers: HashMap::new(),
            node_numbers: HashMap::new(),
            texts: IndexSet::from([String::new()]),
            exact: Vec::new(),
            modules: IndexSet::from([(0, String::new())]),
            frames: Vec::new(),
            callers: vec![0],
            node_frames: vec![0],
        }
    }

    /// Number of a text in its visible form; adds it if it is new.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        number(self.texts.insert_full(visible(text)).0)
    }

    /// Number of a text; 0 for none.
    fn text_if(&mut self, text: Option<&str>) -> u32 {
        text.map_or(0, |text| self.text(text))
    }

    /// Number of a module; 0 for none.
    pub(super) fn module(&mut self, module: Option<ModuleRef<'_>>) -> u32 {
        let Some(module) = module else {
            return 0;
        };
        let path = self.text(module.path());
        let build_id = module.build_id().map(visible).unwrap_or_default();
        number(self.modules.insert_full((path, build_id)).0)
    }

    /// Number of the entry that stands for all functions of Python.
    fn python(&mut self) -> u32 {
        let name = self.text("[python]");
        number(self.modules.insert_full((name, String::new())).0)
    }

    /// Number of a stack's innermost node; that of the node above all roots if it has no frames.
    pub(super) fn stack(&mut self, path: Option<PathId>) -> u32 {
        let mut new = Vec::new();
        let mut next = path;
        while let Some(path) = next.filter(|path| !self.node_numbers.contains_key(path)) {
            new.push(path);
            next = self.dictionary.path(path).caller;
        }
        let mut caller = next.map_or(0, |path| self.node_numbers[&path]);
        for path in new.into_iter().rev() {
            let frame = self.dictionary.path(path).frame;
            let frame = self.frame(self.dictionary.frame(frame));
            let node = number(self.callers.len());
            self.callers.push(caller);
            self.node_frames.push(frame);
            self.node_numbers.insert(path, node);
            caller = node;
        }
        caller
    }

    fn frame(&mut self, frame: FrameRef<'_>) -> u32 {
        if let Some(&known) = self.frame_numbers.get(&frame.id()) {
            return known;
        }
        let address = match frame.place() {
            Some(place) => place.svma.get(),
            None if frame.is_python() => 0,
            None => frame.pc().get(),
        };
        let module = match frame.is_python() {
            true => self.python(),
            false => self.module(frame.module()),
        };
        let inlined = frame.inlined().map(|inlined| {
            [
                self.function(inlined.symbol),
                self.text_if(inlined.file),
                inlined.line.unwrap_or(0),
            ]
        });
        let inlined = inlined.collect();
        let name = match frame.is_python() {
            true => frame.function().map(|name| with_file(name, frame.file())),
            false => frame.function().map(Cow::Borrowed),
        };
        let mark = frame.folded_mark();
        let name = name.map(|name| match &mark {
            Some(mark) => Cow::Owned(format!("{name}{mark}")),
            None => name,
        });
        let row = FrameRow {
            module,
            address: format!("{address:x}"),
            found_by: frame.found_by as u32,
            function: self.function(name.as_deref()),
            offset: frame.symbol().and_then(|symbol| symbol.offset),
            file: self.text_if(frame.file()),
            line: frame.line().unwrap_or(0),
            inlined,
        };
        let next = number(self.frames.len());
        self.frames.push(row);
        self.frame_numbers.insert(frame.id(), next);
        next
    }

    /// Number of a function's name as shown; if it is abbreviated, the exact name is added too.
    fn function(&mut self, name: Option<&str>) -> u32 {
        let Some(name) = name else {
            return 0;
        };
        let Cow::Owned(short) = self.style.show(name) else {
            return self.text(name);
        };
        let pair = (self.text(&short), self.text(name));
        if self.exact_pairs.insert(pair) {
            self.exact.push(pair);
        }
        pair.0
    }
}

/// Converts an index; all indexed items are in memory, so it fits.
pub(super) fn number(things: usize) -> u32 {
    u32::try_from(things).unwrap_or(u32::MAX)
}
