//! The page's tables of texts, modules, frames and stacks. Each thing is in them once, and only if a site needs it; what it
//! would take in the file is known before.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::data::FrameRow;
use super::model::{Model, NONE, Node};
use super::visible::visible;
use crate::model::Symbolized;

// What things take in the file, at most: digits of what counts things in memory, addresses, brackets, commas.
/// A frame, without its names.
const FRAME_BYTES: usize = 80;
/// An inlined function.
const INLINED_BYTES: usize = 30;
/// A name that is exact, beside the short one.
const EXACT_BYTES: usize = 26;
const NODE_BYTES: usize = 20;
const MODULE_BYTES: usize = 16;

/// The tables in the making. Numbers of the model lead to those of the page.
pub(super) struct Tables<'a> {
    model: &'a Model,
    text_numbers: HashMap<String, u32>,
    exact_pairs: HashSet<(u32, u32)>,
    module_numbers: HashMap<u32, u32>,
    frame_numbers: HashMap<u32, u32>,
    node_numbers: HashMap<u32, u32>,
    /// The first is no text.
    pub(super) texts: Vec<String>,
    /// Numbers of abbreviated names, and of what these are exactly.
    pub(super) exact: Vec<(u32, u32)>,
    /// Path and build-id; the first is no module.
    pub(super) modules: Vec<(u32, String)>,
    pub(super) frames: Vec<FrameRow>,
    /// By node, the first of which is above all roots: its caller's node, and its frame.
    pub(super) callers: Vec<u32>,
    pub(super) node_frames: Vec<u32>,
}

impl<'a> Tables<'a> {
    /// With nothing in them.
    pub(super) fn new(model: &'a Model) -> Self {
        Self {
            model,
            text_numbers: HashMap::from([(String::new(), 0)]),
            exact_pairs: HashSet::new(),
            module_numbers: HashMap::from([(NONE, 0)]),
            frame_numbers: HashMap::new(),
            node_numbers: HashMap::from([(NONE, 0)]),
            texts: vec![String::new()],
            exact: Vec::new(),
            modules: vec![(0, String::new())],
            frames: Vec::new(),
            callers: vec![0],
            node_frames: vec![0],
        }
    }

    /// What it takes to have this text too.
    pub(super) fn text_cost(&self, text: &str) -> usize {
        match self.text_numbers.contains_key(text) {
            true => 0,
            false => printed_text(text),
        }
    }

