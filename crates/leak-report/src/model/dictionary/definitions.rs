//! Entries of a dictionary in pieces, as in a recording: each entry is in the piece of the report that first
//! refers to it.

use indexmap::IndexSet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Dictionary, Frame, ModuleId, Path, Text, TextId};
use crate::model::{BlockList, Module, Stack, Symbolized};

/// Entries added to a dictionary. Each table refers only to tables before it, and a path only to earlier
/// paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definitions {
    /// Texts, referred to by modules and names.
    pub texts: Vec<Text>,
    /// Modules, referred to by frames.
    pub modules: Vec<Module<TextId>>,
    /// Names of code addresses, referred to by frames.
    pub names: Vec<Symbolized<TextId>>,
    /// Frames, referred to by paths.
    pub frames: Vec<Frame>,
    /// Paths, each after the path of its caller.
    pub paths: Vec<Path>,
}

/// Number of entries in each table of a dictionary at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    texts: usize,
    modules: usize,
    names: usize,
    frames: usize,
    paths: usize,
}

/// Limits of a dictionary read from an untrusted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries per table.
    pub entries: usize,
    /// Maximum bytes of all texts together.
    pub text_bytes: usize,
    /// Maximum number of frames per path.
    pub depth: u32,
}

/// Reason why definitions are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Invalid {
    /// An id without an earlier entry.
    #[error("{0} number {1} is not defined")]
    Undefined(&'static str, usize),
    /// An entry that exists already, and so would not get the next id.
    #[error("a {0} is defined twice")]
    Repeated(&'static str),
    /// More entries, bytes or frames than the [`Limits`] allow.
    #[error("more {0} than can be recorded")]
    TooMany(&'static str),
}

impl Dictionary {
    /// Returns the current number of entries in each table.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            texts: self.texts.len(),
            modules: self.modules.len(),
            names: self.names.len(),
            frames: self.frames.len(),
            paths: self.paths.len(),
        }
    }

    /// Returns whether a file with all entries could be read within `limits`.
    pub fn is_within(&self, limits: Limits) -> bool {
        let Sizes {
            texts,
            modules,
            names,
            frames,
            paths,
        } = self.sizes();
        let text_bytes: usize = self.texts.iter().map(|text| text.text.len()).sum();
        let deepest = self.depths.iter().copied().max().unwrap_or(0);
        [texts, modules, names, frames, paths]
            .iter()
            .all(|&entries| entries <= limits.entries)
            && text_bytes <= limits.text_bytes
            && deepest <= limits.depth
    }

    /// Checks that everything a stack refers to is defined.
    ///
    /// # Errors
    ///
    /// An id has no entry.
    pub fn check(&self, stack: &Stack) -> Result<(), Invalid> {
        within(stack.allocator.index(), self.texts.len(), "text")?;
        let module = stack.end_at.and_then(|at| Some(at.place?.module));
        module.map_or(Ok(()), |module| self.check_module(module))?;
        let (texts, paths) = stack.held.as_ref().map(|held| held.ids()).unwrap_or_default();
        let of_makeup = stack.makeup.iter().flat_map(|makeup| makeup.ids());
        for text in texts.into_iter().chain(of_makeup) {
            within(text.index(), self.texts.len(), "text")?;
        }
        let paths = stack.path.into_iter().chain(paths);
        { paths }.try_for_each(|path| within(path.index(), self.paths.len(), "path"))
    }

    /// Checks that the classes of listed blocks are defined.
    ///
    /// # Errors
    ///
    /// An id has no entry.
    pub fn check_blocks(&self, blocks: &BlockList) -> Result<(), Invalid> {
        { blocks.ids() }.try_for_each(|text| within(text.index(), self.texts.len(), "text"))
    }

    /// Checks that a module is defined.
    ///
    /// # Errors
    ///
    /// The id has no entry.
    pub fn check_module(&self, module: ModuleId) -> Result<(), Invalid> {
        within(module.index(), self.modules.len(), "module")
    }

    /// Entries added since the tables had the sizes `before`, in pieces of about `bytes` in memory.
    pub fn added_since(&self, before: Sizes, bytes: usize) -> Vec<Definitions> {
        let mut pieces = Pieces {
            all: Vec::new(),
            room: 0,
            bytes,
        };
        for text in self.texts.iter().skip(before.texts) {
            pieces
                .with_room_for(size_of::<Text>() + text.text.len())
                .texts
                .push(text.clone());
        }
        for module in self.modules.iter().skip(before.modules) {
            let bytes = size_of_val(module) + size_of_val(&module.code[..]);
            pieces.with_room_for(bytes).modules.push(module.clone());
        }
        for names in self.names.iter().skip(before.names) {
            let bytes = size_of_val(names) + size_of_val(&names.inlined[..]);
            pieces.with_room_for(bytes).names.push(names.clone());
        }
        for frame in self.frames.iter().skip(before.frames) {
            pieces.with_room_for(size_of::<Frame>()).frames.push(*frame);
        }
        for path in self.paths.iter().skip(before.paths) {
            pieces.with_room_for(size_of::<Path>()).paths.push(*path);
        }
        pieces.all
    }

    /// Adds entries that a file defines.
    ///
    /// # Errors
    ///
    /// Entries that refer to undefined ones, are repeated, or exceed `limits`.
    pub fn define(&mut self, definitions: Definitions, limits: Limits) -> Result<(), Invalid> {
        for text in definitions.texts {
            self.text_bytes += text.text.len();
            if self.text_bytes > limits.text_bytes {
                return Err(Invalid::TooMany("texts"));
            }
            define(&mut self.texts, text, "text", limits)?;
        }
        for module in definitions.modules {
            self.check_texts(|check| _ = module.map(|_, &text| check(text)))?;
            define(&mut self.modules, module, "module", limits)?;
        }
        for names in definitions.names {
            self.check_texts(|check| _ = names.map(|_, &text| check(text)))?;
            define(&mut self.names, names, "name", limits)?;
        }
        for frame in definitions.frames {
            let modules = frame.at.place.map(|place| place.module.index());
            modules.map_or(Ok(()), |module| within(module, self.modules.len(), "module"))?;
            within(frame.names.index(), self.names.len(), "name")?;
            define(&mut self.frames, frame, "frame", limits)?;
        }
        for path in definitions.paths {
            self.define_path(path, limits)?;
        }
        Ok(())
    }

    /// Adds a path. Its caller must be defined already, so that paths have no cycles.
    fn define_path(&mut self, path: Path, limits: Limits) -> Result<(), Invalid> {
        within(path.frame.index(), self.frames.len(), "frame")?;
        let mut callers = 0;
        if let Some(caller) = path.caller {
            within(caller.index(), self.paths.len(), "path")?;
            callers = self.depth(caller);
        }
        if callers >= limits.depth {
            return Err(Invalid::TooMany("frames of one stack"));
        }
        define(&mut self.paths, path, "path", limits)?;
        self.note_path(path);
        Ok(())
    }

    /// Checks the texts that `all` passes to its argument.
    fn check_texts(&self, all: impl FnOnce(&mut dyn FnMut(TextId))) -> Result<(), Invalid> {
        let mut checked = Ok(());
        all(&mut |text| {
            if let Err(error) = within(text.index(), self.texts.len(), "text") {
                checked = Err(error);
            }
        });
        checked
    }
}

fn within(index: usize, entries: usize, name: &'static str) -> Result<(), Invalid> {
    if index < entries {
        Ok(())
    } else {
        Err(Invalid::Undefined(name, index))
    }
}

fn define<T: Eq + std::hash::Hash>(
    table: &mut IndexSet<T>,
    entry: T,
    name: &'static str,
    limits: Limits,
) -> Result<(), Invalid> {
    if table.len() >= limits.entries {
        return Err(Invalid::TooMany("definitions"));
    }
    if table.insert(entry) {
        Ok(())
    } else {
        Err(Invalid::Repeated(name))
    }
}

/// Definitions split into pieces of bounded size.
struct Pieces {
    all: Vec<Definitions>,
    /// Remaining bytes of the last piece.
    room: usize,
    bytes: usize,
}

impl Pieces {
    fn with_room_for(&mut self, bytes: usize) -> &mut Definitions {
        if self.all.is_empty() || bytes > self.room {
            self.room = self.bytes;
            self.all.push(Definitions::default());
        }
        self.room = self.room.saturating_sub(bytes);
        let last = self.all.len() - 1;
        &mut self.all[last]
    }
}
