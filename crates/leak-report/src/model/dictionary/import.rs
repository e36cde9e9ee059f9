//! Translates the ids of one dictionary to those of another, which receives the requested entries.

use std::sync::Arc;

use super::{Dictionary, Frame, FrameId, ModuleId, NamesId, Path, PathId, Text, TextId};

/// Ids in the target dictionary of the entries of a source dictionary that were requested so far, by source
/// id.
#[derive(Clone, Debug, Default)]
pub struct Renumbering {
    texts: Vec<Option<TextId>>,
    modules: Vec<Option<ModuleId>>,
    names: Vec<Option<NamesId>>,
    frames: Vec<Option<FrameId>>,
    paths: Vec<Option<PathId>>,
}

/// Import of entries from one dictionary into another.
pub struct Import<'a> {
    from: &'a Dictionary,
    /// `None` if both dictionaries are the same.
    into: Option<&'a mut Dictionary>,
    known: Renumbering,
    rename: &'a dyn Fn(&Text) -> Option<Arc<str>>,
}

/// Entry of `known` for `index`; extends the vector if necessary.
fn entry<T: Copy>(known: &mut Vec<Option<T>>, index: usize) -> &mut Option<T> {
    if known.len() <= index {
        known.resize(index + 1, None);
    }
    &mut known[index]
}

impl<'a> Import<'a> {
    /// Imports from one dictionary into another. `known` are the results of earlier imports; texts for which
    /// `rename` returns `Some` are replaced.
    pub fn new(
        from: &'a Dictionary,
        into: &'a mut Dictionary,
        known: Renumbering,
        rename: &'a dyn Fn(&Text) -> Option<Arc<str>>,
    ) -> Self {
        Self {
            from,
            into: Some(into),
            known,
            rename,
        }
    }

    /// Imports into a dictionary that may be the same; an empty one becomes `from`, so that ids stay.
    pub fn merge(from: &'a Arc<Dictionary>, into: &'a mut Arc<Dictionary>) -> Self {
        if into.texts.is_empty() {
            *into = Arc::clone(from);
        }
        let is_same = Arc::ptr_eq(from, into);
        Self {
            from,
            into: (!is_same).then(|| Arc::make_mut(into)),
            known: Renumbering::default(),
            rename: &|_| None,
        }
    }

    /// Returns the ids requested so far, for [`Import::new`].
    pub fn into_known(self) -> Renumbering {
        self.known
    }

    /// Id of the text in the target.
    pub fn text(&mut self, text: TextId) -> TextId {
        let Some(into) = &mut self.into else {
            return text;
        };
        *entry(&mut self.known.texts, text.index()).get_or_insert_with(|| {
            let text = &self.from.texts[text.index()];
            let index = match ((self.rename)(text), into.texts.get_index_of(text)) {
                (None, Some(known)) => known,
                (None, None) => into.texts.insert_full(text.clone()).0,
                (Some(renamed), _) => {
                    let kind = text.kind;
                    into.texts.insert_full(Text { kind, text: renamed }).0
                }
            };
            TextId::new(index)
        })
    }

    /// Id of the module in the target.
    pub fn module(&mut self, module: ModuleId) -> ModuleId {
        let index = module.index();
        if let Some(known) = *entry(&mut self.known.modules, index) {
            return known;
        }
        let from = self.from;
        let imported = from.modules[index].map(|_, &text| self.text(text));
        let Some(into) = &mut self.into else {
            return module;
        };
        let number = ModuleId::new(into.modules.insert_full(imported).0);
        self.known.modules[index] = Some(number);
        number
    }

    fn names(&mut self, names: NamesId) -> NamesId {
        let index = names.index();
        if let Some(known) = *entry(&mut self.known.names, index) {
            return known;
        }
        let from = self.from;
        let imported = from.names[index].map(|_, &text| self.text(text));
        let Some(into) = &mut self.into else {
            return names;
        };
        let number = NamesId::new(into.names.insert_full(imported).0);
        self.known.names[index] = Some(number);
        number
    }

    fn frame(&mut self, frame: FrameId) -> FrameId {
        let index = frame.index();
        if let Some(known) = *entry(&mut self.known.frames, index) {
            return known;
        }
        let original = self.from.frames[index];
        let imported = Frame {
            at: original.at.map(|module| self.module(module)),
            names: self.names(original.names),
            ..original
        };
        let Some(into) = &mut self.into else {
            return frame;
        };
        let number = into.add_frame(imported);
        self.known.frames[index] = Some(number);
        number
    }

    /// Id of the path in the target.
    pub fn path(&mut self, path: PathId) -> PathId {
        if self.into.is_none() {
            return path;
        }
        // Iterative, since a path can be longer than our stack is deep.
        let mut new = Vec::new();
        let mut caller = None;
        let mut next = Some(path);
        while let Some(path) = next {
            caller = *entry(&mut self.known.paths, path.index());
            if caller.is_some() {
                break;
            }
            new.push(path);
            next = self.from.path(path).caller;
        }
        // Outermost first: a path needs the id of its caller.
        for path in new.into_iter().rev() {
            let frame = self.frame(self.from.path(path).frame);
            if let Some(into) = &mut self.into {
                caller = Some(into.add_path(Path { frame, caller }));
            }
            self.known.paths[path.index()] = caller;
        }
        caller.unwrap_or(path)
    }
}
