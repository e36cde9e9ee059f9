//! Texts, modules, names, frames and paths, each stored once and referred to by id.
//!
//! A path is a frame and the path of its caller: stacks that share their outer frames share their storage.
//! Ids belong to one dictionary; an [`Import`] translates those of another.

mod definitions;
mod helpers;
mod import;
mod kind;
mod view;

use std::sync::Arc;

use indexmap::{Equivalent, IndexSet};
use serde::{Deserialize, Serialize};
use unwind_tables::walk::FoundBy;

use self::helpers::Helpers;
use super::{Location, Module, Symbolized};
pub use definitions::{Definitions, Invalid, Limits, Sizes};
pub use import::{Import, Renumbering};
pub use kind::TextKind;
pub use view::{FrameRef, Frames, ModuleRef};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Id of the entry at `index`. All entries are in memory, so that there are fewer than 2³².
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }

            /// Index of the entry in its table, from 0.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

ids! {
    /// Id of a text in a [`Dictionary`].
    TextId
    /// Id of a module in a [`Dictionary`].
    ModuleId
    /// Id of the names of a code address in a [`Dictionary`].
    NamesId
    /// Id of a frame in a [`Dictionary`].
    FrameId
    /// Id of a path in a [`Dictionary`].
    PathId
}

/// Text and the kind of thing it names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Text {
    /// Kind of thing it names.
    pub kind: TextKind,
    /// The text itself.
    pub text: Arc<str>,
}

/// Lookup key for a [`Text`] that does not allocate. Must hash like it.
#[derive(Hash)]
struct TextKey<'a> {
    kind: TextKind,
    text: &'a str,
}

impl Equivalent<Text> for TextKey<'_> {
    fn equivalent(&self, other: &Text) -> bool {
        self.kind == other.kind && *self.text == *other.text
    }
}

/// Frame with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Raw return address.
    pub at: Location<ModuleId>,
    /// True if the address is the instruction itself, not the one behind a call.
    pub exact: bool,
    /// Method that found the frame.
    pub found_by: FoundBy,
    /// Id of the names of its address.
    pub names: NamesId,
}

/// Frame and its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// Innermost frame.
    pub frame: FrameId,
    /// Path of its caller; `None` for the outermost frame.
    pub caller: Option<PathId>,
}

/// Tables of everything that stacks refer to by id.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    texts: IndexSet<Text>,
    modules: IndexSet<Module<TextId>>,
    names: IndexSet<Symbolized<TextId>>,
    frames: IndexSet<Frame>,
    paths: IndexSet<Path>,
    /// Number of frames of each path, by its id.
    depths: Vec<u32>,
    helpers: Helpers,
    /// Total bytes of the texts read from a file.
    text_bytes: usize,
}

impl Dictionary {
    /// Adds a text unless it is known, and returns its id.
    pub fn add_text(&mut self, kind: TextKind, text: &str) -> TextId {
        let known = self.texts.get_index_of(&TextKey { kind, text });
        TextId::new(known.unwrap_or_else(|| {
            let text = Text {
                kind,
                text: text.into(),
            };
            self.texts.insert_full(text).0
        }))
    }

    /// Adds a module unless it is known, and returns its id.
    pub fn add_module(&mut self, module: &Module) -> ModuleId {
        let module = module.map(|kind, text| self.add_text(kind, text));
        ModuleId::new(self.modules.insert_full(module).0)
    }

    /// Adds the names of a code address unless they are known, and returns their id.
    pub fn add_names(&mut self, names: &Symbolized) -> NamesId {
        let names = names.map(|kind, text| self.add_text(kind, text));
        NamesId::new(self.names.insert_full(names).0)
    }

    /// Adds a frame unless it is known, and returns its id.
    pub fn add_frame(&mut self, frame: Frame) -> FrameId {
        FrameId::new(self.frames.insert_full(frame).0)
    }

    /// Adds a path unless it is known, and returns its id.
    pub fn add_path(&mut self, path: Path) -> PathId {
        let (index, is_new) = self.paths.insert_full(path);
        if is_new {
            self.note_path(path);
        }
        PathId::new(index)
    }

    /// Updates depths and helpers for an added path.
    fn note_path(&mut self, path: Path) {
        let callers = path.caller.map_or(0, |caller| self.depth(caller));
        self.depths.push(callers.saturating_add(1));
        let frame = &self.frames[path.frame.index()];
        let names = &self.names[frame.names.index()];
        let inlined = || names.inlined.iter().find_map(|inlined| inlined.symbol);
        let name = names.symbol.as_ref().map(|symbol| symbol.name).or_else(inlined);
        self.helpers.add(frame.at.place, name, path.caller);
    }

    /// Adds the path of these frames, innermost first; returns `None` if there are none.
    pub fn add_stack(&mut self, frames: impl DoubleEndedIterator<Item = FrameId>) -> Option<PathId> {
        frames
            .rev()
            .fold(None, |caller, frame| Some(self.add_path(Path { frame, caller })))
    }

    /// Number of frames of a path.
    pub fn depth(&self, path: PathId) -> u32 {
        self.depths.get(path.index()).copied().unwrap_or(0)
    }
}
