//! Texts, modules, names, frames and paths, each stored once and referred to by number.
//!
//! A path is a frame and the path of its caller: stacks that share their outer frames share their storage. Numbers are
//! of one dictionary only; an [`Import`] leads from those of another to its own.

mod definitions;
mod import;
mod view;

use std::sync::Arc;

use indexmap::{Equivalent, IndexSet};
use serde::{Deserialize, Serialize};
use unwind_tables::walk::FoundBy;

use super::{Location, Module, Symbolized};
pub use definitions::{Definitions, Invalid, Limits, Sizes};
pub use import::{Import, Renumbering};
pub use view::{FrameRef, Frames, ModuleRef};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The entry at `index`. There are fewer than 2³²: all are in memory.
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }

            /// The place of the entry in its table, from 0.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

ids! {
    /// A text of a [`Dictionary`].
    TextId
    /// A module of a [`Dictionary`].
    ModuleId
    /// The names of a code address in a [`Dictionary`].
    NamesId
    /// A frame of a [`Dictionary`].
    FrameId
    /// A path of a [`Dictionary`].
    PathId
}

/// The thing that a text names. `--anonymize` replaces texts by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    /// A function.
    Function,
    /// A source file.
    Source,
    /// A module's file, or a name in brackets for what is no file.
    File,
    /// A build, by its build-id in hexadecimal digits.
    BuildId,
    /// A function of an allocator, a mapping call, or an allocator of the kernel's.
    Allocator,
}

/// A text and what it names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Text {
    /// The thing that it names.
    pub kind: TextKind,
    /// The text.
    pub text: Arc<str>,
}

/// Finds a [`Text`] without making one. Hashes as that does.
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

/// One frame with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The raw return address.
    pub at: Location<ModuleId>,
    /// The address is the very instruction, not the one behind a call.
    pub exact: bool,
    /// How it was found.
    pub found_by: FoundBy,
    /// Its names.
    pub names: NamesId,
}

/// A frame and those that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// The innermost frame.
    pub frame: FrameId,
    /// The path of its caller; `None` for the outermost frame.
    pub caller: Option<PathId>,
}

/// Everything that stacks refer to by number.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    texts: IndexSet<Text>,
    modules: IndexSet<Module<TextId>>,
    names: IndexSet<Symbolized<TextId>>,
    frames: IndexSet<Frame>,
    paths: IndexSet<Path>,
    /// Frames of each path.
    depths: Vec<u32>,
    /// Bytes of the texts that were read from a file.
    text_bytes: usize,
}

impl Dictionary {
    /// The number of a text.
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

    /// The number of a module.
    pub fn add_module(&mut self, module: &Module) -> ModuleId {
        let module = module.map(|kind, text| self.add_text(kind, text));
        ModuleId::new(self.modules.insert_full(module).0)
    }

    /// The number of the names of a code address.
    pub fn add_names(&mut self, names: &Symbolized) -> NamesId {
        let names = names.map(|kind, text| self.add_text(kind, text));
        NamesId::new(self.names.insert_full(names).0)
    }

    /// The number of a frame.
    pub fn add_frame(&mut self, frame: Frame) -> FrameId {
        FrameId::new(self.frames.insert_full(frame).0)
    }

    /// The number of a path.
    pub fn add_path(&mut self, path: Path) -> PathId {
        let (index, is_new) = self.paths.insert_full(path);
        if is_new {
            let callers = path.caller.map_or(0, |caller| self.depth(caller));
            self.depths.push(callers.saturating_add(1));
        }
        PathId::new(index)
    }

    /// The number of the path of these frames, innermost first; `None` without frames.
    pub fn add_stack(&mut self, frames: impl DoubleEndedIterator<Item = FrameId>) -> Option<PathId> {
        frames
            .rev()
            .fold(None, |caller, frame| Some(self.add_path(Path { frame, caller })))
    }

    /// Frames of a path.
    pub fn depth(&self, path: PathId) -> u32 {
        self.depths.get(path.index()).copied().unwrap_or(0)
    }
}