    pub(super) fn text(&mut self, text: String) -> u32 {
        let next = number(self.texts.len());
        *self.text_numbers.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        })
    }

    /// What it takes to have this module of the model too.
    pub(super) fn module_cost(&self, module: u32) -> usize {
        match self.model.modules.get(module as usize) {
            Some(facts) if !self.module_numbers.contains_key(&module) => {
                let build_id = facts.build_id.as_deref().map(visible).unwrap_or_default();
                let path = visible(&facts.path.to_string_lossy());
                MODULE_BYTES + printed_text(&build_id) + self.text_cost(&path)
            }
            _ => 0,
        }
    }

    pub(super) fn module(&mut self, module: u32) -> u32 {
        if let Some(&known) = self.module_numbers.get(&module) {
            return known;
        }
        let Some(facts) = self.model.modules.get(module as usize) else {
            return 0;
        };
        let path = self.text(visible(&facts.path.to_string_lossy()));
        let build_id = facts.build_id.as_deref().map(visible).unwrap_or_default();
        let next = number(self.modules.len());
        self.modules.push((path, build_id));
        self.module_numbers.insert(module, next);
        next
    }

    /// What it takes to have the stack that ends in this node of the model too.
    pub(super) fn stack_cost(&self, node: u32) -> usize {
        let new = self.new_nodes(node);
        new.map(|(_, frame)| NODE_BYTES + self.frame_cost(frame)).sum()
    }

    /// The number of the stack's innermost node.
    pub(super) fn stack(&mut self, node: u32) -> u32 {
        let new: Vec<_> = self.new_nodes(node).collect();
        let outermost = new.last().and_then(|&(node, _)| self.model.nodes.key(node));
        let known = outermost.map_or(node, |node| node.caller);
        let mut caller = self.node_numbers.get(&known).copied().unwrap_or(0);
        for (node, frame) in new.into_iter().rev() {
            let frame = self.frame(frame);
            let next = number(self.callers.len());
            self.callers.push(caller);
            self.node_frames.push(frame);
            self.node_numbers.insert(node, next);
            caller = next;
        }
        caller
    }

    /// Nodes of a stack, innermost first, up to one that is in the tables; with their frames.
    fn new_nodes(&self, node: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let is_known = self.node_numbers.contains_key(&at);
            let &Node { caller, frame } = self.model.nodes.key(at).filter(|_| !is_known)?;
            Some((std::mem::replace(&mut at, caller), frame))
        })
    }

    fn frame_cost(&self, frame: u32) -> usize {
        let is_known = self.frame_numbers.contains_key(&frame);
        let Some(key) = self.model.frames.key(frame).filter(|_| !is_known) else {
            return 0;
        };
        let names = &self.model.names[frame as usize];
        let files: usize = files(names).map(|file| self.text_cost(&visible(file))).sum();
        let functions: usize = functions(names).map(|name| self.function_cost(name)).sum();
        let inlined = INLINED_BYTES * names.inlined.len();
        FRAME_BYTES + self.module_cost(key.module) + inlined + files + functions
    }

    fn frame(&mut self, frame: u32) -> u32 {
        if let Some(&known) = self.frame_numbers.get(&frame) {
            return known;
        }
        let model = self.model;
        let Some(key) = model.frames.key(frame) else {
            return 0;
        };
        let names = &model.names[frame as usize];
        let symbol = names.symbol.as_ref();
        let inlined = names.inlined.iter().map(|inlined| {
            [
                self.function(inlined.symbol.as_ref()),
                self.name(inlined.file.as_ref()),
                inlined.line.unwrap_or(0),
            ]
        });
        let inlined = inlined.collect();
        let row = FrameRow(
            self.module(key.module),
            format!("{:x}", key.address),
            key.found_by as u32,
            self.function(symbol.map(|symbol| &symbol.name)),
            symbol.and_then(|symbol| symbol.offset),
            self.name(names.file.as_ref()),
            names.line.unwrap_or(0),
            inlined,
        );
        let next = number(self.frames.len());
        self.frames.push(row);
        self.frame_numbers.insert(frame, next);
        next
    }

    /// What it takes to have this function's name too, in both forms.
    fn function_cost(&self, name: &str) -> usize {
        let cost = |name: &str| self.text_cost(&visible(name));
        match self.model.style.show(name) {
            Cow::Borrowed(name) => cost(name),
            Cow::Owned(short) => cost(&short) + cost(name) + EXACT_BYTES,
        }
    }

    /// A function's name as it is shown; if it is abbreviated, the exact one is in the tables too.
    fn function(&mut self, name: Option<&String>) -> u32 {
        let Some(name) = name else {
            return 0;
        };
        let Cow::Owned(short) = self.model.style.show(name) else {
            return self.text(visible(name));
        };
        let pair = (self.text(visible(&short)), self.text(visible(name)));
        if self.exact_pairs.insert(pair) {
            self.exact.push(pair);
        }
        pair.0
    }

    fn name(&mut self, name: Option<&String>) -> u32 {
        name.map_or(0, |name| self.text(visible(name)))
    }
}

/// All functions of a frame.
fn functions(names: &Symbolized) -> impl Iterator<Item = &String> {
    let own = names.symbol.iter().map(|symbol| &symbol.name);
    own.chain(names.inlined.iter().filter_map(|inlined| inlined.symbol.as_ref()))
}

/// All files of a frame.
fn files(names: &Symbolized) -> impl Iterator<Item = &String> {
    let inlined = names.inlined.iter();
    let inlined = inlined.filter_map(|inlined| inlined.file.as_ref());
    names.file.iter().chain(inlined)
}

/// Characters that a text takes in the file, with quotes and a comma.
pub(super) fn printed_text(text: &str) -> usize {
    let escaped = |character: char| match character {
        '"' | '\\' => 2,
        '<' => 6,
        other => other.len_utf8(),
    };
    text.chars().map(escaped).sum::<usize>() + 3
}

/// The number of the next of so many things, all of which are in memory.
pub(super) fn number(things: usize) -> u32 {
    u32::try_from(things).unwrap_or(u32::MAX)
}
